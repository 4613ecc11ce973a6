//! What the soak test measured, how that is judged, and the report.

use collie_cli::output::{Results, grouped};
use serde::Serialize;

use super::gauge::Memory;
use super::load::Findings;
use super::sizes;
use crate::figures::micros;

/// Windows with fewer calls have no p99 to speak of.
const CALLS_LEAST: u64 = 200;
/// Fewer windows have no thirds.
const WINDOWS_LEAST: usize = 6;
/// A p99 below this does not drift, in µs: it is what a busy machine's scheduler does to a few of a
/// hundred calls.
const DRIFT_FLOOR_US: f64 = 20_000.0;

/// What was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    test: &'static str,
    minutes: u64,
    seed: u64,
    calls: u64,
    commands: u64,
    /// Replies that are not what the ledger says, and refusals.
    wrong: u64,
    /// Everything was read again after the restart.
    pub(crate) looked_again: bool,
    /// Resident memory in bytes: the most, the median of the first and of the last third, and what
    /// it may be.
    memory_most: u64,
    memory_first: u64,
    memory_last: u64,
    memory_cap: u64,
    /// Bytes on disk: the most, and in the sample that came nearest to what it may be: what was
    /// live, what was on disk, and what might have been.
    disk_most: u64,
    disk_nearest: Disk,
    /// Medians of the windows' p99 in µs, of the first and of the last third, and how many times
    /// the first the last is.
    p99_first_us: f64,
    p99_last_us: f64,
    drift: f64,
    drift_max: f64,
    pub(crate) violations: Vec<String>,
    #[serde(skip)]
    memory: Vec<u64>,
    #[serde(skip)]
    p99: Vec<f64>,
}

/// A look at the disk.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Disk {
    live: u64,
    found: u64,
    cap: u64,
}

impl Report {
    pub(crate) fn new(minutes: u64, seed: u64, drift_max: f64) -> Self {
        Self {
            test: "soak",
            minutes,
            seed,
            calls: 0,
            commands: 0,
            wrong: 0,
            looked_again: false,
            memory_most: 0,
            memory_first: 0,
            memory_last: 0,
            memory_cap: sizes::memory_cap(),
            disk_most: 0,
            disk_nearest: Disk::default(),
            p99_first_us: 0.0,
            p99_last_us: 0.0,
            drift: 0.0,
            drift_max,
            violations: Vec::new(),
            memory: Vec::new(),
            p99: Vec::new(),
        }
    }

    /// Takes a look at memory and disk in.
    pub(crate) fn sample(&mut self, memory: Memory, disk: u64, live: u64) {
        self.memory.push(memory.now);
        self.memory_most = self.memory_most.max(memory.most);
        self.disk_most = self.disk_most.max(disk);
        let look = Disk {
            live,
            found: disk,
            cap: sizes::disk_cap(live),
        };
        if look.share() > self.disk_nearest.share() {
            self.disk_nearest = look;
        }
    }

    /// Takes a window in.
    pub(crate) fn window(&mut self, calls: u64, p99_us: f64) {
        self.calls += calls;
        if calls >= CALLS_LEAST {
            self.p99.push(p99_us);
        }
    }

    pub(crate) fn progress(&self) -> String {
        format!(
            "{} calls · memory {} MiB · disk {} MiB · p99 {} µs",
            grouped(self.calls),
            self.memory_most >> 20,
            self.disk_most >> 20,
            micros(self.p99.last().copied().unwrap_or(0.0))
        )
    }

    /// The run is over: everything is judged.
    pub(crate) fn found(&mut self, findings: &Findings) {
        self.commands = findings.commands();
        self.wrong = findings.wrong();
        if self.wrong > 0 {
            let text = format!(
                "{} replies are not what the ledger says, or refusals:",
                self.wrong
            );
            self.violations.push(text);
            self.violations.extend(findings.words());
        }
        self.judge_memory();
        self.judge_disk();
        self.judge_drift();
    }

    fn judge_memory(&mut self) {
        let (first, last) = thirds(&self.memory);
        (self.memory_first, self.memory_last) = (median(first), median(last));
        if self.memory_most > self.memory_cap {
            self.violations.push(format!(
                "the server had {} bytes resident, at most {} were expected",
                grouped(self.memory_most),
                grouped(self.memory_cap)
            ));
        }
    }

    fn judge_disk(&mut self) {
        let Disk { live, found, cap } = self.disk_nearest;
        if found > cap {
            self.violations.push(format!(
                "the store took {} bytes on disk while {} were live, at most {} were expected",
                grouped(found),
                grouped(live),
                grouped(cap)
            ));
        }
    }

