//! Keys that clients of both clusters write, and what may be left of them.
//!
//! All nodes have the clock of one machine. So of two writes of which one began after the other was acknowledged, the
//! first has the greater stamp, wherever they were made, and what the other one wrote is not left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_cli::resp::Reply;
use collie_io::{Clock, RealClock};
use collie_sim::Rng;
use parking_lot::Mutex;

use super::client::{Attempt, ClusterClient, Ports};
use super::load::Board;

/// Keys of a round.
const KEYS: usize = 24;
/// After how long values expire that do.
const EXPIRES_MS: std::ops::Range<u64> = 50..2_000;
/// After how long all have.
pub(crate) const EXPIRED: Duration = Duration::from_millis(EXPIRES_MS.end + 100);
/// What a node says the time is may be as much older than a command.
const SLACK_MS: u64 = 20;
/// A pause after each command, at most: what is written is sent before it is written again, now and then.
const PAUSE_MS: u64 = 30;

/// What a write leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Value(i64),
    /// The value expires.
    Passing(i64),
    Nothing,
}

impl Left {
    /// What is there of it when all has expired.
    fn in_the_end(self) -> Option<i64> {
        match self {
            Self::Value(value) => Some(value),
            Self::Passing(_) | Self::Nothing => None,
        }
    }
}

/// A write, by the clock of the machine.
#[derive(Debug, Clone)]
struct Write {
    cluster: usize,
    left: Left,
    called_ms: u64,
    /// None: it may not have been executed, or may still be.
    returned_ms: Option<u64>,
}

impl Write {
    fn words(&self) -> String {
        let (cluster, left, called) = (self.cluster, self.left, self.called_ms);
        match self.returned_ms {
            Some(returned) => format!("{left:?} in cluster {cluster} from {called} to {returned} ms"),
            None => format!("{left:?} in cluster {cluster} from {called} ms on, perhaps"),
        }
    }
}

/// The keys of a round, all absent at first.
#[derive(Debug)]
pub(crate) struct SharedKeys {
    round: u64,
    writes: Vec<Mutex<Vec<Write>>>,
}

impl SharedKeys {
    pub(crate) fn new(round: u64) -> Self {
        Self {
            round,
            writes: (0..KEYS).map(|_| Mutex::default()).collect(),
        }
    }

    pub(crate) fn key(&self, number: usize) -> Vec<u8> {
        format!("shared:{}:{number}", self.round).into_bytes()
    }

    /// Works as one client of a cluster until it is to stop.
    pub(crate) fn work(&self, board: &Board, cluster: usize, mut rng: Rng, ports: &Ports, stop: &AtomicBool) {
        let mut connections = ClusterClient::new(ports, KEYS, rng.index(ports.own.len()));
        // Relaxed: it orders nothing.
        while !stop.load(Ordering::Relaxed) {
            let number = rng.index(KEYS);
            let key = self.key(number);
            let (left, words) = match rng.below(10) {
                0..6 => {
                    let value = board.fresh();
                    let words = vec![b"SET".to_vec(), key, text(value)];
                    (Left::Value(value), words)
                }
                6..8 => {
                    let value = board.fresh();
                    let expires = EXPIRES_MS.start + rng.below(EXPIRES_MS.end - EXPIRES_MS.start);
                    let px = [b"PX".to_vec(), expires.to_string().into_bytes()];
                    let words = [vec![b"SET".to_vec(), key, text(value)], px.to_vec()].concat();
                    (Left::Passing(value), words)
                }
                _ => (Left::Nothing, vec![b"DEL".to_vec(), key]),
            };
            let called_ms = RealClock.wall_ms();
            let commands = vec![words];
            let mut attempt = connections.attempt(number, &commands);
            let returned_ms = RealClock.wall_ms();
            let writes = match (&attempt, left) {
                (Attempt::Executed(replies), Left::Nothing) => match replies.as_slice() {
                    [Reply::Number(removed @ (0 | 1))] => *removed == 1,
                    other => {
                        attempt = Attempt::Unexpected(format!("{other:?}"));
                        false
                    }
                },
                (Attempt::Executed(replies), _) => match replies.as_slice() {
                    [Reply::Text(ok)] if ok == "OK" => true,
                    other => {
                        attempt = Attempt::Unexpected(format!("{other:?}"));
                        false
                    }
                },
                (Attempt::Unknown(_), _) => true,
                (Attempt::NotExecuted(_) | Attempt::Unexpected(_), _) => false,
            };
            board.count(&attempt, writes, || {
                format!("a client of cluster {cluster}: {left:?} for shared key {number}")
            });
            if writes {
                let returned_ms = matches!(attempt, Attempt::Executed(_)).then_some(returned_ms);
                self.writes[number].lock().push(Write {
                    cluster,
                    left,
                    called_ms,
                    returned_ms,
                });
            }
            std::thread::sleep(Duration::from_millis(rng.below(PAUSE_MS)));
        }
    }

