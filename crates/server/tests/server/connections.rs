//! Connections: who may connect, what they may send and how much memory they take, and how they
//! end.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::{Client, Running, command, config, field, options, start, start_on, wait_for};
use collie_db::Db;
use collie_server::{Limits, Server, ServerConfig, ServerError};

const A_WHILE: Duration = Duration::from_millis(150);

#[test]
fn it_listens_off_loopback_in_clear_only_when_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let open = ServerConfig { listen, ..config() };
    let db = Db::open(dir.path(), options()).unwrap();
    let refused = Server::bind(open.clone(), db.clone()).unwrap_err();
    assert!(matches!(refused, ServerError::OpenToNetwork { .. }), "{refused}");
    assert!(refused.to_string().contains("expected TLS"), "{refused}");
    // It would go in clear.
    let password = ServerConfig {
        password: Some("secret".into()),
        ..open.clone()
    };
    let refused = Server::bind(password, db.clone()).unwrap_err();
    assert!(matches!(refused, ServerError::OpenToNetwork { .. }), "{refused}");
    drop(
        Server::bind(
            ServerConfig {
                open_to_network: true,
                ..open
            },
            db.clone(),
        )
        .unwrap(),
    );
    let taken = Server::bind(config(), db.clone()).unwrap();
    let again = ServerConfig {
        listen: taken.local_addr(),
        ..config()
    };
    assert!(matches!(
        Server::bind(again, db.clone()),
        Err(ServerError::Listen { .. })
    ));
    let zero = ServerConfig {
        clients_max: 0,
        ..config()
    };
    assert!(matches!(
        Server::bind(zero, db.clone()),
        Err(ServerError::Config {
            name: "clients_max",
            ..
        })
    ));
    drop(taken);
    db.close().unwrap();
}

#[test]
fn a_client_gets_nowhere_before_the_password() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(
        dir.path(),
        ServerConfig {
            password: Some("secret".into()),
            ..config()
        },
    );
    let mut client = server.client();
    for line in [
        "GET a",
        "SET a 1",
        "PING",
        "CLIENT ID",
        "COMMAND",
        "SHUTDOWN",
        "CONFIG GET requirepass",
    ] {
        assert_eq!(
            client.line(line),
            "-NOAUTH Authentication required.\r\n",
            "{line}"
        );
    }
    assert!(client.line("NOSUCH").starts_with("-ERR unknown command"));
    assert!(client.line("HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    assert_eq!(client.line("AUTH wrong"), wrong);
    assert_eq!(client.line("AUTH other secret"), wrong);
    assert_eq!(client.line("HELLO 3 AUTH default wrong"), wrong);
    assert_eq!(client.line("AUTH secret"), "+OK\r\n");
    assert_eq!(client.line("SET a 1"), "+OK\r\n");
    assert_eq!(field(&mut client, "stats", "acl_access_denied_auth"), "3");
    assert_eq!(client.line("RESET"), "+RESET\r\n");
    assert_eq!(
        client.line("GET a"),
        "-NOAUTH Authentication required.\r\n",
        "RESET logs out"
    );
    assert!(
        client
            .line("HELLO 3 AUTH default secret SETNAME me")
            .starts_with("%7\r\n")
    );
    assert_eq!(client.line("CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(client.line("GET b"), "_\r\n", "RESP3 has one null");
    // A client that has not authenticated can neither announce nor send much.
    let mut stranger = server.client();
    stranger.send(b"*11\r\n");
    assert_eq!(
        stranger.rest(),
        "-ERR Protocol error: unauthenticated multibulk length\r\n"
    );
    let mut stranger = server.client();
    stranger.send(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n");
    assert_eq!(
        stranger.rest(),
        "-ERR Protocol error: unauthenticated bulk length\r\n"
    );
    // The password can be changed and removed; authenticated clients stay authenticated.
    assert_eq!(client.line("CONFIG SET requirepass other"), "+OK\r\n");
    assert_eq!(client.line("GET b"), "_\r\n");
    assert_eq!(server.client().line("AUTH secret"), wrong);
    assert_eq!(server.client().line("AUTH other"), "+OK\r\n");
    assert_eq!(client.call(&["CONFIG", "SET", "requirepass", ""]), "+OK\r\n");
    assert_eq!(server.client().line("PING"), "+PONG\r\n");
}

#[test]
fn there_are_as_many_clients_as_allowed_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(
        dir.path(),
        ServerConfig {
            clients_max: 3,
            ..config()
        },
    );
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.line("PING"), "+PONG\r\n");
    }
    assert_eq!(server.client().rest(), "-ERR max number of clients reached\r\n");
    assert_eq!(field(&mut clients[0], "stats", "rejected_connections"), "1");
    assert_eq!(clients[0].line("CONFIG SET maxclients 4"), "+OK\r\n");
    assert_eq!(server.client().line("PING"), "+PONG\r\n");
    // A connection that ends makes room for another.
    assert_eq!(clients[0].line("CONFIG SET maxclients 3"), "+OK\r\n");
    assert_eq!(clients.pop().unwrap().line("QUIT"), "+OK\r\n");
    wait_for("a connection slot is free again", || {
        let mut client = server.client();
        client.send(b"PING\r\n");
        client.reply() == b"+PONG\r\n"
    });
}

#[test]
fn a_silent_client_is_closed_when_its_time_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut silent = server.client();
    assert_eq!(silent.line("PING"), "+PONG\r\n");
    assert_eq!(said_to(server.addr, "CONFIG SET timeout 1"), Some("+OK".into()));
    assert_eq!(silent.rest(), "", "closed without a word");
    // If the machine stands still for so long, the client that is to change it is closed, too.
    let mut closed = 1;
    while said_to(server.addr, "CONFIG SET timeout 0").is_none() {
        closed += 1;
    }
    let counted = field(&mut server.client(), "stats", "timed_out_clients");
    assert_eq!(counted, closed.to_string());
}

