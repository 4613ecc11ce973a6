//! How a list lies in the store, and how it is read back.

use collie_db::{Family, Iter, Key, Result, Snapshot, Transaction, TransactionIter, Value};
use rand::Rng;
use rand::rngs::SmallRng;

use crate::events::Element;
use crate::plan::{Form, List};

/// A list as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Value(Option<Vec<Element>>),
    Moving([Option<Vec<Element>>; 2]),
    Rows(Vec<(u32, Vec<Element>)>),
}

impl Found {
    pub fn elements(&self) -> Vec<Element> {
        match self {
            Self::Value(value) => value.clone().unwrap_or_default(),
            Self::Moving(both) => both.iter().flatten().flatten().copied().collect(),
            Self::Rows(rows) => rows.iter().flat_map(|(_, row)| row).copied().collect(),
        }
    }
}

/// What is wrong with what was read.
#[derive(Debug)]
pub enum Trouble {
    Store(collie_db::Error),
    Wrong(String),
}

impl From<collie_db::Error> for Trouble {
    fn from(error: collie_db::Error) -> Self {
        Self::Store(error)
    }
}

pub type Tried<T> = std::result::Result<T, Trouble>;

pub fn wrong<T>(text: String) -> Tried<T> {
    Err(Trouble::Wrong(text))
}

/// A list's value; an empty list has no bytes.
pub fn encode(list: &List, elements: &[Element], limit: usize) -> Vec<u8> {
    let Some(last) = elements.last() else {
        return Vec::new();
    };
    let mut bytes = Vec::new();
    bytes.extend(u32::try_from(elements.len()).expect("few").to_le_bytes());
    bytes.extend(elements.iter().flat_map(|element| element.to_le_bytes()));
    let padding = list.padding(*last, limit);
    bytes.extend((0..padding).map(|at| pad(*last, at)));
    bytes
}

#[expect(clippy::cast_possible_truncation, reason = "any byte will do")]
fn pad(last: Element, at: usize) -> u8 {
    (last as usize ^ (at * 7) ^ (at >> 8)) as u8
}

pub fn decode(list: &List, bytes: &[u8], limit: usize) -> Tried<Vec<Element>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let damaged = |what: &str| {
        wrong(format!(
            "list {}: a value of {} bytes {what}",
            list.id,
            bytes.len()
        ))
    };
    let Some((count, rest)) = bytes.split_at_checked(4) else {
        return damaged("has no count");
    };
    let count = u32::from_le_bytes(count.try_into().expect("four bytes")) as usize;
    let Some((elements, padding)) = rest.split_at_checked(count * 8) else {
        return damaged("is too short");
    };
    let elements: Vec<Element> = elements
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")))
        .collect();
    let Some(last) = elements.last() else {
        return damaged("has no elements");
    };
    let len = list.padding(*last, limit);
    if padding.len() != len
        || padding
            .iter()
            .enumerate()
            .any(|(at, byte)| *byte != pad(*last, at))
    {
        return damaged("has other bytes behind its elements than were written");
    }
    Ok(elements)
}

/// The keys of a list in one of two places.
pub fn places(list: &List) -> [Vec<u8>; 2] {
    [b"/A", b"/B"].map(|place| [&list.key[..], &place[..]].concat())
}

pub fn row_key(list: &List, position: u32) -> Vec<u8> {
    [&list.key[..], &position.to_be_bytes()].concat()
}

/// How a single key is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Plain,
    ForUpdate,
    ForShare,
}

/// Whatever can be read.
#[derive(Clone, Copy)]
pub enum Reader<'a> {
    Transaction(&'a Transaction),
    Snapshot(&'a Snapshot),
    Now,
}

pub enum Entries {
    Transaction(TransactionIter),
    Plain(Iter),
}

impl Iterator for Entries {
    type Item = Result<(Key, Value)>;
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Transaction(entries) => entries.next(),
            Self::Plain(entries) => entries.next(),
        }
    }
}

impl DoubleEndedIterator for Entries {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            Self::Transaction(entries) => entries.next_back(),
            Self::Plain(entries) => entries.next_back(),
        }
    }
}

