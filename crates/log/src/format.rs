//! What is on disk and in the ring: `docs/design/formats/log.md` draws it, this file reads and writes it.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Lsn;

#[cfg(all(test, not(shuttle)))]
mod fuzz;
mod ring;

pub(crate) use ring::{RING_HOME, RING_WRITTEN, RingHeader, decode_ring_home, encode_ring_home};

/// What distinguishes logs: random bytes that stand in every segment of a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogId(pub [u8; 16]);

impl std::fmt::Display for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogId({self})")
    }
}

/// The format that this version writes.
pub(crate) const VERSION: u32 = 3;
/// The oldest format that it reads. Format 1 knows no compressed frames, and is the same as 2
/// otherwise.
const OLDEST_VERSION: u32 = 1;
/// The last format whose segments have both copies of the header in one block, and do not record
/// their first frame.
const ONE_BLOCK_VERSION: u32 = 2;
/// The unit of device writes.
pub(crate) const BLOCK: usize = collie_io::BLOCK;
/// Frames start at multiples of this.
pub(crate) const ALIGN: u64 = 8;
/// Streams are 24 bits wide.
pub(crate) const MAX_STREAM: u32 = (1 << 24) - 1;

/// Kinds from here on are the log's own; readers do not hand them out.
pub(crate) const FIRST_OWN_KIND: u8 = 240;
/// Records the durable mark and nothing else, written when the log falls idle.
pub(crate) const KIND_SEAL: u8 = 240;
/// The last frame of a log that was closed: everything before it is in the segments.
pub(crate) const KIND_CLOSE: u8 = 241;
/// Stands where a dead process had reserved and not copied, or fills the rest of a block.
pub(crate) const KIND_FILLER: u8 = 242;

/// The head of a frame, 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader {
    /// CRC-32C, seeded with the epoch's salt, of the payload and then of the rest of this header.
    pub(crate) crc: U32,
    /// Length of the payload as it is stored, in bytes and before padding; the top bit is
    /// [`COMPRESSED`].
    stored: U32,
    /// Where the frame starts; equal to its position, or it is no frame.
    pub(crate) lsn: U64,
    /// Everything below this LSN was durable when the frame was written.
    pub(crate) durable_mark: U64,
    pub(crate) epoch: U32,
    /// Stream in the lower 24 bits, kind in the upper 8.
    stream_kind: U32,
}

/// Bytes of a frame's header; padding brings the whole frame to a multiple of 8.
pub const FRAME_HEADER: usize = size_of::<FrameHeader>();
const _: () = assert!(FRAME_HEADER == 32 && FRAME_HEADER.is_multiple_of(ALIGN as usize));

/// Set in the length of a payload that is stored compressed: its own length in 4 bytes, then an LZ4
/// block.
const COMPRESSED: u32 = 1 << 31;

/// What of a frame's header is known before its place is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameStart {
    pub(crate) payload_crc: u32,
    /// Of the payload as it is stored, in bytes.
    pub(crate) len: u32,
    pub(crate) compressed: bool,
    pub(crate) stream: u32,
    pub(crate) kind: u8,
}

impl FrameHeader {
    /// The finished header of a frame at `lsn`.
    pub(crate) fn finish(start: FrameStart, lsn: Lsn, durable_mark: Lsn, epoch: u32) -> Self {
        let mut header = Self {
            crc: U32::ZERO,
            stored: (start.len | if start.compressed { COMPRESSED } else { 0 }).into(),
            lsn: lsn.into(),
            durable_mark: durable_mark.into(),
            epoch: epoch.into(),
            stream_kind: (start.stream & MAX_STREAM | u32::from(start.kind) << 24).into(),
        };
        header.crc = header.crc_over(start.payload_crc).into();
        header
    }

    fn crc_over(&self, payload_crc: u32) -> u32 {
        let (_, covered) = self.as_bytes().split_at(size_of::<U32>());
        crc32c::crc32c_append(payload_crc, covered)
    }

