//! A reply is sent once it holds, and what follows a reply of which that is not known is not sent.

use std::time::Duration;

use collie_server::cluster::Settled;

use crate::support::{command, wait_for};
use crate::{node, pipeline, reply};

#[test]
fn replies_are_held_until_they_settle_and_come_in_order() {
    let node = node(4);
    let mut client = node.client();
    node.fake.hold();
    client.send(&pipeline(&[
        "SET a 1",
        "GET a",
        "PING",
        "GET nothing",
        "INCR a",
        "APPEND b x",
        "GET a",
    ]));
    wait_for("all are evaluated", || node.fake.finished() == 6);
    assert!(client.is_silent_for(Duration::from_millis(100)));
    // Others see what is not applied yet, and wait too.
    let mut other = node.client();
    other.send(&pipeline(&["INCR a"]));
    assert!(other.is_silent_for(Duration::from_millis(100)));
    node.fake.release();
    for expected in [
        "+OK\r\n",
        "$1\r\n1\r\n",
        "+PONG\r\n",
        "$-1\r\n",
        ":2\r\n",
        ":1\r\n",
    ] {
        assert_eq!(reply(&mut client), expected);
    }
    assert_eq!(reply(&mut client), "$1\r\n2\r\n");
    assert_eq!(reply(&mut other), ":3\r\n");
    assert_eq!(node.fake.checked_counts(), (2, 0));
}

#[test]
fn a_read_behind_a_write_of_its_connection_finds_it() {
    let node = node(4);
    let mut client = node.client();
    assert_eq!(client.line("SET a 1"), "+OK\r\n");
    node.fake.hold();
    client.send(&pipeline(&["SET a 2", "GET a"]));
    // Alone in its pipeline, and yet behind a write that is not answered.
    client.send(&pipeline(&["GET a"]));
    assert!(client.is_silent_for(Duration::from_millis(100)));
    node.fake.release();
    for expected in ["+OK\r\n", "$1\r\n2\r\n", "$1\r\n2\r\n"] {
        assert_eq!(reply(&mut client), expected);
    }
}

#[test]
fn a_command_that_was_not_executed_answers_tryagain() {
    let node = node(4);
    let mut client = node.client();
    node.fake.of("b").set_fate("b", Settled::TryAgain);
    client.send(&pipeline(&["SET a 1", "SET b 1", "SET c 1", "GET b"]));
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert!(reply(&mut client).starts_with("-TRYAGAIN "));
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert_eq!(reply(&mut client), "$-1\r\n");
    // A transaction as a whole.
    node.fake.of("b").set_fate("b", Settled::TryAgain);
    client.send(&pipeline(&["MULTI", "SET b 1", "GET b", "EXEC", "GET b"]));
    for expected in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n"] {
        assert_eq!(reply(&mut client), expected);
    }
    assert!(reply(&mut client).starts_with("-TRYAGAIN "));
    assert_eq!(reply(&mut client), "$-1\r\n");
}

#[test]
fn behind_an_unknown_reply_nothing_is_sent() {
    let node = node(4);
    for hello in ["HELLO 2", "HELLO 3"] {
        let mut client = node.client();
        client.line(hello);
        node.fake.of("b").set_fate("b", Settled::Unknown);
        client.send(&pipeline(&["SET a 1", "SET b 1", "SET c 1", "PING"]));
        assert_eq!(reply(&mut client), "+OK\r\n");
        let rest = client.rest();
        assert!(
            rest.starts_with("-UNKNOWN the command may have been executed"),
            "{rest}"
        );
        assert_eq!(rest.lines().count(), 1, "{rest}");
    }
    // Also before a command that waits, and where the client wants no replies.
    for last in ["WAIT 5 1", "WAITAOF 1 5 1", "DBSIZE"] {
        let mut client = node.client();
        node.fake.of("b").set_fate("b", Settled::Unknown);
        client.send(&pipeline(&["SET b 1", last, "PING"]));
        let rest = client.rest();
        assert!(
            rest.starts_with("-UNKNOWN ") && rest.lines().count() == 1,
            "{last}: {rest}"
        );
    }
    let mut client = node.client();
    node.fake.of("b").set_fate("b", Settled::Unknown);
    client.send(&pipeline(&["CLIENT REPLY OFF", "SET b 1", "SET c 2"]));
    assert!(client.rest().starts_with("-UNKNOWN "));
}

#[test]
fn a_client_with_replies_off_gets_none_if_not_executed() {
    let node = node(1);
    let mut client = node.client();
    node.fake.of("b").set_fate("b", Settled::TryAgain);
    client.send(&pipeline(&["SET a 1", "CLIENT REPLY SKIP", "SET b 1", "ECHO x"]));
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert_eq!(reply(&mut client), "$1\r\nx\r\n");
}

#[test]
fn reads_of_a_pipeline_are_confirmed_after_its_evaluation() {
    let node = node(1);
    let mut client = node.client();
    client.send(&pipeline(&["GET a", "GET b", "SET a 1", "GET c", "EXISTS a"]));
    for _ in 0..5 {
        client.reply();
    }
    let partition = node.fake.of("a");
    assert_eq!(*partition.polled_at.lock().unwrap(), [5, 5, 5, 5]);
}