/// The first line of the reply to a command on a connection of its own.
fn said_to(addr: SocketAddr, line: &str) -> Option<String> {
    Some(all_said_to(addr, line)?.lines().next()?.to_owned())
}

fn all_said_to(addr: SocketAddr, line: &str) -> Option<String> {
    let mut stream = TcpStream::connect(addr).ok()?;
    stream.write_all(format!("{line}\r\nQUIT\r\n").as_bytes()).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    Some(said)
}

#[test]
fn requests_at_their_limits_are_served_and_larger_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        args_max: 5,
        bulk_len_max: 100_000,
        request_len_max: 150_000,
        ..Limits::default()
    };
    let server = start(dir.path(), ServerConfig { limits, ..config() });
    let mut client = server.client();
    let largest = "x".repeat(100_000);
    assert_eq!(client.call(&["SET", "k", &largest]), "+OK\r\n");
    assert_eq!(client.call(&["GET", "k"]).len(), 100_000 + 11);
    assert_eq!(client.line("MSET a 1 b 2"), "+OK\r\n");
    let refusals = [
        (
            command(&["MSET", "a", "1", "b", "2", "c", "3"]),
            "invalid multibulk length",
        ),
        (
            command(&["SET", "k", &(largest.clone() + "x")]),
            "invalid bulk length",
        ),
        (
            command(&["MSET", "a", &largest, "b", &largest]),
            "too big request",
        ),
    ];
    for (request, error) in refusals {
        let mut client = server.client();
        client.send(&request);
        assert_eq!(client.rest(), format!("-ERR Protocol error: {error}\r\n"));
    }
    assert_eq!(client.line("STRLEN k"), ":100000\r\n");
    assert_eq!(field(&mut client, "stats", "protocol_errors"), "3");
}

