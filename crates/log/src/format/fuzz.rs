//! Mutated headers and frames: what decodes is what was encoded, and what carries a good checksum
//! is taken for what it says.

use collie_sim::Rng;
use collie_sim::fuzz::mutations;
use zerocopy::{FromBytes, IntoBytes};

use crate::format::{
    BadHeader, FRAME_HEADER, FrameHeader, FrameStart, RingHeader, SEGMENT_COPIES, Salt, SegmentHeader,
};

const SALT: Salt = Salt(0x5eed_5a17);

fn segment_headers() -> Vec<Vec<u8>> {
    let with = |number: u64, ring_dir: &[u8]| {
        let mut header = SegmentHeader::blank();
        header.number = number.into();
        header.first_lsn = (number << 20).into();
        header.data_bytes = (1 << 20).into();
        header.epoch = 7.into();
        header.salt = SALT.0.into();
        header.log_id = [0xc0; 16];
        assert!(header.set_ring_dir(ring_dir));
        header.set_prepared(number.min(1 << 20));
        header.encode().into_vec()
    };
    vec![with(1, b"/dev/shm"), with(1 << 40, b""), with(9, &[b'd'; 256])]
}

/// One of the copies is as it was, or the block is refused; a header with a good checksum is the
/// one that the bytes say, and asking it anything does not panic.
fn check_segment_header(rng: &mut Rng, block: &[u8]) {
    let made = segment_headers();
    if let Ok(header) = SegmentHeader::decode(block) {
        let mut plain = header;
        plain.forget_prepared();
        // What it says of its file's length has a checksum of its own.
        let is_it = |made: &Vec<u8>| {
            SegmentHeader::decode(made).is_ok_and(|mut made| {
                made == header || made.forget_prepared() && made == plain && header == plain
            })
        };
        assert!(made.iter().any(is_it), "{header:?}");
    }
    // The same bytes with checksums that are good.
    let copy = block.get(SEGMENT_COPIES[rng.index(2)]..).unwrap_or_default();
    let Ok((forged, _)) = SegmentHeader::read_from_prefix(copy) else {
        return;
    };
    let mut forged = forged;
    // Other bytes stand in its place.
    forged.forget_prepared();
    let sealed = forged.encode();
    match SegmentHeader::decode(&sealed) {
        Ok(header) => {
            assert!(header.ring_dir().len() <= 256);
            assert!(header.encode() == sealed, "{header:?}");
        }
        Err(BadHeader::Version(version)) => assert!(!(1..=3).contains(&version)),
        Err(BadHeader::Blank | BadHeader::Damaged) => {
            assert!(
                !copy.starts_with(b"CollieSg") || !forged.is_possible(),
                "{forged:?}"
            );
        }
    }
}

#[test]
fn a_mutated_segment_header_is_the_written_one_or_refused() {
    mutations(
        "segment-headers",
        &segment_headers(),
        20_000,
        check_segment_header,
    );
}

fn ring_headers() -> Vec<Vec<u8>> {
    let with = |capacity: u64, start: u64| {
        let mut header = RingHeader::blank();
        header.capacity = capacity.into();
        header.start = start.into();
        header.incarnation = [0x1c; 16];
        header.encode()
    };
    vec![with(8 << 10, 1 << 32), with(1 << 30, 1 << 40)]
}

#[test]
fn a_mutated_ring_header_is_the_one_that_was_written_or_refused() {
    mutations("ring-headers", &ring_headers(), 20_000, |_, bytes| {
        if let Ok(header) = RingHeader::decode(bytes) {
            let known = ring_headers()
                .iter()
                .any(|made| made.starts_with(header.as_bytes()));
            assert!(known, "{header:?}");
        }
    });
}

fn frame(payload: &[u8], lsn: u64) -> Vec<u8> {
    let start = FrameStart {
        payload_crc: SALT.crc(payload),
        len: payload.len() as u32,
        compressed: false,
        stream: 3,
        kind: 1,
    };
    let mut bytes = FrameHeader::finish(start, lsn, lsn - 8, 7).as_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn frames() -> Vec<Vec<u8>> {
    vec![
        frame(b"", 1 << 32),
        frame(b"a payload", (1 << 32) + 32),
        frame(&[0xf7; 700], 1 << 50),
    ]
}

#[test]
fn a_mutated_frame_is_the_one_that_was_written_or_none() {
    mutations("frames", &frames(), 20_000, |_, bytes| {
        let Ok((header, rest)) = FrameHeader::read_from_prefix(bytes) else {
            return;
        };
        let Some(payload) = rest.get(..header.stored_len()) else {
            return;
        };
        if header.matches(SALT, payload) {
            let len = FRAME_HEADER + payload.len();
            let known = frames().iter().any(|made| made[..] == bytes[..len]);
            assert!(known, "{header:?}");
        }
    });
}