    /// Whether the header and its payload belong together, under the epoch's salt.
    pub(crate) fn matches(&self, salt: Salt, payload: &[u8]) -> bool {
        self.crc.get() == self.crc_over(salt.crc(payload))
    }

    /// Bytes of the payload as it is stored; padding follows.
    pub(crate) fn stored_len(&self) -> usize {
        (self.stored.get() & !COMPRESSED) as usize
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.stored.get() & COMPRESSED != 0
    }

    pub(crate) fn stream(&self) -> u32 {
        self.stream_kind.get() & MAX_STREAM
    }

    pub(crate) fn kind(&self) -> u8 {
        self.stream_kind.get().to_le_bytes()[3]
    }

    /// Where the next frame starts.
    pub(crate) fn end(&self) -> Lsn {
        self.lsn.get() + frame_len(self.stored_len())
    }
}

/// Bytes that a frame with `payload` bytes takes: header, payload, zeros up to a multiple of 8.
pub(crate) const fn frame_len(payload: usize) -> u64 {
    (FRAME_HEADER as u64 + payload as u64).next_multiple_of(ALIGN)
}

/// The random seed of an epoch's frame checksums: no payload can contain bytes that pass for a
/// frame, and no frame of another epoch passes for one of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Salt(pub(crate) u32);

impl Salt {
    pub(crate) fn crc(self, payload: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, payload)
    }
}

const SEGMENT_MAGIC: [u8; 8] = *b"CollieSg";
const RING_MAGIC: [u8; 8] = *b"CollieRg";
/// The longest path of a ring directory, in bytes.
pub(crate) const RING_DIR_MAX: usize = 256;
/// Where the copies of a segment's header stand: each in a block of its own, so that a write of one
/// that the power interrupts leaves the other.
pub(crate) const SEGMENT_COPIES: [usize; 2] = [0, BLOCK];
/// Where they stand up to format 2: in different sectors of one block.
const SEGMENT_COPIES_IN_ONE_BLOCK: [usize; 2] = [0, BLOCK / 2];
/// Bytes of a segment before its data.
pub(crate) const SEGMENT_HEAD: usize = 2 * BLOCK;
/// No log comes to so many segments: their LSNs would not fit into 63 bits.
pub(crate) const SEGMENT_NUMBERS: u64 = 1 << 62;

/// The head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SegmentHeader {
    magic: [u8; 8],
    version: U32,
    pub(crate) block: U32,
    pub(crate) log_id: [u8; 16],
    /// Counts up from 1; also the file's name.
    pub(crate) number: U64,
    /// The LSN of the first byte of data.
    pub(crate) first_lsn: U64,
    /// Room for data, in bytes.
    pub(crate) data_bytes: U64,
    pub(crate) epoch: U32,
    pub(crate) salt: U32,
    /// The number of the epoch's first segment.
    pub(crate) epoch_first: U64,
    /// In an epoch's first segment: where the epoch before ends; all below was durable.
    pub(crate) predecessor_end: U64,
    /// In an epoch's first segment: the end of what recovery copied forward; durable before this
    /// header was.
    pub(crate) copied_end: U64,
    /// The boot that the epoch runs in.
    pub(crate) boot_id: [u8; 16],
    /// Names the epoch's ring; zeros where it is private.
    pub(crate) ring: [u8; 16],
    ring_dir_len: U16,
    ring_dir: [u8; RING_DIR_MAX],
    /// Where the first frame begins that begins here or behind; 0 until the segment before is to be
    /// released. Formats up to 2 end before it.
    first_frame: U64,
    // On the device the CRC-32C of all before stands here.
    /// How much of the data space the file had, durably, before a frame was written to it; 0 where
    /// that is not known. On the device its own checksum follows: builds that do not know the field
    /// leave zeros in its place.
    prepared: U64,
}
/// What of a header's copy stands behind the checksum of its first part.
const PREPARED_BYTES: usize = size_of::<U64>() + size_of::<U32>();
const _: () = assert!(
    size_of::<SegmentHeader>() + 2 * size_of::<U32>() <= 512,
    "a header copy must not straddle sectors"
);
/// Beyond what its header says, a segment's file grows by so much at a time, or to its full length,
/// durably before a frame is written there.
pub(crate) const SEGMENT_STEP: u64 = 4 << 20;

