//! Keys and values, which reads return, and the bounds of scans.

use std::borrow::Borrow;
use std::fmt::{self, Write};
use std::ops::{Bound, Deref, RangeBounds};

use lsm_tree::Slice;

macro_rules! bytes {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) Slice);

        impl Deref for $name {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                &self.0
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl Borrow<[u8]> for $name {
            fn borrow(&self) -> &[u8] {
                &self.0
            }
        }

        impl From<&[u8]> for $name {
            fn from(bytes: &[u8]) -> Self {
                Self(Slice::from(bytes))
            }
        }

        impl<const N: usize> From<&[u8; N]> for $name {
            fn from(bytes: &[u8; N]) -> Self {
                Self::from(bytes.as_slice())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::from(text.as_bytes())
            }
        }

        impl From<Vec<u8>> for $name {
            fn from(bytes: Vec<u8>) -> Self {
                Self::from(&*bytes)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::from(text.as_bytes())
            }
        }

        impl From<$name> for Vec<u8> {
            fn from(bytes: $name) -> Self {
                bytes.to_vec()
            }
        }

        #[cfg(feature = "bytes")]
        impl From<bytes::Bytes> for $name {
            fn from(bytes: bytes::Bytes) -> Self {
                Self::from(&*bytes)
            }
        }

        /// Without a copy.
        #[cfg(feature = "bytes")]
        impl From<$name> for bytes::Bytes {
            fn from(from: $name) -> Self {
                Self::from_owner(from)
            }
        }

        /// As bytes: an array of numbers in JSON.
        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(self)
            }
        }

        /// Of bytes, of a text, or of an array of numbers.
        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_bytes(AnyBytes).map(|bytes| Self::from(&*bytes))
            }
        }

        impl<T: AsRef<[u8]> + ?Sized> PartialEq<&T> for $name {
            fn eq(&self, other: &&T) -> bool {
                **self == *other.as_ref()
            }
        }

        /// As text; what is no UTF-8 becomes U+FFFD.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for chunk in self.utf8_chunks() {
                    f.write_str(chunk.valid())?;
                    if !chunk.invalid().is_empty() {
                        f.write_char(char::REPLACEMENT_CHARACTER)?;
                    }
                }
                Ok(())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.escape_ascii())
            }
        }
    };
}

/// Takes bytes in any form.
#[cfg(feature = "serde")]
struct AnyBytes;

#[cfg(feature = "serde")]
impl<'de> serde::de::Visitor<'de> for AnyBytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_str<E>(self, text: &str) -> Result<Vec<u8>, E> {
        Ok(text.as_bytes().to_vec())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u8>, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes)
    }
}

bytes! {
    /// A key. Cloning it copies no bytes (short ones are stored inline).
    Key
}

bytes! {
    /// A value. Cloning it copies no bytes (short ones are stored inline).
    Value
}

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// The bounds of a scan, owned.
pub(crate) type Bounds = (Bound<Key>, Bound<Key>);

pub(crate) fn bounds<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> Bounds {
    let own = |bound: Bound<&K>| bound.map(|key| Key::from(key.as_ref()));
    (own(range.start_bound()), own(range.end_bound()))
}

/// All keys that start with `prefix`.
pub(crate) fn prefix_bounds(prefix: &[u8]) -> Bounds {
    // The first key after them: the last byte below 0xff is raised, and what follows it is cut off.
    let end = prefix.iter().rposition(|&byte| byte != 0xff).map(|at| {
        let mut end = prefix[..=at].to_vec();
        end[at] += 1;
        Key::from(&*end)
    });
    let low = if prefix.is_empty() {
        Bound::Unbounded
    } else {
        Bound::Included(Key::from(prefix))
    };
    (low, end.map_or(Bound::Unbounded, Bound::Excluded))
}

/// From one key to another, with both.
pub(crate) fn key_to_key(first: &[u8], last: &[u8]) -> Bounds {
    (
        Bound::Included(Key::from(first)),
        Bound::Included(Key::from(last)),
    )
}

/// The part of the bounds from `key` on.
pub(crate) fn from_key((low, high): &Bounds, key: &[u8]) -> Bounds {
    let is_before = match low {
        Bound::Included(low) | Bound::Excluded(low) => key <= &**low,
        Bound::Unbounded => false,
    };
    match is_before {
        true => (low.clone(), high.clone()),
        false => (Bound::Included(Key::from(key)), high.clone()),
    }
}

/// The part of the bounds up to `key`.
pub(crate) fn to_key((low, high): &Bounds, key: &[u8]) -> Bounds {
    let is_behind = match high {
        Bound::Included(high) | Bound::Excluded(high) => key >= &**high,
        Bound::Unbounded => false,
    };
    match is_behind {
        true => (low.clone(), high.clone()),
        false => (low.clone(), Bound::Included(Key::from(key))),
    }
}

/// A point between two keys, or at either end of all keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Edge {
    /// Right before this key, which may be empty, or longer than keys are.
    Before(Key),
    /// Behind all keys.
    End,
}

impl Edge {
    pub(crate) fn before(key: &[u8]) -> Self {
        Self::Before(Key::from(key))
    }

