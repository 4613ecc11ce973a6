//! A group's entries, and what a replica holds that has applied them up to any index.

use std::collections::BTreeMap;
use std::sync::Arc;

use collie_cluster::testing::replica_store::effects::{Effect, EffectsBuf};
use collie_cluster::testing::replica_store::{
    ApplyOutcome, Change, Machine, Membership, Position, Proposals, Verdict, data_key,
};
use collie_cluster::testing::{Entry, EntryId, LeaderId};
use collie_sim::Rng;

/// An entry is taken if its number follows that of the last one that was.
#[derive(Debug)]
pub(crate) struct Numbered;

impl Proposals for Numbered {
    fn judge<'e>(
        &self,
        recorded: Option<&[u8]>,
        _: EntryId,
        payload: &'e [u8],
    ) -> Result<Verdict<'e>, String> {
        let (number, effects) = payload.split_first_chunk().ok_or("no number")?;
        let last = recorded.map_or(0, |recorded| u64::from_le_bytes(recorded.try_into().unwrap()));
        if u64::from_le_bytes(*number) != last + 1 {
            return Ok(Verdict::Skip);
        }
        Ok(Verdict::Take {
            effects,
            record: number.to_vec(),
        })
    }
}

/// What a replica holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) data: BTreeMap<(u16, Vec<u8>), Vec<u8>>,
    pub(crate) counts: BTreeMap<u16, u64>,
    pub(crate) position: Option<Position>,
}

/// A group: its entries, and what they make of a replica.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) entries: Vec<Entry>,
    /// Behind each entry.
    states: Vec<Plain>,
    empty: Plain,
    taken: u64,
    term: u64,
}

pub(crate) const SLOTS: u16 = 5;

const BLANK: u8 = 0;
const MEMBERS: u8 = 1;
const EFFECTS: u8 = 2;

/// What an entry of these tests holds.
pub(crate) fn change(payload: &[u8]) -> Change<'_> {
    match payload.split_first().unwrap() {
        (&BLANK, _) => Change::Blank,
        (&MEMBERS, members) => Change::Members(members),
        (_, effects) => Change::Effects(effects),
    }
}

