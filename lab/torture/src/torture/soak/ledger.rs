//! What a client has stored, key by key, so that every reply can be compared with it.
//!
//! Each writing client owns its keys and numbers the versions of each; a value follows from owner,
//! key and version. The owner therefore knows what every reply must be, byte for byte; only around
//! the moment at which a key expires either answer is right. Others see how far the owner is: what
//! they read of a key is no older than what was acknowledged before they asked, and no newer than
//! what was sent before they got it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use collie_cli::resp::Reply;
use collie_sim::Rng;

/// The longest filling of a value, of one in so many larger ones, and of one in so many that are
/// larger still.
const FILL: usize = 1_000;
const LARGER: (u64, usize) = (20, 8_000);
const LARGEST: (u64, usize) = (400, 200_000);
/// Owner, key, version.
const HEAD: usize = 4 + 4 + 4;
const CHECKSUM: usize = 4;

/// How far the owner of some keys is, for others to compare with.
#[derive(Debug)]
pub(crate) struct Progress {
    keys: Vec<Versions>,
    /// Bytes of the owner's keys and values that are there.
    live: AtomicU64,
}

/// Versions of a key.
#[derive(Debug, Default)]
struct Versions {
    acknowledged: AtomicU32,
    sent: AtomicU32,
}

/// What stands at a key. Times are in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    There,
    /// Its expiry lies between the two: the server read the clock at some moment between them, and
    /// added the same.
    Until {
        earliest: u64,
        latest: u64,
    },
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    version: u32,
    state: State,
}

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Set,
    /// Until so many milliseconds have passed.
    SetFor(u64),
    Delete,
    Get,
}

/// One of the owner's keys, and what is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) key: u32,
    pub(crate) kind: Kind,
}

/// Wall time before something was sent and after its reply had come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) before: u64,
    pub(crate) after: u64,
}

/// What a reply was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    /// It was refused, with this text; the key is as it was.
    Refused(String),
    Wrong(String),
}

/// The keys of one owner.
#[derive(Debug)]
pub(crate) struct Ledger<'a> {
    owner: u32,
    entries: Vec<Entry>,
    progress: &'a Progress,
}

impl Progress {
    pub(crate) fn new(keys: u32) -> Self {
        Self {
            keys: (0..keys).map(|_| Versions::default()).collect(),
            live: AtomicU64::new(0),
        }
    }

    /// Bytes of keys and values that are there.
    pub(crate) fn live(&self) -> u64 {
        // Relaxed: a figure to watch.
        self.live.load(Ordering::Relaxed)
    }

    /// The version of a key that was acknowledged last. A reader asks after this.
    pub(crate) fn acknowledged(&self, key: u32) -> u32 {
        // Acquire pairs with the Release in `note`: the commit was over before.
        self.versions(key)
            .map_or(0, |versions| versions.acknowledged.load(Ordering::Acquire))
    }

    /// Whether what another client has read can be: nothing, or a version that is at least `since`,
    /// acknowledged before the question, and that was sent before now.
    pub(crate) fn judge(&self, owner: u32, key: u32, since: u32, reply: &Reply) -> Verdict {
        let Reply::Bulk(bytes) = reply else {
            return match reply {
                Reply::Nothing => Verdict::Right,
                Reply::Error(text) => Verdict::Refused(text.clone()),
                other => wrong(owner, key, "a value or nothing", &shown(other)),
            };
        };
        let sent = self
            .versions(key)
            .map_or(0, |versions| versions.sent.load(Ordering::Acquire));
        match version_of(bytes, owner, key) {
            Some(version) if (since..=sent).contains(&version) => Verdict::Right,
            Some(version) => {
                let expected = format!("a version of {since} to {sent}");
                wrong(owner, key, &expected, &format!("version {version}"))
            }
            None => wrong(owner, key, "one of its values", &shown(reply)),
        }
    }

    fn versions(&self, key: u32) -> Option<&Versions> {
        self.keys.get(key as usize)
    }
}

