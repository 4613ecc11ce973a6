//! A store under one option set, as it runs a program and is compared with the model.

use std::path::{Path, PathBuf};

use collie_db::{
    Batch, Db, Durability, Error, Family, Iter, Options, Snapshot, WalRecoveryMode, WriteOptions,
};
use collie_log::LogError;

use crate::program::{Families, HELD_MOST, Map, Model, NAMES, Range, Step, Write, choose, inside, take};
use crate::sets::Set;

type Handles = [Option<Family>; NAMES.len()];

/// A snapshot, with the families that there were.
struct Held {
    snapshot: Snapshot,
    families: Handles,
}

pub(crate) struct Store {
    pub(crate) set: Set,
    path: PathBuf,
    db: Option<Db>,
    families: Handles,
    snapshots: Vec<Held>,
    iterators: Vec<Iter>,
}

impl Store {
    pub(crate) fn open(set: Set, path: &Path) -> Self {
        let mut store = Self {
            set,
            path: path.into(),
            db: None,
            families: Default::default(),
            snapshots: Vec::new(),
            iterators: Vec::new(),
        };
        store.reopen();
        store
    }

    pub(crate) fn reopen(&mut self) {
        self.try_reopen()
            .unwrap_or_else(|e| panic!("{}: it does not open: {e}", self.set.name));
    }

    /// After a kill. A write that was cut off leaves an incomplete end, which
    /// [`WalRecoveryMode::AbsoluteConsistency`] is to refuse; whether it did.
    pub(crate) fn reopen_after_kill(&mut self) -> bool {
        let mode = self.set.options.wal_recovery_mode;
        let refused = match self.try_reopen() {
            Err(Error::Log(LogError::Corrupt { expected, .. })) => {
                mode == WalRecoveryMode::AbsoluteConsistency && expected.contains("absolute consistency")
            }
            Err(error) => panic!("{}: it does not open: {error}", self.set.name),
            Ok(()) => false,
        };
        if refused {
            self.set.options.wal_recovery_mode = WalRecoveryMode::default();
            self.reopen();
            self.set.options.wal_recovery_mode = mode;
        }
        refused
    }

    fn try_reopen(&mut self) -> Result<(), Error> {
        self.close();
        let db = Db::open(&self.path, self.set.options.clone())?;
        self.families = NAMES.map(|name| db.family(name));
        let known: Vec<_> = db.families();
        assert!(
            known.iter().all(|name| NAMES.contains(&&**name)),
            "{}: there are the families {known:?}",
            self.set.name
        );
        self.db = Some(db);
        Ok(())
    }

    pub(crate) fn reopen_as(&mut self, options: &Options) {
        self.set.options = options.clone();
        self.reopen();
    }

    pub(crate) fn close(&mut self) {
        self.let_go();
        self.families = Default::default();
        if let Some(db) = self.db.take() {
            db.close().unwrap_or_else(|e| panic!("{}: {e}", self.set.name));
        }
    }

    /// Nothing is held any more.
    pub(crate) fn let_go(&mut self) {
        self.snapshots.clear();
        self.iterators.clear();
    }