#[test]
fn the_longest_value_is_stored_and_a_longer_one_refused() {
    // With the longest key, an old and a new expiry: the most that is committed beside a value. One
    // ring has the default size, the other is so small that the space for keys is bounded by it.
    for ring_bytes in [32 << 20, 256 << 10] {
        let dir = tempfile::tempdir().unwrap();
        let options = collie_db::Options {
            ring_bytes,
            ..options()
        };
        let db = collie_db::Db::open(dir.path(), options).unwrap();
        let server = start_on(
            db,
            ServerConfig {
                ring_bytes,
                ..config()
            },
        );
        let mut client = server.client();
        let advertised = client.line("CONFIG GET proto-max-bulk-len");
        let limit: usize = advertised.lines().last().unwrap().parse().unwrap();
        assert!(
            limit >= ring_bytes / 4 && limit < ring_bytes / 2,
            "{advertised:?}"
        );
        let key = if ring_bytes > 1 << 20 {
            "k".repeat(65_526)
        } else {
            "k".repeat(1_000)
        };
        let value = "v".repeat(limit);
        let almost = &value[..limit - 1];
        assert_eq!(client.call(&["SET", &key, almost]), "+OK\r\n");
        assert_eq!(client.call(&["SET", &key, &value, "EX", "1000"]), "+OK\r\n");
        assert_eq!(client.call(&["EXPIRE", &key, "2000"]), ":1\r\n");
        assert_eq!(client.call(&["STRLEN", &key]), format!(":{limit}\r\n"));
        assert_eq!(
            client.call(&["GETEX", &key, "EX", "3000"]).len(),
            limit + 3 + limit.to_string().len() + 2
        );
        assert_eq!(client.call(&["PERSIST", &key]), ":1\r\n");
        // A value that grows up to the limit fits; beyond it the command fails and the connection
        // stays open.
        let too_long = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";
        assert_eq!(client.call(&["APPEND", &key, "x"]), too_long);
        assert_eq!(client.call(&["SET", &key, almost]), "+OK\r\n");
        assert_eq!(client.call(&["APPEND", &key, "x"]), format!(":{limit}\r\n"));
        assert_eq!(client.call(&["APPEND", &key, "x"]), too_long);
        // Each of them fits, all together do not.
        let refused = client.call(&["MSET", "a", &value, "b", &value, "c", &value]);
        assert!(
            refused.starts_with("-ERR the command would commit ") && refused.ends_with(": split it\r\n"),
            "{refused:?}"
        );
        assert_eq!(client.line("EXISTS a b c"), ":0\r\n");
        let raised = client.line(&format!(
            "CONFIG SET proto-max-bulk-len {}",
            (limit + 1).max(1 << 20)
        ));
        assert!(
            raised.contains(&format!("argument must be at most {limit},")),
            "{raised:?}"
        );
        assert_eq!(client.line("PING"), "+PONG\r\n");
        // A client that writes all of it before it reads gets the error, too.
        client.send(&command(&["SET", &key, &(value + "v")]));
        assert_eq!(client.rest(), "-ERR Protocol error: invalid bulk length\r\n");
        assert_eq!(server.client().call(&["STRLEN", &key]), format!(":{limit}\r\n"));
    }
}

#[test]
fn a_hostile_frame_ends_its_connection_behind_earlier_replies() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    client.send(b"PING\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*1\r\n!\r\nPING\r\n");
    assert_eq!(
        client.rest(),
        "+PONG\r\n$2\r\nhi\r\n-ERR Protocol error: expected '$', got '!'\r\n"
    );
    // Random bytes of every length never keep the server from serving others.
    for len in 0..300_usize {
        let mut client = server.client();
        let rubbish: Vec<u8> = (0..len).map(|i| (i * 31 + len * 7) as u8).collect();
        // The server may close before all is sent.
        let _ = client.stream.write_all(&rubbish);
    }
    assert_eq!(server.client().line("PING"), "+PONG\r\n");
}

