//! What an entry does to the data of its group, encoded: absolute writes, not commands.
//!
//! The layout is ours, little-endian, and drawn in `docs/design/formats/cluster.md`. The effects of an entry
//! take place in their order and all at once.

use crate::ids::{GroupId, ReplicaId};
use crate::replica_store::error::FieldError;
use crate::replica_store::keys::{DATA_HEAD, Fields, SLOTS, put_bytes};

/// The version of the layout of effects that change rows. Every version reads it.
pub const VERSION: u8 = 1;
/// The version of a split: those that lack feature level 4 do not read it.
pub const VERSION_OF_SPLIT: u8 = 2;
/// The version of what begins stamps: those that lack feature level 5 do not read it.
pub const VERSION_OF_STAMPS: u8 = 3;
/// The version of effects in parts: those that lack feature level 5 do not read it.
pub const VERSION_OF_PARTS: u8 = 4;
/// The effects of one entry have at most so many bytes.
pub const MAX_BYTES: usize = (8 << 20) - (64 << 10);
/// The effects of one command have at most so many bytes, in parts: a value of 512 MiB, and its key.
pub const MAX_IN_PARTS: usize = 513 << 20;
/// The largest part.
const PART_BYTES: usize = 1 << 20;
/// An entry has at most so many effects.
pub const MAX_EFFECTS: usize = 1 << 20;
/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = collie_db::MAX_KEY_BYTES - DATA_HEAD;
const _: () = assert!(MAX_KEY_BYTES == collie_server::cluster::MAX_ROW_BYTES);

const PUT: u8 = 1;
const DELETE: u8 = 2;
const COUNT: u8 = 3;
const SPLIT: u8 = 4;
const STAMPS: u8 = 5;
const PART: u8 = 6;
const PARTS: u8 = 7;
/// Two ids of replicas.
const PAIR: usize = 16;
/// A split has at most so many pairs.
const MAX_PAIRS: usize = 64;
/// What stands before the effects.
const HEAD: usize = 1 + 4;
/// What stands before the bytes of a part.
const PART_HEAD: usize = 1 + 2 + 4 + 4;

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
    /// Slots are those of another group from now on. The only effect of its entry.
    Split(Split<'a>),
    /// Each row that is written or removed from now on gets a stamp with this origin. The only effect of its entry.
    Stamps(u64),
    /// A part of effects that one entry has no room for: it is kept until the last one has come, and dropped where
    /// another effect comes first. The only effect of its entry.
    Part {
        /// Its number, from 0 on.
        number: u32,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// The effects whose parts have come take place. The only effect of its entry.
    Parts {
        /// So many there are.
        count: u32,
        /// They have so many bytes together.
        bytes: u64,
    },
}

impl Effect<'_> {
    fn version(&self) -> u8 {
        match self {
            Self::Put { .. } | Self::Delete { .. } | Self::Count { .. } => VERSION,
            Self::Split(_) => VERSION_OF_SPLIT,
            Self::Stamps(_) => VERSION_OF_STAMPS,
            Self::Part { .. } | Self::Parts { .. } => VERSION_OF_PARTS,
        }
    }

    /// The row that it writes or removes.
    pub(crate) fn row(&self) -> Option<(u16, &[u8])> {
        match *self {
            Self::Put { slot, key, .. } | Self::Delete { slot, key } => Some((slot, key)),
            Self::Count { .. }
            | Self::Split(_)
            | Self::Stamps(_)
            | Self::Part { .. }
            | Self::Parts { .. } => None,
        }
    }

    /// Whether it brings values into tables.
    pub(crate) fn adds(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Part { .. } | Self::Parts { .. })
    }
}

/// What begins a group with a part of another one's slots, and of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split<'a> {
    /// The first slot of the new group, which has all behind it, too.
    pub first: u16,
    /// The new group.
    pub group: GroupId,
    /// [Pairs](Split::pairs): a replica of the group that is split, and that of the new one beside it.
    pub replicas: &'a [u8],
    /// The members of the new group, encoded by who proposed them.
    pub members: &'a [u8],
}

