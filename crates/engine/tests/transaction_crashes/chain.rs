//! Power cuts in the middle of commits of which each has read what the one before wrote, and none
//! waited for that to be durable.
//!
//! The device takes snapshots around its syncs and within its direct writes, each with the last
//! link that was acknowledged before it and the last that was visible. `COLLIE_RUNS` sets how many
//! chains, `COLLIE_SEED` one seed alone.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_db::{
    Concurrency, Db, Error, Family, FamilyOptions, Isolation, Result, Ticket, Transaction,
    TransactionOptions, Value,
};
use collie_sim::{Points, PowerCut, SimDevice, Snapshot};

use crate::Replay;
use crate::common::{self, Rng};
use crate::power;
use crate::program::Mixture;

const THREADS: u64 = 4;
const LINKS: u64 = 300;
/// Commits of a thread that wait for the log while it goes on.
const WAITING: usize = 8;
/// Snapshots of a chain, at most.
const SNAPSHOTS: usize = 10;
const FAMILIES: [&str; 3] = ["first", "second", "third"];
const HOT: &str = "hot";

/// How a link hangs on the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chain {
    /// All read and write one row; each adds one of its own.
    OneRow,
    /// Each reads the row of the one before, in another family, and adds its own.
    AcrossFamilies,
}

fn families(db: &Db) -> [Family; 3] {
    FAMILIES.map(|name| match db.family(name) {
        Some(family) => family,
        None => db.create_family(name, FamilyOptions::default()).unwrap(),
    })
}

fn row(link: u64) -> String {
    format!("link/{link:06}")
}

/// A number as text: a sector of a durable frame that held nothing but zeros would pass for one
/// that was never written, in which [`PowerCut`] may put garbage.
fn value(number: u64) -> String {
    number.to_string()
}

fn number(value: Option<Value>) -> u64 {
    value.map_or(0, |value| std::str::from_utf8(&value).unwrap().parse().unwrap())
}

impl Chain {
    /// Adds a link after the last one, and returns its number.
    fn add(self, tx: &Transaction, families: &[Family; 3], last: u64) -> Result<u64> {
        let of = |link: u64| &families[(link % 3) as usize];
        let link = match self {
            Self::OneRow => 1 + number(tx.get_for_update(&families[0], HOT)?),
            Self::AcrossFamilies => {
                if last > 0 {
                    let before = number(tx.get_for_share(of(last), row(last))?);
                    assert_eq!(before, last, "a link reads what the one before wrote");
                }
                last + 1
            }
        };
        if self == Self::OneRow {
            tx.put(&families[0], HOT, value(link))?;
        }
        tx.put(of(link), row(link), value(link))?;
        Ok(link)
    }

    /// Which links are there: all up to the one that is returned, and no other.
    fn length(self, families: &[Family; 3], context: &str) -> u64 {
        let mut links = Vec::new();
        for family in families {
            let rows = family.prefix("link/").unwrap();
            links.extend(rows.map(|row| number(Some(row.unwrap().1))));
        }
        links.sort_unstable();
        let length = links.len() as u64;
        let gap = links.iter().zip(1..).find(|(link, number)| *link != number);
        assert_eq!(
            gap, None,
            "{context}: a link is there without the one before, of {links:?}"
        );
        if self == Self::OneRow {
            let hot = number(families[0].get(HOT).unwrap());
            assert_eq!(hot, length, "{context}: a part of the last commit");
        }
        length
    }
}

/// What the threads that make a chain share.
struct Making<'a> {
    chain: Chain,
    db: &'a Db,
    families: &'a [Family; 3],
    kinds: &'a [TransactionOptions],
    /// The last link, for those who do not find it in a row that all write.
    last: Mutex<u64>,
    /// How many links were made.
    made: AtomicU64,
    visible: &'a AtomicU64,
    acknowledged: &'a AtomicU64,
}

impl Making<'_> {
    fn work(&self, mut rng: Rng) {
        let mut waiting = VecDeque::new();
        while self.visible.load(Ordering::SeqCst) < LINKS {
            let options = self.kinds[rng.below(self.kinds.len() as u64) as usize].clone();
            if let Some(committed) = self.link(options) {
                waiting.push_back(committed);
            }
            if waiting.len() > WAITING
                && let Some(oldest) = waiting.pop_front()
            {
                self.acknowledge(oldest);
            }
        }
        waiting.into_iter().for_each(|ticket| self.acknowledge(ticket));
    }

    /// Adds a link, unless another client was first.
    fn link(&self, options: TransactionOptions) -> Option<(u64, Ticket)> {
        let mut last = match self.chain {
            Chain::OneRow => None,
            Chain::AcrossFamilies => Some(self.last.lock().unwrap()),
        };
        let tx = self.db.transaction(options).unwrap();
        let made = self
            .chain
            .add(&tx, self.families, last.as_deref().copied().unwrap_or(0));
        let link = match made.and_then(|link| Ok((link, tx.commit_ticket()?))) {
            Err(Error::Conflict { .. }) => return None,
            link => link.unwrap(),
        };
        if let Some(last) = &mut last {
            **last = link.0;
        }
        self.made.fetch_add(1, Ordering::SeqCst);
        self.visible.fetch_max(link.0, Ordering::SeqCst);
        Some(link)
    }

    fn acknowledge(&self, (link, ticket): (u64, Ticket)) {
        ticket.wait().unwrap();
        self.acknowledged.fetch_max(link, Ordering::SeqCst);
    }
}