#[test]
fn a_reply_beyond_the_output_limit_closes_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(
        dir.path(),
        ServerConfig {
            output_bytes_max: 50_000,
            ..config()
        },
    );
    let mut client = server.client();
    for i in 0..2_000 {
        client.line(&format!("SET a-key-with-a-rather-long-name:{i} v"));
    }
    assert!(client.line("KEYS *:1*").len() < 50_000);
    client.send(&command(&["KEYS", "*"]));
    assert_eq!(
        client.rest(),
        "-ERR the reply is larger than client-output-buffer-limit\r\n"
    );
    // A reply that grows key by key stops growing there.
    let mut client = server.client();
    client.call(&["SET", "big", &"x".repeat(30_000)]);
    let mut many = vec!["MGET"];
    many.extend(std::iter::repeat_n("big", 100_000));
    client.send(&command(&many));
    assert_eq!(
        client.rest(),
        "-ERR the reply is larger than client-output-buffer-limit\r\n"
    );
    assert_eq!(
        field(
            &mut server.client(),
            "stats",
            "client_output_buffer_limit_disconnections"
        ),
        "2"
    );
}

#[test]
fn a_client_that_does_not_read_holds_back_itself_alone() {
    // It requests 400 MB in one pipeline and reads nothing: replies are encoded only as the client
    // reads them.
    let dir = tempfile::tempdir().unwrap();
    let server = start(
        dir.path(),
        ServerConfig {
            threads: 1,
            ..config()
        },
    );
    let mut client = server.client();
    client.call(&["SET", "big", &"x".repeat(100_000)]);
    let mut slow = server.client();
    slow.send(&command(&["GET", "big"]).repeat(4_000));
    for _ in 0..200 {
        assert_eq!(client.line("PING"), "+PONG\r\n");
    }
    // As much as is encoded ahead of the client, and never more.
    let mut held = 0;
    wait_for("replies wait for a client that does not read", || {
        held = field(&mut client, "memory", "mem_clients_normal")
            .parse::<u64>()
            .unwrap();
        assert!(held < 8 * 1024 * 1024, "{held} bytes are held");
        held >= 500_000
    });
    for _ in 0..4_000 {
        assert_eq!(slow.reply().len(), 100_000 + 11);
    }
}

#[test]
fn slow_and_silent_clients_do_not_keep_another_waiting() {
    const SLOW: usize = 1_000;
    const SILENT: usize = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let server = start(
        dir.path(),
        ServerConfig {
            clients_max: SLOW + SILENT + 1,
            ..config()
        },
    );
    let request = command(&["SET", "k", "value"]);
    let mut slow: Vec<Client> = (0..SLOW).map(|_| server.client()).collect();
    let mut silent: Vec<Client> = (0..SILENT).map(|_| server.client()).collect();
    let mut good = server.client();
    for byte in &request {
        for client in &mut slow {
            client.send(&[*byte]);
        }
        assert_eq!(good.line("PING"), "+PONG\r\n");
    }
    for client in &mut slow {
        assert_eq!(client.reply(), b"+OK\r\n");
    }
    // There is no room for another one, and no other client is closed for it.
    assert_eq!(server.client().rest(), "-ERR max number of clients reached\r\n");
    assert_eq!(good.line("SET k good"), "+OK\r\n");
    for client in &mut silent {
        assert_eq!(client.line("GET k"), "$4\r\ngood\r\n");
    }
}

