CREATE TABLE item (i_id int, i_im_id int, i_name text, i_price numeric(5, 2), i_data text);
CREATE TABLE warehouse (w_id int, w_name text, w_street text, w_city text, w_state text, w_zip text,
    w_tax numeric(4, 4), w_ytd numeric(14, 2));
CREATE TABLE district (d_w_id int, d_id int, d_name text, d_street text, d_city text, d_state text, d_zip text,
    d_tax numeric(4, 4), d_ytd numeric(14, 2), d_next_o_id int);
CREATE TABLE customer (c_w_id int, c_d_id int, c_id int, c_first text, c_middle text, c_last text,
    c_street text, c_city text, c_state text, c_zip text, c_phone text, c_since timestamptz, c_credit text,
    c_credit_lim numeric(12, 2), c_discount numeric(4, 4), c_balance numeric(12, 2), c_ytd_payment numeric(12, 2),
    c_payment_cnt int, c_delivery_cnt int, c_data text);
CREATE TABLE history (h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date timestamptz,
    h_amount numeric(8, 2), h_data text);
CREATE TABLE stock (s_w_id int, s_i_id int, s_quantity int, s_dist text[], s_ytd int, s_order_cnt int,
    s_remote_cnt int, s_data text);
CREATE TABLE orders (o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamptz, o_carrier_id int,
    o_ol_cnt int, o_all_local int);
CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int);
CREATE TABLE order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int,
    ol_delivery_d timestamptz, ol_quantity int, ol_amount numeric(8, 2), ol_dist_info text);