impl Split<'_> {
    /// Pairs of replicas, encoded.
    #[must_use]
    pub fn pairs(of: impl IntoIterator<Item = (ReplicaId, ReplicaId)>) -> Vec<u8> {
        let ids = of.into_iter().flat_map(|(parent, child)| [parent, child]);
        ids.flat_map(u64::to_le_bytes).collect()
    }

    /// The replica of the new group beside a replica of the one that is split.
    #[must_use]
    pub fn beside(&self, parent: ReplicaId) -> Option<ReplicaId> {
        let (ids, _) = self.replicas.as_chunks::<8>();
        let (pairs, _) = ids.as_chunks::<2>();
        let mut pairs = pairs.iter().map(|pair| pair.map(u64::from_le_bytes));
        pairs.find_map(|[of, child]| (of == parent).then_some(child))
    }
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
        let version = self.version();
        let own = effect.version();
        encode(effect, &mut self.bytes);
        self.count += 1;
        let checked = self.check_alone(own).and_then(|()| {
            check(&self.bytes, before, own)?;
            self.check_size()
        });
        if let Err(error) = checked {
            self.bytes.truncate(before);
            self.count -= 1;
            self.set_version(version);
            return Err(error);
        }
        self.write_count();
        Ok(())
    }

    fn version(&self) -> u8 {
        self.bytes.first().copied().unwrap_or(VERSION)
    }

    fn set_version(&mut self, version: u8) {
        if let Some(first) = self.bytes.first_mut() {
            *first = version;
        }
    }

    /// Whether what was added goes with what was there: what changes no rows goes with nothing.
    fn check_alone(&mut self, version: u8) -> Result<(), FieldError> {
        if self.count > 1 && version.max(self.version()) > VERSION {
            return Err(Fields::new(&self.bytes).wrong(1, "an effect alone", self.count));
        }
        self.set_version(version);
        Ok(())
    }

    /// Adds the effects of another, behind its own.
    ///
    /// # Errors
    /// [`FieldError`] where they would be more than an entry may have; nothing was added.
    pub fn extend(&mut self, other: &Self) -> Result<(), FieldError> {
        // Also where one of them has none: which version would the entry have?
        if self.version().max(other.version()) > VERSION {
            return Err(Fields::new(&self.bytes).wrong(1, "an effect alone", other.count));
        }
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
        check_size((&self.bytes, MAX_BYTES), self.count)
    }

    /// The bytes that an entry has behind its header.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Effects that one entry has no room for, in entries of at most `most` bytes: the parts, and then what makes them
/// take place.
///
/// # Errors
/// [`FieldError`] where one is out of the limits, or all together are.
pub fn in_parts<'e>(
    effects: impl Iterator<Item = Effect<'e>>,
    most: usize,
) -> Result<Vec<EffectsBuf>, FieldError> {
    let EffectsBuf { mut bytes, mut count } = EffectsBuf::default();
    for effect in effects {
        let before = bytes.len();
        encode(effect, &mut bytes);
        count += 1;
        check(&bytes, before, VERSION)?;
        check_size((&bytes, MAX_IN_PARTS), count)?;
    }
    bytes[1..HEAD].copy_from_slice(&count.to_le_bytes());
    let most = PART_BYTES.min(most.saturating_sub(HEAD + PART_HEAD)).max(1);
    let mut parts = Vec::with_capacity(bytes.len() / most + 2);
    for (number, bytes) in (0..).zip(bytes.chunks(most)) {
        let mut part = EffectsBuf::default();
        part.push(Effect::Part { number, bytes })?;
        parts.push(part);
    }
    let mut last = EffectsBuf::default();
    last.push(Effect::Parts {
        count: u32::try_from(parts.len()).unwrap_or(u32::MAX),
        bytes: bytes.len() as u64,
    })?;
    parts.push(last);
    Ok(parts)
}

/// Reads the effects of an entry.
///
/// # Errors
/// [`FieldError`] where no effects were ever encoded so.
pub fn decode(bytes: &[u8]) -> Result<Vec<Effect<'_>>, FieldError> {
    decode_within(bytes, MAX_BYTES)
}

/// Reads effects that came in parts, which have no parts themselves.
///
/// # Errors
/// As [`decode`].
pub fn decode_parts(bytes: &[u8]) -> Result<Vec<Effect<'_>>, FieldError> {
    match bytes.first() {
        Some(&version) if version != VERSION => {
            Err(Fields::new(bytes).wrong(0, "effects of version 1 in parts", version))
        }
        _ => decode_within(bytes, MAX_IN_PARTS),
    }
}