    /// Right behind a key: no other lies between the two.
    pub(crate) fn after(key: &[u8]) -> Self {
        let mut next = Vec::with_capacity(key.len() + 1);
        next.extend_from_slice(key);
        next.push(0);
        Self::before(&next)
    }

    pub(crate) fn of_low(low: &Bound<Key>) -> Self {
        match low {
            Bound::Unbounded => Self::before(b""),
            Bound::Included(key) => Self::Before(key.clone()),
            Bound::Excluded(key) => Self::after(key),
        }
    }

    pub(crate) fn of_high(high: &Bound<Key>) -> Self {
        match high {
            Bound::Unbounded => Self::End,
            Bound::Included(key) => Self::after(key),
            Bound::Excluded(key) => Self::Before(key.clone()),
        }
    }

    /// Whether the key is behind it.
    pub(crate) fn is_before(&self, key: &[u8]) -> bool {
        matches!(self, Self::Before(next) if **next <= *key)
    }

    /// The keys between two edges.
    pub(crate) fn between(low: &Self, high: &Self) -> Bounds {
        let low = match low {
            Self::Before(key) if key.is_empty() => Bound::Unbounded,
            Self::Before(key) => Bound::Included(key.clone()),
            // No key is empty.
            Self::End => return (Bound::Unbounded, Bound::Excluded(Key::from(&b""[..]))),
        };
        match high {
            Self::Before(key) => (low, Bound::Excluded(key.clone())),
            Self::End => (low, Bound::Unbounded),
        }
    }
}

/// Whether a key lies between the bounds.
pub(crate) fn contains((low, high): &Bounds, key: &[u8]) -> bool {
    let above = match low {
        Bound::Included(low) => key >= &**low,
        Bound::Excluded(low) => key > &**low,
        Bound::Unbounded => true,
    };
    let below = match high {
        Bound::Included(high) => key <= &**high,
        Bound::Excluded(high) => key < &**high,
        Bound::Unbounded => true,
    };
    above && below
}

/// Whether no key can lie between the bounds.
pub(crate) fn is_empty(bounds: &Bounds) -> bool {
    match bounds {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        // No key is empty.
        (Bound::Unbounded, Bound::Included(high) | Bound::Excluded(high)) => high.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use std::hash::BuildHasher;

    #[test]
    fn a_prefix_ends_where_its_last_raisable_byte_is_raised() {
        let end = |prefix: &[u8]| prefix_bounds(prefix).1;
        assert_eq!(end(b"ab"), Bound::Excluded(Key::from(&b"ac"[..])));
        assert_eq!(end(b"a\xff\xff"), Bound::Excluded(Key::from(&b"b"[..])));
        assert_eq!(end(b"\xff\xff"), Bound::Unbounded);
        assert_eq!(prefix_bounds(b""), (Bound::Unbounded, Bound::Unbounded));
    }

    #[test]
    fn a_part_of_bounds_never_reaches_beyond_them() {
        let key = |key: &[u8]| Key::from(key);
        let ends = [
            Bound::Unbounded,
            Bound::Included(key(b"c")),
            Bound::Excluded(key(b"c")),
            Bound::Included(key(b"f")),
            Bound::Excluded(key(b"f")),
        ];
        for low in &ends {
            for high in &ends {
                let whole = (low.clone(), high.clone());
                for at in [b"a", b"c", b"d", b"f", b"g"] {
                    let (from, to) = (from_key(&whole, at), to_key(&whole, at));
                    for probe in [b"a", b"b", b"c", b"d", b"e", b"f", b"g"] {
                        let inside = contains(&whole, probe);
                        assert_eq!(
                            contains(&from, probe),
                            inside && probe >= at,
                            "{whole:?} from {at:?}"
                        );
                        assert_eq!(contains(&to, probe), inside && probe <= at, "{whole:?} to {at:?}");
                    }
                }
            }
        }
    }

    /// As [`Borrow`](std::borrow::Borrow) requires of keys of maps.
    #[test]
    fn a_key_has_the_hash_of_its_bytes() {
        let state = std::hash::RandomState::new();
        for bytes in [&b""[..], b"short", &[7; 100]] {
            assert_eq!(state.hash_one(Key::from(bytes)), state.hash_one(bytes));
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn keys_and_values_go_through_serde() {
        let value = Value::from(&b"a\xff"[..]);
        let text = serde_json::to_string(&value).unwrap();
        assert_eq!(text, "[97,255]");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert_eq!(serde_json::from_str::<Key>("\"ab\"").unwrap(), "ab");
        for wrong in ["[256]", "[-1]", "1", "{}"] {
            assert!(serde_json::from_str::<Value>(wrong).is_err(), "{wrong}");
        }
        let binary = postcard::to_stdvec(&value).unwrap();
        assert_eq!(postcard::from_bytes::<Value>(&binary).unwrap(), value);
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn a_value_becomes_bytes_without_a_copy() {
        let value = Value::from(vec![7; 10_000]);
        let at = value.as_ptr();
        let bytes = bytes::Bytes::from(value.clone());
        assert_eq!(bytes.as_ptr(), at);
        assert_eq!(Value::from(bytes), value);
    }
}