    fn judge_drift(&mut self) {
        if self.p99.len() < WINDOWS_LEAST {
            return;
        }
        let (first, last) = thirds(&self.p99);
        (self.p99_first_us, self.p99_last_us) = (median(first), median(last));
        self.drift = self.p99_last_us / self.p99_first_us.max(1.0);
        if self.drift > self.drift_max && self.p99_last_us > DRIFT_FLOOR_US {
            self.violations.push(format!(
                "p99 drifted from {} to {} µs, {:.1} times; at most {} were expected",
                micros(self.p99_first_us),
                micros(self.p99_last_us),
                self.drift,
                self.drift_max
            ));
        }
    }

    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut results = Results::new();
        if json {
            results.json(self)?;
        } else {
            self.print_text(&mut results)?;
        }
        results.flush()?;
        Ok(())
    }

    fn print_text(&self, results: &mut Results) -> std::io::Result<()> {
        results.line(format_args!(
            "{} min · {} calls, {} commands · wrong {} · {} · violations {} · seed {}",
            self.minutes,
            grouped(self.calls),
            grouped(self.commands),
            self.wrong,
            if self.looked_again {
                "all there after the restart"
            } else {
                "not started again"
            },
            self.violations.len(),
            self.seed
        ))?;
        results.line(format_args!(
            "memory: at most {} of {} bytes; median {} in the first third, {} in the last",
            grouped(self.memory_most),
            grouped(self.memory_cap),
            grouped(self.memory_first),
            grouped(self.memory_last)
        ))?;
        results.line(format_args!(
            "disk: at most {} bytes; nearest to its bound {} of {}, with {} live",
            grouped(self.disk_most),
            grouped(self.disk_nearest.found),
            grouped(self.disk_nearest.cap),
            grouped(self.disk_nearest.live)
        ))?;
        results.line(format_args!(
            "p99: {} µs in the first third, {} in the last, {:.2} times (at most {})",
            micros(self.p99_first_us),
            micros(self.p99_last_us),
            self.drift,
            self.drift_max
        ))
    }
}

impl Disk {
    /// What of the bound is used up.
    fn share(self) -> f64 {
        self.found as f64 / self.cap.max(1) as f64
    }
}

/// The first and the last third.
fn thirds<T>(values: &[T]) -> (&[T], &[T]) {
    let third = values.len() / 3;
    let first = values.get(..third).unwrap_or_default();
    let last = values.get(values.len() - third..).unwrap_or_default();
    (first, last)
}

fn median<T: Copy + PartialOrd + Default>(values: &[T]) -> T {
    let mut values = values.to_vec();
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(fill: impl Fn(&mut Report)) -> Vec<String> {
        let mut report = Report::new(1, 0, 4.0);
        fill(&mut report);
        report.found(&Findings::default());
        report.violations
    }

    #[test]
    fn a_value_at_its_bound_is_no_violation_and_one_beyond_is() {
        let cap = sizes::memory_cap();
        let memory = |most| Memory { now: 1, most };
        for (most, count) in [(cap, 0), (cap + 1, 1)] {
            assert_eq!(judged(|report| report.sample(memory(most), 0, 0)).len(), count);
        }
        let live = 100 << 20;
        for (disk, count) in [(sizes::disk_cap(live), 0), (sizes::disk_cap(live) + 1, 1)] {
            let violations = judged(|report| {
                report.sample(memory(1), disk, live);
                // More on disk, but more is live.
                report.sample(memory(1), disk + 10, 2 * live);
            });
            assert_eq!(violations.len(), count, "{violations:?}");
        }
        let wrong = Findings::default();
        wrong.find("x".to_owned());
        let mut report = Report::new(1, 0, 4.0);
        report.found(&wrong);
        assert_eq!(report.violations.len(), 2, "how many, and which");
    }

    #[test]
    fn a_p99_drifts_when_its_last_third_exceeds_the_first() {
        let run = |first: f64, last: f64| {
            judged(|report| {
                for p99 in [first, first, 1e9, first, last, last, last] {
                    report.window(CALLS_LEAST, p99);
                }
                // Too few calls for a p99.
                report.window(CALLS_LEAST - 1, 1e9);
            })
        };
        assert_eq!(run(10_000.0, 40_000.0).len(), 0);
        assert_eq!(run(10_000.0, 41_000.0).len(), 1);
        assert_eq!(run(100.0, 19_000.0).len(), 0, "below the floor");
        assert_eq!(run(100.0, 21_000.0).len(), 1);
    }
}
