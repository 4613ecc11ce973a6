//! The kinds of frames, and why a frame cannot be sent, or what came is none.

use std::fmt;

/// The version of frames and bodies. Nodes of different versions do not speak to each other; what
/// two versions of the program can both do is the feature level's matter.
pub const VERSION: u16 = 1;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)+) => {
        /// What a frame is. Requests have kinds from 16 on, their answers those from 32 on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Kind { $($(#[$doc])* $name = $number,)+ }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The kind of a number that came in a frame.
            pub fn of(number: u8) -> Result<Self, WireError> {
                match number {
                    $($number => Ok(Self::$name),)+
                    found => Err(WireError::Kind { found }),
                }
            }
        }

        impl fmt::Display for Kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)+ })
            }
        }
    };
}

kinds! {
    /// Who speaks, first in both directions.
    Hello = 1, "hello";
    /// The connection is refused.
    Refused = 2, "refused";
    /// Is the peer there?
    Ping = 3, "ping";
    /// It is.
    Pong = 4, "pong";
    /// A process asks to become a node of the cluster, first on its connection.
    Join = 5, "join";
    /// What becomes of that.
    Joined = 6, "joined";
    /// The groups that the speaker leads.
    Leads = 7, "leads";
    /// Entries for a follower.
    Append = 16, "append";
    /// A request for a vote.
    Vote = 17, "vote";
    /// Would there be a vote?
    PreVote = 18, "pre-vote";
    /// Leadership is handed over.
    Transfer = 19, "transfer";
    /// A snapshot is offered.
    Offer = 20, "offer";
    /// A piece of a file of a snapshot.
    Piece = 21, "piece";
    /// All pieces were sent.
    SnapshotEnd = 22, "snapshot end";
    /// Has the replica room for tables, and its log for what would follow them?
    Room = 23, "room";
    /// The leader is asked to hand over.
    HandOver = 24, "hand over";
    /// Could the replica lead, as far as its log and its clock go?
    MayLead = 25, "may lead";
    /// The leader of group 0 is asked to change the map.
    ChangeMap = 26, "change of the map";
    /// The leader has nothing to do, and asks a member to park.
    Park = 27, "park";
    /// A member has reason to hear from its leader, which is parked.
    Wake = 28, "wake";
    /// What is the replica's last entry?
    LastEntry = 29, "last entry";
    /// Answers [`Kind::Append`].
    Appended = 32, "appended";
    /// Answers [`Kind::Vote`].
    Voted = 33, "voted";
    /// Answers [`Kind::PreVote`].
    PreVoted = 34, "pre-voted";
    /// Answers [`Kind::Transfer`].
    Transferred = 35, "transferred";
    /// Answers [`Kind::Offer`].
    Wanted = 36, "wanted";
    /// Answers [`Kind::Piece`].
    Stored = 37, "stored";
    /// Answers [`Kind::SnapshotEnd`].
    Installed = 38, "installed";
    /// Answers [`Kind::Room`].
    HasRoom = 39, "has room";
    /// Answers [`Kind::HandOver`].
    HandingOver = 40, "handing over";
    /// Answers [`Kind::MayLead`].
    Ready = 41, "ready";
    /// Answers [`Kind::ChangeMap`].
    MapChanged = 42, "map changed";
    /// Answers [`Kind::Park`].
    Parked = 43, "parked";
    /// Answers [`Kind::Wake`].
    Awake = 44, "awake";
    /// Answers [`Kind::LastEntry`].
    LastEntryIs = 45, "last entry is";
    /// Answers any request that was not carried out.
    Refusal = 48, "refusal";
}

impl Kind {
    /// Whether the frame concerns the connection itself: it names no group and no replica.
    pub fn is_of_connection(self) -> bool {
        (self as u8) < 16
    }

    /// Whether a frame of this kind answers a request of kind `request`.
    pub fn answers(self, request: Self) -> bool {
        self == Self::Refusal
            || (request as u8) >= 16 && (request as u8) < 32 && self as u8 == request as u8 + 16
    }
}

/// A frame that is none of this version, or that may not be sent. What says this of a frame that
/// came in names the connection beside it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The length that the frame begins with.
    #[error("byte 0 of a frame: expected a length of {least} to {most} bytes, found {found}")]
    Length {
        /// What stands there.
        found: u64,
        /// The least that makes sense.
        least: u64,
        /// The most that is allowed here.
        most: u64,
    },
    /// There are fewer or more bytes than the frame's length says.
    #[error("a frame of {expected} bytes by its length, found {found}")]
    Size {
        /// What its length says, with the length itself.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// The checksum.
    #[error("byte 4 of a frame: expected the CRC-32C {expected:08x} of its other bytes, found {found:08x}")]
    Checksum {
        /// Of what came.
        expected: u32,
        /// What stands in the frame.
        found: u32,
    },
    /// The kind.
    #[error(
        "byte 8 of a frame: found kind {found}, which version {} does not know",
        VERSION
    )]
    Kind {
        /// What stands there.
        found: u8,
    },
    /// The flags.
    #[error("byte 9 of a frame: expected flags 0, found {found:#04x}")]
    Flags {
        /// What stands there.
        found: u8,
    },
    /// A frame of the connection itself that names a group or a replica.
    #[error("byte {at} of a frame of kind {kind}: expected 0, as for every frame of no group, found {found}")]
    Address {
        /// The kind.
        kind: Kind,
        /// The offset of the field.
        at: usize,
        /// What stands there.
        found: u64,
    },
    /// The body.
    #[error("the body of a frame of kind {kind}, {bytes} bytes: {problem}")]
    Body {
        /// The kind.
        kind: Kind,
        /// The body's length.
        bytes: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Bytes behind the body.
    #[error("a frame of kind {kind}: expected its end at byte {end}, found {trailing} bytes more")]
    Trailing {
        /// The kind.
        kind: Kind,
        /// Where the body ends in the frame.
        end: usize,
        /// How many bytes follow.
        trailing: usize,
    },
    /// The peer speaks another version.
    #[error(
        "the peer speaks version {found} of the protocol between nodes, and this one version {}: run versions on \
         both nodes that can be in one cluster",
        VERSION
    )]
    Version {
        /// What it speaks.
        found: u16,
    },
    /// What is to be sent is too large.
    #[error("a frame of kind {kind} would have {found} {unit}, of {most} at most: send less at once")]
    TooLarge {
        /// The kind.
        kind: Kind,
        /// How much it would have.
        found: usize,
        /// Of what.
        unit: &'static str,
        /// The limit.
        most: usize,
    },
}
