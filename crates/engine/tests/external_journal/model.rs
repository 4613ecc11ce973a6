//! Random lives of a store beside a map: what is there after each opening is exactly what the journal
//! has up to `flushed`, and after it is applied again, all of it.
//!
//! A life ends in a crash: the store's device dies, at a random operation or between two calls, and
//! the journal loses what it was not asked to make durable. Other entries follow under the same
//! sequence numbers, so a table that was ahead of the journal shows.
//!
//! `COLLIE_RUNS=500` is the long form; `COLLIE_SEED=N` replays one run.

use std::sync::Arc;

use collie_db::{Db, Options, Snapshot};

use crate::common::{Rng, seeds};
use crate::dying::Dying;
use crate::journal::{FIRST, Map, TestJournal, Writes, batch, content, options};

const LIVES: u64 = 8;
const STEPS: u64 = 120;

/// Some writes over few keys, so that they meet; now and then one that fills a memtable.
fn writes(rng: &mut Rng) -> Writes {
    let large = rng.one_in(20);
    (0..=rng.below(6))
        .map(|_| {
            let key = format!("key/{:03}", rng.below(150)).into_bytes();
            let len = if large { 9000 } else { 1 + rng.below(200) };
            let value = (!rng.one_in(3)).then(|| vec![rng.below(256) as u8; len as usize]);
            (key, value)
        })
        .collect()
}

struct Life {
    db: Db,
    device: Dying,
    journal: Arc<TestJournal>,
    snapshots: Vec<(Snapshot, Map)>,
}

impl Life {
    /// One step. Fails where the device has died.
    fn step(&mut self, rng: &mut Rng, context: &str) -> collie_db::Result<()> {
        let (db, journal) = (&self.db, &self.journal);
        match rng.below(40) {
            0 => {
                db.flush()?;
                assert_eq!(db.flushed(), journal.last(), "{context}: after a flush");
            }
            1 => db.compact()?,
            2 => {
                let map = journal.map_at(journal.last());
                self.snapshots.push((db.snapshot(), map));
            }
            3 => {
                for (snapshot, map) in self.snapshots.drain(..) {
                    let family = db.default_family();
                    let found: Map = snapshot
                        .iter(&family)?
                        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
                        .collect::<collie_db::Result<_>>()?;
                    assert_eq!(found, map, "{context}: a snapshot");
                }
            }
            4 => journal.sync(),
            // About at the next flush, which writes to the device what its manifest records.
            5 => {
                self.device.die_after(rng.below(8));
                db.flush()?;
            }
            _ => {
                let seq = journal.last() + 1 + rng.below(3);
                journal.apply(db, seq, writes(rng))?;
            }
        }
        Ok(())
    }
}

#[test]
fn every_opening_finds_exactly_what_is_flushed() {
    let (mut flushed_lives, mut found_ahead) = (0, 0);
    for seed in seeds(25) {
        let dir = crate::common::fast_dir();
        let path = dir.path().join("store");
        let journal = Arc::new(TestJournal::default());
        let mut rng = Rng::new(seed);
        let mut recorded = FIRST - 1;
        for life in 0..LIVES {
            let context = format!("seed {seed}, life {life}");
            let device = Dying::new();
            let options = Options {
                device: Arc::new(device.clone()),
                ..options(&journal)
            };
            let db = Db::open(&path, options).unwrap_or_else(|e| panic!("{context}: {e}"));
            let flushed = db.flushed();
            assert!(flushed >= recorded, "{context}: {flushed} is below {recorded}");
            found_ahead += u32::from(flushed > recorded);
            let (found, map) = (content(&db), journal.map_at(flushed));
            assert!(
                found == map,
                "{context}: flushed to {flushed}, and it holds something else"
            );
            for (seq, writes) in journal.above(flushed) {
                db.apply(&batch(&db, &writes), seq).unwrap();
                if rng.one_in(10) {
                    assert_eq!(
                        content(&db),
                        journal.map_at(seq),
                        "{context}: applied up to {seq}"
                    );
                }
            }
            assert_eq!(content(&db), journal.map_at(journal.last()), "{context}");
            let mut life = Life {
                db,
                device,
                journal: Arc::clone(&journal),
                snapshots: Vec::new(),
            };
            for step in 0..rng.below(STEPS) {
                match life.step(&mut rng, &context) {
                    Ok(()) => {}
                    Err(_) if life.device.is_dead() => break,
                    Err(error) => panic!("{context}, step {step}: {error}"),
                }
            }
            recorded = life.db.flushed();
            flushed_lives += u32::from(recorded > flushed);
            life.device.kill();
            drop(life);
            journal.crash();
        }
    }
    assert!(flushed_lives > 50, "{flushed_lives} lives flushed something");
    assert!(
        found_ahead > 0,
        "no opening found a table that the manifest does not record"
    );
}
