//! How far a partition has been sent to a target: a row of the partition itself, in its first slot. So each leader
//! goes on where the one before was, and each replica knows which entries are still needed. Drawn in
//! `docs/design/formats/cluster.md`.

use crate::replica_store::error::{FieldError, MachineError};
use crate::replica_store::keys::{Fields, data_key};
use crate::replica_store::store::Machine;

/// The first byte of the row's key.
const TAG: u8 = b'p';
const VERSION: u8 = 1;
const COPY: u8 = 0;
const TAIL: u8 = 1;

/// How far a partition has been sent to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SentTo {
    /// All rows are sent, in their order.
    Copy {
        /// What was written behind this entry is sent then.
        from: u64,
        /// Those up to this one are: its slot and its key, as the engine has it.
        after: Option<(u16, Vec<u8>)>,
    },
    /// What entries up to this one have changed was sent.
    Tail(u64),
}

impl SentTo {
    /// Entries behind this one are needed.
    pub(crate) fn needed(&self) -> u64 {
        match self {
            Self::Copy { from: index, .. } | Self::Tail(index) => *index,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.push(match self {
            Self::Copy { .. } => COPY,
            Self::Tail(_) => TAIL,
        });
        bytes.extend_from_slice(&self.needed().to_le_bytes());
        if let Self::Copy {
            after: Some((slot, key)),
            ..
        } = self
        {
            bytes.extend_from_slice(&slot.to_le_bytes());
            bytes.extend_from_slice(key);
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::new(bytes);
        let version = fields.u8("a version")?;
        if version != VERSION {
            return Err(fields.wrong(0, "a position of version 1", version));
        }
        let kind = fields.u8("a kind of position")?;
        let index = fields.u64("an index")?;
        match kind {
            COPY if fields.left() == 0 => Ok(Self::Copy {
                from: index,
                after: None,
            }),
            COPY => {
                let slot = fields.u16("a slot")?;
                let key = fields.take(fields.left(), "a key")?.to_vec();
                Ok(Self::Copy {
                    from: index,
                    after: Some((slot, key)),
                })
            }
            TAIL => fields.end().map(|()| Self::Tail(index)),
            other => Err(fields.wrong(1, "a position of kind 0 or 1", other)),
        }
    }
}

/// The key of a target's row, in the first slot of a partition.
pub(crate) fn sent_key(target: u64) -> Vec<u8> {
    [&[TAG][..], &target.to_be_bytes()].concat()
}

impl Machine {
    /// How far the partition has been sent to each target, by the targets' numbers. Reads from tables.
    ///
    /// # Errors
    /// The store's, and [`MachineError::Meta`].
    pub(crate) fn sent_to(&self) -> Result<Vec<(u64, SentTo)>, MachineError> {
        let first = *self.slots().start();
        let rows = data_key(first, &[TAG])..data_key(first, &[TAG + 1]);
        let head = rows.start.len();
        let mut all = Vec::new();
        for row in self.db().default_family().range(rows)? {
            let (key, value) = row?;
            let number = key.get(head..).and_then(|number| number.try_into().ok());
            let sent = SentTo::decode(&value);
            let sent = sent.map_err(|error| self.meta("how far a target is", error))?;
            all.extend(number.map(|number| (u64::from_be_bytes(number), sent)));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::fixture;

    #[test]
    fn a_position_of_each_kind_says_what_was_written() {
        let copy = |after| SentTo::Copy { from: 1 << 40, after };
        for (name, position) in [
            ("tail", SentTo::Tail(300)),
            ("copy", copy(Some((12_000, b"kname".to_vec())))),
            ("copy-begins", copy(None)),
        ] {
            let bytes = fixture(&format!("position-v1/{name}.bin"), &position.encode());
            assert_eq!(SentTo::decode(&bytes), Ok(position));
            for len in 0..10 {
                SentTo::decode(&bytes[..len]).unwrap_err();
            }
            SentTo::decode(&[&[2], &bytes[1..]].concat()).unwrap_err();
            SentTo::decode(&[&[1, 2], &bytes[2..]].concat()).unwrap_err();
        }
        let long = [&SentTo::Tail(1).encode()[..], b"x"].concat();
        SentTo::decode(&long).unwrap_err();
    }
}