/// Why a header cannot be used, from the least telling reason to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BadHeader {
    /// All zeros: prepared, never used.
    Blank,
    /// Not a header, or a damaged one.
    Damaged,
    /// A header of another format.
    Version(u32),
}

impl SegmentHeader {
    /// A header with magic, version and block size set, for its maker to fill.
    pub(crate) fn blank() -> Self {
        let mut header = Self::new_zeroed();
        header.magic = SEGMENT_MAGIC;
        header.version = VERSION.into();
        header.block = U32::new(BLOCK as u32);
        header
    }

    /// The directory of the epoch's ring, as bytes of its path; empty for a private ring.
    pub(crate) fn ring_dir(&self) -> &[u8] {
        self.ring_dir
            .get(..usize::from(self.ring_dir_len.get()))
            .unwrap_or_default()
    }

    /// Sets the directory of the ring; `false` where it is too long.
    pub(crate) fn set_ring_dir(&mut self, dir: &[u8]) -> bool {
        let (Ok(len), Some(at)) = (u16::try_from(dir.len()), self.ring_dir.get_mut(..dir.len())) else {
            return false;
        };
        at.copy_from_slice(dir);
        self.ring_dir_len = len.into();
        true
    }

    /// Whether both copies stand in one block and the first frame is not recorded, as up to format
    /// 2.
    pub(crate) fn is_one_block(&self) -> bool {
        self.version.get() <= ONE_BLOCK_VERSION
    }

    /// Where in the file its data begins.
    pub(crate) fn data_at(&self) -> u64 {
        if self.is_one_block() {
            BLOCK as u64
        } else {
            SEGMENT_HEAD as u64
        }
    }

    /// Whether it is its epoch's first segment, which begins with a frame.
    pub(crate) fn begins_epoch(&self) -> bool {
        self.number == self.epoch_first
    }

    /// Where the first frame begins that begins in the segment or behind it, as far as the header
    /// says: an epoch's first segment begins with a frame, and others record it before the one
    /// before them is released.
    pub(crate) fn first_frame(&self) -> Option<Lsn> {
        if self.begins_epoch() {
            return Some(self.first_lsn.get());
        }
        Some(self.first_frame.get()).filter(|lsn| *lsn > 0)
    }

    pub(crate) fn set_first_frame(&mut self, lsn: Lsn) {
        self.first_frame = lsn.into();
    }

    /// The file has so much of the data space, durably, before a frame is written to it.
    pub(crate) fn set_prepared(&mut self, bytes: u64) {
        self.prepared = bytes.into();
    }

    /// How long the file was is not known any more.
    pub(crate) fn forget_prepared(&mut self) -> bool {
        std::mem::replace(&mut self.prepared, U64::ZERO) != 0
    }

    /// Where, at least, the data ended that the file had when its frames reached up to `lsn`; `None`
    /// where that is not known.
    pub(crate) fn prepared_to(&self, lsn: Lsn) -> Option<Lsn> {
        let (first, prepared) = (self.first_lsn.get(), self.prepared.get());
        let used = lsn.checked_sub(first).filter(|_| prepared > 0)?;
        // What an opening copied into the segment may end within a block.
        let whole = prepared.next_multiple_of(BLOCK as u64);
        let least = match used.checked_sub(whole) {
            None | Some(0) => prepared,
            Some(beyond) => whole + beyond.next_multiple_of(SEGMENT_STEP),
        };
        Some(first + least.min(self.data_bytes.get()))
    }

    /// How much of a header its first checksum covers.
    fn covered(version: u32) -> usize {
        let len = size_of::<Self>() - size_of::<U64>();
        if version <= ONE_BLOCK_VERSION {
            len - size_of::<U64>()
        } else {
            len
        }
    }