fn check_size((bytes, most): (&[u8], usize), count: u32) -> Result<(), FieldError> {
    let fields = Fields::new(bytes);
    if bytes.len() > most {
        let found = format!("{} bytes", bytes.len());
        let expected = match most {
            MAX_BYTES => "effects of less than 8 MiB",
            _ => "effects of at most 513 MiB",
        };
        return Err(fields.wrong(most, expected, found));
    }
    if count as usize > MAX_EFFECTS {
        return Err(fields.wrong(1, "at most 2^20 effects", "more"));
    }
    Ok(())
}

fn decode_within(bytes: &[u8], most: usize) -> Result<Vec<Effect<'_>>, FieldError> {
    check_size((bytes, most), 0)?;
    let mut fields = Fields::new(bytes);
    let version = fields.u8("a version")?;
    if !(VERSION..=VERSION_OF_PARTS).contains(&version) {
        return Err(fields.wrong(0, "effects of version 1 to 4", version));
    }
    let count = fields.u32("a number of effects")? as usize;
    // Checked before room is made for them: none is shorter than 4 bytes.
    if count > MAX_EFFECTS || count > fields.left() / 4 {
        return Err(fields.wrong(1, "as many effects as there are", count));
    }
    if version > VERSION && count != 1 {
        return Err(fields.wrong(1, "an effect alone", count));
    }
    let effects = (0..count).map(|_| effect(&mut fields, version)).collect();
    fields.end().and(effects)
}

/// Whether one effect is encoded from `at` on.
fn check(bytes: &[u8], at: usize, version: u8) -> Result<(), FieldError> {
    let mut fields = Fields::new(bytes);
    fields.take(at, "what is before")?;
    effect(&mut fields, version)?;
    fields.end()
}

/// The split that an entry is, if it is one.
pub(super) fn split_of(bytes: &[u8]) -> Result<Option<Split<'_>>, FieldError> {
    if bytes.first() != Some(&VERSION_OF_SPLIT) {
        return Ok(None);
    }
    Ok(decode(bytes)?.into_iter().find_map(|effect| match effect {
        Effect::Split(split) => Some(split),
        _ => None,
    }))
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
        Effect::Stamps(origin) => {
            head(STAMPS, 0);
            to.extend_from_slice(&origin.to_le_bytes());
        }
        Effect::Part { number, bytes } => {
            head(PART, 0);
            to.extend_from_slice(&number.to_le_bytes());
            put_bytes(to, bytes);
        }
        Effect::Parts { count, bytes } => {
            head(PARTS, 0);
            to.extend_from_slice(&count.to_le_bytes());
            to.extend_from_slice(&bytes.to_le_bytes());
        }
        Effect::Split(split) => {
            head(SPLIT, split.first);
            to.extend_from_slice(&split.group.to_le_bytes());
            put_bytes(to, split.replicas);
            put_bytes(to, split.members);
        }
    }
}

