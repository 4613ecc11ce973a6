//! What happens to an input: the ways in which media, cables and people change bytes.

use crate::rng::Rng;

/// Numbers at which comparisons, sums and conversions turn.
const EXTREMES: [u64; 16] = [
    0,
    1,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_fff8,
    0xffff_ffff_ffff_ffff,
];

/// Numbers as texts have them.
const WORDS: [&[u8]; 12] = [
    b"-1",
    b"0",
    b"9223372036854775807",
    b"9223372036854775808",
    b"99999999999999999999",
    b"4294967296",
    b"1e999",
    b"nan",
    b"\r\n",
    b"\0",
    b"\"",
    b"\xff\xfe",
];

/// Changes `bytes` in one to four ways; `other` is a further input to take parts from, and no
/// result is longer than `len_max`.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8], len_max: usize) {
    for _ in 0..=rng.below(4) {
        change(rng, bytes, other);
        bytes.truncate(len_max);
    }
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    match rng.below(10) {
        0 | 1 => {
            let at = rng.index(bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        2 => {
            let (at, value) = (rng.index(bytes.len()), rng.next_u64().to_le_bytes()[0]);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        3 => bytes.truncate(rng.index(bytes.len() + 1)),
        4 | 5 => extreme(rng, bytes),
        6 => {
            let (from, to) = stretch(rng, bytes.len());
            if let Some(stretch) = bytes.get_mut(from..to) {
                stretch.fill(if rng.coin() { 0 } else { 0xff });
            }
        }
        7 => {
            let (from, to) = stretch(rng, bytes.len());
            let copy = bytes.get(from..to).unwrap_or_default().to_vec();
            insert(rng, bytes, &copy);
        }
        8 => {
            let (from, to) = stretch(rng, other.len());
            let part = other.get(from..to).unwrap_or_default();
            if rng.coin() {
                insert(rng, bytes, part);
            } else {
                // A splice: the beginning of one and the end of the other.
                bytes.truncate(rng.index(bytes.len() + 1));
                bytes.extend_from_slice(other.get(from..).unwrap_or_default());
            }
        }
        _ => {
            let word = WORDS.get(rng.index(WORDS.len())).copied().unwrap_or_default();
            insert(rng, bytes, word);
        }
    }
}

/// A number of one to eight bytes becomes an extreme, or another number nearby.
fn extreme(rng: &mut Rng, bytes: &mut [u8]) {
    let width = 1_usize << rng.below(4);
    let mut at = rng.index(bytes.len());
    if rng.coin() {
        at -= at % width;
    }
    let Some(place) = bytes.get_mut(at..at + width) else {
        return;
    };
    let mut old = [0; 8];
    for (to, from) in old.iter_mut().zip(place.iter()) {
        *to = *from;
    }
    let old = u64::from_le_bytes(old);
    let new = match rng.below(4) {
        0 => old.wrapping_add(rng.below(17)).wrapping_sub(8),
        1 => old.wrapping_shl(1),
        _ => EXTREMES
            .get(rng.index(EXTREMES.len()))
            .copied()
            .unwrap_or_default(),
    };
    let mut new = new.to_le_bytes();
    if rng.one_in(4) {
        new.reverse();
    }
    for (to, from) in place.iter_mut().zip(new) {
        *to = from;
    }
}

/// The bounds of a stretch of `len` bytes: a short one, some sectors, or any.
fn stretch(rng: &mut Rng, len: usize) -> (usize, usize) {
    let unit = if rng.one_in(3) { 512 } else { 1 };
    let from = rng.index(len) / unit * unit;
    let most = if rng.one_in(8) { len } else { 16 * unit };
    (from, (from + rng.index(most) + 1).min(len))
}

fn insert(rng: &mut Rng, bytes: &mut Vec<u8>, part: &[u8]) {
    let at = rng.index(bytes.len() + 1);
    if rng.coin() {
        // Over what is there.
        for (to, from) in bytes.iter_mut().skip(at).zip(part) {
            *to = *from;
        }
    } else {
        bytes.splice(at..at, part.iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_change_stay_short_and_do_not_mind_empty_inputs() {
        let mut changed = 0;
        for seed in 0..2_000 {
            let mut bytes = vec![7; 600];
            let before = bytes.clone();
            mutate(&mut Rng::new(seed), &mut bytes, &[9; 900], 1_000);
            assert!(bytes.len() <= 1_000);
            changed += u32::from(bytes != before);
            let mut empty = Vec::new();
            mutate(&mut Rng::new(seed), &mut empty, &[], 10);
            assert!(empty.len() <= 10);
        }
        assert!(changed > 1_500, "{changed} of 2,000 inputs were changed");
    }
}
