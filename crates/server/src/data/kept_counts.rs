//! The numbers of keys, kept from a stop in order to the next start, which need not count them then.
//!
//! They are the store's last commit, and name the log's epoch: the opening after the next one, by
//! whatever program, finds another epoch and counts. So does a start after a crash, before which no
//! numbers of its epoch were written.

use collie_db::{Db, Durability, Error, WriteOptions};

use super::keyspace::{FamilyName, Keyspace};

const KEY: &str = "server/counts";
/// Bytes of a number.
const NUMBER: usize = 8;

/// The numbers of keys, and of keys with an expiry, of keyspaces.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeptCounts(Vec<(FamilyName, [i64; 2])>);

impl KeptCounts {
    /// Those that the last opening of the store has kept; none where it did not.
    pub(super) fn read(db: &Db) -> Result<KeptCounts, Error> {
        let Some(epoch) = db.recovery().map(|report| report.epoch) else {
            return Ok(KeptCounts::default());
        };
        let kept = db.default_family().get(KEY)?;
        let kept = kept.and_then(|value| decode(&value));
        let last = kept.filter(|(kept, _)| kept.checked_add(1) == Some(epoch));
        Ok(last.map_or_else(KeptCounts::default, |(_, counts)| counts))
    }

    pub(super) fn of(&self, name: FamilyName) -> Option<[i64; 2]> {
        let found = self.0.iter().find(|(of, _)| *of == name);
        found.map(|(_, counts)| *counts)
    }
}

/// Keeps the numbers of those keyspaces that are counted. Nothing is written after this.
pub(super) fn keep<'a>(db: &Db, keyspaces: impl Iterator<Item = &'a Keyspace>) -> Result<(), Error> {
    let Some(epoch) = db.recovery().map(|report| report.epoch) else {
        return Ok(());
    };
    let counted = keyspaces.filter(|keyspace| keyspace.is_counted());
    let counts = counted.map(|keyspace| {
        let (keys, expiring) = keyspace.size();
        (keyspace.name, [keys, expiring])
    });
    let value = encode(epoch, &KeptCounts(counts.collect()));
    let options = WriteOptions {
        durability: Durability::Buffered,
        ..WriteOptions::default()
    };
    // Brought to the device when the store closes.
    db.default_family().put_with(KEY, value, &options).map(drop)
}

/// The epoch, and for each keyspace its family's generation and origin, and both numbers.
fn encode(epoch: u32, counts: &KeptCounts) -> Vec<u8> {
    let mut value = epoch.to_le_bytes().to_vec();
    for (name, [keys, expiring]) in &counts.0 {
        value.extend(name.generation.to_le_bytes());
        value.push(name.origin);
        value.extend(keys.to_le_bytes());
        value.extend(expiring.to_le_bytes());
    }
    value
}

fn decode(value: &[u8]) -> Option<(u32, KeptCounts)> {
    let (epoch, mut rest) = value.split_first_chunk::<4>()?;
    let mut counts = Vec::new();
    while !rest.is_empty() {
        let (generation, after) = rest.split_first_chunk::<NUMBER>()?;
        let (origin, after) = after.split_first()?;
        let (keys, after) = after.split_first_chunk::<NUMBER>()?;
        let (expiring, after) = after.split_first_chunk::<NUMBER>()?;
        let name = FamilyName {
            origin: *origin,
            generation: u64::from_le_bytes(*generation),
        };
        let numbers = [keys, expiring].map(|number| i64::from_le_bytes(*number));
        counts.push((name, numbers));
        rest = after;
    }
    Some((u32::from_le_bytes(*epoch), KeptCounts(counts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_a_part_of_them_is_none() {
        let name = |origin, generation| FamilyName { origin, generation };
        let counts = KeptCounts(vec![(name(0, 0), [7, 2]), (name(15, u64::MAX), [i64::MAX, 0])]);
        let value = encode(9, &counts);
        for cut in 5..value.len() {
            let whole = (cut - 4).is_multiple_of(25);
            assert_eq!(decode(&value[..cut]).is_some(), whole, "cut at {cut}");
        }
        let (epoch, read) = decode(&value).unwrap();
        assert_eq!((epoch, &read), (9, &counts));
        assert_eq!((read.of(name(0, 0)), read.of(name(0, 1))), (Some([7, 2]), None));
    }
}
