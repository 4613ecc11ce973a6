\set w random(1, :warehouses)
\set d random(1, 10)
\set by_name random(1, 100)
\set name ((random(0, 255) | random(0, 999)) + 123) % 1000
\set c ((random(0, 1023) | random(1, 3000)) + 259) % 3000 + 1
BEGIN;
\if :by_name <= 60
SELECT (array_agg(c_id ORDER BY c_first))[(count(*) + 1) / 2] AS c FROM customer
    WHERE c_w_id = :w AND c_d_id = :d AND c_last = 'NAME' || :name \gset
\endif
SELECT c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
SELECT max(o_id) AS o FROM orders WHERE o_w_id = :w AND o_d_id = :d AND o_c_id = :c \gset
SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line
    WHERE ol_w_id = :w AND ol_d_id = :d AND ol_o_id = :o;
COMMIT;
