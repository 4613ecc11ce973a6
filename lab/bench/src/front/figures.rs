//! From pgbench's logs and the server's to figures.

use serde::Serialize;

use crate::error::BenchError;

const SECOND_US: u64 = 1_000_000;

/// A transaction that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Done {
    /// When, by the wall clock.
    pub(super) at_us: u64,
    /// How long it took; `None` where it failed.
    pub(super) took_us: Option<u64>,
    /// Which of the scripts it ran.
    pub(super) script: usize,
}

/// The transactions in one of pgbench's logs: a line each with its client, its number, its latency,
/// its script and when it ended, in seconds and microseconds.
pub(super) fn transactions(place: &str, log: &str) -> Result<Vec<Done>, BenchError> {
    let parse = |line: &str| {
        let mut fields = line.split_whitespace().skip(2);
        let took_us = match fields.next()? {
            "failed" | "skipped" => None,
            us => Some(us.parse().ok()?),
        };
        let script = fields.next()?.parse().ok()?;
        let seconds: u64 = fields.next()?.parse().ok()?;
        let us: u64 = fields.next()?.parse().ok()?;
        Some(Done {
            at_us: seconds * SECOND_US + us,
            took_us,
            script,
        })
    };
    let lines = log.lines().enumerate();
    lines
        .map(|(at, line)| {
            parse(line).ok_or_else(|| BenchError::Output {
                place: format!("{place}, line {}", at + 1),
                expected: "client, number, µs, script, s and µs",
                found: line.to_owned(),
            })
        })
        .collect()
}

/// A part of a measurement that a checkpoint took, in seconds from the measurement's begin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CheckpointSpan {
    /// When it started.
    pub start_s: f64,
    /// When it was complete, or where the measurement ended before.
    pub end_s: f64,
}

/// The checkpoints that started in a time of the wall clock, from a server's log whose lines begin
/// with the time in seconds.
pub(super) fn checkpoints(log: &str, from_us: u64, to_us: u64) -> Vec<CheckpointSpan> {
    let seconds = |us: u64| us.saturating_sub(from_us) as f64 / 1e6;
    let mut spans: Vec<CheckpointSpan> = Vec::new();
    let mut open = false;
    for line in log.lines() {
        let Some((time, text)) = line.split_once(' ') else {
            continue;
        };
        let Ok(time) = time.parse::<f64>() else { continue };
        let at_us = (time * 1e6) as u64;
        if !(from_us..to_us).contains(&at_us) {
            continue;
        }
        if text.contains("checkpoint starting:") {
            spans.push(CheckpointSpan {
                start_s: seconds(at_us),
                end_s: seconds(to_us),
            });
            open = true;
        } else if text.contains("checkpoint complete:") && open {
            open = false;
            if let Some(last) = spans.last_mut() {
                last.end_s = seconds(at_us);
            }
        }
    }
    spans
}

/// What one second was like.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct FrontSecond {
    /// Transactions that ended in it.
    pub tps: u64,
    /// 99 % of them took at most this, in milliseconds.
    pub p99_ms: f64,
    /// The longest of them.
    pub max_ms: f64,
}

/// How transactions fared.
#[derive(Debug, Clone, Serialize)]
pub struct TransactionFigures {
    /// Transactions that ended well.
    pub transactions: u64,
    /// Those that did not.
    pub failed: u64,
    /// Transactions per second.
    pub tps: f64,
    /// The median, in milliseconds.
    pub p50_ms: f64,
    /// 99 % took at most this.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// The longest time in which none ended.
    pub stall_ms: f64,
    /// Second by second.
    #[serde(skip)]
    pub seconds: Vec<FrontSecond>,
}

/// The latency that `percent` of all have at most: the smallest one of them, so that it was
/// measured. The latencies are in order.
fn percentile_ms(sorted_us: &[u64], percent: usize) -> f64 {
    let rank = (sorted_us.len() * percent).div_ceil(100).max(1);
    sorted_us.get(rank - 1).map_or(0.0, |us| *us as f64 / 1e3)
}

