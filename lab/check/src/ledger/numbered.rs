//! Clients that number their commits and remove old ones: the ledger of the tests that kill a
//! process or cut the power of a whole store, through whatever interface it is read and written.
//!
//! Commit `n` of a client has a value that follows from the client, `n`, the life of the store that
//! it was made in, and how many commits of each client it had read. It is stored in two places,
//! sets the client's counter to `n + 1`, and removes commit `n - window`, so that a store stays
//! small however long a test runs.

use std::ops::Range;

use collie_sim::{Rng, mix};

use super::{CLIENT_SHIFT, Commit, Ledger, Promise, Survives, Verdict};

/// How many commits of each client there are.
pub type Counts<const N: usize> = [u64; N];

/// One value in so many is larger.
const LARGE_ONE_IN: u64 = 64;
const LARGE: usize = 20_000;
/// Bits of a commit's number in the ledger that are its life.
const LIFE_BITS: u32 = 16;

/// The clients, and the ledger of their commits.
#[derive(Debug, Clone)]
pub struct Clients<const N: usize> {
    ledger: Ledger,
    window: u64,
    fill_max: usize,
    /// Commits that the ledger knows.
    begun: Counts<N>,
    /// Commits of which it knows that they were acknowledged.
    acknowledged: Counts<N>,
    life: u64,
    /// From which number on commits are of which life, in order.
    lives: [Vec<(u64, u64)>; N],
}

/// What is in a store.
#[derive(Debug, Clone)]
pub struct Found<const N: usize> {
    /// What the counters say.
    pub counts: Counts<N>,
    commits: Vec<Commit>,
}

fn id(client: usize, n: u64, life: u64) -> u64 {
    (client as u64) << CLIENT_SHIFT | n << LIFE_BITS | life
}

impl<const N: usize> Clients<N> {
    /// The clients of an empty store, each with its last `window` commits, whose values are filled
    /// with at most `fill_max` bytes.
    #[must_use]
    pub fn new(window: u64, fill_max: usize) -> Self {
        Self {
            ledger: Ledger::new(),
            window,
            fill_max,
            begun: [0; N],
            acknowledged: [0; N],
            life: 0,
            lives: std::array::from_fn(|_| Vec::new()),
        }
    }

    /// The life that goes on now.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// The same clients with an empty store, in a later life.
    #[must_use]
    pub fn start_over(&self) -> Self {
        Self {
            life: self.life,
            ..Self::new(self.window, self.fill_max)
        }
    }

    /// The commits of a client that must be there where its counter is `count`.
    #[must_use]
    pub fn kept(&self, count: u64) -> Range<u64> {
        count.saturating_sub(self.window)..count
    }

    /// The number in the ledger of commit `n` of a client, in the life in which it must have been
    /// made.
    fn id(&self, client: usize, n: u64) -> u64 {
        let lives = self.lives.get(client).map_or(&[][..], |lives| lives);
        let later = lives.partition_point(|&(first, _)| first <= n);
        let life = lives.get(later.wrapping_sub(1)).map_or(0, |&(_, life)| life);
        id(client, n, life)
    }

    /// That many commits of each client were sent.
    pub fn sent(&mut self, counts: &Counts<N>) {
        for (client, &count) in counts.iter().enumerate() {
            let begun = self.begun.get(client).copied().unwrap_or(count);
            for n in begun..count {
                let id = self.id(client, n);
                self.ledger.begin_as(id);
                if let Some(old) = n.checked_sub(self.window) {
                    self.ledger.removes(id, self.id(client, old));
                }
            }
        }
        raise(&mut self.begun, counts);
    }

    /// That many commits of each client were acknowledged.
    pub fn acknowledged(&mut self, counts: &Counts<N>, promise: Promise) {
        self.sent(counts);
        for (client, &count) in counts.iter().enumerate() {
            let before = self.acknowledged.get(client).copied().unwrap_or(count);
            (before..count).for_each(|n| self.ledger.promised(self.id(client, n), promise));
        }
        raise(&mut self.acknowledged, counts);
    }

    /// Judges what a store has after a crash. It goes on from there: that is durable now, and what
    /// is not there must never come back, though its number comes again.
    pub fn check(&mut self, survives: Survives, found: &Found<N>) -> Verdict {
        let mut verdict = self.ledger.check(self.ledger.now(), survives, &found.commits);
        verdict.recovered = found.counts.iter().sum();
        self.ledger = self.ledger.after(&found.commits);
        (self.begun, self.acknowledged) = (found.counts, found.counts);
        verdict
    }

