//! How ids stand in a body. What they are on the wire is decided here alone, so that a change of
//! the types elsewhere does not change the format.

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
