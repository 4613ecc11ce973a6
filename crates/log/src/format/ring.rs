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

    /// The first blocks of rings as they were left by processes that were killed, of each version and
    /// with the path or without. They are never written again.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "reads fixtures")]
    fn ring_headers_of_every_version_say_what_was_written() {
        let rings = [
            (
                "ring-v1",
                1,
                0x3528_5102_4075_edee_f38b_dc40_45b8_8a2e,
                0x3eb8_833c_5f05_eebb_6842_abd3_f4f1_7baf,
                10_011_864,
                None,
            ),
            (
                "ring-v2",
                2,
                0x7ca5_5ebf_d519_f57c_fed0_ae28_c589_25de,
                0x3191_ab04_cfb7_3399_2b90_bc19_1347_a9c2,
                10_011_864,
                None,
            ),
            (
                "ring-v3",
                3,
                0xf84c_1cad_194a_f293_2539_915e_0b12_c19b,
                0x2288_a97b_30fd_f40b_4f78_3428_5a72_bd91,
                10_011_864,
                None,
            ),
            (
                "ring-v3-home",
                3,
                0x8c4c_fa59_f1f6_2a2e_4fa2_8a6f_8adb_08ea_u128,
                0xd1a4_6d39_b08a_36c3_8a89_2231_0c61_2c35_u128,
                10_011_927,
                Some(&b"/tmp/fl"[..]),
            ),
        ];
        for (name, version, log_id, incarnation, dir_ino, home) in rings {
            let path = format!("{}/tests/fixtures/{name}.bin", env!("CARGO_MANIFEST_DIR"));
            let block = std::fs::read(path).unwrap();
            assert_eq!(block.len(), BLOCK);
            let expected = RingHeader {
                magic: *b"CollieRg",
                version: version.into(),
                epoch: 2.into(),
                log_id: log_id.to_be_bytes(),
                incarnation: incarnation.to_be_bytes(),
                boot_id: 0x6c51_4aec_af00_4ec2_9436_888b_331a_565b_u128.to_be_bytes(),
                dir_dev: 0xfe00.into(),
                dir_ino: dir_ino.into(),
                capacity: 8192.into(),
                start: ((1 << 32) + 888).into(),
                crc: 0.into(),
            };
            let crc = expected.checksum().into();
            assert_eq!(
                RingHeader::decode(&block),
                Ok(RingHeader { crc, ..expected }),
                "{name}"
            );
            assert_eq!(decode_ring_home(&block), home, "{name}");
            let (written, _) = U64::read_from_prefix(&block[RING_WRITTEN..]).unwrap();
            assert_eq!(written.get(), (1 << 32) + 1688, "{name}");
        }
    }
}
