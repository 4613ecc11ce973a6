//! Clients that work on the objects of a round, and note what they do.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use collie_check::objects::{self, Answer, Judgement, Operation};
use collie_io::{Clock, Device, OpenMode, RealClock, RealDevice, write_all_at};
use collie_server::cluster::slot_of;
use collie_sim::Rng;
use parking_lot::Mutex;

use super::client::{Attempt, ClusterClient, Commands, Ports};
use super::operation::{Drawn, KEYS, REGISTERS};

/// Objects of a round.
pub(crate) const OBJECTS: usize = 8;
/// Operations of a client in a row, and the longest pause after them: they meet each other, and a
/// round is long enough for what is done to nodes.
const BURST: std::ops::Range<u64> = 10..40;
const PAUSE_MS: u64 = 400;
/// The pause after a refusal.
const REFUSED: Duration = Duration::from_millis(10);
/// A value by which disks run full.
const FILLER_BYTES: usize = 512 << 10;
/// How long a command that is executed once is repeated.
const REPEATED_FOR: Duration = Duration::from_secs(20);
/// How long a read at the end may be refused.
const READ: Duration = Duration::from_secs(60);
/// How long a write may take that is only to show that writes succeed.
const PROBE: Duration = Duration::from_millis(250);
/// The client that reads everything.
const READER: u32 = 1_000;
/// Configurations that the checker tries for an object, at most.
const CONFIGURATIONS_MAX: usize = 1_000_000;
/// Replies that are described; the others are counted.
const WORDS_MAX: usize = 8;

/// What all clients share. Its counters are watched and order nothing: Relaxed.
#[derive(Debug, Default)]
pub(crate) struct Board {
    acknowledged: AtomicU64,
    /// Of those, what changes something.
    writes: AtomicU64,
    unknown: AtomicU64,
    refused: AtomicU64,
    unexpected: AtomicU64,
    /// The last value that a register was given.
    value: AtomicI64,
    words: Mutex<Vec<String>>,
}

impl Board {
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Returns as soon as one more write is acknowledged, or after `patience`.
    pub(crate) fn wait_for_a_write(&self, patience: Duration) {
        let (clock, before) = (RealClock, self.writes());
        let began = clock.monotonic();
        while self.writes() == before
            && u128::from(clock.monotonic().saturating_sub(began)) < patience.as_nanos()
        {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Replies that none of the commands may have.
    pub(crate) fn unexpected(&self) -> u64 {
        self.unexpected.load(Ordering::Relaxed)
    }

    /// The first few of them in words.
    pub(crate) fn words(&self) -> Vec<String> {
        self.words.lock().clone()
    }

    pub(crate) fn fresh(&self) -> i64 {
        self.value.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts what came of an operation. `words`: what it was, if nothing of the kind may come of it.
    pub(crate) fn count(&self, attempt: &Attempt, writes: bool, words: impl FnOnce() -> String) {
        match attempt {
            Attempt::Executed(_) => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
                self.writes.fetch_add(u64::from(writes), Ordering::Relaxed);
            }
            Attempt::NotExecuted(_) => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
            Attempt::Unknown(_) => drop(self.unknown.fetch_add(1, Ordering::Relaxed)),
            Attempt::Unexpected(text) => self.find(format!("{} was answered by {text}", words())),
        }
    }

    fn find(&self, text: String) {
        self.unexpected.fetch_add(1, Ordering::Relaxed);
        let mut words = self.words.lock();
        if words.len() < WORDS_MAX {
            words.push(text);
        }
    }
}

/// A few keys of one slot, and what was done to them.
#[derive(Debug)]
pub(crate) struct Object {
    tag: String,
    history: Mutex<Vec<Operation>>,
    /// What was refused, and why: the checker takes it for never executed.
    refused: Mutex<Vec<(Operation, String)>>,
}

impl Object {
    fn key(&self, number: usize) -> Vec<u8> {
        let kind = if number < REGISTERS { "register" } else { "counter" };
        format!("{{{}}}{kind}{number}", self.tag).into_bytes()
    }

    /// Keys beside those that are checked.
    pub(crate) fn probe(&self) -> Vec<u8> {
        format!("{{{}}}probe", self.tag).into_bytes()
    }

    fn filler(&self) -> Vec<u8> {
        format!("{{{}}}filler", self.tag).into_bytes()
    }

    pub(crate) fn slot(&self) -> u16 {
        slot_of(&self.probe())
    }
}

/// The objects of a round, all absent at first.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) objects: Vec<Object>,
    /// Whether the nodes know `COLLIE.ONCE`.
    has_once: bool,
}

/// What the checker says of a round.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// Objects that no order fits, or whose sums are wrong; and those of which it is not known.
    pub(crate) contradictions: u64,
    pub(crate) undecided: u64,
    pub(crate) words: Vec<String>,
}

