//! Commands that differ in a cluster, and the metrics.

use crate::node;

#[test]
fn there_is_one_database() {
    let node = node(1);
    let mut client = node.client();
    for (line, expected) in [
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR SELECT is not allowed in cluster mode\r\n"),
        ("MOVE a 1", "-ERR MOVE is not allowed in cluster mode\r\n"),
        ("SWAPDB 0 1", "-ERR SWAPDB is not allowed in cluster mode\r\n"),
        (
            "COPY {t}a {t}b DB 1",
            "-ERR Copying to another database is not allowed in cluster mode\r\n",
        ),
        ("SET {t}a 1", "+OK\r\n"),
        ("COPY {t}a {t}b DB 0", ":1\r\n"),
        ("GET {t}b", "$1\r\n1\r\n"),
        ("CLIENT ACK buffered", "+OK\r\n"),
        ("OBJECT ENCODING {t}a", "$3\r\nint\r\n"),
        ("TYPE {t}a", "+string\r\n"),
    ] {
        assert_eq!(client.line(line), expected, "{line}");
    }
    assert!(client.line("HELLO 2").contains("\r\ncluster\r\n"));
}

#[test]
fn the_store_of_the_node_holds_no_keys() {
    let node = node(2);
    let mut client = node.client();
    let before = node.server.db.visible();
    for line in [
        "SET a 1",
        "INCR a",
        "MSET {t}x 1 {t}y 2",
        "APPEND a 1",
        "SETRANGE a 3 x",
        "SETBIT {t}bits 7 1",
        "GETEX a EX 100",
        "EXPIRE a 50",
        "PERSIST a",
        "GETSET a 5",
        "INCRBYFLOAT a 1.5",
        "GETDEL a",
        "PSETEX a 100000 1",
        "RENAME {t}x {t}z",
        "UNLINK {t}z",
        "BITFIELD {t}f SET u8 0 1",
        "FLUSHALL",
    ] {
        let reply = client.line(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    assert_eq!(node.server.db.visible(), before);
    assert_eq!(node.fake.checked_counts(), (0, 0));
}