    pub(crate) fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn family(&self, number: usize) -> &Family {
        self.families[number].as_ref().unwrap()
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::Put(family, key, value) => drop(self.family(*family).put(key, value).unwrap()),
            Step::Delete(family, key) => drop(self.family(*family).delete(key).unwrap()),
            Step::Unlogged(family, key, value) => {
                let unlogged = WriteOptions::without_wal();
                self.family(*family).put_with(key, value, &unlogged).unwrap();
            }
            Step::Batch(writes) => self.batch(writes),
            Step::Create(family) => self.create(*family),
            Step::Drop(family) => self.drop_family(*family),
            Step::Snapshot if self.snapshots.len() < HELD_MOST => self.snapshots.push(Held {
                snapshot: self.db().snapshot(),
                families: self.families.clone(),
            }),
            Step::DropSnapshot(which) => drop(take(&mut self.snapshots, *which)),
            Step::Hold(family, snapshot, range) if self.iterators.len() < HELD_MOST => {
                let iterator = self.iterator(*family, *snapshot, range);
                self.iterators.push(iterator);
            }
            Step::LetGo(which) => drop(take(&mut self.iterators, *which)),
            Step::Flush => self.db().flush().unwrap(),
            Step::Compact => self.db().compact().unwrap(),
            Step::FlushWal => drop(self.db().flush_wal(Durability::Disk).unwrap()),
            Step::Reopen => self.reopen(),
            Step::Kill | Step::Settle => self.let_go(),
            Step::Snapshot | Step::Hold(..) | Step::Advance(..) | Step::Get(..) | Step::Scan(..) => {}
        }
    }

    fn batch(&self, writes: &[Write]) {
        let mut batch = Batch::new();
        for (family, key, value) in writes {
            match value {
                Some(value) => batch.put(self.family(*family), key, value).unwrap(),
                None => batch.delete(self.family(*family), key).unwrap(),
            }
        }
        self.db().write(batch, &WriteOptions::process()).unwrap();
    }

    fn create(&mut self, number: usize) {
        let options = self.set.options.default_family.clone();
        let family = self.db().create_family(NAMES[number], options).unwrap();
        self.families[number] = Some(family);
    }

    fn drop_family(&mut self, number: usize) {
        let family = self.families[number].take().unwrap();
        self.db().drop_family(&family).unwrap();
        let read = family.get("k");
        assert!(matches!(read, Err(Error::FamilyDropped { .. })), "{read:?}");
        let written = family.put("k", "v");
        assert!(matches!(written, Err(Error::FamilyDropped { .. })), "{written:?}");
    }

    fn iterator(&self, family: usize, snapshot: Option<usize>, range: &Range) -> Iter {
        let held = snapshot.and_then(|number| self.snapshots.get(number));
        match held.and_then(|held| Some((held, held.families[family].as_ref()?))) {
            Some((held, family)) => held.snapshot.range(family, range.clone()).unwrap(),
            None => self.family(family).range(range.clone()).unwrap(),
        }
    }

    /// Compares what the step shows with what the model showed after it.
    pub(crate) fn check(&mut self, step: &Step, model: &Model, context: &str) {
        match step {
            Step::Get(family, key) => self.check_get(*family, key, model, context),
            Step::Scan(family, range, which, ends) => {
                self.check_scans(*family, range, *which, ends, model, context)
            }
            Step::Advance(which, ends) => {
                let Some(iterator) = choose(&mut self.iterators, *which) else {
                    return;
                };
                for (n, (back, expected)) in ends.iter().zip(&model.given).enumerate() {
                    let seen = entry(iterator, *back);
                    assert_eq!(
                        &seen, expected,
                        "{context}: entry {n} of a held iterator (back: {back})"
                    );
                }
            }
            Step::Reopen => {
                let there = self.families.each_ref().map(Option::is_some);
                let expected = model.families.each_ref().map(Option::is_some);
                assert_eq!(
                    there, expected,
                    "{context}: which of the families {NAMES:?} there are"
                );
            }
            _ => {}
        }
    }

    fn check_get(&self, family: usize, key: &[u8], model: &Model, context: &str) {
        let seen = self.family(family).get(key).unwrap().map(Vec::from);
        let expected = model.families[family].as_ref().unwrap().get(key);
        assert_eq!(seen.as_ref(), expected, "{context}: {key:?}");
        for (number, (held, families)) in self.snapshots.iter().zip(&model.snapshots).enumerate() {
            let context = format!("{context}: snapshot {number}, {key:?} of {}", NAMES[family]);
            if let (Some(family), Some(map)) = (&held.families[family], &families[family]) {
                let seen = held.snapshot.get(family, key).unwrap().map(Vec::from);
                assert_eq!(seen.as_ref(), map.get(key), "{context}");
            }
            let now = self.family(family);
            if held.families[family]
                .as_ref()
                .is_none_or(|then| then.id() != now.id())
            {
                let seen = held.snapshot.get(now, key);
                assert!(
                    matches!(seen, Err(Error::FamilyTooNew { .. })),
                    "{context}: {seen:?}"
                );
            }
        }
    }

    fn check_scans(
        &self,
        family: usize,
        range: &Range,
        which: u64,
        ends: &[bool],
        model: &Model,
        context: &str,
    ) {
        let scan = self.family(family).range(range.clone()).unwrap();
        check_scan(
            scan,
            model.families[family].as_ref().unwrap(),
            range,
            ends,
            context,
        );
        let Some(number) = which.checked_rem(self.snapshots.len() as u64) else {
            return;
        };
        let (held, families) = (
            &self.snapshots[number as usize],
            &model.snapshots[number as usize],
        );
        if let (Some(family), Some(map)) = (&held.families[family], &families[family]) {
            let scan = held.snapshot.range(family, range.clone()).unwrap();
            check_scan(scan, map, range, ends, &format!("{context}: snapshot {number}"));
        }
    }

    /// All that is there.
    pub(crate) fn content(&self) -> Families {
        self.families.each_ref().map(|family| {
            let entries = family.as_ref()?.iter().unwrap();
            let own = entries.map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
            Some(own.collect())
        })
    }

    /// Makes it show `families`: what a kill may take away is written again.
    pub(crate) fn repair(&mut self, families: &Families) {
        let found = self.content();
        for (number, (found, wanted)) in found.into_iter().zip(families).enumerate() {
            match (&found, wanted) {
                (Some(_), None) => self.drop_family(number),
                (None, Some(_)) => self.create(number),
                _ => {}
            }
            let (Some(wanted), found) = (wanted, found.unwrap_or_default()) else {
                continue;
            };
            for (key, value) in wanted
                .iter()
                .filter(|(key, value)| found.get(*key) != Some(value))
            {
                self.family(number).put(key, value).unwrap();
            }
            for key in found.keys().filter(|key| !wanted.contains_key(*key)) {
                self.family(number).delete(key).unwrap();
            }
        }
    }

    /// All of it is as the model has it, by scans and by reads of each key.
    pub(crate) fn check_all(&self, families: &Families, context: &str) {
        assert_eq!(&self.content(), families, "{context}");
        for (family, map) in self.families.iter().zip(families) {
            for (key, value) in map.iter().flatten() {
                let seen = family.as_ref().unwrap().get(key).unwrap();
                assert_eq!(seen.as_deref(), Some(&value[..]), "{context}: {key:?}");
            }
        }
    }
}

fn entry(iterator: &mut Iter, back: bool) -> Option<(Vec<u8>, Vec<u8>)> {
    let entry = if back {
        iterator.next_back()
    } else {
        iterator.next()
    };
    entry.map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
}

/// Takes keys from either end as `ends` says, then the rest forward, from scan and model alike.
fn check_scan(mut scan: Iter, map: &Map, range: &Range, ends: &[bool], context: &str) {
    let mut expected = map.iter().filter(|(key, _)| inside(range, key));
    for (n, back) in ends.iter().copied().chain(std::iter::repeat(false)).enumerate() {
        let seen = entry(&mut scan, back);
        let expected = if back {
            expected.next_back()
        } else {
            expected.next()
        };
        let expected = expected.map(|(k, v)| (k.clone(), v.clone()));
        assert_eq!(seen, expected, "{context}: entry {n} of {range:?} (back: {back})");
        if seen.is_none() {
            return;
        }
    }
}
