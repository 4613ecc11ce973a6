//! Random choices that can be repeated.

/// SplitMix64: small, and good enough to choose keys.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A sequence that follows from the seed and the number of the thread.
    pub(crate) fn new(seed: u64, thread: usize) -> Self {
        let mut rng = Self(seed ^ (thread as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95));
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_follow_from_seed_and_thread() {
        let draw = |seed, thread| {
            let mut rng = Rng::new(seed, thread);
            (0..1000).map(|_| rng.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
        let drawn = draw(7, 3);
        assert!((0..10).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| *n < 10));
    }
}
