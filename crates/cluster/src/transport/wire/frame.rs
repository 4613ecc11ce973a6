//! The frame around a message. Its layout is drawn in `docs/design/formats/peers.md`.

use crate::ids::{GroupId, ReplicaId};
use crate::transport::wire::kind::{Kind, WireError};
use crate::transport::wire::message::{Message, TEXT_MAX};

/// Bytes before the body.
pub const HEAD: usize = 4 + 4 + 1 + 1 + 4 * 8;
/// Bytes of a frame, at most.
pub const FRAME_MAX: usize = 8 << 20;
/// Bytes of a frame before both sides have said who they are, at most: a stranger gets no more of
/// this node's memory.
pub const GREETING_MAX: usize = 4096;

const LEN: usize = 0;
const CRC: usize = 4;
const KIND: usize = 8;
const FLAGS: usize = 9;
const GROUP: usize = 10;
const FROM: usize = 18;
const TO: usize = 26;
const REQUEST: usize = 34;
/// What the length does not count: itself.
const LEN_BYTES: usize = 4;

const _: () = assert!(TEXT_MAX + HEAD + 8 <= GREETING_MAX);
const _: () = assert!(REQUEST + 8 == HEAD && FRAME_MAX <= u32::MAX as usize);

/// A message and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The group; 0 where the frame concerns the connection.
    pub group: GroupId,
    /// The replica that speaks.
    pub from: ReplicaId,
    /// The replica that is spoken to.
    pub to: ReplicaId,
    /// Pairs a request, or a ping, with its answer.
    pub request: u64,
    /// The message.
    pub message: Message,
}

impl Frame {
    /// A frame that concerns the connection.
    pub fn of_connection(request: u64, message: Message) -> Self {
        Self {
            group: 0,
            from: 0,
            to: 0,
            request,
            message,
        }
    }
}

/// A frame's bytes.
///
/// # Errors
/// [`WireError::TooLarge`].
pub fn encode(frame: &Frame) -> Result<Vec<u8>, WireError> {
    let kind = frame.message.kind();
    let mut bytes = frame.message.write(vec![0; HEAD])?;
    if bytes.len() > FRAME_MAX {
        return Err(WireError::TooLarge {
            kind,
            found: bytes.len(),
            unit: "bytes",
            most: FRAME_MAX,
        });
    }
    let len = (bytes.len() - LEN_BYTES) as u32;
    bytes[LEN..][..4].copy_from_slice(&len.to_le_bytes());
    bytes[KIND] = kind as u8;
    for (at, word) in [
        (GROUP, frame.group),
        (FROM, frame.from),
        (TO, frame.to),
        (REQUEST, frame.request),
    ] {
        bytes[at..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let crc = checksum(&bytes);
    bytes[CRC..][..4].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

/// The length of the frame that `bytes` begin with, as soon as they say it.
///
/// # Errors
/// [`WireError::Length`] for one that no frame of at most `most` bytes has.
pub fn frame_len(bytes: &[u8], most: usize) -> Result<Option<usize>, WireError> {
    let Some(&len) = bytes.first_chunk::<LEN_BYTES>() else {
        return Ok(None);
    };
    let (found, least) = (u64::from(u32::from_le_bytes(len)), (HEAD - LEN_BYTES) as u64);
    let most = (most - LEN_BYTES) as u64;
    match (least..=most).contains(&found) {
        true => Ok(Some(found as usize + LEN_BYTES)),
        false => Err(WireError::Length { found, least, most }),
    }
}

/// The frame that `bytes` are, all of them.
///
/// # Errors
/// What is wrong with it, and where.
pub fn decode(bytes: &[u8]) -> Result<Frame, WireError> {
    let expected = frame_len(bytes, FRAME_MAX)?.unwrap_or(HEAD);
    if bytes.len() != expected {
        return Err(WireError::Size {
            expected: expected as u64,
            found: bytes.len() as u64,
        });
    }
    let found = u32::from_le_bytes(array(bytes, CRC));
    let expected = checksum(bytes);
    if found != expected {
        return Err(WireError::Checksum { expected, found });
    }
    let kind = Kind::of(bytes[KIND])?;
    if bytes[FLAGS] != 0 {
        return Err(WireError::Flags { found: bytes[FLAGS] });
    }
    let word = |at| u64::from_le_bytes(array(bytes, at));
    if kind.is_of_connection()
        && let Some(at) = [GROUP, FROM, TO].into_iter().find(|&at| word(at) != 0)
    {
        return Err(WireError::Address {
            kind,
            at,
            found: word(at),
        });
    }
    let (message, trailing) = Message::read(kind, &bytes[HEAD..])?;
    if trailing != 0 {
        return Err(WireError::Trailing {
            kind,
            end: bytes.len() - trailing,
            trailing,
        });
    }
    Ok(Frame {
        group: word(GROUP),
        from: word(FROM),
        to: word(TO),
        request: word(REQUEST),
        message,
    })
}

/// Of all bytes but the checksum's own.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC]), &bytes[KIND..])
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
