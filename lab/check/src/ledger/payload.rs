//! Payloads that prove themselves whole.

use collie_sim::{Rng, mix};

/// Bytes of a payload before its filling: number, length, check.
const PAYLOAD_HEADER: usize = 24;

/// The payload of commit `id`: about `len` bytes (at least 24) that prove themselves whole.
#[must_use]
pub fn payload(id: u64, len: usize) -> Vec<u8> {
    let len = len.max(PAYLOAD_HEADER);
    let mut bytes = vec![0; len];
    if let Some(filling) = bytes.get_mut(PAYLOAD_HEADER..) {
        Rng::new(id).fill(filling);
    }
    let check = checksum(id, len as u64, bytes.get(PAYLOAD_HEADER..).unwrap_or_default());
    let header = [id, len as u64, check].map(u64::to_le_bytes);
    for (to, from) in bytes.iter_mut().zip(header.iter().flatten()) {
        *to = *from;
    }
    bytes
}

/// The number of the commit whose payload this is, if it is whole.
#[must_use]
pub fn read_payload(bytes: &[u8]) -> Option<u64> {
    let (header, filling) = bytes.split_at_checked(PAYLOAD_HEADER)?;
    let mut words = header
        .chunks_exact(8)
        .filter_map(|w| w.try_into().ok().map(u64::from_le_bytes));
    let (id, len, check) = (words.next()?, words.next()?, words.next()?);
    (len == bytes.len() as u64 && check == checksum(id, len, filling)).then_some(id)
}

fn checksum(id: u64, len: u64, filling: &[u8]) -> u64 {
    filling.iter().fold(mix(id ^ len.rotate_left(32)), |sum, &byte| {
        sum.rotate_left(9).wrapping_mul(0x100_0000_01B3) ^ u64::from(byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_proves_itself_whole() {
        for len in [0, 24, 25, 1_000] {
            let whole = payload(77, len);
            assert_eq!(read_payload(&whole), Some(77));
            for at in 0..whole.len() {
                let mut torn = whole.clone();
                torn[at] ^= 1;
                assert_eq!(read_payload(&torn), None, "byte {at} of {len}");
            }
            assert_eq!(read_payload(&whole[..whole.len() - 1]), None);
        }
    }
}