impl<'a> Ledger<'a> {
    /// Nothing is there yet.
    pub(crate) fn new(owner: u32, progress: &'a Progress) -> Self {
        let nothing = Entry {
            version: 0,
            state: State::Absent,
        };
        Self {
            owner,
            entries: vec![nothing; progress.keys.len()],
            progress,
        }
    }

    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    pub(crate) fn keys(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    fn entry(&self, key: u32) -> Entry {
        // A key that is none of the owner's was never stored.
        self.entries.get(key as usize).copied().unwrap_or(Entry {
            version: 0,
            state: State::Absent,
        })
    }

    /// The words of a command, before it is sent.
    pub(crate) fn words(&self, op: Op) -> Vec<Vec<u8>> {
        let name = key(self.owner, op.key);
        let next = self.entry(op.key).version + 1;
        if matches!(op.kind, Kind::Set | Kind::SetFor(_))
            && let Some(versions) = self.progress.versions(op.key)
        {
            versions.sent.store(next, Ordering::Release);
        }
        let value = || value(self.owner, op.key, next);
        match op.kind {
            Kind::Set => vec![b"SET".into(), name, value()],
            Kind::SetFor(ms) => {
                let ms = ms.to_string().into_bytes();
                vec![b"SET".into(), name, value(), b"PX".into(), ms]
            }
            Kind::Delete => vec![b"DEL".into(), name],
            Kind::Get => vec![b"GET".into(), name],
        }
    }

    /// Compares a reply with what must stand at the key, and notes what the command has done.
    pub(crate) fn judge(&mut self, op: Op, reply: &Reply, span: Span) -> Verdict {
        if let Reply::Error(text) = reply {
            return Verdict::Refused(text.clone());
        }
        let entry = self.entry(op.key);
        let there = entry.state.at(span);
        match op.kind {
            Kind::Set | Kind::SetFor(_) => {
                if *reply != Reply::Text("OK".to_owned()) {
                    return wrong(self.owner, op.key, "OK", &shown(reply));
                }
                let state = match op.kind {
                    Kind::SetFor(ms) => State::Until {
                        earliest: span.before + ms,
                        latest: span.after + ms,
                    },
                    _ => State::There,
                };
                self.note(op.key, entry.version + 1, state);
                Verdict::Right
            }
            Kind::Delete => {
                self.note(op.key, entry.version, State::Absent);
                match (reply, there) {
                    (Reply::Number(1), Some(true) | None) | (Reply::Number(0), Some(false) | None) => {
                        Verdict::Right
                    }
                    _ => {
                        let expected = format!("{} key to remove", u8::from(there != Some(false)));
                        wrong(self.owner, op.key, &expected, &shown(reply))
                    }
                }
            }
            Kind::Get => self.judge_value(op.key, entry, there, reply),
        }
    }

    fn judge_value(&mut self, key: u32, entry: Entry, there: Option<bool>, reply: &Reply) -> Verdict {
        match reply {
            Reply::Nothing if there != Some(true) => {
                // What is gone stays gone.
                self.note(key, entry.version, State::Absent);
                Verdict::Right
            }
            Reply::Bulk(bytes) if there != Some(false) && *bytes == value(self.owner, key, entry.version) => {
                Verdict::Right
            }
            other => {
                let expected = match there {
                    Some(false) => "nothing".to_owned(),
                    _ => format!("version {}", entry.version),
                };
                let found = match other {
                    Reply::Bulk(bytes) => version_of(bytes, self.owner, key)
                        .map_or_else(|| shown(other), |version| format!("version {version}")),
                    _ => shown(other),
                };
                wrong(self.owner, key, &expected, &found)
            }
        }
    }

    fn note(&mut self, key: u32, version: u32, state: State) {
        let before = self.len_of(key);
        if let Some(entry) = self.entries.get_mut(key as usize) {
            *entry = Entry { version, state };
        }
        // One thread writes it; others only look. Two's complement takes what is less away.
        let difference = self.len_of(key).wrapping_sub(before);
        self.progress.live.fetch_add(difference, Ordering::Relaxed);
        if let Some(versions) = self.progress.versions(key) {
            versions.acknowledged.store(version, Ordering::Release);
        }
    }

    /// Bytes of a key and its value, if it is there as far as is known.
    fn len_of(&self, which: u32) -> u64 {
        let entry = self.entry(which);
        match entry.state {
            State::Absent => 0,
            State::There | State::Until { .. } => {
                (key(self.owner, which).len() + value_len(self.owner, which, entry.version)) as u64
            }
        }
    }

    /// Every key was removed at once.
    pub(crate) fn emptied(&mut self) {
        for key in 0..self.keys() {
            self.note(key, self.entry(key).version, State::Absent);
        }
    }

    /// How many keys are there for certain for a read during `span`, and how many may be.
    pub(crate) fn count(&self, span: Span) -> (u64, u64) {
        let count = |is: fn(Option<bool>) -> bool| {
            let those = self.entries.iter().filter(|entry| is(entry.state.at(span)));
            those.count() as u64
        };
        (
            count(|there| there == Some(true)),
            count(|there| there != Some(false)),
        )
    }
}

impl State {
    /// Whether the key is there for a read during `span`; `None` where either may be.
    fn at(self, span: Span) -> Option<bool> {
        match self {
            Self::Absent => Some(false),
            Self::There => Some(true),
            // At its very expiry a key still is there.
            Self::Until { earliest, .. } if span.after <= earliest => Some(true),
            Self::Until { latest, .. } if span.before > latest => Some(false),
            Self::Until { .. } => None,
        }
    }
}

fn wrong(owner: u32, key: u32, expected: &str, found: &str) -> Verdict {
    Verdict::Wrong(format!(
        "key {key} of client {owner}: expected {expected}, found {found}"
    ))
}

/// A reply in words, the start of a long one.
fn shown(reply: &Reply) -> String {
    const LONGEST: usize = 60;
    match reply {
        Reply::Bulk(bytes) => {
            let start = String::from_utf8_lossy(bytes.get(..LONGEST.min(bytes.len())).unwrap_or_default());
            format!("{} bytes that begin with {start:?}", bytes.len())
        }
        Reply::Array(elements) => format!("{} elements", elements.len()),
        Reply::Nothing => "nothing".to_owned(),
        Reply::Number(number) => number.to_string(),
        Reply::Text(text) | Reply::Error(text) => format!("{text:?}"),
    }
}

pub(crate) fn key(owner: u32, key: u32) -> Vec<u8> {
    format!("soak:{owner}:{key}").into_bytes()
}

/// Chance for a value, and the length of its filling, which is drawn first.
fn filling(owner: u32, key: u32, version: u32) -> (Rng, usize) {
    let seed = u64::from(owner) << 58 ^ u64::from(key) << 32 ^ u64::from(version);
    let mut rng = Rng::new(seed);
    let most = match (rng.one_in(LARGEST.0), rng.one_in(LARGER.0)) {
        (true, _) => LARGEST.1,
        (false, true) => LARGER.1,
        (false, false) => FILL,
    };
    let len = rng.index(most);
    (rng, len)
}

fn value_len(owner: u32, key: u32, version: u32) -> usize {
    HEAD + filling(owner, key, version).1 + CHECKSUM
}

/// A version of a key.
fn value(owner: u32, key: u32, version: u32) -> Vec<u8> {
    let (mut rng, fill) = filling(owner, key, version);
    let mut value = Vec::with_capacity(HEAD + fill + CHECKSUM);
    for word in [owner, key, version] {
        value.extend_from_slice(&word.to_le_bytes());
    }
    value.resize(HEAD + fill, 0);
    if let Some(filling) = value.get_mut(HEAD..) {
        rng.fill(filling);
    }
    value.extend_from_slice(&crc32c::crc32c(&value).to_le_bytes());
    value
}

/// Which version of a key a value is, if it is one and whole.
fn version_of(bytes: &[u8], owner: u32, key: u32) -> Option<u32> {
    let version = bytes.get(8..HEAD)?.try_into().ok().map(u32::from_le_bytes)?;
    (value(owner, key, version) == bytes).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Span = Span {
        before: 1_000,
        after: 1_010,
    };

    fn ok() -> Reply {
        Reply::Text("OK".to_owned())
    }

    fn is_wrong(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Wrong(_))
    }