    /// The blocks before the data, with both copies.
    pub(crate) fn encode(&self) -> Box<[u8]> {
        let (covered, _) = self.as_bytes().split_at(Self::covered(self.version.get()));
        let crc = crc32c::crc32c(covered).to_le_bytes();
        let mut head = vec![0; self.data_at() as usize].into_boxed_slice();
        let copies = if self.is_one_block() {
            SEGMENT_COPIES_IN_ONE_BLOCK
        } else {
            SEGMENT_COPIES
        };
        for at in copies {
            if let Some(copy) = head.get_mut(at..at + covered.len() + crc.len()) {
                let (to, sum) = copy.split_at_mut(covered.len());
                to.copy_from_slice(covered);
                sum.copy_from_slice(&crc);
            }
            let behind = at + covered.len() + crc.len();
            if !self.is_one_block()
                && let Some(rest) = head.get_mut(behind..behind + PREPARED_BYTES)
            {
                let (to, sum) = rest.split_at_mut(size_of::<U64>());
                to.copy_from_slice(self.prepared.as_bytes());
                sum.copy_from_slice(&prepared_crc(&crc, self.prepared).to_le_bytes());
            }
        }
        head
    }

    /// The header from a segment's first blocks: of two that are whole the later one, else the most
    /// telling failure.
    pub(crate) fn decode(head: &[u8]) -> Result<Self, BadHeader> {
        let [first, second] = Self::copies(head);
        match (first, second) {
            (Ok(first), Ok(second)) => Ok(if second.is_later_than(&first) {
                second
            } else {
                first
            }),
            (Ok(header), Err(_)) | (Err(_), Ok(header)) => Ok(header),
            (Err(first), Err(second)) => Err(first.max(second)),
        }
    }

    /// Both copies. Data of a segment whose header is in one block are never taken for the second
    /// one.
    pub(crate) fn copies(head: &[u8]) -> [Result<Self, BadHeader>; 2] {
        let copy = |at: usize| Self::check(head.get(at..).unwrap_or_default());
        let one_block = SEGMENT_COPIES_IN_ONE_BLOCK.map(copy);
        if one_block.iter().flatten().any(Self::is_one_block) {
            return one_block
                .map(|copy| copy.and_then(|h| h.is_one_block().then_some(h).ok_or(BadHeader::Damaged)));
        }
        let [first, in_between] = one_block;
        // Where the first block says nothing, and one of format 2 would have said it: its version,
        // if it is a newer one.
        let second =
            copy(SEGMENT_COPIES[1]).and_then(|h| (!h.is_one_block()).then_some(h).ok_or(BadHeader::Damaged));
        match in_between {
            Err(bad @ BadHeader::Version(_)) if second.is_err() => [first, Err(bad)],
            _ => [first, second],
        }
    }

    fn check(bytes: &[u8]) -> Result<Self, BadHeader> {
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| BadHeader::Damaged)?;
        if header.as_bytes().iter().all(|b| *b == 0) {
            return Err(BadHeader::Blank);
        }
        if header.magic != SEGMENT_MAGIC {
            return Err(BadHeader::Damaged);
        }
        let version = header.version.get();
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(BadHeader::Version(version));
        }
        let (covered, rest) = bytes.split_at(Self::covered(version));
        let crc = crc32c::crc32c(covered).to_le_bytes();
        let Some(rest) = rest.strip_prefix(&crc) else {
            return Err(BadHeader::Damaged);
        };
        let mut header = header;
        header.prepared = U64::ZERO;
        if header.is_one_block() {
            header.first_frame = U64::ZERO;
        } else if let Ok((prepared, sum)) = U64::read_from_prefix(rest)
            && sum.starts_with(&prepared_crc(&crc, prepared).to_le_bytes())
            && prepared <= header.data_bytes
        {
            header.prepared = prepared;
        }
        // No version wrote others, whatever the checksum says.
        header.is_possible().then_some(header).ok_or(BadHeader::Damaged)
    }

    /// Whether it was written over the other: a segment is used again under a higher number only,
    /// and what it says of its first frame is never taken back.
    fn is_later_than(&self, other: &Self) -> bool {
        let age = |header: &Self| {
            let says_beginning = header.first_frame.get() > 0;
            (header.number.get(), says_beginning, header.prepared > 0)
        };
        age(self) > age(other)
    }

    /// Whether its LSNs, and an epoch after its own, are numbers that there are, and its first
    /// frame is none of before.
    pub(crate) fn is_possible(&self) -> bool {
        let end = self.first_lsn.get().checked_add(self.data_bytes.get());
        end.is_some_and(|end| end < 1 << 63)
            && self.epoch.get() < u32::MAX
            && self.number.get() < SEGMENT_NUMBERS
            && self.first_frame.get() < 1 << 63
            && self
                .first_frame()
                .is_none_or(|first| first >= self.first_lsn.get())
    }

    /// One past the last LSN that fits.
    pub(crate) fn end(&self) -> Lsn {
        self.first_lsn.get() + self.data_bytes.get()
    }
}

