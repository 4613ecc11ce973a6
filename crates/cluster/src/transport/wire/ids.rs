//! How ids, bytes and lists stand in a body. What they are on the wire is decided here alone, so that a change
//! of the types elsewhere does not change the format.

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{EntryId, LeaderId, Vote};

impl Serialize for LeaderId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.term, self.replica).serialize(to)
    }
}

impl<'de> Deserialize<'de> for LeaderId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (term, replica) = Deserialize::deserialize(from)?;
        Ok(Self { term, replica })
    }
}

impl Serialize for EntryId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.leader, self.index).serialize(to)
    }
}

impl<'de> Deserialize<'de> for EntryId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (leader, index) = Deserialize::deserialize(from)?;
        Ok(Self { leader, index })
    }
}

impl Serialize for Vote {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.leader, self.committed).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Vote {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (leader, committed) = Deserialize::deserialize(from)?;
        Ok(Self { leader, committed })
    }
}

/// A process of the cluster, numbered by group 0.
pub type NodeId = u64;

/// The cluster, drawn at random when it was made.
pub type ClusterId = [u8; 16];

/// Bytes that this layer does not look into.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Vec<u8>);

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Borrowed: the length has been compared with the bytes that are there.
        let bytes: &'de [u8] = Deserialize::deserialize(from)?;
        Ok(Self(bytes.to_vec()))
    }
}

/// A list of at most `MOST` elements. It grows with the elements that are there, whatever number of
/// them the peer announced.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MOST: usize>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for List<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MOST} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = elements.next_element()? {
                if list.len() == MOST {
                    return Err(A::Error::invalid_length(MOST + 1, &self));
                }
                list.push(element);
            }
            Ok(list)
        }
    }
    from.deserialize_seq(List::<T, MOST>(std::marker::PhantomData))
}