    #[test]
    fn every_reply_that_is_not_the_ledgers_is_found() {
        let progress = Progress::new(2);
        let mut ledger = Ledger::new(3, &progress);
        let (set, get, delete) = (
            Op {
                key: 1,
                kind: Kind::Set,
            },
            Op {
                key: 1,
                kind: Kind::Get,
            },
            Op {
                key: 1,
                kind: Kind::Delete,
            },
        );
        assert_eq!(ledger.judge(get, &Reply::Nothing, AT), Verdict::Right);
        assert!(is_wrong(&ledger.judge(get, &Reply::Bulk(value(3, 1, 0)), AT)));
        assert_eq!(ledger.judge(set, &ok(), AT), Verdict::Right);
        assert_eq!(
            ledger.judge(get, &Reply::Bulk(value(3, 1, 1)), AT),
            Verdict::Right
        );
        assert!(progress.live() > 0);
        // Lost, older, of another key, cut, changed.
        let mut changed = value(3, 1, 1);
        changed[HEAD - 1] ^= 1;
        let mut cut = value(3, 1, 1);
        cut.pop();
        for found in [value(3, 1, 0), value(3, 0, 1), changed, cut] {
            assert!(is_wrong(&ledger.judge(get, &Reply::Bulk(found), AT)));
        }
        assert!(is_wrong(&ledger.judge(get, &Reply::Nothing, AT)));
        let refused = Reply::Error("MISCONF full".to_owned());
        let verdict = Verdict::Refused("MISCONF full".to_owned());
        assert_eq!(ledger.judge(set, &refused, AT), verdict);
        assert_eq!(
            ledger.judge(get, &Reply::Bulk(value(3, 1, 1)), AT),
            Verdict::Right,
            "what was refused has changed nothing"
        );
        assert_eq!(ledger.judge(delete, &Reply::Number(1), AT), Verdict::Right);
        assert!(is_wrong(&ledger.judge(delete, &Reply::Number(1), AT)));
        assert!(
            is_wrong(&ledger.judge(get, &Reply::Bulk(value(3, 1, 1)), AT)),
            "it is back"
        );
        assert_eq!(progress.live(), 0);
    }

