//! Keys and values that reads return.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

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

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use crate::bytes::Key;

    /// As [`Borrow`](std::borrow::Borrow) requires of keys of maps.
    #[test]
    fn a_key_has_the_hash_of_its_bytes() {
        let state = std::hash::RandomState::new();
        for bytes in [&b""[..], b"short", &[7; 100]] {
            assert_eq!(state.hash_one(Key::from(bytes)), state.hash_one(bytes));
        }
    }
}