/// Kinds of transactions that make a chain: pessimistic ones wait for their turn, optimistic ones
/// try again.
fn kinds() -> Vec<TransactionOptions> {
    let kind = |(concurrency, isolation)| TransactionOptions {
        concurrency,
        isolation,
        lock_timeout: Duration::from_secs(60),
        ..TransactionOptions::default()
    };
    let all = [
        (Concurrency::Pessimistic, Isolation::Snapshot),
        (Concurrency::Pessimistic, Isolation::Serializable),
        (Concurrency::Optimistic, Isolation::Serializable),
    ];
    all.into_iter().map(kind).collect()
}

/// A snapshot's tag: what was visible and what was acknowledged.
fn unpack(snapshot: &Snapshot) -> (u64, u64) {
    (snapshot.tag() >> 32, snapshot.tag() & 0xffff_ffff)
}

fn make(chain: Chain, path: &Path, device: &SimDevice, shared: bool, rng: &mut Rng) -> Vec<Snapshot> {
    let db = Db::open(path, power::options(path, device, shared, Mixture::new(0, false))).unwrap();
    let families = families(&db);
    let numbers = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let tagged = Arc::clone(&numbers);
    device.tag_snapshots(move || {
        // What was acknowledged by now is in the snapshot; what is visible may still become more.
        let acknowledged = tagged[1].load(Ordering::SeqCst);
        tagged[0].load(Ordering::SeqCst) << 32 | acknowledged
    });
    device.record(Points::Syncs, SNAPSHOTS);
    device.delay_syncs(Duration::from_millis(1));
    let making = Making {
        chain,
        db: &db,
        families: &families,
        kinds: &kinds(),
        last: Mutex::new(0),
        made: AtomicU64::new(0),
        visible: &numbers[0],
        acknowledged: &numbers[1],
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (making, rng) = (&making, Rng::new(rng.next()));
            scope.spawn(move || making.work(rng));
        }
    });
    let (made, last) = (making.made.into_inner(), numbers[0].load(Ordering::SeqCst));
    assert_eq!(made, last, "two links hang on the same one");
    let taken = device.take_snapshots();
    device.kill();
    taken
}

/// What the images of chains had.
#[derive(Debug, Default)]
struct Figures {
    images: u64,
    /// The most links that were visible and not acknowledged at a cut.
    most_open: u64,
    kept: u64,
    taken: u64,
}

fn cut(chain: Chain, test: &'static str) {
    let (mut figures, seeds) = (Figures::default(), common::seeds(4));
    let count = seeds.len();
    for seed in seeds {
        let _replay = Replay { seed, test };
        let mut rng = Rng::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let device = SimDevice::new(seed);
        let shared = rng.one_in(2);
        device.support_direct(seed % 4 == 0);
        for (n, snapshot) in make(chain, &path, &device, shared, &mut rng).iter().enumerate() {
            let (visible, acknowledged) = unpack(snapshot);
            figures.most_open = figures.most_open.max(visible.saturating_sub(acknowledged));
            for (way, cut) in PowerCut::WAYS {
                let context = format!("seed {seed}, snapshot {n}, power cut ({way})");
                let image = snapshot.power_cut(cut, rng.next()).device();
                let length = open_image(chain, &path, &image, shared, &context);
                assert!(
                    length >= acknowledged,
                    "{context}: {acknowledged} links were acknowledged, and {length} are there"
                );
                figures.images += 1;
                figures.kept += length.saturating_sub(acknowledged);
                figures.taken += visible.saturating_sub(length);
            }
        }
    }
    println!(
        "figures: chains of dependent commits, {chain:?}: {count} chains, {} power cuts with up to {} commits open, of which {} stayed and {} went; lost 0, out of order 0",
        figures.images, figures.most_open, figures.kept, figures.taken
    );
    assert!(
        figures.most_open > 8 && figures.kept > 0 && figures.taken > 0,
        "{figures:?}: no cut in the middle"
    );
}

/// How many links an image has; it can be added to.
fn open_image(chain: Chain, path: &Path, image: &SimDevice, shared: bool, context: &str) -> u64 {
    let options = power::options(path, image, shared, Mixture::new(0, false));
    let db = Db::open(path, options).unwrap_or_else(|e| panic!("{context}: {e}"));
    let families = families(&db);
    let length = chain.length(&families, context);
    let tx = db.transaction(TransactionOptions::default()).unwrap();
    assert_eq!(
        chain.add(&tx, &families, length).unwrap(),
        length + 1,
        "{context}"
    );
    tx.commit().unwrap();
    assert_eq!(chain.length(&families, context), length + 1);
    length
}

#[test]
fn a_power_cut_amid_commits_of_one_row_leaves_a_prefix_of_them() {
    cut(Chain::OneRow, "commits_of_one_row");
}

#[test]
fn a_power_cut_amid_commits_across_families_leaves_a_prefix() {
    cut(Chain::AcrossFamilies, "commits_across_families");
}
