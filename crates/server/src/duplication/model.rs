//! Clusters as rows in memory, with random writes, and clocks that are hours apart. Their rows go to each
//! other by [`record`], late, more than once and in any order, as they are when they are sent.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const HOUR_MS: u64 = 3_600_000;
const KEYS: [&[u8]; 2] = [b"", b"key"];

/// What happens. Clusters and keys are numbers, of which the remainder counts.
#[derive(Debug, Clone)]
enum Step {
    /// So many milliseconds pass.
    Pass(u64),
    /// The clock of a cluster is changed to so many hours ahead of the slowest.
    Turn(usize, u64),
    /// A value is written, which may expire in so many milliseconds.
    Put(usize, usize, Option<u64>),
    Delete(usize, usize),
    /// What has expired is removed.
    Sweep(usize, usize),
    /// A cluster sends its row of a key to another one.
    Send(usize, usize, usize),
    /// One of what was sent arrives, and may arrive again.
    Arrive(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (cluster, key) = (0..3_usize, 0..KEYS.len());
    let step = prop_oneof![
        2 => prop_oneof![Just(1), 0..5_000_u64].prop_map(Step::Pass),
        1 => (cluster.clone(), 0..4_u64).prop_map(|(at, hours)| Step::Turn(at, hours)),
        4 => (cluster.clone(), key.clone(), proptest::option::of(0..4_000_u64))
            .prop_map(|(at, key, expires)| Step::Put(at, key, expires)),
        2 => (cluster.clone(), key.clone()).prop_map(|(at, key)| Step::Delete(at, key)),
        2 => (cluster.clone(), key.clone()).prop_map(|(at, key)| Step::Sweep(at, key)),
        6 => (cluster.clone(), cluster, key).prop_map(|(from, to, key)| Step::Send(from, to, key)),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(which, again)| Step::Arrive(which, again)),
    ];
    proptest::collection::vec(step, 1..80)
}

#[derive(Debug, Default)]
struct Town {
    rows: BTreeMap<Vec<u8>, Value>,
    ahead_ms: u64,
    origin: u64,
}

impl Town {
    fn get(&self, row: &[u8]) -> Option<Value> {
        self.rows.get(row).cloned()
    }

    /// The row of a key, and its stamp.
    fn row(&self, key: &[u8]) -> Option<(Vec<u8>, Stamp)> {
        let [own, tombstone] = rows_of(key);
        assert!(self.get(&own).is_none() || self.get(&tombstone).is_none(), "both");
        let row = [own, tombstone]
            .into_iter()
            .find(|row| self.rows.contains_key(row))?;
        let stamp = stamp_of(&row, &self.rows[&row], self.origin).unwrap();
        Some((row, stamp))
    }

    fn stamp(&self, key: &[u8]) -> Option<Stamp> {
        self.row(key).map(|(_, stamp)| stamp)
    }

    /// A key's row, as it would be sent.
    fn record(&self, key: &[u8]) -> Option<Sent> {
        let (row, _) = self.row(key)?;
        let record = record(&row, &self.rows[&row], self.origin).unwrap();
        Some((record.header, record.payload.to_vec()))
    }

    fn finish(&mut self, mut changes: Vec<(Vec<u8>, Option<Value>)>, now_ms: u64) {
        let rows = &self.rows;
        let get = |row: &[u8]| Ok(rows.get(row).cloned());
        stamp_changes(&mut changes, get, now_ms, self.origin).unwrap();
        for (row, value) in changes {
            match value {
                Some(value) => drop(self.rows.insert(row, value)),
                None => drop(self.rows.remove(&row)),
            }
        }
    }

    /// Removes a key if that is there, and expired or not.
    fn remove(&mut self, key: &[u8], has_expired: bool, now_ms: u64) -> bool {
        let [row, _] = rows_of(key);
        let header = self.get(&row).map(|stored| value::read_header(&stored).unwrap());
        let removes = header.is_some_and(|header| header.is_expired(now_ms) == has_expired);
        if removes {
            self.finish(vec![(row, None)], now_ms);
        }
        removes
    }

    /// What `COLLIE.MERGE` does.
    fn merge(&mut self, key: &[u8], (header, payload): &Sent, now_ms: u64) {
        let incoming = Incoming::decode(header, payload).unwrap();
        let Some(content) = incoming.merged(self.stamp(key), now_ms) else {
            return;
        };
        let [row, tombstone] = rows_of(key);
        let (value, left) = match content {
            Content::Removed => {
                let left = Tombstone {
                    stamp: incoming.stamp,
                    written_ms: now_ms,
                };
                (None, Some(left.encode()))
            }
            Content::String { expiry_ms, payload } => {
                let value = value::encode_stamped(expiry_ms, incoming.stamp, payload);
                (Some(Value::from(&value[..])), None)
            }
        };
        self.finish(vec![(row, value), (tombstone, left)], now_ms);
        assert_eq!(
            self.stamp(key),
            Some(incoming.stamp),
            "it has the stamp that came"
        );
    }
}

/// The header and the payload of a record.
type Sent = (Vec<u8>, Vec<u8>);

/// Clusters, what is on its way between them, and all that was ever written.
struct Model {
    towns: Vec<Town>,
    now_ms: u64,
    sent: Vec<(usize, usize, Sent)>,
    written: [BTreeMap<Stamp, Sent>; KEYS.len()],
}

