//! Pauses between attempts to connect.

use std::time::Duration;

/// Doubles from attempt to attempt. Each pause is drawn between half and all of the length, so that
/// nodes that lost a peer at one time do not come back to it at one time.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    random: u64,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration, seed: u64) -> Self {
        Self {
            first,
            most,
            next: first,
            random: seed,
        }
    }

    /// An attempt succeeded.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The pause before the next attempt.
    pub(super) fn pause(&mut self) -> Duration {
        let length = self.next;
        self.next = (length * 2).min(self.most);
        // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut drawn = self.random;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        drawn ^= drawn >> 31;
        let share = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        length / 2 + (length / 2).mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let (first, most) = (Duration::from_millis(50), Duration::from_secs(2));
        for seed in 0..100 {
            let mut backoff = Backoff::new(first, most, seed);
            let mut length = first;
            for _ in 0..10 {
                let pause = backoff.pause();
                assert!(
                    pause >= length / 2 && pause <= length,
                    "seed {seed}: {pause:?} of {length:?}"
                );
                length = (length * 2).min(most);
            }
            backoff.reset();
            assert!(backoff.pause() <= first, "seed {seed}");
        }
    }
}