#[test]
fn clients_are_listed_named_and_killed() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut one, mut two) = (server.client(), server.client());
    assert_eq!(one.line("CLIENT SETNAME first"), "+OK\r\n");
    assert_eq!(two.line("CLIENT SETINFO lib-name tester"), "+OK\r\n");
    assert_eq!(two.line("CLIENT SETINFO lib-ver 1.0"), "+OK\r\n");
    assert_eq!(two.line("SELECT 3"), "+OK\r\n");
    assert_eq!(
        two.line("CLIENT SETINFO nope x"),
        "-ERR Unrecognized option 'nope'\r\n"
    );
    let list = one.line("CLIENT LIST");
    assert_eq!(list.matches("id=").count(), 2, "{list}");
    assert!(
        list.contains(" name=first ") && list.contains(" lib-name=tester lib-ver=1.0"),
        "{list}"
    );
    assert!(
        list.contains(" db=3 ") && list.contains(" cmd=client|list "),
        "{list}"
    );
    let id = two.line("CLIENT ID");
    let id = id.trim_start_matches(':').trim();
    assert!(
        one.line(&format!("CLIENT LIST ID {id}"))
            .contains("lib-name=tester")
    );
    assert_eq!(one.line(&format!("CLIENT KILL ID {id}")), ":1\r\n");
    assert_eq!(two.rest(), "");
    assert_eq!(
        one.line("CLIENT KILL TYPE normal"),
        ":0\r\n",
        "CLIENT KILL spares its own connection by default"
    );
    let refused = one.call(&["CLIENT", "SETNAME", &"x".repeat(1025)]);
    assert_eq!(refused, "-ERR Client names cannot be longer than 1024 bytes.\r\n");
    assert_eq!(one.call(&["CLIENT", "SETNAME", &"x".repeat(1024)]), "+OK\r\n");
    let own = one.stream.local_addr().unwrap().to_string();
    assert_eq!(one.line(&format!("CLIENT KILL {own}")), "+OK\r\n");
    assert_eq!(one.rest(), "");
}

#[test]
fn replies_are_off_on_or_skipped_as_the_client_wishes() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    let lines = [
        "CLIENT REPLY OFF",
        "SET a 1",
        "CLIENT REPLY SKIP",
        "CLIENT REPLY ON",
        "CLIENT REPLY SKIP",
        "SET a 2",
        "GET a",
    ];
    for line in lines {
        client.send(&command(&line.split(' ').collect::<Vec<_>>()));
    }
    assert_eq!(client.reply(), b"+OK\r\n", "that of ON");
    assert_eq!(client.reply(), b"$1\r\n2\r\n", "that of GET");
    assert!(client.is_silent_for(A_WHILE));
}

#[test]
fn inline_commands_and_arrays_mix() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    client.send(b"SET 'a key' \"\\x00\\n\"\r\n*2\r\n$3\r\nGET\r\n$5\r\na key\r\n\r\nSTRLEN \"a key\"\n");
    assert_eq!(client.reply(), b"+OK\r\n");
    assert_eq!(client.reply(), b"$2\r\n\0\n\r\n");
    assert_eq!(client.reply(), b":2\r\n");
}

/// The run id of the server that listens at an address. It may be another test's by now, or the
/// socket that asks.
fn run_at(addr: SocketAddr) -> Option<String> {
    let said = all_said_to(addr, "INFO server")?;
    let run = said.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    Some(run.to_owned())
}

#[test]
fn shutdown_finishes_what_was_read_and_closes_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut idle = server.client();
    let run = field(&mut idle, "server", "run_id");
    assert_eq!(run_at(server.addr).as_deref(), Some(&*run));
    let mut client = server.client();
    let mut pipeline = Vec::new();
    for i in 0..50 {
        pipeline.extend(command(&["SET", &format!("k{i}"), "v"]));
    }
    pipeline.extend(command(&["SHUTDOWN", "NOSAVE"]));
    client.send(&pipeline);
    assert_eq!(client.rest(), "+OK\r\n".repeat(50));
    assert_eq!(idle.rest(), "");
    let addr = server.addr;
    server.join().unwrap();
    assert_ne!(
        run_at(addr).as_deref(),
        Some(&*run),
        "it does not listen any more"
    );
    // The store is closed, so that it can be opened again at once.
    let server = start(dir.path(), config());
    assert_eq!(server.client().line("DBSIZE"), ":50\r\n");
}