/// Sends a command that may have been executed again, until it is known: it is executed once.
fn repeat(connections: &mut ClusterClient, object: usize, commands: &Commands) -> Attempt {
    let (clock, mut attempt) = (RealClock, Attempt::Unknown(String::new()));
    let began = clock.monotonic();
    while u128::from(clock.monotonic() - began) < REPEATED_FOR.as_nanos() {
        std::thread::sleep(REFUSED);
        attempt = match connections.attempt(object, commands) {
            // The first attempt may have been all the same.
            Attempt::NotExecuted(text) => Attempt::Unknown(text),
            Attempt::Unknown(text) => Attempt::Unknown(text),
            known => return known,
        };
    }
    attempt
}

impl Round {
    pub(crate) fn new(number: u64, has_once: bool) -> Self {
        let object = |n: usize| Object {
            tag: format!("r{number}o{n}"),
            history: Mutex::default(),
            refused: Mutex::default(),
        };
        Self {
            objects: (0..OBJECTS).map(object).collect(),
            has_once,
        }
    }

    /// Works as one client until it is to stop.
    pub(crate) fn work(&self, board: &Board, client: u32, mut rng: Rng, ports: &Ports, stop: &AtomicBool) {
        let mut connections = ClusterClient::new(ports, self.objects.len(), client as usize);
        // Relaxed: it orders nothing.
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..BURST.start + rng.below(BURST.end - BURST.start) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let object = rng.index(self.objects.len());
                // What was refused is not sent again: if it was executed all the same, its value is
                // one that no operation has.
                let drawn = Drawn::draw(&mut rng, self.has_once, || board.fresh());
                let attempt = self.attempt(board, client, object, &drawn, &mut connections);
                if matches!(&attempt, Attempt::NotExecuted(text) if !text.starts_with("MOVED")) {
                    std::thread::sleep(REFUSED);
                }
            }
            std::thread::sleep(Duration::from_millis(rng.below(PAUSE_MS)));
        }
    }

    /// Attempts an operation once and notes what came of it.
    fn attempt(
        &self,
        board: &Board,
        client: u32,
        object: usize,
        drawn: &Drawn,
        connections: &mut ClusterClient,
    ) -> Attempt {
        let (clock, place) = (RealClock, &self.objects[object]);
        let commands = drawn.commands(|key| place.key(key));
        let call = clock.monotonic();
        let mut attempt = connections.attempt(object, &commands);
        if drawn.is_once() && matches!(attempt, Attempt::Unknown(_)) {
            attempt = repeat(connections, object, &commands);
        }
        let returned = clock.monotonic();
        if let Attempt::Executed(replies) = &attempt
            && drawn.answers(replies.clone()).is_none()
        {
            attempt = Attempt::Unexpected(format!("{replies:?}"));
        }
        let mut operation = Operation {
            client,
            call,
            returned: None,
            steps: drawn.steps.clone(),
            answers: Vec::new(),
        };
        board.count(&attempt, drawn.writes(), || {
            let sent = commands.iter().map(|words| words.join(&b' '));
            let sent: Vec<String> = sent
                .map(|words| String::from_utf8_lossy(&words).into_owned())
                .collect();
            format!("client {client}: {sent:?}")
        });
        match &attempt {
            Attempt::Executed(replies) => {
                operation.returned = Some(returned);
                operation.answers = drawn.answers(replies.clone()).unwrap_or_default();
            }
            Attempt::NotExecuted(text) => {
                operation.returned = Some(returned);
                place.refused.lock().push((operation, text.clone()));
                return attempt;
            }
            Attempt::Unknown(_) | Attempt::Unexpected(_) => {}
        }
        if operation.returned.is_some() || drawn.writes() {
            place.history.lock().push(operation);
        }
        attempt
    }

    /// Writes large values beside what is checked until it is over, so that disks run full.
    pub(crate) fn fill(&self, ports: &Ports, over: &AtomicBool) {
        let mut connections = ClusterClient::new(ports, self.objects.len(), 0);
        let value = vec![b'f'; FILLER_BYTES];
        for number in (0..self.objects.len()).cycle() {
            // Relaxed: it orders nothing.
            if over.load(Ordering::Relaxed) {
                return;
            }
            let key = self.objects[number].filler();
            let command = vec![vec![b"SET".to_vec(), key, value.clone()]];
            // What comes of it does not matter.
            if !matches!(connections.attempt(number, &command), Attempt::Executed(_)) {
                std::thread::sleep(REFUSED);
            }
        }
    }

    /// Reads all keys when nothing is done to nodes, and notes it.
    pub(crate) fn read(&self, board: &Board, ports: &Ports) -> anyhow::Result<()> {
        let clock = RealClock;
        let mut connections = ClusterClient::new(ports, self.objects.len(), 0);
        for (number, object) in self.objects.iter().enumerate() {
            let began = clock.monotonic();
            loop {
                let attempt = self.attempt(board, READER, number, &Drawn::read_all(), &mut connections);
                if matches!(attempt, Attempt::Executed(_)) {
                    break;
                }
                if u128::from(clock.monotonic() - began) > READ.as_nanos() {
                    bail!(
                        "the keys of {} cannot be read for {READ:?}: {attempt:?}",
                        object.tag
                    );
                }
                std::thread::sleep(REFUSED);
            }
        }
        Ok(())
    }

    /// Writes what was done to each object, and what came of it, to files in `dir`.
    pub(crate) fn keep(&self, dir: &Path) -> anyhow::Result<()> {
        for object in &self.objects {
            let mut lines: Vec<(u64, String)> = Vec::new();
            for operation in object.history.lock().iter() {
                lines.push((operation.call, format!("{operation:?}")));
            }
            for (operation, why) in object.refused.lock().iter() {
                lines.push((operation.call, format!("refused: {why}: {operation:?}")));
            }
            lines.sort();
            let text: String = lines.into_iter().map(|(_, line)| line + "\n").collect();
            let path = dir.join(format!("history-{}", object.tag));
            let file = RealDevice::new().open(&path, OpenMode::OpenOrCreate)?;
            write_all_at(&*file, text.as_bytes(), 0)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Judges all objects, each of which was read last.
    pub(crate) fn check(&self) -> anyhow::Result<Checked> {
        let mut checked = Checked::default();
        for object in &self.objects {
            let history = object.history.lock();
            let mut words = Vec::new();
            match objects::check(&history, KEYS, CONFIGURATIONS_MAX) {
                Judgement::Fits => {}
                Judgement::Undecided => {
                    checked.undecided += 1;
                    checked.words.push(format!(
                        "object {}: {} operations, and no order found or ruled out in {CONFIGURATIONS_MAX} steps",
                        object.tag,
                        history.len()
                    ));
                }
                Judgement::Contradiction(text) => words.push(text),
            }
            let last = history.iter().rfind(|operation| operation.client == READER);
            let answers = &last.context("the keys were not read")?.answers;
            for key in REGISTERS..KEYS {
                let Some(Answer::Value(value)) = answers.get(key) else {
                    continue;
                };
                words.extend(objects::sum(&history, key, *value).err());
            }
            checked.contradictions += u64::from(!words.is_empty());
            let words = words.iter().map(|text| format!("object {}: {text}", object.tag));
            checked.words.extend(words);
        }
        Ok(checked)
    }
}

/// How long it takes from now on until a write to a key succeeds that is begun after now; `None`
/// where none does within `patience` or before `stop`.
pub(crate) fn until_a_write(
    key: &[u8],
    ports: &Ports,
    patience: Duration,
    stop: &AtomicBool,
) -> Option<Duration> {
    let clock = RealClock;
    let began = clock.monotonic();
    let mut connections = ClusterClient::new(ports, 1, 0).with_patience(PROBE);
    let command = vec![vec![b"SET".to_vec(), key.to_vec(), b"1".to_vec()]];
    // Relaxed: it orders nothing.
    while !stop.load(Ordering::Relaxed) {
        let attempt = connections.attempt(0, &command);
        let took = Duration::from_nanos(clock.monotonic().saturating_sub(began));
        match attempt {
            Attempt::Executed(_) => return Some(took),
            _ if took > patience => return None,
            Attempt::NotExecuted(text) if text.starts_with("MOVED") => {}
            _ => std::thread::sleep(REFUSED),
        }
    }
    None
}
