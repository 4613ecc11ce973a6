//! What became of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use collie_cli::output::{Results, grouped};
use collie_sim::Effects;
use serde::Serialize;

use super::disks;
use super::load::{Board, Checked};
use super::notes::{Notes, Window};
use super::plan::Plan;

/// Violations that are kept in words.
const WORDS_MAX: usize = 16;
/// Writes that are acknowledged to the clients in a second, at least, while one node has a slow or a
/// full disk and the others a majority. On two busy cores there were 77 at the least, mostly hundreds.
const WRITES_MIN_PER_S: f64 = 10.0;

/// What became of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) rounds: u64,
    objects: u64,
    not_linearizable: u64,
    undecided: u64,
    /// Other violations.
    wrong: u64,
    words: Vec<String>,
    faults: BTreeMap<&'static str, u64>,
    /// Times without a successful write, by fault, and how often there was none.
    silences: BTreeMap<&'static str, Vec<Duration>>,
    never: BTreeMap<&'static str, u64>,
    /// While one node was slow or full.
    windows: BTreeMap<&'static str, Vec<Window>>,
    effects: Effects,
    /// Keys that were found the same in two clusters, each time.
    pub(crate) compared: u64,
    /// Connections between nodes of which it is not known whose they are.
    pub(crate) strangers: u64,
    /// Starts that nodes needed of which a disk had been full.
    pub(crate) restarts: u64,
    seconds: f64,
}

/// Times without a successful write to keys after their leader was hit.
#[derive(Debug, Serialize)]
struct Silence {
    times: usize,
    median_ms: u64,
    worst_ms: u64,
    /// Each of them, the shortest first.
    all_ms: Vec<u64>,
    /// Until the round ended, and longer.
    never: u64,
}

/// Writes that were acknowledged while one node was slow or full.
#[derive(Debug, Serialize)]
struct WentOn {
    times: usize,
    median_per_s: f64,
    least_per_s: f64,
}

/// What power cuts did to what was not synced.
#[derive(Debug, Serialize)]
struct Unsynced {
    kept: u64,
    lost: u64,
    garbage: u64,
    names_lost: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    test: &'static str,
    system: &'static str,
    fault: &'static str,
    nodes: usize,
    clients: usize,
    rounds: u64,
    acknowledged: u64,
    unknown: u64,
    refused: u64,
    objects: u64,
    not_linearizable: u64,
    undecided: u64,
    wrong: u64,
    compared: u64,
    strangers: u64,
    restarts: u64,
    faults: &'a BTreeMap<&'static str, u64>,
    without_a_write: BTreeMap<&'static str, Silence>,
    writes_meanwhile: BTreeMap<&'static str, WentOn>,
    unsynced: Unsynced,
    seconds: f64,
    seed: u64,
}

impl Report {
    pub(crate) fn holds(&self) -> bool {
        self.not_linearizable + self.undecided + self.wrong == 0
    }