#[test]
fn the_error_of_a_command_waits_if_the_command_has_read() {
    let node = node(1);
    let mut client = node.client();
    assert_eq!(client.line("SET a text"), "+OK\r\n");
    node.fake.hold();
    assert_eq!(
        client.line("SET a 1 EX nonsense"),
        "-ERR value is not an integer or out of range\r\n"
    );
    client.send(&pipeline(&["INCR a"]));
    assert!(client.is_silent_for(Duration::from_millis(100)));
    node.fake.release();
    assert_eq!(
        reply(&mut client),
        "-ERR value is not an integer or out of range\r\n"
    );
}

#[test]
fn a_pipeline_of_ten_thousand_commands_is_answered_in_order() {
    let node = node(16);
    let mut client = node.client();
    let mut writer = node.client();
    std::mem::swap(&mut client.stream, &mut writer.stream);
    let mut sender = client.stream.try_clone().unwrap();
    let requests: Vec<u8> = (0..10_000)
        .flat_map(|i| command(&["APPEND".to_owned(), format!("key{}", i % 100), "x".to_owned()]))
        .collect();
    let sending = std::thread::spawn(move || std::io::Write::write_all(&mut sender, &requests).unwrap());
    for i in 0..10_000 {
        assert_eq!(reply(&mut client), format!(":{}\r\n", i / 100 + 1));
    }
    sending.join().unwrap();
    assert_eq!(node.fake.checked_counts(), (100, 0));
}

#[test]
fn clients_that_leave_with_unsettled_replies_disturb_no_other() {
    let node = node(4);
    node.fake.hold();
    for i in 0..20 {
        let mut client = node.client();
        client.send(&pipeline(&["INCR a", &format!("SET own{i} 1"), "GET a"]));
        drop(client);
    }
    wait_for("all are evaluated", || node.fake.finished() == 60);
    node.fake.release();
    wait_for("nothing is locked", || node.fake.is_unlocked());
    let mut client = node.client();
    assert_eq!(client.line("INCR a"), ":21\r\n");
    assert_eq!(client.line("DBSIZE"), ":21\r\n");
    assert_eq!(node.fake.checked_counts(), (21, 0));
}

#[test]
fn increments_of_one_key_by_many_clients_count_once_each() {
    const CLIENTS: usize = 8;
    const EACH: usize = 500;
    let node = node(2);
    let addr = node.server.addr;
    let threads: Vec<_> = (0..CLIENTS)
        .map(|client| {
            std::thread::spawn(move || {
                let mut connection = crate::support::Client::connect(addr);
                let mut last = 0;
                for _ in 0..EACH / 10 {
                    connection.send(&pipeline(&["INCR hot"; 10]));
                    for _ in 0..10 {
                        let value: i64 = reply(&mut connection)[1..].trim().parse().unwrap();
                        assert!(value > last, "{client}");
                        last = value;
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(
        node.client().line("GET hot"),
        format!("$4\r\n{}\r\n", CLIENTS * EACH)
    );
}

#[test]
fn a_value_too_large_for_a_partition_is_refused_with_the_reason() {
    let node = node(1);
    let mut client = node.client();
    let (fits, too_long) = ("v".repeat(8 * 1024 * 1024 - 64), "v".repeat(8 * 1024 * 1024));
    assert_eq!(client.call(&["SET", "a", &fits]), "+OK\r\n");
    let refused = client.call(&["SET", "a", &too_long]);
    assert!(
        refused.starts_with("-ERR a command may change 8 MiB at most"),
        "{refused}"
    );
    assert_eq!(client.line("STRLEN a"), format!(":{}\r\n", fits.len()));
    assert_eq!(client.call(&["APPEND", "a", &fits[..64]]).get(..4), Some("-ERR"));
    assert_eq!(client.call(&["GETRANGE", "a", "0", "3"]), "$4\r\nvvvv\r\n");
}

#[test]
fn wait_answers_at_once_for_a_majority_of_the_replicas() {
    let node = node(2);
    let mut client = node.client();
    client.send(&pipeline(&["SET a 1", "WAIT 1 0", "WAITAOF 1 1 0", "WAIT 0 0"]));
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert_eq!(reply(&mut client), ":1\r\n");
    assert_eq!(reply(&mut client), "*2\r\n:1\r\n:1\r\n");
    assert_eq!(reply(&mut client), ":1\r\n");
    assert_eq!(client.line("WAIT 2 20"), ":1\r\n");
    assert_eq!(client.line("WAITAOF 0 2 20"), "*2\r\n:1\r\n:1\r\n");
    client.send(&pipeline(&[
        "MULTI",
        "SET a 2",
        "WAIT 2 0",
        "WAITAOF 1 2 0",
        "EXEC",
    ]));
    for _ in 0..4 {
        client.reply();
    }
    assert_eq!(reply(&mut client), "*3\r\n+OK\r\n:1\r\n*2\r\n:1\r\n:1\r\n");
}

#[test]
fn replies_that_wait_are_bounded_and_all_are_sent() {
    const COUNT: usize = 9_000;
    const UNSETTLED_MAX: usize = 4096;
    let node = node(1);
    let mut client = node.client();
    // Inline commands: very many fit into one read.
    client.send("GET a\r\n".repeat(COUNT).as_bytes());
    for _ in 0..COUNT {
        assert_eq!(reply(&mut client), "$-1\r\n");
    }
    let partition = node.fake.of("a");
    let polled_at = partition.polled_at.lock().unwrap();
    assert_eq!(polled_at.len(), COUNT);
    let most = polled_at.iter().enumerate().map(|(i, at)| at - i).max().unwrap();
    assert!(
        most <= UNSETTLED_MAX,
        "{most} were evaluated before the first was confirmed"
    );
    assert!(most > 100, "they were confirmed one by one: {most}");
}
