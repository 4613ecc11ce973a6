//! Replies that a client does not take to their end.

use std::io::Read;
use std::time::Duration;

use collie_server::ServerConfig;

use crate::support::{command, config, start};

/// A client that does not take a reply to its end gets the beginning of it, and nothing behind that.
#[test]
fn nothing_follows_a_reply_that_was_cut_off() {
    const LEN: usize = 200_000;
    const TIMES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let shutdown_grace = Duration::from_secs(1);
    let server = start(
        dir.path(),
        ServerConfig {
            shutdown_grace,
            ..config()
        },
    );
    let mut other = server.client();
    let value: String = (0..LEN / 8).map(|n| format!("{n:08}")).collect();
    assert_eq!(other.call(&["SET", "large", &value]), "+OK\r\n");
    let get = format!("MGET{}", " large".repeat(TIMES));
    let bulk = format!("${LEN}\r\n{value}\r\n");
    let whole = format!("*{TIMES}\r\n{}", bulk.repeat(TIMES)).into_bytes();
    // By itself, and before a command that waits once what came before it was sent.
    for lines in [
        vec![get.as_str(), "PING"],
        vec![get.as_str(), "WAITAOF 0 1 100", "PING"],
    ] {
        let mut slow = server.client();
        let id = slow.line("CLIENT ID");
        let words = lines.iter().map(|line| line.split(' ').collect::<Vec<_>>());
        slow.send(&words.flat_map(|words| command(&words)).collect::<Vec<u8>>());
        // It has read a part when its connection is closed, and goes on when it is too late.
        let mut part = vec![0; 100_000];
        slow.stream.read_exact(&mut part).unwrap();
        let kill = format!("CLIENT KILL ID {}", id.trim_start_matches(':').trim());
        assert_eq!(other.line(&kill), ":1\r\n");
        std::thread::sleep(shutdown_grace + Duration::from_millis(300));
        // The connection may be reset.
        let _ = slow.stream.read_to_end(&mut part);
        assert!(part.len() < whole.len(), "{} bytes", part.len());
        let rest = lines.len() - 1;
        assert!(
            part == whole[..part.len()],
            "bytes that do not follow, of {rest} commands behind"
        );
    }
}