    /// The violations in words.
    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }

    /// Adds what was noted, and finds where the others did not go on without a slow or full node.
    pub(crate) fn note(&mut self, notes: Notes) {
        for name in notes.struck.into_inner() {
            *self.faults.entry(name).or_default() += 1;
        }
        for (name, silence) in notes.silences.into_inner() {
            match silence {
                Some(silence) => self.silences.entry(name).or_default().push(silence),
                None => *self.never.entry(name).or_default() += 1,
            }
        }
        for (name, window) in notes.windows.into_inner() {
            let per_s = window.per_s();
            self.wrong((per_s < WRITES_MIN_PER_S).then(|| {
                format!(
                    "{name} of one node: {} writes were acknowledged in {:?}, expected {WRITES_MIN_PER_S} in a second \
                     of the others",
                    window.writes, window.span
                )
            }));
            self.windows.entry(name).or_default().push(window);
        }
        disks::add(&mut self.effects, notes.effects.into_inner());
    }

    /// Adds what the checker says of so many objects. `again`: they were checked before.
    pub(crate) fn checked(&mut self, objects: usize, checked: Checked, again: bool) {
        if !again {
            self.objects += objects as u64;
        }
        self.not_linearizable += checked.contradictions;
        self.undecided += checked.undecided;
        self.add_words(checked.words);
    }

    /// Adds a violation of another kind.
    pub(crate) fn wrong(&mut self, words: impl IntoIterator<Item = String>) {
        let before = self.wrong;
        let words: Vec<String> = words.into_iter().collect();
        self.wrong = before + words.len() as u64;
        self.add_words(words);
    }

    /// Adds the replies that no command may have.
    pub(crate) fn unexpected(&mut self, board: &Board) {
        self.wrong += board.unexpected();
        self.add_words(board.words());
    }

    pub(crate) fn took(&mut self, span: Duration) {
        self.seconds = (span.as_secs_f64() * 10.0).round() / 10.0;
    }

    fn add_words(&mut self, words: Vec<String>) {
        let room = WORDS_MAX.saturating_sub(self.words.len());
        self.words.extend(words.into_iter().take(room));
    }

    fn without_a_write(&self) -> BTreeMap<&'static str, Silence> {
        let names = self.silences.keys().chain(self.never.keys());
        let silence = |name: &&'static str| {
            let mut spans = self.silences.get(name).cloned().unwrap_or_default();
            spans.sort_unstable();
            let all_ms: Vec<u64> = spans
                .iter()
                .map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
                .collect();
            let silence = Silence {
                times: spans.len(),
                median_ms: all_ms.get(spans.len() / 2).copied().unwrap_or(0),
                worst_ms: all_ms.last().copied().unwrap_or(0),
                all_ms,
                never: self.never.get(name).copied().unwrap_or(0),
            };
            (*name, silence)
        };
        names.map(silence).collect()
    }

    fn writes_meanwhile(&self) -> BTreeMap<&'static str, WentOn> {
        let went_on = |(name, windows): (&&'static str, &Vec<Window>)| {
            let mut rates: Vec<f64> = windows
                .iter()
                .map(|w| (w.per_s() * 10.0).round() / 10.0)
                .collect();
            rates.sort_unstable_by(f64::total_cmp);
            let went_on = WentOn {
                times: rates.len(),
                median_per_s: rates.get(rates.len() / 2).copied().unwrap_or(0.0),
                least_per_s: rates.first().copied().unwrap_or(0.0),
            };
            (*name, went_on)
        };
        self.windows.iter().map(went_on).collect()
    }

    pub(crate) fn print(&self, plan: &Plan, board: &Board, json: bool) -> anyhow::Result<()> {
        let mut results = Results::new();
        if json {
            results.json(&Line {
                test: "cluster",
                system: plan.product.name(),
                fault: plan.fault.name(),
                nodes: plan.nodes,
                clients: plan.clients,
                rounds: self.rounds,
                acknowledged: board.acknowledged(),
                unknown: board.unknown(),
                refused: board.refused(),
                objects: self.objects,
                not_linearizable: self.not_linearizable,
                undecided: self.undecided,
                wrong: self.wrong,
                compared: self.compared,
                strangers: self.strangers,
                restarts: self.restarts,
                faults: &self.faults,
                without_a_write: self.without_a_write(),
                writes_meanwhile: self.writes_meanwhile(),
                unsynced: Unsynced {
                    kept: self.effects.kept,
                    lost: self.effects.lost,
                    garbage: self.effects.garbage,
                    names_lost: self.effects.names_lost,
                },
                seconds: self.seconds,
                seed: plan.seed,
            })?;
        } else {
            self.print_text(&mut results, plan, board)?;
        }
        results.flush()?;
        Ok(())
    }

    fn print_text(&self, results: &mut Results, plan: &Plan, board: &Board) -> std::io::Result<()> {
        results.line(format_args!(
            "{} rounds on {} nodes of {} · acknowledged {} · unknown {} · refused {} · {} objects, of which not \
             linearizable {}, undecided {} · otherwise wrong {} · {} s · seed {}",
            self.rounds,
            plan.nodes,
            plan.product.name(),
            grouped(board.acknowledged()),
            grouped(board.unknown()),
            grouped(board.refused()),
            grouped(self.objects),
            self.not_linearizable,
            self.undecided,
            self.wrong,
            self.seconds,
            plan.seed
        ))?;
        if self.compared > 0 {
            results.line(format_args!(
                "{} keys compared between two clusters",
                grouped(self.compared)
            ))?;
        }
        if self.strangers > 0 {
            results.line(format_args!(
                "{} connections between nodes were closed, as it was not found whose they are",
                self.strangers
            ))?;
        }
        if !self.faults.is_empty() {
            results.line("faults:")?;
        }
        for (name, times) in &self.faults {
            results.line(format_args!("  {name:<32} {:>10}", grouped(*times)))?;
        }
        let silences = self.without_a_write();
        if !silences.is_empty() {
            results.line("without a successful write after a fault of the leader:")?;
        }
        for (name, silence) in &silences {
            results.line(format_args!(
                "  {name:<32} {:>10} times, median {} ms, worst {} ms; {} times until the round ended",
                silence.times, silence.median_ms, silence.worst_ms, silence.never
            ))?;
        }
        if self.restarts > 0 {
            results.line(format_args!(
                "{} nodes whose disk had been full had to be started again",
                self.restarts
            ))?;
        }
        for (name, went_on) in &self.writes_meanwhile() {
            results.line(format_args!(
                "writes acknowledged meanwhile, {name}: {} times, median {} /s, least {} /s",
                went_on.times, went_on.median_per_s, went_on.least_per_s
            ))?;
        }
        if self.effects.kept + self.effects.lost > 0 {
            results.line(format_args!(
                "of what was not synced, power cuts kept {} sectors, lengths and names, and lost {}, of which {} names; \
                 {} sectors hold garbage",
                grouped(self.effects.kept),
                grouped(self.effects.lost),
                grouped(self.effects.names_lost),
                grouped(self.effects.garbage)
            ))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_that_do_not_go_on_without_a_slow_node_are_a_violation() {
        for (writes, holds) in [(100, true), (49, false)] {
            let (notes, mut report) = (Notes::default(), Report::default());
            notes.struck("slow disk");
            notes.went_on("slow disk", writes, Duration::from_secs(5));
            report.note(notes);
            assert_eq!(report.holds(), holds, "{writes}");
            assert_eq!(report.words().len(), usize::from(!holds));
        }
    }
}