    #[test]
    fn an_expiry_is_judged_before_and_after_and_not_in_between() {
        let progress = Progress::new(1);
        let mut ledger = Ledger::new(0, &progress);
        let set = Op {
            key: 0,
            kind: Kind::SetFor(100),
        };
        let get = Op {
            key: 0,
            kind: Kind::Get,
        };
        let at = |before, after| Span { before, after };
        let there = Reply::Bulk(value(0, 0, 1));
        assert_eq!(ledger.judge(set, &ok(), AT), Verdict::Right);
        assert!(
            is_wrong(&ledger.judge(get, &Reply::Nothing, at(1_050, 1_100))),
            "too early"
        );
        assert_eq!(ledger.judge(get, &there, at(1_105, 1_105)), Verdict::Right);
        assert_eq!(ledger.count(at(1_105, 1_105)), (0, 1));
        assert!(is_wrong(&ledger.judge(get, &there, at(1_111, 1_120))), "too late");
        assert_eq!(
            ledger.judge(get, &Reply::Nothing, at(1_101, 1_101)),
            Verdict::Right
        );
        assert!(
            is_wrong(&ledger.judge(get, &there, at(1_101, 1_101))),
            "it was gone"
        );
    }

    #[test]
    fn others_see_versions_from_acknowledged_to_sent() {
        let progress = Progress::new(1);
        let mut ledger = Ledger::new(5, &progress);
        let set = Op {
            key: 0,
            kind: Kind::Set,
        };
        for _ in 0..3 {
            ledger.words(set);
            assert_eq!(ledger.judge(set, &ok(), AT), Verdict::Right);
        }
        ledger.words(set);
        let since = progress.acknowledged(0);
        assert_eq!(since, 3);
        let read = |version| progress.judge(5, 0, since, &Reply::Bulk(value(5, 0, version)));
        assert!(is_wrong(&read(2)));
        assert_eq!((read(3), read(4)), (Verdict::Right, Verdict::Right));
        assert!(is_wrong(&read(5)), "no client has sent that");
    }
}
