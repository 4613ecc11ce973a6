//! What an entry does to the data of its group, encoded: absolute writes, not commands.
//!
//! The layout is ours, little-endian, and drawn in `docs/design/formats/cluster.md`. The effects of an entry
//! take place in their order and all at once.

use crate::replica_store::error::FieldError;
use crate::replica_store::keys::{DATA_HEAD, Fields, SLOTS, put_bytes};

/// The version of the layout.
pub const VERSION: u8 = 1;
/// The effects of one entry have at most so many bytes.
pub const MAX_BYTES: usize = (8 << 20) - (64 << 10);
/// An entry has at most so many effects.
pub const MAX_EFFECTS: usize = 1 << 20;
/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = collie_db::MAX_KEY_BYTES - DATA_HEAD;
const _: () = assert!(MAX_KEY_BYTES == collie_server::cluster::MAX_ROW_BYTES);

const PUT: u8 = 1;
const DELETE: u8 = 2;
const COUNT: u8 = 3;
/// What stands before the effects.
const HEAD: usize = 1 + 4;

/// One effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect<'a> {
    /// A key has this value from now on.
    Put {
        /// The key's slot.
        slot: u16,
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// A key has no value from now on.
    Delete {
        /// The key's slot.
        slot: u16,
        /// The key.
        key: &'a [u8],
    },
    /// A slot has so many more keys, or fewer.
    Count {
        /// The slot.
        slot: u16,
        /// How many more.
        delta: i64,
    },
}

/// Effects on their way into an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectsBuf {
    bytes: Vec<u8>,
    count: u32,
}

impl Default for EffectsBuf {
    fn default() -> Self {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&0_u32.to_le_bytes());
        Self { bytes, count: 0 }
    }
}

impl EffectsBuf {
    /// Adds an effect.
    ///
    /// # Errors
    /// [`FieldError`] where it is out of the limits, or the entry would be; nothing was added.
    pub fn push(&mut self, effect: Effect<'_>) -> Result<(), FieldError> {
        let before = self.bytes.len();
        encode(effect, &mut self.bytes);
        self.count += 1;
        let checked = check(&self.bytes, before).and_then(|()| self.check_size());
        if let Err(error) = checked {
            self.bytes.truncate(before);
            self.count -= 1;
            return Err(error);
        }
        self.write_count();
        Ok(())
    }

    /// Adds the effects of another, behind its own.
    ///
    /// # Errors
    /// [`FieldError`] where they would be more than an entry may have; nothing was added.
    pub fn extend(&mut self, other: &Self) -> Result<(), FieldError> {
        let (bytes, count) = (self.bytes.len(), self.count);
        self.bytes.extend_from_slice(&other.bytes[HEAD..]);
        self.count = count.saturating_add(other.count);
        if let Err(error) = self.check_size() {
            self.bytes.truncate(bytes);
            self.count = count;
            return Err(error);
        }
        self.write_count();
        Ok(())
    }

    fn write_count(&mut self) {
        self.bytes[1..HEAD].copy_from_slice(&self.count.to_le_bytes());
    }

    fn check_size(&self) -> Result<(), FieldError> {
        let fields = Fields::new(&self.bytes);
        if self.bytes.len() > MAX_BYTES {
            let found = format!("{} bytes", self.bytes.len());
            return Err(fields.wrong(MAX_BYTES, "effects of less than 8 MiB", found));
        }
        if self.count as usize > MAX_EFFECTS {
            return Err(fields.wrong(1, "at most 2^20 effects", "more"));
        }
        Ok(())
    }

    /// The bytes that an entry has behind its header.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the effects of an entry.
///
/// # Errors
/// [`FieldError`] where no effects were ever encoded so.
pub fn decode(bytes: &[u8]) -> Result<Vec<Effect<'_>>, FieldError> {
    let mut fields = Fields::new(bytes);
    if bytes.len() > MAX_BYTES {
        let found = format!("{} bytes", bytes.len());
        return Err(fields.wrong(MAX_BYTES, "effects of less than 8 MiB", found));
    }
    let version = fields.u8("a version")?;
    if version != VERSION {
        return Err(fields.wrong(0, "effects of version 1", version));
    }
    let count = fields.u32("a number of effects")? as usize;
    // Checked before room is made for them: none is shorter than 4 bytes.
    if count > MAX_EFFECTS || count > fields.left() / 4 {
        return Err(fields.wrong(1, "as many effects as there are", count));
    }
    let effects = (0..count).map(|_| effect(&mut fields)).collect();
    fields.end().and(effects)
}

/// Whether one effect is encoded from `at` on.
fn check(bytes: &[u8], at: usize) -> Result<(), FieldError> {
    let mut fields = Fields::new(bytes);
    fields.take(at, "what is before")?;
    effect(&mut fields)?;
    fields.end()
}