    /// What is wrong with what is left of the keys when all has expired.
    pub(crate) fn judge(&self, left: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Vec<String> {
        let all = self.writes.iter().enumerate();
        let wrong = all.filter_map(|(number, writes)| {
            let key = self.key(number);
            let found = left(&key).map(|value| String::from_utf8_lossy(&value).into_owned());
            let key = String::from_utf8_lossy(&key).into_owned();
            let parsed = found.as_ref().map(|text| text.parse());
            match parsed.transpose() {
                Ok(found) => judge(&writes.lock(), found),
                Err(_) => Err("which no client writes".to_owned()),
            }
            .err()
            .map(|why| format!("{key} has {found:?}, {why}"))
        });
        wrong.collect()
    }
}

fn text(value: i64) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Whether this may be what is left.
fn judge(writes: &[Write], found: Option<i64>) -> Result<(), String> {
    let begins = Write {
        cluster: 0,
        left: Left::Nothing,
        called_ms: 0,
        returned_ms: Some(0),
    };
    let all = writes.iter().chain([&begins]);
    // Of each, what was begun later and acknowledged: it wins.
    let later = |one: &Write| {
        let returned_ms = one.returned_ms?;
        let later = writes.iter().filter(|other| other.returned_ms.is_some());
        later
            .filter(|other| other.called_ms > returned_ms.saturating_add(SLACK_MS))
            .max_by_key(|other| other.called_ms)
            .cloned()
    };
    let mut candidates = all.filter(|one| one.left.in_the_end() == found).peekable();
    if candidates.peek().is_none() {
        return Err("which no client wrote, or what has expired".to_owned());
    }
    let mut overwritten = None;
    for one in candidates {
        match later(one) {
            None => return Ok(()),
            Some(later) => overwritten = Some((one.clone(), later)),
        }
    }
    Err(match overwritten {
        Some((one, later)) => format!("as by {}; later there was {}", one.words(), later.words()),
        None => "which no client wrote".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(cluster: usize, left: Left, called_ms: u64, returned_ms: Option<u64>) -> Write {
        Write {
            cluster,
            left,
            called_ms,
            returned_ms,
        }
    }

    #[test]
    fn what_was_written_last_is_left_and_nothing_older() {
        let writes = [
            write(0, Left::Value(1), 1_000, Some(1_010)),
            write(1, Left::Value(2), 1_005, Some(1_200)),
            write(0, Left::Nothing, 1_100, Some(1_110)),
        ];
        assert!(judge(&writes, Some(1)).is_err(), "the removal is later");
        judge(&writes, Some(2)).unwrap();
        judge(&writes, None).unwrap();
        assert!(judge(&writes, Some(3)).is_err(), "never written");
        assert!(judge(&writes[..2], None).is_err(), "it was written");
        judge(&[], None).unwrap();
    }

    #[test]
    fn what_expires_leaves_nothing_and_what_is_unknown_may() {
        let mut writes = vec![
            write(0, Left::Value(1), 1_000, Some(1_010)),
            write(1, Left::Passing(2), 2_000, Some(2_010)),
        ];
        judge(&writes, None).unwrap();
        for found in [Some(1), Some(2)] {
            assert!(judge(&writes, found).is_err(), "{found:?}");
        }
        // It may have been executed at any time after.
        writes.push(write(0, Left::Value(3), 500, None));
        judge(&writes, Some(3)).unwrap();
        judge(&writes, None).unwrap();
    }
}
