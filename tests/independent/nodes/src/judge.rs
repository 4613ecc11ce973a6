//! What values may be there: each key has one writer; an unknown write may come at any later time, once.

use std::collections::{HashSet, VecDeque};

use crate::resp::Reply;

/// A key, or several with one tag that are always written in one command.
#[derive(Clone, Debug)]
pub struct Key {
    pub name: String,
    pub parts: u64,
    pub size: usize,
    pub versions: u64,
    /// None: there is none.
    pub acknowledged: Option<u64>,
    pub unknown: Vec<Option<u64>>,
    /// What became of the last ones, for who reads a violation.
    history: VecDeque<String>,
}

impl Key {
    pub fn new(name: String, parts: u64, size: usize) -> Self {
        Self {
            name,
            parts,
            size,
            versions: 0,
            acknowledged: None,
            unknown: Vec::new(),
            history: VecDeque::new(),
        }
    }

    pub fn note(&mut self, text: String) {
        self.history.push_back(text);
        if self.history.len() > 8 {
            self.history.pop_front();
        }
    }

    pub fn part(&self, part: u64) -> String {
        format!("{{{}}}{part}", self.name)
    }

    /// A value that no compression makes shorter and no other write has.
    pub fn value(&self, part: u64, version: u64) -> Vec<u8> {
        let mut value = format!("{} {version} ", self.part(part)).into_bytes();
        let mut rng = collie_independent_cuts::rng::Rng::new(version << 20 ^ part << 8 ^ self.size as u64);
        // Sizes vary a little, so that no page of a log or table fits them all.
        let size = (self.size - (rng.below(self.size as u64 / 8 + 1) as usize)).max(value.len());
        while value.len() < size {
            let next = rng.next().to_le_bytes();
            value.extend_from_slice(&next[..8.min(size - value.len())]);
        }
        value
    }

    pub fn wrote(&mut self, value: Option<u64>, known: bool) {
        if known {
            self.acknowledged = value
        } else {
            self.unknown.push(value)
        }
    }

    /// Judges what all parts were read as.
    pub fn read(&mut self, found: &[Option<Vec<u8>>]) -> Result<(), String> {
        let shown = |bytes: &Option<Vec<u8>>| {
            let head = |bytes: &Vec<u8>| String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
            bytes
                .as_ref()
                .map_or("nothing".into(), |b| format!("{} bytes {:?}", b.len(), head(b)))
        };
        let fits = |value: &Option<u64>| {
            found.len() as u64 == self.parts
                && found
                    .iter()
                    .zip(0..)
                    .all(|(f, part)| *f == value.map(|version| self.value(part, version)))
        };
        if fits(&self.acknowledged) {
            return Ok(());
        }
        let Some(at) = self.unknown.iter().position(fits) else {
            return Err(format!(
                "key {} ({} parts): expected version {:?}, or one of the unknown {:?}; found {:?}; {:?}",
                self.name,
                self.parts,
                self.acknowledged,
                self.unknown,
                found.iter().map(shown).collect::<HashSet<_>>(),
                self.history,
            ));
        };
        self.acknowledged = self.unknown.swap_remove(at);
        Ok(())
    }
}

/// A counter that all clients raise by one.
#[derive(Debug, Default)]
pub struct Counter {
    pub acknowledged: i64,
    pub unknown: i64,
    highest: i64,
    seen: HashSet<i64>,
}

impl Counter {
    /// What a reply to a command that begins now must be above.
    pub fn floor(&self) -> i64 {
        self.highest
    }

    pub fn raised(&mut self, floor: i64, reply: i64) -> Result<(), String> {
        self.acknowledged += 1;
        self.highest = self.highest.max(reply);
        if reply <= floor || !self.seen.insert(reply) {
            return Err(format!(
                "a counter answered {reply}, which was answered before ({floor} when it was asked)"
            ));
        }
        Ok(())
    }

    pub fn read(&self, found: i64) -> Result<(), String> {
        if (self.acknowledged..=self.acknowledged + self.unknown).contains(&found) {
            return Ok(());
        }
        Err(format!(
            "expected a counter of {}, and up to {} more; found {found}",
            self.acknowledged, self.unknown
        ))
    }
}

/// The values in a reply to GET or MGET.
pub fn values(reply: Reply) -> Result<Vec<Option<Vec<u8>>>, String> {
    let one = |reply| match reply {
        Reply::Bulk(bytes) => Ok(bytes),
        other => Err(format!("a reply to a read was {other:?}")),
    };
    match reply {
        Reply::Many(many) => many.into_iter().map(one).collect(),
        reply => Ok(vec![one(reply)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(key: &Key, version: u64) -> Vec<Option<Vec<u8>>> {
        (0..key.parts)
            .map(|part| Some(key.value(part, version)))
            .collect()
    }

    #[test]
    fn wrong_values_are_found() {
        let mut key = Key::new("k".into(), 3, 100);
        key.wrote(Some(1), true);
        let first = all(&key, 1);
        assert!(key.read(&first).is_ok());
        key.wrote(Some(2), true);
        let second = all(&key, 2);
        assert!(key.read(&first).is_err(), "an older value");
        assert!(key.read(&[None, None, None]).is_err(), "no value");
        assert!(
            key.read(&[first[0].clone(), second[1].clone(), second[2].clone()])
                .is_err(),
            "a part of a write"
        );
        assert!(key.read(&second[..2]).is_err());
        let mut damaged = second.clone();
        damaged[2].as_mut().unwrap()[90] ^= 1;
        assert!(key.read(&damaged).is_err());
        assert!(key.read(&second).is_ok());
        key.wrote(None, true);
        assert!(key.read(&second).is_err(), "removed and there again");
    }

    #[test]
    fn an_unknown_write_comes_once_at_most() {
        let mut key = Key::new("k".into(), 1, 100);
        key.wrote(Some(1), true);
        key.wrote(Some(2), false);
        let (first, second) = (all(&key, 1), all(&key, 2));
        assert!(key.read(&first).is_ok());
        assert!(key.read(&second).is_ok());
        assert!(key.read(&first).is_err(), "executed and taken back");
        key.wrote(Some(3), true);
        assert!(key.read(&second).is_err(), "executed twice");
    }

    #[test]
    fn counters_that_lose_or_repeat_are_found() {
        let mut counter = Counter::default();
        assert!(counter.raised(0, 1).is_ok());
        let floor = counter.floor();
        assert!(counter.raised(floor, 1).is_err());
        assert!(counter.raised(0, 3).is_ok());
        counter.unknown = 1;
        assert!(counter.read(2).is_err() && counter.read(5).is_err());
        assert!(counter.read(3).is_ok() && counter.read(4).is_ok());
    }
}
