//! Connections over TLS: what they carry, and how they end.

use collie_server::AuthClients;

use crate::client::{Secure, VERSIONS};
use crate::serve;
use crate::support::{Client, PATIENCE, command, field, wait_for};

const LARGE: usize = 8 << 20;

/// Bytes that do not compress, repeat or look like a protocol.
fn value(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

#[test]
fn plain_and_tls_serve_the_same_keys_and_say_what_they_are() {
    let served = serve(AuthClients::No, |_| {});
    let mut plain = served.running.client();
    for (n, versions) in VERSIONS.iter().enumerate() {
        let mut secure = Secure::connect(served.tls, &served.trust().speaking(versions)).unwrap();
        assert_eq!(secure.line(&format!("SET k {n}")), "+OK\r\n");
        assert_eq!(plain.line("GET k"), format!("$1\r\n{n}\r\n"));
        assert!(secure.line("HELLO 3").starts_with("%7\r\n"));
        assert!(
            secure
                .line("CLIENT INFO")
                .contains(&format!("laddr={}", served.tls))
        );
    }
    let port = served.tls.port().to_string();
    let file = |name: &str| served.dir.path().join(name).display().to_string();
    for (name, expected) in [
        ("port", served.running.addr.port().to_string()),
        ("tls-port", port),
        ("tls-cert-file", file("server.pem")),
        ("tls-key-file", file("server.key")),
        ("tls-ca-cert-file", file("ca.pem")),
        ("tls-auth-clients", "no".to_owned()),
    ] {
        let reply = plain.line(&format!("CONFIG GET {name}"));
        assert_eq!(
            reply,
            format!(
                "*2\r\n${}\r\n{name}\r\n${}\r\n{expected}\r\n",
                name.len(),
                expected.len()
            )
        );
    }
    assert!(plain.line("CONFIG GET tls-*").starts_with("*10\r\n"));
    assert!(
        plain
            .line("CONFIG SET tls-port 1")
            .contains("can't set immutable config")
    );
}

#[test]
fn a_server_without_plain_port_has_port_0() {
    let served = serve(AuthClients::No, |config| config.plain = false);
    assert_eq!(served.running.addr, served.tls);
    let mut secure = served.client();
    assert_eq!(secure.line("CONFIG GET port"), "*2\r\n$4\r\nport\r\n$1\r\n0\r\n");
    assert!(
        secure
            .line("INFO server")
            .contains(&format!("tcp_port:{}\r\n", served.tls.port()))
    );
    let dir = tempfile::tempdir().unwrap();
    let plain = crate::support::start(dir.path(), crate::support::config());
    let mut client = plain.client();
    assert_eq!(
        client.line("CONFIG GET tls-port"),
        "*2\r\n$8\r\ntls-port\r\n$1\r\n0\r\n"
    );
    assert_eq!(
        client.line("CONFIG GET tls-cert-file"),
        "*2\r\n$13\r\ntls-cert-file\r\n$0\r\n\r\n"
    );
    assert!(
        client
            .line("CONFIG SET tls-cert-file /x")
            .contains("this server does not listen for TLS: start it with tls-port")
    );
}

#[test]
fn a_pipeline_of_10_000_commands_is_answered_in_order() {
    let served = serve(AuthClients::No, |_| {});
    let mut client = served.client();
    let mut bytes = Vec::new();
    for i in 0..5_000 {
        bytes.extend_from_slice(&command(&["SET", &format!("k{i}"), &format!("{i}")]));
        bytes.extend_from_slice(&command(&["GET", &format!("k{i}")]));
    }
    client.send(&bytes);
    for i in 0..5_000_u32 {
        assert_eq!(client.reply(), b"+OK\r\n");
        assert_eq!(client.reply(), bulk(i.to_string().as_bytes()));
    }
}

/// The last bytes of a pipeline are decrypted with those before them, and the socket has none any
/// more: of all lengths some end so that they do not fit into the buffer of requests.
#[test]
fn a_pipeline_of_any_length_is_answered_to_its_last_command() {
    let served = serve(AuthClients::No, |_| {});
    let mut client = served.client();
    for round in 0..200 {
        let total = 130_000 + round * 97;
        let (mut bytes, mut count) = (Vec::new(), 0);
        let payload = "x".repeat(70);
        while bytes.len() < total {
            bytes.extend_from_slice(&command(&["ECHO", &payload]));
            count += 1;
        }
        client.send(&bytes);
        for _ in 0..count {
            assert_eq!(client.reply(), bulk(payload.as_bytes()), "round {round}");
        }
    }
}

#[test]
fn values_of_8_mb_go_both_ways_also_where_the_client_reads_late() {
    for versions in &VERSIONS {
        let served = serve(AuthClients::No, |_| {});
        let trust = served.trust().speaking(versions);
        let mut client = Secure::connect(served.tls, &trust).unwrap();
        let value = value(LARGE);
        client.send(&command(&[&b"SET"[..], b"large", &value]));
        assert_eq!(client.reply(), b"+OK\r\n");
        let mut plain = served.running.client();
        for _ in 0..3 {
            client.send(&command(&["GET", "large"]));
            wait_until_replied(&mut plain, LARGE);
            assert!(client.reply() == bulk(&value));
        }
        client.send(&[command(&["GET", "large"]).repeat(3), command(&["PING"])].concat());
        for _ in 0..3 {
            assert!(client.reply() == bulk(&value));
        }
        assert_eq!(client.reply(), b"+PONG\r\n");
    }
}

/// Replies of all lengths up to more than the sockets take, to a client that reads once the server
/// has nothing more to do, and then a command that waits for ever: of some replies the last bytes are
/// with TLS when it begins to wait.
#[test]
fn the_end_of_a_reply_is_sent_before_the_connection_waits() {
    let served = serve(AuthClients::No, |config| config.threads = 1);
    // With its length it is what TLS takes at a time.
    let value = value((64 << 10) - 10);
    let mut plain = served.running.client();
    plain.send(&command(&[&b"SET"[..], b"k", &value]));
    assert_eq!(plain.reply(), b"+OK\r\n");
    let last = &value[..60_000];
    for pieces in 0..90 {
        let mut client = served.client();
        let socket = &client.stream.sock;
        socket.set_read_timeout(Some(PATIENCE / 2)).unwrap();
        let name = format!("addr={} ", socket.local_addr().unwrap());
        let all = command(&["GET", "k"]).repeat(pieces);
        let range = command(&["GETRANGE", "k", "0", "59999"]);
        client.send(&[all, range, command(&["WAIT", "1", "0"])].concat());
        let (mut before, mut same) = (String::new(), 0);
        wait_for("the server waits for its client, or is done", || {
            let list = plain.line("CLIENT LIST");
            let now = list.lines().find(|line| line.contains(&name)).unwrap_or_default();
            let now = now.split(" qbuf=").nth(1).unwrap_or_default().to_owned();
            same = if now == before { same + 1 } else { 0 };
            before = now;
            same == 5
        });
        for _ in 0..pieces {
            assert!(client.reply() == bulk(&value), "{pieces} pieces");
        }
        assert!(client.reply() == bulk(last), "{pieces} pieces");
    }
}

/// Waits until a client's replies take so many bytes.
fn wait_until_replied(plain: &mut Client, bytes: usize) {
    wait_for("the reply is there", || {
        let list = plain.line("CLIENT LIST");
        let replies = list
            .split(" rbs=")
            .skip(1)
            .filter_map(|rest| rest.split(' ').next());
        replies
            .filter_map(|replied| replied.parse::<usize>().ok())
            .any(|replied| replied >= bytes)
    });
}

#[test]
fn a_client_that_sends_no_more_gets_its_replies_and_a_close() {
    let served = serve(AuthClients::No, |_| {});
    let mut client = served.client();
    let requests = command(&["PING"]).repeat(100);
    client.send(&requests);
    client.stream.conn.send_close_notify();
    client.try_send(b"").unwrap();
    for _ in 0..100 {
        assert_eq!(client.reply(), b"+PONG\r\n");
    }
    assert!(client.is_at_end(), "the server says that this was all");
    // QUIT, and a request that is refused, end with the reply and the same word.
    let mut client = served.client();
    assert_eq!(client.line("QUIT"), "+OK\r\n");
    assert!(client.is_at_end());
    let mut client = served.client();
    client.send(b"*1\r\n$-5\r\n");
    assert!(client.reply().starts_with(b"-ERR Protocol error"));
    assert!(client.is_at_end());
}

#[test]
fn a_client_counts_from_its_first_byte() {
    let served = serve(AuthClients::No, |config| config.clients_max = 4);
    let mut plain = served.running.client();
    let _others = [served.client(), served.client(), served.client()];
    assert_eq!(field(&mut plain, "clients", "connected_clients"), "4");
    assert!(Secure::connect(served.tls, &served.trust()).is_err());
    assert_ne!(field(&mut plain, "stats", "rejected_connections"), "0");
}

#[test]
fn a_password_is_asked_for_over_tls_too() {
    let served = serve(AuthClients::No, |config| config.password = Some("sesame".into()));
    let mut client = served.client();
    assert!(client.line("GET k").starts_with("-NOAUTH"));
    assert_eq!(client.line("AUTH sesame"), "+OK\r\n");
    assert_eq!(client.line("GET k"), "$-1\r\n");
}

#[test]
fn a_shutdown_ends_connections_over_tls_and_handshakes_in_order() {
    let served = serve(AuthClients::No, |_| {});
    let mut client = served.client();
    let _half = std::net::TcpStream::connect(served.tls).unwrap();
    assert_eq!(client.line("SET k 1"), "+OK\r\n");
    let mut plain = Client::connect(served.running.addr);
    wait_for("the half-open connection is there", || {
        field(&mut plain, "clients", "connected_clients") == "3"
    });
    served.running.stop().unwrap();
    assert!(client.is_at_end());
}
