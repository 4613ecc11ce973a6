//! Why a frame cannot be sent, or what came is none.

use crate::transport::wire::kind::Kind;

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
        super::VERSION
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
        super::VERSION
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
