\set w random(1, :warehouses)
\set d random(1, 10)
\set c ((random(0, 1023) | random(1, 3000)) + 259) % 3000 + 1
\set lines random(5, 15)
\set wrong random(1, 100)
\set i1 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i2 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i3 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i4 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i5 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i6 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i7 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i8 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i9 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i10 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i11 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i12 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i13 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i14 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
\set i15 ((random(0, 8191) | random(1, 100000)) + 7911) % 100000 + 1
BEGIN;
SELECT w_tax, c_discount, c_last, c_credit FROM warehouse, customer
    WHERE w_id = :w AND c_w_id = :w AND c_d_id = :d AND c_id = :c;
UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = :w AND d_id = :d
    RETURNING d_next_o_id - 1 AS o \gset
INSERT INTO orders VALUES (:w, :d, :o, :c, now(), NULL, :lines, 1);
INSERT INTO new_order VALUES (:w, :d, :o);
-- In the order of the items, so that no two orders wait for each other.
SELECT s_i_id, s_quantity FROM stock
    WHERE s_w_id = :w AND s_i_id = ANY ((ARRAY[:i1, :i2, :i3, :i4, :i5, :i6, :i7, :i8, :i9, :i10, :i11, :i12, :i13, :i14, :i15])[1 : :lines])
    ORDER BY s_i_id FOR UPDATE;
UPDATE stock SET s_quantity = CASE WHEN s_quantity >= 15 THEN s_quantity - 5 ELSE s_quantity + 86 END,
        s_ytd = s_ytd + 5, s_order_cnt = s_order_cnt + 1
    WHERE s_w_id = :w AND s_i_id = ANY ((ARRAY[:i1, :i2, :i3, :i4, :i5, :i6, :i7, :i8, :i9, :i10, :i11, :i12, :i13, :i14, :i15])[1 : :lines]);
INSERT INTO order_line
    SELECT :w, :d, :o, number, i_id, :w, NULL, 5, 5 * i_price, s_dist[:d]
    FROM unnest((ARRAY[:i1, :i2, :i3, :i4, :i5, :i6, :i7, :i8, :i9, :i10, :i11, :i12, :i13, :i14, :i15])[1 : :lines]) WITH ORDINALITY AS line (chosen, number)
    JOIN item ON i_id = chosen JOIN stock ON s_w_id = :w AND s_i_id = chosen;
\if :wrong = 1
ROLLBACK;
\else
COMMIT;
\endif
