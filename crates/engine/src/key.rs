//! Keys and values, which reads return, and the bounds of scans.

use std::borrow::Borrow;
use std::fmt;
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

        impl From<$name> for Vec<u8> {
            fn from(bytes: $name) -> Self {
                bytes.to_vec()
            }
        }

        impl<T: AsRef<[u8]> + ?Sized> PartialEq<&T> for $name {
            fn eq(&self, other: &&T) -> bool {
                **self == *other.as_ref()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.escape_ascii())
            }
        }
    };
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
}
