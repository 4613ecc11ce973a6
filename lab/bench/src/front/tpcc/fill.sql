-- Text of about n characters that says nothing and differs from row to row.
CREATE FUNCTION filler(seed bigint, n int) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT left(repeat(md5(seed::text), n / 32 + 1), n) $$;

INSERT INTO item
    SELECT i, i % 10000 + 1, filler(i, 14 + i % 11), 1 + i * 31 % 9900 / 100.0, filler(i + 1, 26 + i % 25)
    FROM generate_series(1, 100000) i;
INSERT INTO warehouse
    SELECT w, 'W' || w, filler(w, 40), filler(w, 15), 'CA', '123411111', w * 7 % 20 / 100.0, 300000
    FROM generate_series(1, :warehouses) w;
INSERT INTO district
    SELECT w, d, 'D' || d, filler(d, 40), filler(d, 15), 'CA', '123411111', d * 3 % 20 / 100.0, 30000, 3001
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d;
INSERT INTO stock
    SELECT w, i, 10 + (w * 17 + i * 13) % 91, (SELECT array_agg(filler(i + d, 24)) FROM generate_series(1, 10) d),
        0, 0, 0, filler(i + w, 26 + i % 25)
    FROM generate_series(1, :warehouses) w, generate_series(1, 100000) i;
-- Each of the 1,000 last names is there three times in a district.
INSERT INTO customer
    SELECT w, d, c, filler(c * 10 + d, 8 + c % 9), 'OE', 'NAME' || (c - 1) % 1000,
        filler(c, 40), filler(c, 15), 'CA', '123411111', filler(c, 16), now(),
        CASE WHEN c % 10 = 0 THEN 'BC' ELSE 'GC' END, 50000, c % 50 / 100.0, -10, 10, 1, 0, filler(c + d, 300 + c % 201)
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) c;
INSERT INTO history
    SELECT c, d, w, d, w, now(), 10, filler(c, 12 + c % 13)
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) c;
-- 7919 shares no factor with 3000: each customer has one order.
INSERT INTO orders
    SELECT w, d, o, o * 7919 % 3000 + 1, now(), CASE WHEN o <= 2100 THEN o % 10 + 1 END, 5 + o % 11, 1
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) o;
INSERT INTO new_order
    SELECT o_w_id, o_d_id, o_id FROM orders WHERE o_carrier_id IS NULL;
INSERT INTO order_line
    SELECT o_w_id, o_d_id, o_id, l, (o_id * 37 + l * 6151 + o_d_id) % 100000 + 1, o_w_id,
        CASE WHEN o_carrier_id IS NOT NULL THEN now() END, 5, CASE WHEN o_carrier_id IS NOT NULL THEN 0 ELSE l * 7.5 END,
        filler(o_id + l, 24)
    FROM orders, LATERAL generate_series(1, o_ol_cnt) l;

ALTER TABLE item ADD PRIMARY KEY (i_id);
ALTER TABLE warehouse ADD PRIMARY KEY (w_id);
ALTER TABLE district ADD PRIMARY KEY (d_w_id, d_id);
ALTER TABLE customer ADD PRIMARY KEY (c_w_id, c_d_id, c_id);
ALTER TABLE stock ADD PRIMARY KEY (s_w_id, s_i_id);
ALTER TABLE orders ADD PRIMARY KEY (o_w_id, o_d_id, o_id);
ALTER TABLE new_order ADD PRIMARY KEY (no_w_id, no_d_id, no_o_id);
ALTER TABLE order_line ADD PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number);
CREATE INDEX customer_name ON customer (c_w_id, c_d_id, c_last, c_first);
CREATE INDEX orders_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
VACUUM ANALYZE;