impl Group {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            states: Vec::new(),
            empty: Plain::default(),
            taken: 0,
            term: 1,
        }
    }

    /// What a replica holds that has applied this entry last.
    pub(crate) fn at(&self, applied: Option<u64>) -> &Plain {
        applied.map_or(&self.empty, |index| &self.states[index as usize])
    }

    pub(crate) fn last(&self) -> &Plain {
        self.states.last().unwrap_or(&self.empty)
    }

    /// Adds an entry.
    pub(crate) fn propose(&mut self, rng: &mut Rng) {
        match rng.below(20) {
            0 => {
                self.term += 1;
                self.push(vec![BLANK], |_, _| {});
            }
            1 => {
                let members: Vec<u8> = (0..rng.below(9)).map(|_| rng.below(256) as u8).collect();
                self.push([&[MEMBERS], &members[..]].concat(), |plain, id| {
                    let members = Arc::from(members);
                    plain.position.as_mut().unwrap().membership = Some(Membership { id, members });
                });
            }
            2 => {
                // One that does not continue the others.
                let mut effects = EffectsBuf::default();
                effects
                    .push(Effect::Count {
                        slot: 0,
                        delta: 1_000,
                    })
                    .unwrap();
                self.push(effects_of(self.taken, &effects), |_, _| {});
            }
            _ => self.write(rng),
        }
    }

    /// An entry that counts, so that applying it twice shows.
    fn write(&mut self, rng: &mut Rng) {
        let mut effects = EffectsBuf::default();
        let mut plain = self.last().clone();
        for _ in 0..=rng.below(4) {
            let slot = rng.below(u64::from(SLOTS)) as u16;
            let key = format!("key{}", rng.below(30)).into_bytes();
            let delta = if rng.one_in(4) {
                effects.push(Effect::Delete { slot, key: &key }).unwrap();
                -i64::from(plain.data.remove(&(slot, key)).is_some())
            } else {
                let value = vec![rng.below(256) as u8; rng.below(300) as usize];
                let (key_ref, value_ref) = (&key[..], &value[..]);
                let put = Effect::Put {
                    slot,
                    key: key_ref,
                    value: value_ref,
                };
                effects.push(put).unwrap();
                i64::from(plain.data.insert((slot, key), value).is_none())
            };
            effects.push(Effect::Count { slot, delta }).unwrap();
            let count = plain.counts.entry(slot).or_default();
            *count = count.checked_add_signed(delta).unwrap();
        }
        self.taken += 1;
        self.push(effects_of(self.taken, &effects), |to, _| {
            to.data = plain.data;
            to.counts = plain.counts;
        });
    }

    /// An entry that fills a memtable.
    pub(crate) fn propose_large(&mut self) {
        let mut effects = EffectsBuf::default();
        let (slot, key) = (1, self.entries.len().to_le_bytes());
        let value = vec![7; 80 << 10];
        let put = Effect::Put {
            slot,
            key: &key,
            value: &value,
        };
        effects.push(put).unwrap();
        effects.push(Effect::Count { slot, delta: 1 }).unwrap();
        self.taken += 1;
        self.push(effects_of(self.taken, &effects), |plain, _| {
            plain.data.insert((slot, key.to_vec()), value);
            *plain.counts.entry(slot).or_default() += 1;
        });
    }

    fn push(&mut self, payload: Vec<u8>, change: impl FnOnce(&mut Plain, EntryId)) {
        let leader = LeaderId {
            term: self.term,
            replica: 1,
        };
        let id = EntryId {
            leader,
            index: self.entries.len() as u64,
        };
        let mut plain = self.last().clone();
        let membership = plain.position.and_then(|position| position.membership);
        plain.position = Some(Position {
            applied: id,
            membership,
        });
        change(&mut plain, id);
        self.states.push(plain);
        self.entries.push(Entry {
            id,
            payload: payload.into(),
        });
    }

    /// Whether an entry with effects takes them.
    pub(crate) fn outcome(&self, index: u64) -> ApplyOutcome {
        let before = index.checked_sub(1);
        let (before, after) = (self.at(before), self.at(Some(index)));
        let effects = self.entries[index as usize].payload[0] == EFFECTS;
        match effects && before.counts == after.counts && before.data == after.data {
            // One that continues the others has a higher number.
            true if self.number(index) != self.numbers_before(index) + 1 => ApplyOutcome::Skipped,
            _ => ApplyOutcome::Taken,
        }
    }

    fn number(&self, index: u64) -> u64 {
        let payload = &self.entries[index as usize].payload;
        u64::from_le_bytes(payload[1..9].try_into().unwrap())
    }

    fn numbers_before(&self, index: u64) -> u64 {
        let with_effects = (0..index).filter(|at| self.entries[*at as usize].payload[0] == EFFECTS);
        with_effects.map(|at| self.number(at)).max().unwrap_or(0)
    }
}

fn effects_of(number: u64, effects: &EffectsBuf) -> Vec<u8> {
    [&[EFFECTS], &number.to_le_bytes()[..], effects.bytes()].concat()
}

/// What a state machine holds.
pub(crate) fn found(machine: &Machine) -> Plain {
    let mut plain = Plain {
        position: machine.applied().map(|applied| Position {
            applied,
            membership: machine.position().and_then(|position| position.membership),
        }),
        ..Plain::default()
    };
    for slot in 0..SLOTS {
        let entries = machine.db().default_family().prefix(data_key(slot, b"")).unwrap();
        for entry in entries {
            let (key, value) = entry.unwrap();
            plain.data.insert((slot, key[3..].to_vec()), value.to_vec());
        }
        let count = machine.keys_in_slot(slot).unwrap();
        if count > 0 {
            plain.counts.insert(slot, count);
        }
    }
    plain
}

/// Compares what a state machine holds with what it should.
pub(crate) fn assert_holds(machine: &Machine, group: &Group, context: &str) {
    let mut want = group.at(machine.applied().map(|applied| applied.index)).clone();
    want.counts.retain(|_, count| *count > 0);
    let found = found(machine);
    assert!(found == want, "{context}: it holds {found:?}\nnot {want:?}");
}
