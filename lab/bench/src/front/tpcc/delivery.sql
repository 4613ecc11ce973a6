\set w random(1, :warehouses)
\set carrier random(1, 10)
-- The oldest order of each district that is not delivered; another delivery's are passed over.
WITH oldest AS (
    SELECT d, no_o_id FROM generate_series(1, 10) d, LATERAL (
        SELECT no_o_id FROM new_order WHERE no_w_id = :w AND no_d_id = d
            ORDER BY no_o_id LIMIT 1 FOR UPDATE SKIP LOCKED) first
), taken AS (
    DELETE FROM new_order n USING oldest WHERE no_w_id = :w AND no_d_id = d AND n.no_o_id = oldest.no_o_id
), carried AS (
    UPDATE orders SET o_carrier_id = :carrier FROM oldest
        WHERE o_w_id = :w AND o_d_id = d AND o_id = no_o_id RETURNING o_d_id, o_c_id
), delivered AS (
    UPDATE order_line SET ol_delivery_d = now() FROM oldest
        WHERE ol_w_id = :w AND ol_d_id = d AND ol_o_id = no_o_id RETURNING ol_d_id, ol_amount
), owed AS (
    SELECT o_d_id, o_c_id, sum(ol_amount) AS amount FROM carried JOIN delivered ON ol_d_id = o_d_id GROUP BY o_d_id, o_c_id
)
UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1 FROM owed
    WHERE c_w_id = :w AND c_d_id = o_d_id AND c_id = o_c_id;
