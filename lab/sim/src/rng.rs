//! Reproducible randomness: every choice of a simulated world follows from one seed.

/// A small generator (SplitMix64). Its sequence is part of what a printed seed means, so it never
/// changes.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator whose sequence follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator of its own for a part of the work, so that one part's draws do not shift
    /// another's.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `limit`; 0 where `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The bias of a remainder is beneath notice for the small limits that tests use.
        self.next_u64().checked_rem(limit).unwrap_or(0)
    }

    /// An index below `limit`; 0 where `limit` is 0.
    pub fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap_or(0)
    }

    /// True once in `n` draws on average; always for `n` ≤ 1.
    pub fn one_in(&mut self, n: u64) -> bool {
        n <= 1 || self.below(n) == 0
    }

    /// True in every second draw on average.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Fills `buf`.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            for (to, from) in chunk.iter_mut().zip(bytes) {
                *to = from;
            }
        }
    }
}

/// Spreads the bits of `x` over the whole word.
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_sequence_for_ever() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.next_u64(), 0x910A_2DEC_8902_5CC1);
        assert_eq!(rng.next_u64(), 0xBEEB_8DA1_658E_EC67);
    }

    #[test]
    fn draws_stay_below_their_limit() {
        let mut rng = Rng::new(7);
        assert!((0..1_000).all(|_| rng.below(3) < 3));
        assert_eq!(rng.below(0), 0);
        let heads = (0..1_000).filter(|_| rng.coin()).count();
        assert!((300..700).contains(&heads), "{heads} heads in 1,000 draws");
    }
}