fn effect<'a>(fields: &mut Fields<'a>, version: u8) -> Result<Effect<'a>, FieldError> {
    let at = fields.at();
    let kind = fields.u8("a kind of effect")?;
    let its_version = match kind {
        PUT | DELETE | COUNT => VERSION,
        SPLIT => VERSION_OF_SPLIT,
        STAMPS => VERSION_OF_STAMPS,
        PART | PARTS => VERSION_OF_PARTS,
        other => return Err(fields.wrong(at, "a kind of effect from 1 to 7", other)),
    };
    if version != its_version {
        return Err(fields.wrong(
            at,
            "kinds 1 to 3 in version 1, 4 in 2, 5 in 3, 6 and 7 in 4",
            kind,
        ));
    }
    let slot = fields.u16("a slot")?;
    if slot >= SLOTS {
        return Err(fields.wrong(at + 1, "a slot below 16384", slot));
    }
    let key = |fields: &mut Fields<'a>| fields.bytes((0, MAX_KEY_BYTES), "a key");
    match kind {
        PUT => Ok(Effect::Put {
            slot,
            key: key(fields)?,
            value: fields.bytes((0, MAX_IN_PARTS), "a value")?,
        }),
        DELETE => Ok(Effect::Delete {
            slot,
            key: key(fields)?,
        }),
        COUNT => Ok(Effect::Count {
            slot,
            delta: fields.u64("a number of keys")? as i64,
        }),
        STAMPS | PART | PARTS if slot != 0 => Err(fields.wrong(at + 1, "slot 0", slot)),
        STAMPS => Ok(Effect::Stamps(fields.u64("an origin")?)),
        PART => Ok(Effect::Part {
            number: fields.u32("the number of a part")?,
            bytes: fields.bytes((1, PART_BYTES), "a part")?,
        }),
        PARTS => Ok(Effect::Parts {
            count: fields.u32("a number of parts")?,
            bytes: fields.u64("their bytes")?,
        }),
        _ => {
            let group = fields.u64("a group")?;
            let at = fields.at();
            let replicas = fields.bytes((PAIR, MAX_PAIRS * PAIR), "pairs of replicas")?;
            if !replicas.len().is_multiple_of(PAIR) {
                return Err(fields.wrong(at, "pairs of 16 bytes", replicas.len()));
            }
            Ok(Effect::Split(Split {
                first: slot,
                group,
                replicas,
                members: fields.bytes((1, MAX_BYTES), "members")?,
            }))
        }
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
        let said = decode(&[5, 0, 0, 0, 0]).unwrap_err().to_string();
        assert_eq!(said, "byte 0: expected effects of version 1 to 4, found 5");
        assert!(decode(&[1, 255, 255, 255, 255]).is_err());
    }

    #[test]
    fn what_changes_no_rows_is_alone_in_its_entry() {
        let pairs = Split::pairs([(7, 70), (8, 80)]);
        let split = Split {
            first: 100,
            group: 9,
            replicas: &pairs,
            members: b"the members",
        };
        let mut buf = EffectsBuf::default();
        buf.push(Effect::Split(split)).unwrap();
        assert_eq!(buf.bytes()[0], VERSION_OF_SPLIT);
        let count = Effect::Count { slot: 1, delta: 1 };
        let mut one = EffectsBuf::default();
        one.push(count).unwrap();
        let (alone, other) = (buf.clone(), one.clone());
        assert!(buf.push(count).is_err() && buf.extend(&one).is_err());
        assert!(one.push(Effect::Split(split)).is_err() && one.extend(&buf).is_err());
        assert_eq!((&buf, &one), (&alone, &other));
        assert_eq!(split_of(buf.bytes()), Ok(Some(split)));
        assert_eq!(split_of(one.bytes()), Ok(None));
        assert_eq!(
            [7, 8, 9].map(|parent| split.beside(parent)),
            [Some(70), Some(80), None]
        );
        for len in 0..buf.bytes().len() {
            assert!(decode(&buf.bytes()[..len]).is_err());
        }
        // Nor with none: that would be an entry that no replica reads.
        let part = Effect::Part {
            number: 0,
            bytes: b"part",
        };
        for effect in [Effect::Split(split), Effect::Stamps(7), part] {
            let (mut alone, mut none) = (EffectsBuf::default(), EffectsBuf::default());
            alone.push(effect).unwrap();
            let before = alone.clone();
            assert!(alone.extend(&none).is_err() && none.extend(&alone).is_err());
            assert_eq!((alone, none), (before, EffectsBuf::default()));
        }
        // Each kind in its version.
        let mut stamps = EffectsBuf::default();
        stamps.push(Effect::Stamps(77)).unwrap();
        assert_eq!(decode(stamps.bytes()), Ok(vec![Effect::Stamps(77)]));
        assert!(stamps.push(count).is_err() && stamps.extend(&one).is_err());
        for wrong in [
            [&[1], &buf.bytes()[1..]].concat(),
            [&[3], &buf.bytes()[1..]].concat(),
            [&[2], &one.bytes()[1..]].concat(),
            [&[1], &stamps.bytes()[1..]].concat(),
            [&[2], &stamps.bytes()[1..]].concat(),
        ] {
            assert!(decode(&wrong).is_err());
        }
        let uneven = Split {
            replicas: &pairs[1..],
            ..split
        };
        assert!(EffectsBuf::default().push(Effect::Split(uneven)).is_err());
    }
}
