//! How long single operations took.

use collie_io::{Clock, Nanos, RealClock};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::error::BenchError;

/// The longest latency that is distinguished from longer ones: two minutes.
const LONGEST_NS: u64 = 120_000_000_000;

/// Latencies in nanoseconds, to three digits.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Result<Self, BenchError> {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        histogram.map(Self).map_err(|error| BenchError::Options {
            option: "latency histogram",
            problem: error.to_string(),
        })
    }

    pub(crate) fn add(&mut self, ns: Nanos) {
        self.0.saturating_record(ns.max(1));
    }

    /// Adds another thread's.
    pub(crate) fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so that nothing of one falls outside the other.
        let merged = self.0.add(&other.0);
        debug_assert!(merged.is_ok());
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn summary(&self) -> LatencySummary {
        let us = |ns: u64| ns as f64 / 1000.0;
        LatencySummary {
            p50_us: us(self.0.value_at_quantile(0.5)),
            p99_us: us(self.0.value_at_quantile(0.99)),
            p999_us: us(self.0.value_at_quantile(0.999)),
            max_us: us(self.0.max()),
        }
    }

    /// As Pegasus' tables have it.
    pub(crate) fn columns(&self) -> LatencyColumns {
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile| us(self.0.value_at_quantile(quantile));
        LatencyColumns {
            avg_us: self.0.mean() / 1000.0,
            min_us: us(self.0.min()),
            max_us: us(self.0.max()),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
        }
    }
}

/// A distribution of latencies in microseconds, with the columns of Pegasus' measurements.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LatencyColumns {
    /// The mean.
    pub avg_us: f64,
    /// The shortest.
    pub min_us: f64,
    /// The longest.
    pub max_us: f64,
    /// 95 % took at most this.
    pub p95_us: f64,
    /// 99 % took at most this.
    pub p99_us: f64,
    /// 99.9 % took at most this.
    pub p999_us: f64,
    /// 99.99 % took at most this.
    pub p9999_us: f64,
}

/// A distribution of latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LatencySummary {
    /// The median.
    pub p50_us: f64,
    /// 99 % took at most this.
    pub p99_us: f64,
    /// 99.9 % took at most this.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// Chooses the operations to time: one in `every`. Reading the clock twice costs some 50 ns, as
/// much as an append, so that timing each would measure the clock.
#[derive(Debug, Clone)]
pub(crate) struct Sampler {
    every: u32,
    left: u32,
}

impl Sampler {
    pub(crate) fn new(every: u32) -> Self {
        Self { every, left: every }
    }

    /// The time now, if the operation that begins is to be timed.
    pub(crate) fn begin(&mut self) -> Option<Nanos> {
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        self.left = self.every;
        Some(RealClock.monotonic())
    }
}

/// Medians of figures that are repeated. For an even number of values the lower of the middle two,
/// so that it is one that was measured.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0.0)
}

/// The smallest and the largest.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    values.into_iter().fold((f64::INFINITY, 0.0), |(min, max), v| {
        (min.min(v), f64::max(max, v))
    })
}

impl LatencySummary {
    /// The median of each figure; of the longest ones the longest.
    pub(crate) fn over(runs: &[LatencySummary]) -> Self {
        Self {
            p50_us: median(runs.iter().map(|r| r.p50_us)),
            p99_us: median(runs.iter().map(|r| r.p99_us)),
            p999_us: median(runs.iter().map(|r| r.p999_us)),
            max_us: spread(runs.iter().map(|r| r.max_us)).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_threads_together() {
        let (mut a, mut b) = (Latencies::new().unwrap(), Latencies::new().unwrap());
        (1..=500).for_each(|us| a.add(us * 1000));
        (501..=1000).for_each(|us| b.add(us * 1000));
        b.add(10 * LONGEST_NS);
        a.merge(&b);
        let summary = a.summary();
        assert!((499.0..503.0).contains(&summary.p50_us), "{summary:?}");
        assert!((989.0..993.0).contains(&summary.p99_us), "{summary:?}");
        assert!(
            summary.max_us >= 1e8,
            "too long ones count as the longest: {summary:?}"
        );
    }

    #[test]
    fn one_operation_in_so_many_is_timed() {
        let mut sampler = Sampler::new(8);
        let timed = (0..800).filter(|_| sampler.begin().is_some()).count();
        assert_eq!(timed, 100);
    }

    #[test]
    fn the_median_is_a_value_that_was_measured() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), 2.0);
        assert_eq!(median([]), 0.0);
        assert_eq!(spread([2.0, 1.0, 3.0]), (1.0, 3.0));
    }
}
