//! The kinds of frames.

use std::fmt;

use crate::transport::wire::error::WireError;

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