    /// The same where only the counters were read.
    pub fn check_counts(&mut self, survives: Survives, counts: &Counts<N>) -> Verdict {
        let mut found = Found::new(*counts);
        for (client, &count) in counts.iter().enumerate() {
            let commits = self.kept(count).map(|n| Commit::whole(self.id(client, n), None));
            found.commits.extend(commits);
        }
        self.check(survives, &found)
    }

    /// A life begins in which the clients go on from these counts.
    pub fn begin_life(&mut self, counts: &Counts<N>) {
        self.life += 1;
        for (lives, &count) in self.lives.iter_mut().zip(counts) {
            lives.retain(|&(first, _)| first < count);
            lives.push((count, self.life));
            // Those of which nothing is left.
            let oldest = lives.partition_point(|&(first, _)| first + self.window < count);
            lives.drain(..oldest.saturating_sub(1));
        }
        (self.begun, self.acknowledged) = (*counts, *counts);
    }

    /// Adds commit `n` of a client to what was found: its value from the first place, and whether
    /// the second place has what belongs to that value; `None` for what is not there.
    pub fn add(
        &self,
        found: &mut Found<N>,
        (client, n): (usize, u64),
        first: Option<&[u8]>,
        second: Option<bool>,
    ) {
        let count = found.counts.get(client).copied().unwrap_or(0);
        if first.is_none() && second.is_none() {
            // The counter is the last one's own.
            if n + 1 == count {
                let torn = Commit::torn(Some(self.id(client, n)), None);
                found.commits.push(torn);
            }
            return;
        }
        let decoded = first
            .filter(|_| second == Some(true) && n < count)
            .and_then(|value| read_value(value, (client, n), self.fill_max));
        found.commits.push(match decoded {
            None => Commit::torn(Some(self.id(client, n)), None),
            Some((life, seen)) => {
                let seen: Counts<N> = seen;
                let others = seen.iter().enumerate().filter(|(_, seen)| **seen > 0);
                let mut saw: Vec<u64> = others.map(|(other, seen)| self.id(other, seen - 1)).collect();
                saw.extend(n.checked_sub(1).map(|before| self.id(client, before)));
                Commit::whole(id(client, n, life), None).after(saw)
            }
        });
    }
}

impl<const N: usize> Found<N> {
    /// A store of which only the counters were read so far.
    #[must_use]
    pub fn new(counts: Counts<N>) -> Self {
        Self {
            counts,
            commits: Vec::new(),
        }
    }
}

fn raise<const N: usize>(counts: &mut Counts<N>, to: &Counts<N>) {
    for (count, to) in counts.iter_mut().zip(to) {
        *count = (*count).max(*to);
    }
}

/// What commit `n` of a client stores, made in that life after it had read `seen`. All of it
/// follows from these, so that no other bytes pass for it; at most `fill_max` of them are filling,
/// save for one value in 64.
#[must_use]
pub fn value<const N: usize>(
    (client, n): (usize, u64),
    life: u64,
    seen: &Counts<N>,
    fill_max: usize,
) -> Vec<u8> {
    let words = [client as u64, n, life].into_iter().chain(seen.iter().copied());
    let mut rng = Rng::new(words.clone().fold(0, |sum, word| mix(sum ^ word)));
    let fill = if rng.one_in(LARGE_ONE_IN) {
        LARGE
    } else {
        rng.index(fill_max)
    };
    let mut value: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let head = value.len();
    value.resize(head + fill, 0);
    if let Some(filling) = value.get_mut(head..) {
        rng.fill(filling);
    }
    value
}

/// In which life the value of commit `n` of a client was made, and what it had read, if it is
/// whole.
#[must_use]
pub fn read_value<const N: usize>(
    bytes: &[u8],
    (client, n): (usize, u64),
    fill_max: usize,
) -> Option<(u64, Counts<N>)> {
    let mut words = bytes
        .chunks_exact(8)
        .filter_map(|word| word.try_into().ok().map(u64::from_le_bytes))
        .skip(2);
    let life = words.next()?;
    let mut seen = [0; N];
    for count in &mut seen {
        *count = words.next()?;
    }
    (value((client, n), life, &seen, fill_max) == bytes).then_some((life, seen))
}