/// The checksum of what a header says of its file's length, for the header with the checksum `crc`.
fn prepared_crc(crc: &[u8], prepared: U64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(crc), prepared.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8], lsn: Lsn, salt: Salt) -> FrameHeader {
        let start = FrameStart {
            payload_crc: salt.crc(payload),
            len: u32::try_from(payload.len()).unwrap(),
            compressed: false,
            stream: 7,
            kind: 9,
        };
        FrameHeader::finish(start, lsn, lsn - 8, 3)
    }

    #[test]
    fn every_changed_bit_of_a_frame_is_seen() {
        let (payload, salt) = (b"some bytes".to_vec(), Salt(0xdead_beef));
        let header = frame(&payload, 1 << 32, salt);
        assert!(header.matches(salt, &payload));
        assert_eq!(
            (header.stream(), header.kind(), header.end()),
            (7, 9, (1 << 32) + 48)
        );
        assert!(!header.matches(Salt(1), &payload), "another epoch's salt");
        for bit in 0..FRAME_HEADER * 8 {
            let mut bytes = header.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed = FrameHeader::read_from_bytes(&bytes).unwrap();
            assert!(!changed.matches(salt, &payload), "bit {bit} of the header");
        }
        for bit in 0..payload.len() * 8 {
            let mut changed = payload.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!header.matches(salt, &changed), "bit {bit} of the payload");
        }
    }

    #[test]
    fn a_segment_header_survives_the_loss_of_either_copy() {
        let mut header = SegmentHeader::blank();
        header.number = 12.into();
        assert!(header.set_ring_dir(b"/dev/shm"));
        assert!(!header.set_ring_dir(&[b'x'; RING_DIR_MAX + 1]));
        let block = header.encode();
        for lost in SEGMENT_COPIES {
            let mut damaged = block.clone();
            damaged[lost..lost + BLOCK].fill(0xa5);
            let read = SegmentHeader::decode(&damaged).unwrap();
            assert_eq!((read.number.get(), read.ring_dir()), (12, &b"/dev/shm"[..]));
        }
        let mut both = block.clone();
        both[20] ^= 1;
        both[BLOCK + 20] ^= 1;
        assert_eq!(SegmentHeader::decode(&both), Err(BadHeader::Damaged));
        assert_eq!(SegmentHeader::decode(&[0; SEGMENT_HEAD]), Err(BadHeader::Blank));
        let mut newer = block;
        newer[8] = 4;
        newer[BLOCK + 8] = 4;
        assert_eq!(SegmentHeader::decode(&newer), Err(BadHeader::Version(4)));
    }

    #[test]
    fn a_header_with_impossible_numbers_is_damaged() {
        let good = || {
            let mut header = SegmentHeader::blank();
            (header.number, header.epoch) = (1.into(), 1.into());
            header.first_lsn = (1 << 32).into();
            header.data_bytes = (1 << 20).into();
            header
        };
        let last = (1 << 63) - (1 << 20);
        for (change, is_good) in [
            ((|_, _| ()) as fn(&mut SegmentHeader, u64), true),
            (|h, last| h.first_lsn = (last - 1).into(), true),
            (|h, last| h.first_lsn = last.into(), false),
            (|h, _| h.first_lsn = u64::MAX.into(), false),
            (|h, _| h.data_bytes = u64::MAX.into(), false),
            (|h, _| h.epoch = (u32::MAX - 1).into(), true),
            (|h, _| h.epoch = u32::MAX.into(), false),
            (|h, _| h.number = (SEGMENT_NUMBERS - 1).into(), true),
            (|h, _| h.number = SEGMENT_NUMBERS.into(), false),
            (|h, _| h.number = u64::MAX.into(), false),
            (|h, _| h.set_first_frame(1 << 63), false),
            (|h, _| h.set_first_frame(1 << 32), true),
            (|h, _| h.set_first_frame((1 << 32) - 8), false),
        ] {
            let mut header = good();
            change(&mut header, last);
            let decoded = SegmentHeader::decode(&header.encode());
            match decoded {
                Ok(_) => assert!(is_good, "{header:?}"),
                Err(bad) => assert!(!is_good && bad == BadHeader::Damaged, "{header:?}: {bad:?}"),
            }
        }
    }

    #[test]
    fn of_two_copies_the_one_that_was_written_later_counts() {
        let mut older = SegmentHeader::blank();
        (older.number, older.epoch_first, older.epoch) = (4.into(), 1.into(), 1.into());
        let mut known = older;
        known.set_first_frame(4096);
        let mut reused = older;
        reused.number = 9.into();
        for later in [known, reused] {
            let (old, new) = (older.encode(), later.encode());
            for (first, second) in [(&old, &new), (&new, &old)] {
                let head = [first.split_at(BLOCK).0, second.split_at(BLOCK).1].concat();
                assert_eq!(SegmentHeader::decode(&head), Ok(later));
            }
        }
    }

    #[test]
    fn a_file_has_the_prepared_part_first_and_then_grows_in_steps() {
        let first = 1 << 32;
        let mut header = SegmentHeader::blank();
        (header.first_lsn, header.data_bytes) = (first.into(), (9 << 20).into());
        assert_eq!(header.prepared_to(first + 8), None);
        // The copy that an opening made ends within a block.
        header.set_prepared(300_000);
        let read = SegmentHeader::decode(&header.encode()).unwrap();
        assert_eq!(read, header);
        let whole = 303_104;
        for (used, least) in [
            (0, 300_000),
            (300_000, 300_000),
            (whole, 300_000),
            (whole + 8, whole + SEGMENT_STEP),
            (whole + SEGMENT_STEP, whole + SEGMENT_STEP),
            (whole + SEGMENT_STEP + 8, whole + 2 * SEGMENT_STEP),
            (9 << 20, 9 << 20),
        ] {
            assert_eq!(read.prepared_to(first + used), Some(first + least), "{used}");
        }
        // As builds write it that do not know the field, and where it is damaged.
        for byte in 390..402 {
            let mut head = header.encode();
            head[byte] ^= 1;
            head[BLOCK + byte] ^= 1;
            let read = SegmentHeader::decode(&head).unwrap();
            assert_eq!(read.prepared_to(first), None, "byte {byte}");
        }
        let mut forgotten = header;
        assert!(forgotten.forget_prepared());
        assert_eq!(SegmentHeader::decode(&forgotten.encode()), Ok(forgotten));
    }

    /// With chosen data in the segment, too: the header of format 2 stands before them, in the
    /// first block.
    #[test]
    fn data_behind_a_one_block_header_is_no_second_copy() {
        let mut old = SegmentHeader::blank();
        (old.version, old.number, old.epoch) = (2.into(), 4.into(), 1.into());
        let mut forged = SegmentHeader::blank();
        (forged.number, forged.epoch) = (9.into(), 1.into());
        let head = [&*old.encode(), forged.encode().split_at(BLOCK).1].concat();
        for lost in [None, Some(0), Some(BLOCK / 2)] {
            let mut head = head.clone();
            if let Some(lost) = lost {
                head[lost..lost + 512].fill(0xa5);
            }
            let read = SegmentHeader::decode(&head).unwrap();
            assert_eq!((read.number.get(), read.data_at()), (4, BLOCK as u64));
            assert_eq!(&*read.encode(), &*old.encode());
        }
    }
}
