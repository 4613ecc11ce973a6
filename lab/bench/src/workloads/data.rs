//! Keys and values, as db_bench makes them.

use crate::error::BenchError;
use crate::rng::Rng;

/// The largest keys and values that are made.
const KEY_MAX: usize = 1024;
const VALUE_MAX: usize = 1 << 20;

/// Makes the keys of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    buffer: Vec<u8>,
}

impl Keys {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            buffer: vec![b'0'; size],
        }
    }

    /// The key of a number: the number, the most significant byte first, then zeros as digits.
    pub(crate) fn key(&mut self, number: u64) -> &[u8] {
        let bytes = number.to_be_bytes();
        // A key shorter than a number keeps the number's end.
        let skip = bytes.len().saturating_sub(self.buffer.len());
        for (to, from) in self.buffer.iter_mut().zip(bytes.iter().skip(skip)) {
            *to = *from;
        }
        &self.buffer
    }
}

/// Makes values of which about half can be compressed away.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    pool: Vec<u8>,
    size: usize,
    at: usize,
}

/// Bytes in which random ones alternate with their repetition.
const PIECE: usize = 100;

impl Values {
    pub(crate) fn new(size: usize, rng: &mut Rng) -> Self {
        let len = (1 << 20) + size;
        let mut pool = Vec::with_capacity(len + PIECE);
        while pool.len() < len {
            let half: Vec<u8> = (0..PIECE / 2).map(|_| b' ' + (rng.below(95) as u8)).collect();
            pool.extend_from_slice(&half);
            pool.extend_from_slice(&half);
        }
        Self { pool, size, at: 0 }
    }

    pub(crate) fn value(&mut self) -> &[u8] {
        if self.at + self.size > self.pool.len() {
            self.at = 0;
        }
        let start = self.at;
        self.at += self.size.max(1);
        self.pool.get(start..start + self.size).unwrap_or_default()
    }
}

/// Refuses sizes that cannot be made.
pub(crate) fn check(num: u64, key_size: usize, value_size: usize) -> Result<(), BenchError> {
    let bad = |option, problem: String| Err(BenchError::Options { option, problem });
    if !(1..=KEY_MAX).contains(&key_size) {
        return bad("key-size", format!("{key_size} is not from 1 to {KEY_MAX}"));
    }
    if value_size > VALUE_MAX {
        return bad("value-size", format!("{value_size} is above {VALUE_MAX}"));
    }
    let fits = key_size >= 8 || num <= 1 << (8 * key_size);
    if num == 0 || num > 1 << 40 || !fits {
        return bad(
            "num",
            format!("{num} is not from 1 to 2^40, or more than keys of {key_size} bytes can number"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_numbers_and_have_their_size() {
        for size in [4, 8, 16, 100] {
            let mut keys = Keys::new(size);
            let made: Vec<_> = [0, 1, 255, 256, 65_536, 1 << 31]
                .map(|n| keys.key(n).to_vec())
                .into();
            assert!(made.iter().all(|key| key.len() == size));
            assert!(made.is_sorted());
        }
        assert_eq!(Keys::new(16).key(258), b"\0\0\0\0\0\0\x01\x0200000000");
    }

    #[test]
    fn values_have_their_size_for_ever() {
        let mut values = Values::new(100, &mut Rng::new(1, 0));
        assert!((0..50_000).all(|_| values.value().len() == 100));
        assert!(Values::new(0, &mut Rng::new(1, 0)).value().is_empty());
    }

    #[test]
    fn sizes_that_cannot_be_made_are_refused() {
        assert!(check(1_000_000, 16, 100).is_ok());
        assert!(check(257, 1, 100).is_err());
        assert!(check(256, 1, 0).is_ok());
        assert!(check(0, 16, 100).is_err());
        assert!(check(1, 0, 100).is_err());
        assert!(check(1, 16, VALUE_MAX + 1).is_err());
    }
}