impl Reader<'_> {
    pub fn get(&self, family: &Family, key: &[u8], how: How) -> Result<Option<Value>> {
        match (self, how) {
            (Self::Transaction(tx), How::Plain) => tx.get(family, key),
            (Self::Transaction(tx), How::ForUpdate) => tx.get_for_update(family, key),
            (Self::Transaction(tx), How::ForShare) => tx.get_for_share(family, key),
            (Self::Snapshot(snapshot), _) => snapshot.get(family, key),
            (Self::Now, _) => family.get(key),
        }
    }

    pub fn prefix(&self, family: &Family, prefix: &[u8]) -> Result<Entries> {
        Ok(match self {
            Self::Transaction(tx) => Entries::Transaction(tx.prefix(family, prefix)?),
            Self::Snapshot(snapshot) => Entries::Plain(snapshot.prefix(family, prefix)?),
            Self::Now => Entries::Plain(family.prefix(prefix)?),
        })
    }

    pub fn range(&self, family: &Family, low: &[u8], high: &[u8]) -> Result<Entries> {
        Ok(match self {
            Self::Transaction(tx) => Entries::Transaction(tx.range(family, low..high)?),
            Self::Snapshot(snapshot) => Entries::Plain(snapshot.range(family, low..high)?),
            Self::Now => Entries::Plain(family.range(low..high)?),
        })
    }

    /// All entries with a prefix, asked for and gone through in one of several ways, in order.
    pub fn scan(&self, rng: &mut SmallRng, family: &Family, prefix: &[u8]) -> Tried<Vec<(Key, Value)>> {
        let mut entries = if rng.random_ratio(1, 2) {
            self.prefix(family, prefix)?
        } else {
            let mut high = prefix.to_vec();
            *high.last_mut().expect("a prefix") += 1;
            self.range(family, prefix, &high)?
        };
        let (mut front, mut back) = (Vec::new(), Vec::new());
        let way = rng.random_range(0..4);
        loop {
            let from_front = match way {
                0 | 1 => true,
                2 => false,
                _ => rng.random(),
            };
            let next = if from_front {
                entries.next()
            } else {
                entries.next_back()
            };
            match next.transpose()? {
                Some(entry) if from_front => front.push(entry),
                Some(entry) => back.push(entry),
                None => break,
            }
        }
        front.extend(back.into_iter().rev());
        if let Some(pair) = front.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return wrong(format!(
                "a scan of {:?} is out of order: {:?}, {:?}",
                family.name(),
                pair[0].0,
                pair[1].0
            ));
        }
        if let Some((key, _)) = front.iter().find(|(key, _)| !key.starts_with(prefix)) {
            return wrong(format!("a scan of the prefix {prefix:?} shows {key:?}"));
        }
        Ok(front)
    }

    /// A list as it is.
    pub fn list(
        &self,
        rng: &mut SmallRng,
        family: &Family,
        list: &List,
        how: How,
        limit: usize,
    ) -> Tried<Found> {
        let value = |key: &[u8]| -> Tried<Option<Vec<Element>>> {
            let value = self.get(family, key, how)?;
            value.map(|bytes| decode(list, &bytes, limit)).transpose()
        };
        Ok(match list.form {
            Form::Value => Found::Value(value(&list.key)?),
            Form::Moving => {
                let [a, b] = places(list);
                // From either side.
                let both = if rng.random() {
                    [value(&a)?, value(&b)?]
                } else {
                    let b = value(&b)?;
                    [value(&a)?, b]
                };
                if both.iter().all(Option::is_some) {
                    return wrong(format!("list {} is in both places: {both:?}", list.id));
                }
                Found::Moving(both)
            }
            Form::Rows => {
                let rows = self.scan(rng, family, &list.key)?;
                Found::Rows(
                    rows.iter()
                        .map(|(key, value)| row(list, key, value, limit))
                        .collect::<Tried<_>>()?,
                )
            }
        })
    }
}

pub fn row(list: &List, key: &[u8], value: &[u8], limit: usize) -> Tried<(u32, Vec<Element>)> {
    let position = key
        .strip_prefix(&list.key[..])
        .and_then(|rest| <[u8; 4]>::try_from(rest).ok());
    let Some(position) = position else {
        return wrong(format!("list {} has no row {key:?}", list.id));
    };
    Ok((u32::from_be_bytes(position), decode(list, value, limit)?))
}
