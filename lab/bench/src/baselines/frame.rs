//! The frames of the baselines: as long as Collie's, with a checksum over the same bytes.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes, KnownLayout, Unaligned};

/// 32 bytes, as Collie's header.
#[derive(Debug, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader {
    crc: U32,
    len: U32,
    lsn: U64,
    durable_mark: U64,
    epoch: U32,
    stream_kind: U32,
}
const _: () = assert!(size_of::<FrameHeader>() == collie_log::FRAME_HEADER);

/// Seeds the checksums, as the salt of an epoch does.
const SALT: u32 = 0x5eed_c011;

/// The checksum of a payload, computed before a place is reserved for it, as Collie does.
pub(crate) fn payload_crc(payload: &[u8]) -> u32 {
    crc32c::crc32c_append(SALT, payload)
}

impl FrameHeader {
    /// The finished header of a frame at `lsn`.
    pub(crate) fn finish(payload_crc: u32, len: usize, lsn: u64, durable_mark: u64) -> Self {
        let mut header = Self {
            crc: U32::ZERO,
            len: U32::new(len as u32),
            lsn: lsn.into(),
            durable_mark: durable_mark.into(),
            epoch: U32::new(1),
            stream_kind: U32::new(1 << 24),
        };
        let (_, covered) = header.as_bytes().split_at(size_of::<U32>());
        header.crc = crc32c::crc32c_append(payload_crc, covered).into();
        header
    }
}

/// Bytes that a frame takes: header, payload, zeros up to a multiple of 8.
pub(crate) fn frame_len(payload: usize) -> u64 {
    (collie_log::FRAME_HEADER as u64 + payload as u64).next_multiple_of(8)
}
