//! How a replica's data is copied to another node: an offer of files, their pieces, the end.
//!
//! The receiver says from where on it wants each file, so a transfer that was cut goes on where it
//! was: the sender offers the same snapshot again.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{EntryId, Vote};
use crate::transport::wire::ids::{Payload, list};

/// Files of one snapshot.
pub const FILES_MAX: usize = 65_536;
/// Bytes of a file's name.
pub const NAME_MAX: usize = 255;

/// The name of a file in a directory: not empty, no separator, and neither `.` nor `..`. What
/// another node sends is put into a directory under this name, and must not lead out of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileName(String);

/// A file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOffer {
    /// Its name.
    pub name: FileName,
    /// Its length.
    pub bytes: u64,
    /// The CRC-32C of all of it.
    pub crc32c: u32,
}

/// A snapshot is offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The leader's vote.
    pub vote: Vote,
    /// Names the snapshot among those of this replica.
    pub snapshot: u64,
    /// The last entry that it holds the effects of.
    pub last: Option<EntryId>,
    /// What else belongs to it, such as the membership.
    pub meta: Payload,
    /// Its files.
    #[serde(deserialize_with = "list::<_, _, FILES_MAX>")]
    pub files: Vec<FileOffer>,
}

/// The answer to an offer: from which byte on each of its files is wanted, in its order. A file
/// that is wanted from its end is there already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// What the receiver has voted for. If it is higher than the offer's, nothing is wanted.
    pub vote: Vote,
    /// The first byte of each file that is wanted.
    #[serde(deserialize_with = "list::<_, _, FILES_MAX>")]
    pub from: Vec<u64>,
}

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The snapshot.
    pub snapshot: u64,
    /// Which of its files, in the order of the offer.
    pub file: u32,
    /// Where in the file.
    pub offset: u64,
    /// The bytes.
    pub bytes: Payload,
}

/// The answer to a piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// How much of the file is there without a gap.
    pub upto: u64,
}

/// All pieces were sent: the snapshot is to be checked and installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotEnd {
    /// The leader's vote.
    pub vote: Vote,
    /// The snapshot.
    pub snapshot: u64,
}

/// The answer to the end of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// What the receiver has voted for. If it is higher than the leader's, nothing was installed.
    pub vote: Vote,
}

impl FileName {
    /// Checks a name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(name: impl Into<String>) -> Result<Self, String> {
        let name = name.into();
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(format!(
                "the name of a file has 1 to {NAME_MAX} bytes, found {}",
                name.len()
            ));
        }
        if matches!(name.as_str(), "." | "..") || name.contains(['/', '\\', '\0']) {
            return Err(format!(
                "expected the name of a file in a directory, found {name:?}"
            ));
        }
        Ok(Self(name))
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for FileName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for FileName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name: &'de str = Deserialize::deserialize(from)?;
        Self::new(name).map_err(D::Error::custom)
    }
}