/// The figures of the transactions that ended in a time of the wall clock.
pub(super) fn figures(done: &[Done], from_us: u64, to_us: u64) -> TransactionFigures {
    let within: Vec<&Done> = done
        .iter()
        .filter(|one| (from_us..to_us).contains(&one.at_us))
        .collect();
    let well: Vec<(u64, u64)> = within
        .iter()
        .filter_map(|one| Some((one.at_us, one.took_us?)))
        .collect();
    let mut ends: Vec<u64> = well.iter().map(|(at, _)| *at).collect();
    ends.sort_unstable();
    ends.insert(0, from_us);
    ends.push(to_us);
    let gaps = ends.windows(2).map(|pair| match pair {
        [before, after] => after - before,
        _ => 0,
    });
    let stall_us = gaps.max().unwrap_or(0);
    let spans = (to_us - from_us).div_ceil(SECOND_US);
    let mut by_second: Vec<Vec<u64>> = vec![Vec::new(); usize::try_from(spans).unwrap_or(0)];
    for (at, took) in &well {
        let second = usize::try_from((at - from_us) / SECOND_US).unwrap_or(usize::MAX);
        if let Some(second) = by_second.get_mut(second) {
            second.push(*took);
        }
    }
    let seconds = by_second.into_iter().map(|mut took| {
        took.sort_unstable();
        FrontSecond {
            tps: took.len() as u64,
            p99_ms: percentile_ms(&took, 99),
            max_ms: percentile_ms(&took, 100),
        }
    });
    let seconds = seconds.collect();
    let mut took: Vec<u64> = well.iter().map(|(_, took)| *took).collect();
    took.sort_unstable();
    TransactionFigures {
        transactions: took.len() as u64,
        failed: (within.len() - well.len()) as u64,
        tps: took.len() as f64 * 1e6 / (to_us - from_us).max(1) as f64,
        p50_ms: percentile_ms(&took, 50),
        p99_ms: percentile_ms(&took, 99),
        max_ms: percentile_ms(&took, 100),
        stall_ms: stall_us as f64 / 1e3,
        seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: u64 = 1_700_000_000 * SECOND_US;

    /// The log of 1,000 transactions, one a millisecond, the n-th of which took n µs; in two seconds
    /// from half a second before the begin of what is measured.
    fn log() -> String {
        let line = |n: u64| {
            let at = BEGIN - SECOND_US / 2 + n * 1_000;
            format!("3 {n} {n} 0 {} {}\n", at / SECOND_US, at % SECOND_US)
        };
        (1..=1_000).map(line).collect()
    }

    #[test]
    fn percentiles_are_upper_bounds_of_latencies() {
        let done = transactions("log", &log()).unwrap();
        assert_eq!(done.len(), 1_000);
        assert_eq!(
            done.first(),
            Some(&Done {
                at_us: BEGIN - 499_000,
                took_us: Some(1),
                script: 0
            })
        );
        let all = figures(&done, BEGIN - SECOND_US, BEGIN + SECOND_US);
        assert_eq!((all.transactions, all.failed), (1_000, 0));
        assert_eq!((all.p50_ms, all.p99_ms, all.max_ms), (0.5, 0.99, 1.0));
        assert_eq!(all.tps, 500.0);
        // One alone is all of its percentiles; of two the 99th is the second.
        assert_eq!(percentile_ms(&[7_000], 50), 7.0);
        assert_eq!(percentile_ms(&[7_000, 9_000], 50), 7.0);
        assert_eq!(percentile_ms(&[7_000, 9_000], 99), 9.0);
        assert_eq!(percentile_ms(&[], 99), 0.0);
    }

    #[test]
    fn what_ends_in_the_warm_up_or_too_late_does_not_count() {
        let done = transactions("log", &log()).unwrap();
        let half = figures(&done, BEGIN, BEGIN + SECOND_US / 4);
        assert_eq!((half.transactions, half.tps), (250, 1_000.0));
        assert_eq!((half.p50_ms, half.max_ms), (0.624, 0.749));
        assert_eq!(half.seconds.len(), 1);
    }

    #[test]
    fn the_longest_stall_counts_from_the_begin_and_to_the_end() {
        let done = |ms: &[u64]| -> Vec<Done> {
            let one = |ms: &u64| Done {
                at_us: BEGIN + ms * 1_000,
                took_us: Some(1_000),
                script: 0,
            };
            ms.iter().map(one).collect()
        };
        let stall = |ms: &[u64]| figures(&done(ms), BEGIN, BEGIN + 3 * SECOND_US).stall_ms;
        assert_eq!(stall(&[100, 2_000, 2_900]), 1_900.0);
        assert_eq!(stall(&[2_900, 2_000]), 2_000.0);
        assert_eq!(stall(&[100]), 2_900.0);
        assert_eq!(stall(&[]), 3_000.0);
        // A transaction that fails ends no stall.
        let mut failed = done(&[100, 1_500, 2_900]);
        failed[1].took_us = None;
        let figures = figures(&failed, BEGIN, BEGIN + 3 * SECOND_US);
        assert_eq!(
            (figures.stall_ms, figures.failed, figures.transactions),
            (2_800.0, 1, 2)
        );
        assert_eq!(
            figures.seconds.iter().map(|s| s.tps).collect::<Vec<_>>(),
            [1, 0, 1]
        );
    }

    #[test]
    fn a_log_that_is_not_pgbenchs_is_refused_with_the_line() {
        let error = transactions("pgbench_log.7", "0 1 250 0 1700000000 5\n0 2 x 0 1 5\n").unwrap_err();
        assert!(
            error.to_string().starts_with("pgbench_log.7, line 2: expected"),
            "{error}"
        );
        assert!(
            transactions("log", "0 1 250 0 1700000000\n").is_err(),
            "cut short"
        );
        let failed = transactions("log", "0 1 failed 4 1700000000 5 3\n").unwrap();
        assert_eq!(
            failed,
            [Done {
                at_us: BEGIN + 5,
                took_us: None,
                script: 4
            }]
        );
    }

    #[test]
    fn checkpoints_are_those_that_start_in_the_measurement() {
        let log = "1699999999.500 LOG:  checkpoint starting: force\n\
                   1700000001.000 LOG:  checkpoint complete: wrote 7 buffers\n\
                   1700000002.250 LOG:  checkpoint starting: time\n\
                   \tnot a line of its own\n\
                   1700000005.000 LOG:  checkpoint complete: wrote 9 buffers\n\
                   1700000008.000 LOG:  checkpoint starting: wal\n\
                   1700000011.000 LOG:  checkpoint complete: wrote 9 buffers\n";
        let spans = checkpoints(log, BEGIN, BEGIN + 10 * SECOND_US);
        let expected = [(2.25, 5.0), (8.0, 10.0)].map(|(start_s, end_s)| CheckpointSpan { start_s, end_s });
        assert_eq!(spans, expected);
    }
}
