//! Random numbers from a printed seed, for the crate's own tests and those beside it.

/// xorshift64*: small, fast, the same everywhere.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A number from the environment: `COLLIE_SEED`, `COLLIE_RUNS`, `COLLIE_OPS`.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// The seeds of a random test: `COLLIE_SEED` alone where it is set, else the first `count`, or as
/// many as `COLLIE_RUNS` says.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    if let Some(seed) = number("COLLIE_SEED") {
        return vec![seed];
    }
    (1..=number("COLLIE_RUNS").unwrap_or(count)).collect()
}