/// A client that waits for a replica, which never comes.
fn waiting_for_replicas(server: &Running) -> Client {
    let mut client = server.client();
    // The replies before a command that waits are sent when it begins to wait.
    client.send(b"PING\r\nWAIT 1 0\r\n");
    assert_eq!(client.reply(), b"+PONG\r\n");
    client
}

#[test]
fn a_signal_ends_the_server_although_clients_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let grace = Duration::from_millis(200);
    let server = start(
        dir.path(),
        ServerConfig {
            shutdown_grace: grace,
            ..config()
        },
    );
    let mut blocked = waiting_for_replicas(&server);
    // Another client does not read what it requested.
    server.client().call(&["SET", "big", &"x".repeat(1_000_000)]);
    let mut deaf = server.client();
    deaf.send(&command(&["GET", "big"]).repeat(50));
    let mut admin = server.client();
    wait_for("replies wait for a client that does not read", || {
        field(&mut admin, "memory", "mem_clients_normal") != "0"
    });
    server.stop().unwrap();
    assert_eq!(blocked.rest(), "");
}

#[test]
fn a_client_that_waits_for_replicas_and_goes_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    let mut waiting = waiting_for_replicas(&server);
    assert!(waiting.is_silent_for(A_WHILE));
    drop(waiting);
    wait_for("the connection is forgotten", || {
        field(&mut client, "clients", "connected_clients") == "1"
    });
}

#[test]
fn settings_are_changed_all_or_none_and_take_effect() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    let failed = client.line("CONFIG SET timeout 100 maxclients x");
    assert!(
        failed.starts_with("-ERR CONFIG SET failed (possibly related to argument 'maxclients')"),
        "{failed}"
    );
    assert_eq!(
        client.line("CONFIG GET timeout"),
        "*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n"
    );
    assert_eq!(
        client.line("CONFIG SET timeout 100 proto-max-bulk-len 1mb"),
        "+OK\r\n"
    );
    assert_eq!(
        client.line("CONFIG GET timeout"),
        "*2\r\n$7\r\ntimeout\r\n$3\r\n100\r\n"
    );
    client.send(b"*2\r\n$4\r\nECHO\r\n$1048577\r\n");
    assert_eq!(client.rest(), "-ERR Protocol error: invalid bulk length\r\n");
    let mut client = server.client();
    assert_eq!(
        client.line("CONFIG SET client-output-buffer-limit x"),
        "-ERR CONFIG SET failed (possibly related to argument 'client-output-buffer-limit') - Wrong number of arguments in buffer limit configuration.\r\n"
    );
    assert_eq!(
        client.call(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0"]),
        "+OK\r\n"
    );
    assert!(
        client
            .line("CONFIG GET client-output*")
            .contains("normal 1048576 0 0")
    );
}

#[test]
fn the_log_shows_in_info() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    for i in 0..10 {
        client.line(&format!("SET k{i} v"));
    }
    let number = |client: &mut Client, name: &str| -> u64 { field(client, "log", name).parse().unwrap() };
    let [durable, written, boundary, appended] =
        ["durable", "written", "boundary", "appended"].map(|name| number(&mut client, name));
    assert!(durable > 1 << 32 && durable <= written && written <= boundary && boundary <= appended);
    assert!(
        number(&mut client, "syncs") >= 10,
        "each of the ten waited on its own"
    );
    assert_eq!(field(&mut client, "log", "poisoned"), "no");
    assert!(field(&mut client, "log", "group_frames").contains("mean="));
    let all = client.line("INFO");
    for section in [
        "Server",
        "Clients",
        "Memory",
        "Persistence",
        "Stats",
        "Replication",
        "CPU",
        "Log",
        "Keyspace",
    ] {
        assert!(all.contains(&format!("# {section}\r\n")), "{section} is missing");
    }
}