fn encode(effect: Effect<'_>, to: &mut Vec<u8>) {
    let mut head = |kind: u8, slot: u16| {
        to.push(kind);
        to.extend_from_slice(&slot.to_le_bytes());
    };
    match effect {
        Effect::Put { slot, key, value } => {
            head(PUT, slot);
            put_bytes(to, key);
            put_bytes(to, value);
        }
        Effect::Delete { slot, key } => {
            head(DELETE, slot);
            put_bytes(to, key);
        }
        Effect::Count { slot, delta } => {
            head(COUNT, slot);
            to.extend_from_slice(&delta.to_le_bytes());
        }
    }
}

fn effect<'a>(fields: &mut Fields<'a>) -> Result<Effect<'a>, FieldError> {
    let at = fields.at();
    let kind = fields.u8("a kind of effect")?;
    let slot = fields.u16("a slot")?;
    if slot >= SLOTS {
        return Err(fields.wrong(at + 1, "a slot below 16384", slot));
    }
    let key = |fields: &mut Fields<'a>| fields.bytes((0, MAX_KEY_BYTES), "a key");
    match kind {
        PUT => Ok(Effect::Put {
            slot,
            key: key(fields)?,
            value: fields.bytes((0, MAX_BYTES), "a value")?,
        }),
        DELETE => Ok(Effect::Delete {
            slot,
            key: key(fields)?,
        }),
        COUNT => Ok(Effect::Count {
            slot,
            delta: fields.u64("a number of keys")? as i64,
        }),
        other => Err(fields.wrong(at, "a kind of effect from 1 to 3", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An effect that owns what it has.
    type Owned = (u8, u16, Vec<u8>, i64, Vec<u8>);

    fn of(owned: &Owned) -> Effect<'_> {
        let (kind, slot, key, delta, value) = owned;
        let (slot, delta) = (*slot, *delta);
        match kind {
            1 => Effect::Put { slot, key, value },
            2 => Effect::Delete { slot, key },
            _ => Effect::Count { slot, delta },
        }
    }

    fn owned() -> impl Strategy<Value = Owned> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
        (1..4_u8, 0..SLOTS, bytes(), any::<i64>(), bytes())
    }

    proptest! {
        #[test]
        fn what_decodes_is_what_was_encoded(all in proptest::collection::vec(owned(), 0..12)) {
            let mut buf = EffectsBuf::default();
            for effect in &all {
                buf.push(of(effect)).unwrap();
            }
            let back: Vec<_> = all.iter().map(of).collect();
            prop_assert_eq!(decode(buf.bytes()), Ok(back));
            prop_assert_eq!(buf.count as usize, all.len());
            for len in 0..buf.bytes().len() {
                prop_assert!(decode(&buf.bytes()[..len]).is_err());
            }
            prop_assert!(decode(&[buf.bytes(), b"x"].concat()).is_err());
            // Those of several proposals are those of one.
            let (first, second) = all.split_at(all.len() / 2);
            let [mut joined, behind] = [first, second].map(|part| {
                let mut buf = EffectsBuf::default();
                part.iter().for_each(|effect| buf.push(of(effect)).unwrap());
                buf
            });
            joined.extend(&behind).unwrap();
            prop_assert_eq!(joined, buf);
        }

        #[test]
        fn any_bytes_are_refused_or_are_the_only_ones(mut bytes in proptest::collection::vec(0..8_u8, 0..60)) {
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(effects) = decode(&bytes) {
                let mut again = EffectsBuf::default();
                effects.iter().for_each(|effect| again.push(*effect).unwrap());
                prop_assert_eq!(again.bytes(), bytes);
            }
        }
    }

    #[test]
    fn limits_are_kept_and_what_is_refused_leaves_nothing() {
        let mut buf = EffectsBuf::default();
        let put = |slot, key, value| Effect::Put { slot, key, value };
        let long = vec![7; MAX_BYTES];
        let empty = buf.clone();
        for refused in [
            put(SLOTS, b"k", b"v"),
            put(1, &long[..MAX_KEY_BYTES + 1], b"v"),
            put(1, b"k", &long),
        ] {
            buf.push(refused).unwrap_err();
            assert_eq!(buf, empty);
        }
        buf.push(put(1, &long[..MAX_KEY_BYTES], b"v")).unwrap();
        // The longest value that fits is the last thing that does.
        let room = MAX_BYTES - buf.bytes().len() - (1 + 2 + 4 + 1 + 4);
        assert!(buf.push(put(1, b"k", &long[..room + 1])).is_err());
        buf.push(put(1, b"k", &long[..room])).unwrap();
        assert_eq!(
            (buf.bytes().len(), decode(buf.bytes()).unwrap().len()),
            (MAX_BYTES, 2)
        );
        assert!(buf.push(Effect::Count { slot: 1, delta: -1 }).is_err());
        let (full, mut one) = (buf.clone(), empty.clone());
        one.push(Effect::Count { slot: 1, delta: -1 }).unwrap();
        assert!(buf.extend(&one).is_err());
        assert_eq!(buf, full);
        let said = decode(&[2, 0, 0, 0, 0]).unwrap_err().to_string();
        assert_eq!(said, "byte 0: expected effects of version 1, found 2");
        assert!(decode(&[1, 255, 255, 255, 255]).is_err());
    }
}
