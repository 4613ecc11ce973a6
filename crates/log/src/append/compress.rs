//! Payloads as they are stored: as they are, or behind their length as an LZ4 block.
//!
//! A worker compresses into a buffer of its own before it reserves, so the append path knows
//! nothing of it: one reservation, one copy. The block format is that of the LZ4 project
//! (`lz4_Block_format.md`).

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use crate::format::FRAME_HEADER;
use crate::options::MAX_RING_BYTES;

/// Smaller payloads are stored as they are: a block and its length would save little of them or
/// nothing.
const SMALLEST: usize = 64;
/// The payload's own length stands before the block, little-endian.
const LENGTH: usize = size_of::<u32>();
/// A worker keeps its buffer for the next payload up to this many bytes; a larger one it gives
/// back.
const KEPT: usize = 1 << 20;
/// What a payload may have before compression: half the largest ring that any log had.
pub(crate) const MAX_PAYLOAD: usize = MAX_RING_BYTES / 2 - FRAME_HEADER;
/// A byte of an LZ4 block stands for at most this many: a length that promises more is wrong, and
/// no memory is taken for it.
const MAX_RATIO: usize = 255;

/// What stands behind a frame's header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) compressed: bool,
}

impl<'a> Stored<'a> {
    pub(crate) fn plain(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            compressed: false,
        }
    }
}

/// A worker's table and buffer.
pub(crate) struct Compressor {
    table: CompressTable,
    buffer: Vec<u8>,
}

impl Default for Compressor {
    fn default() -> Self {
        Self {
            table: CompressTable::small(),
            buffer: Vec::new(),
        }
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

impl Compressor {
    /// The payload as it is to be stored: compressed where that makes it smaller.
    pub(crate) fn store<'a>(&'a mut self, payload: &'a [u8]) -> Stored<'a> {
        let Ok(len) = u32::try_from(payload.len()) else {
            return Stored::plain(payload);
        };
        if payload.len() < SMALLEST {
            return Stored::plain(payload);
        }
        let room = LENGTH + get_maximum_output_size(payload.len());
        if self.buffer.len() > KEPT && room <= KEPT {
            self.buffer = Vec::new();
        }
        if self.buffer.len() < room {
            self.buffer.resize(room, 0);
        }
        let (length, block) = self.buffer.split_at_mut(LENGTH);
        length.copy_from_slice(&len.to_le_bytes());
        // It fails for want of room only, and there is room for the worst.
        let Ok(compressed) = compress_into_with_table(payload, block, &mut self.table) else {
            return Stored::plain(payload);
        };
        match self.buffer.get(..LENGTH + compressed) {
            Some(bytes) if bytes.len() < payload.len() => Stored {
                bytes,
                compressed: true,
            },
            _ => Stored::plain(payload),
        }
    }
}

/// What [`expand`] expects, for errors.
pub(crate) const EXPECTED: &str = "a length and an LZ4 block of that many bytes";

/// The payload of a compressed frame, or what is wrong with it. The checksum was right, so a frame
/// that fails here was damaged before it was written.
pub(crate) fn expand(stored: &[u8]) -> Result<Vec<u8>, String> {
    let Some((length, block)) = stored.split_first_chunk::<LENGTH>() else {
        return Err(format!("{} bytes, too few for a length", stored.len()));
    };
    let len = u32::from_le_bytes(*length) as usize;
    if len > MAX_PAYLOAD || len > block.len().saturating_mul(MAX_RATIO) {
        return Err(format!(
            "a length of {len} bytes, which a block of {} cannot hold",
            block.len()
        ));
    }
    let mut payload = vec![0; len];
    match decompress_into(block, &mut payload) {
        Ok(n) if n == len => Ok(payload),
        Ok(n) => Err(format!("a block of {n} bytes and a length of {len}")),
        Err(error) => Err(format!("no block of {len} bytes: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: usize) -> Vec<u8> {
        b"one sheep, two sheep, "
            .iter()
            .copied()
            .cycle()
            .take(len)
            .collect()
    }

    #[test]
    fn what_shrinks_is_stored_compressed_and_comes_back() {
        let mut compressor = Compressor::default();
        for len in [SMALLEST, 1000, 70_000, 1 << 21, 100] {
            let payload = text(len);
            let stored = compressor.store(&payload);
            assert!(stored.compressed && stored.bytes.len() < len, "{len}");
            assert_eq!(expand(stored.bytes).unwrap(), payload);
        }
        assert!(compressor.buffer.len() <= KEPT, "the large buffer was given back");
    }

    #[test]
    fn what_does_not_shrink_or_is_small_is_stored_as_it_is() {
        let mut compressor = Compressor::default();
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..5000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        for payload in [noise, text(SMALLEST - 1), Vec::new()] {
            let stored = compressor.store(&payload);
            assert!(!stored.compressed);
            assert_eq!(stored.bytes, payload);
        }
    }

    #[test]
    fn a_hostile_block_is_refused_within_bounded_memory() {
        let payload = text(10_000);
        let mut compressor = Compressor::default();
        let good = compressor.store(&payload).bytes.to_vec();
        let with_length = |len: u32| [&len.to_le_bytes()[..], &good[LENGTH..]].concat();
        for bad in [
            good[..LENGTH - 1].to_vec(),
            good[..good.len() - 1].to_vec(),
            with_length(9_999),
            with_length(10_001),
            with_length(0),
        ] {
            assert!(expand(&bad).is_err());
        }
        let refused = expand(&with_length(u32::MAX)).unwrap_err();
        assert!(refused.contains("cannot hold"), "{refused}");
        let ratio = (good.len() - LENGTH) * MAX_RATIO;
        let refused = expand(&with_length(ratio as u32 + 1)).unwrap_err();
        assert!(refused.contains("cannot hold"), "{refused}");
    }

    #[test]
    fn no_changed_byte_of_a_block_makes_the_decoder_panic() {
        let payload = text(600);
        let mut compressor = Compressor::default();
        let good = compressor.store(&payload).bytes.to_vec();
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut bad = good.clone();
                bad[at] = value;
                // Whatever it says: it returns, and never with another length than it announces.
                if let Ok(back) = expand(&bad) {
                    assert_eq!(
                        back.len() as u32,
                        u32::from_le_bytes(bad[..4].try_into().unwrap())
                    );
                }
            }
        }
    }
}
