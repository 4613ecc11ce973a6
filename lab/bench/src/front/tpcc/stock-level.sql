\set w random(1, :warehouses)
\set d random(1, 10)
\set threshold random(10, 20)
SELECT count(DISTINCT s_i_id) FROM district
    JOIN order_line ON ol_w_id = d_w_id AND ol_d_id = d_id AND ol_o_id >= d_next_o_id - 20 AND ol_o_id < d_next_o_id
    JOIN stock ON s_w_id = d_w_id AND s_i_id = ol_i_id
    WHERE d_w_id = :w AND d_id = :d AND s_quantity < :threshold;
