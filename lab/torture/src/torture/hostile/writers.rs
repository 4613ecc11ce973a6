//! Clients that write and read keys of their own while a disk fills and empties, and compare every
//! reply.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_io::{Clock, RealClock};
use collie_sim::Rng;
use parking_lot::Mutex;

use crate::client;
use crate::torture::soak::call::{Call, Outcome};
use crate::torture::soak::ledger::{Ledger, Progress};

/// Clients, and how many keys each has.
const CLIENTS: u32 = 4;
const KEYS: u32 = 2_000;
/// Keys that are read at once when all of them are.
const PIECE: u32 = 50;
/// Violations that are described.
const WORDS_MAX: usize = 8;
/// What a refusal for want of room must say: what is wrong, and what to do.
const REFUSAL: [&str; 3] = ["MISCONF", "no space left", "free some space"];
/// How often something that must come about is looked for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// How far the owners are.
pub(crate) fn progress() -> Vec<Progress> {
    (0..CLIENTS).map(|_| Progress::new(KEYS)).collect()
}

/// What each of them has stored: nothing.
pub(crate) fn ledgers(progress: &[Progress]) -> Vec<Ledger<'_>> {
    (0..)
        .zip(progress)
        .map(|(owner, progress)| Ledger::new(owner, progress))
        .collect()
}

/// How many replies of each kind the clients got. Figures to watch: Relaxed.
#[derive(Default)]
pub(crate) struct Tally {
    changed: AtomicU64,
    read: AtomicU64,
    refused: AtomicU64,
    wrong: Mutex<Vec<String>>,
    stop: AtomicBool,
}

/// The figures at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Changes that were acknowledged.
    pub(crate) changed: u64,
    /// Reads that were answered.
    pub(crate) read: u64,
    /// Changes that were refused.
    pub(crate) refused: u64,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            changed: self.changed.load(Ordering::Relaxed),
            read: self.read.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// What was not as it should be, in words.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }

    fn add(&self, outcome: Outcome) {
        self.changed.fetch_add(outcome.changed, Ordering::Relaxed);
        let read = outcome.commands - outcome.changed - outcome.refused.len() as u64;
        self.read.fetch_add(read, Ordering::Relaxed);
        self.refused
            .fetch_add(outcome.refused.len() as u64, Ordering::Relaxed);
        let unhelpful = outcome.refused.into_iter().filter(|text| {
            let says_all = REFUSAL.iter().all(|part| text.contains(part));
            !says_all
        });
        let unhelpful = unhelpful.map(|text| format!("refused without a word of what to do: {text}"));
        let mut wrong = self.wrong.lock();
        for text in outcome.wrong.into_iter().chain(unhelpful) {
            if wrong.len() < WORDS_MAX {
                wrong.push(text);
            }
        }
    }

    /// Waits until the figures are so, at most for `patience`. `false` where they are not, or a
    /// client has ended.
    pub(crate) fn wait(&self, patience: Duration, mut is_so: impl FnMut(Counts) -> bool) -> bool {
        let clock = RealClock;
        let began = clock.monotonic();
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        while !is_so(self.counts()) {
            let waited = clock.monotonic().saturating_sub(began);
            if waited > patience || self.stop.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        true
    }
}

/// Has the clients work while `watch` does.
pub(crate) fn during<T>(
    port: u16,
    ledgers: &mut [Ledger<'_>],
    rng: &mut Rng,
    tally: &Tally,
    watch: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    // Relaxed, here and below: a client may make one more call.
    tally.stop.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let clients: Vec<_> = ledgers
            .iter_mut()
            .map(|ledger| {
                let rng = rng.fork();
                scope.spawn(move || {
                    let ended = work(port, ledger, rng, tally);
                    tally.stop.store(true, Ordering::Relaxed);
                    ended
                })
            })
            .collect();
        let watched = watch();
        tally.stop.store(true, Ordering::Relaxed);
        for client in clients {
            match client.join() {
                Ok(ended) => ended?,
                Err(_) => anyhow::bail!("a client's thread panicked"),
            }
        }
        watched
    })
}

fn work(port: u16, ledger: &mut Ledger<'_>, mut rng: Rng, tally: &Tally) -> anyhow::Result<()> {
    let mut client = client::connect(port)?;
    while !tally.stop.load(Ordering::Relaxed) {
        let call = Call::draw(&mut rng, ledger.owner(), ledger.keys());
        tally.add(call.make(&mut client, ledger)?);
    }
    Ok(())
}

/// Reads everything that the clients have stored.
pub(crate) fn look_at_everything(port: u16, ledgers: &mut [Ledger<'_>], tally: &Tally) -> anyhow::Result<()> {
    let mut client = client::connect(port)?;
    for ledger in ledgers {
        for from in (0..ledger.keys()).step_by(PIECE as usize) {
            let keys = from..ledger.keys().min(from + PIECE);
            tally.add(Call::get_all(ledger.owner(), keys).make(&mut client, ledger)?);
        }
    }
    Ok(())
}