impl Model {
    fn new(clusters: usize) -> Model {
        let mut model = Model {
            towns: (1..=clusters as u64)
                .map(|origin| Town {
                    origin,
                    ..Town::default()
                })
                .collect(),
            now_ms: 1_700_000_000_000,
            sent: Vec::new(),
            written: [const { BTreeMap::new() }; KEYS.len()],
        };
        // The first key was there before anything was stamped, and is not the same everywhere.
        for at in 0..clusters {
            let mut plain = Vec::new();
            value::encode(&mut plain, None, value::Row::Inline(&[at as u8]));
            let [row, _] = rows_of(KEYS[0]);
            model.towns[at].rows.insert(row, Value::from(&plain[..]));
            model.note(at, 0);
        }
        model
    }

    fn clock(&self, at: usize) -> u64 {
        self.now_ms + self.towns[at].ahead_ms
    }

    /// Notes what a cluster has written.
    fn note(&mut self, at: usize, key: usize) {
        let town = &self.towns[at];
        let record = town.record(KEYS[key]).unwrap();
        let earlier = self.written[key].insert(town.stamp(KEYS[key]).unwrap(), record);
        assert_eq!(earlier, None, "two writes have one stamp");
    }

    fn step(&mut self, step: Step) {
        let clusters = self.towns.len();
        let before: Vec<_> = self
            .towns
            .iter()
            .map(|town| KEYS.map(|key| town.stamp(key)))
            .collect();
        match step {
            Step::Pass(ms) => self.now_ms += ms,
            Step::Turn(at, hours) => self.towns[at % clusters].ahead_ms = hours * HOUR_MS,
            Step::Put(at, key, expires) => {
                let at = at % clusters;
                let now_ms = self.clock(at);
                let mut new = Vec::new();
                let payload = self.written[key].len().to_le_bytes();
                let expiry_ms = expires.map(|ms| now_ms + ms);
                value::encode(&mut new, expiry_ms, value::Row::Inline(&payload));
                let [row, _] = rows_of(KEYS[key]);
                self.towns[at].finish(vec![(row, Some(Value::from(&new[..])))], now_ms);
                self.note(at, key);
                let after = self.towns[at].stamp(KEYS[key]);
                assert!(after > before[at][key], "a write wins over what it replaces");
            }
            Step::Delete(at, key) => {
                let at = at % clusters;
                let now_ms = self.clock(at);
                if self.towns[at].remove(KEYS[key], false, now_ms) {
                    self.note(at, key);
                    let after = self.towns[at].stamp(KEYS[key]);
                    assert!(after > before[at][key], "a removal wins over what it removes");
                }
            }
            Step::Sweep(at, key) => {
                let at = at % clusters;
                let now_ms = self.clock(at);
                self.towns[at].remove(KEYS[key], true, now_ms);
                let after = self.towns[at].stamp(KEYS[key]);
                assert_eq!(after, before[at][key], "what expires wins over nothing");
            }
            Step::Send(from, to, key) => {
                let record = self.towns[from % clusters].record(KEYS[key]);
                self.sent
                    .extend(record.map(|record| (to % clusters, key, record)));
            }
            Step::Arrive(which, again) if !self.sent.is_empty() => {
                let which = which % self.sent.len();
                let (to, key, record) = self.sent[which].clone();
                if !again {
                    self.sent.swap_remove(which);
                }
                let now_ms = self.clock(to);
                self.towns[to].merge(KEYS[key], &record, now_ms);
            }
            Step::Arrive(..) => {}
        }
        for (town, before) in self.towns.iter().zip(before) {
            let after = KEYS.map(|key| town.stamp(key));
            let has_grown = after.iter().zip(before).all(|(after, before)| *after >= before);
            assert!(has_grown, "{before:?} became {after:?}");
        }
    }

    /// All clocks show the same, what has expired goes, and each cluster sends all that it has to each other.
    fn settle(&mut self) {
        self.now_ms += 4 * HOUR_MS;
        for at in 0..self.towns.len() {
            self.towns[at].ahead_ms = 0;
            (0..KEYS.len()).for_each(|key| self.step(Step::Sweep(at, key)));
        }
        while !self.sent.is_empty() {
            self.step(Step::Arrive(0, false));
        }
        for from in 0..self.towns.len() {
            for to in 0..self.towns.len() {
                for key in 0..KEYS.len() {
                    self.step(Step::Send(from, to, key));
                    self.step(Step::Arrive(0, false));
                }
            }
        }
    }

    /// The last stamp has won, in all clusters.
    fn check(&self) {
        for (key, written) in KEYS.iter().zip(&self.written) {
            let rows: Vec<_> = self.towns.iter().map(|town| town.record(key)).collect();
            let Some((stamp, last)) = written.last_key_value() else {
                assert!(rows.iter().all(Option::is_none));
                continue;
            };
            let last = Incoming::decode(&last.0, &last.1)
                .unwrap()
                .merged(None, self.now_ms);
            let last = last.map(|content| (*stamp, content));
            for (row, town) in rows.iter().zip(&self.towns) {
                let (header, payload) = row.as_ref().unwrap();
                let row = Incoming::decode(header, payload).unwrap();
                assert_eq!(Some((row.stamp, row.content)), last, "in cluster {}", town.origin);
            }
        }
    }
}

proptest! {
    #[test]
    fn clusters_that_have_exchanged_all_have_the_same_rows(clusters in 2..=3_usize, steps in steps()) {
        let mut model = Model::new(clusters);
        steps.into_iter().for_each(|step| model.step(step));
        model.settle();
        model.check();
    }
}
