//! The first block of a ring's file.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BadHeader, OLDEST_VERSION, RING_MAGIC, VERSION};

/// The head of a ring file; its block also holds the written mark, see [`RING_WRITTEN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RingHeader {
    magic: [u8; 8],
    version: U32,
    pub(crate) epoch: U32,
    pub(crate) log_id: [u8; 16],
    pub(crate) incarnation: [u8; 16],
    pub(crate) boot_id: [u8; 16],
    /// The log's directory, so that a copy of it never takes another's ring for its own.
    pub(crate) dir_dev: U64,
    pub(crate) dir_ino: U64,
    /// Bytes of the ring behind this block, a power of two.
    pub(crate) capacity: U64,
    /// Where the epoch's appends began.
    pub(crate) start: U64,
    crc: U32,
}

/// Where in the ring's first block the written mark lies: a little-endian LSN, up to which the
/// segment files hold what the ring held.
pub(crate) const RING_WRITTEN: usize = 2048;
const _: () = assert!(size_of::<RingHeader>() <= RING_WRITTEN);

/// Where in the ring's first block the path of the log's directory lies, for people and for tools. A
/// CRC-32C of the rest, its length in two bytes, the path. Rings of earlier versions have zeros there.
pub(crate) const RING_HOME: usize = 256;
const RING_HOME_HEAD: usize = size_of::<U32>() + size_of::<U16>();
const _: () = assert!(size_of::<RingHeader>() <= RING_HOME);

/// The path of a log's directory as it stands in the ring; `None` where it is too long for that.
pub(crate) fn encode_ring_home(path: &[u8]) -> Option<Vec<u8>> {
    let len = U16::new(u16::try_from(path.len()).ok()?);
    let rest = [len.as_bytes(), path].concat();
    let crc = U32::new(crc32c::crc32c(&rest));
    let home = [crc.as_bytes(), &rest].concat();
    (home.len() <= RING_WRITTEN - RING_HOME).then_some(home)
}

/// The path of the log's directory in a ring's first block, if it is there.
pub(crate) fn decode_ring_home(block: &[u8]) -> Option<&[u8]> {
    let home = block.get(RING_HOME..RING_WRITTEN)?;
    let (crc, rest) = U32::read_from_prefix(home).ok()?;
    let (len, _) = U16::read_from_prefix(rest).ok()?;
    let end = RING_HOME_HEAD + usize::from(len.get());
    let rest = home.get(size_of::<U32>()..end)?;
    let path = rest.get(size_of::<U16>()..).filter(|path| !path.is_empty())?;
    (crc.get() == crc32c::crc32c(rest)).then_some(path)
}

impl RingHeader {
    pub(crate) fn blank() -> Self {
        let mut header = Self::new_zeroed();
        header.magic = RING_MAGIC;
        header.version = VERSION.into();
        header
    }

    /// CRC-32C of everything before the checksum, which is the last field.
    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c::crc32c(bytes.split_at(bytes.len() - size_of::<U32>()).0)
    }

    pub(crate) fn encode(mut self) -> Vec<u8> {
        self.crc = self.checksum().into();
        self.as_bytes().to_vec()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| BadHeader::Damaged)?;
        if header.as_bytes().iter().all(|b| *b == 0) {
            Err(BadHeader::Blank)
        } else if header.magic != RING_MAGIC {
            Err(BadHeader::Damaged)
        } else if !(OLDEST_VERSION..=VERSION).contains(&header.version.get()) {
            Err(BadHeader::Version(header.version.get()))
        } else if header.crc != header.checksum() {
            Err(BadHeader::Damaged)
        } else {
            Ok(header)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::BLOCK;

    #[test]
    fn a_ring_header_is_read_back_or_refused() {
        let mut header = RingHeader::blank();
        header.capacity = 4096.into();
        let bytes = header.encode();
        assert_eq!(RingHeader::decode(&bytes).unwrap().capacity.get(), 4096);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(RingHeader::decode(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn the_path_of_the_directory_is_whole_or_not_there() {
        let mut block = vec![0; BLOCK];
        assert_eq!(decode_ring_home(&block), None, "a ring of an earlier version");
        let home = encode_ring_home(b"/a/b").unwrap();
        block[RING_HOME..RING_HOME + home.len()].copy_from_slice(&home);
        assert_eq!(decode_ring_home(&block), Some(&b"/a/b"[..]));
        for at in RING_HOME..RING_HOME + home.len() {
            let mut damaged = block.clone();
            damaged[at] ^= 0x10;
            assert_eq!(decode_ring_home(&damaged), None, "byte {at}");
        }
        let longest = RING_WRITTEN - RING_HOME - RING_HOME_HEAD;
        assert!(encode_ring_home(&vec![b'x'; longest]).is_some());
        assert_eq!(encode_ring_home(&vec![b'x'; longest + 1]), None);
    }
}
