//! What may be found, from what was acknowledged.
//!
//! A key's history is the writes that it may hold now, oldest first: the first is certain, later ones are there or not.
//! A key belongs to one thread, which writes and reads one after the other.

use std::collections::{BTreeMap, BTreeSet};

/// How a life ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum End {
    Cut,
    Killed,
    Closed,
}

#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
enum Acked {
    /// No reply.
    Nothing,
    /// An error that leaves it open.
    Doubt,
    Buffered,
    Process,
    Disk,
}

struct Op {
    level: Acked,
    acked: Acked,
    /// Where its commit ends in the log; 0 where that is not known.
    end: u64,
    /// In the manifest and not in the log.
    manifest: bool,
    keys: Vec<(Key, Option<usize>)>,
}

type Key = (String, String);

/// One write of a history: its sequence number and, for a value, the item; `None` removes.
type Write = (u64, Option<usize>);

#[derive(Default)]
pub struct Counts {
    pub acknowledged: u64,
    pub disk: u64,
    pub answers: u64,
    pub after_failure: u64,
    pub refused_reads: u64,
}

#[derive(Default)]
pub struct Judge {
    ops: BTreeMap<u64, Op>,
    histories: BTreeMap<Key, Vec<Write>>,
    /// Below this end everything is on the device.
    durable: u64,
    /// Since the open something failed: what is visible may be what is durable.
    trouble: bool,
    /// Reading all that is there, after an open.
    verifying: Option<BTreeMap<Key, (Option<Write>, bool)>>,
    /// What the next open must find, unless the power goes before.
    promised: BTreeMap<Key, u64>,
    failed_opens: u32,
    opened: bool,
    ever_opened: bool,
    pub poisoned: bool,
    pub fired_in_life: bool,
    pub violations: Vec<String>,
    pub notes: Vec<String>,
    pub counts: Counts,
}

/// The name of a family's own being.
const BEING: &str = "";

impl Judge {
    fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    fn history(&mut self, key: &Key) -> &mut Vec<Write> {
        self.histories
            .entry(key.clone())
            .or_insert_with(|| vec![(0, None)])
    }

    /// Takes the lines of one process. `fired`: the failure happened in this life.
    pub fn life(&mut self, lines: &[String], fired: bool) {
        self.fired_in_life = fired;
        self.failed_opens = 0;
        self.opened = false;
        for line in lines {
            self.line(line);
        }
        // The process is gone in mid-reading: what it has read counts all the same.
        self.verified(false);
        if !self.opened && self.failed_opens >= 3 {
            let last = lines
                .iter()
                .rev()
                .find(|line| line.starts_with("open err"))
                .cloned();
            self.violation(format!("does not open: {}", last.unwrap_or_default()));
        }
    }

    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| {
            words
                .get(at)
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let word = |at: usize| words.get(at).copied().unwrap_or_default().to_owned();
        match words[0] {
            "open" if word(1) == "ok" => {
                self.opened = true;
                self.ever_opened = true;
                self.trouble = false;
                self.poisoned = false;
            }
            "open" => {
                self.failed_opens += 1;
                self.notes.push(line.to_owned());
                if !self.fired_in_life || number(2) > 0 {
                    self.violation(format!("refused to open: {line}"));
                }
            }
            "fams" => self.families(&word(1)),
            "verified" => self.verified(true),
            "w" => {
                let level = match words[3] {
                    "disk" => Acked::Disk,
                    "process" => Acked::Process,
                    _ => Acked::Buffered,
                };
                let keys = words[4].split(',').enumerate().filter_map(|(at, item)| {
                    let (place, what) = item.rsplit_once('=')?;
                    let (family, key) = place.split_once('/')?;
                    Some(((family.to_owned(), key.to_owned()), (what == "P").then_some(at)))
                });
                self.begin(number(2), level, false, keys.collect());
            }
            "c" => self.begin(
                number(2),
                Acked::Disk,
                true,
                vec![((word(3), BEING.into()), Some(0))],
            ),
            "d" => {
                let family = word(3);
                let all = self.histories.keys().filter(|(name, _)| *name == family).cloned();
                let keys = all.map(|key| (key, None)).collect();
                self.begin(number(2), Acked::Disk, true, keys);
            }
            "a" => {
                self.acknowledged(number(2), &word(3), number(4));
                // Not a failure, but what was asked for.
                let usual = ["there is a family named", "was dropped"]
                    .iter()
                    .any(|text| line.contains(text));
                self.trouble |= word(3) != "ok" && !usual;
            }
            "f" => self.flushed(number(1), &word(2)),
            "s" => self.durable = self.durable.max(number(1)),
            "r" => {
                let found = (word(5) != "-").then(|| (number(5), number(6) as usize));
                self.answer((word(2), word(3)), found, word(4) == "1");
            }
            "re" => {
                self.trouble = true;
                self.counts.refused_reads += 1;
            }
            "bad" => self.violation(line.to_owned()),
            // Before a store was ever open, what there is of a log may be on its way out again.
            "inspect" if !self.fired_in_life && self.ever_opened => self.violation(line.to_owned()),
            "probe" => {
                self.poisoned |= word(1) == "reopen";
                if word(1) == "stuck" {
                    self.violation(line.to_owned());
                } else {
                    self.notes.push(line.to_owned());
                }
            }
            "close" => {
                let end = if word(1) == "ok" { End::Closed } else { End::Killed };
                self.end(end);
            }
            "note" => {
                self.trouble = true;
                self.notes.push(line.to_owned());
            }
            _ => {}
        }
    }

    fn begin(&mut self, seq: u64, level: Acked, manifest: bool, keys: Vec<(Key, Option<usize>)>) {
        for (key, item) in &keys {
            let write = (seq, *item);
            // A family that is there stays what it is.
            self.history(key).push(write);
        }
        let op = Op {
            level,
            acked: Acked::Nothing,
            end: 0,
            manifest,
            keys,
        };
        self.ops.insert(seq, op);
    }

    fn acknowledged(&mut self, seq: u64, how: &str, end: u64) {
        let Some(op) = self.ops.get_mut(&seq) else { return };
        match how {
            "ok" => {
                op.acked = op.level;
                op.end = end;
                self.counts.acknowledged += 1;
                self.counts.after_failure += u64::from(self.trouble);
                if op.level == Acked::Disk {
                    self.counts.disk += 1;
                    let keys: Vec<Key> = op.keys.iter().map(|(key, _)| key.clone()).collect();
                    self.durable = self.durable.max(end);
                    keys.iter().for_each(|key| self.certain(key, seq));
                }
            }
            "no" => {
                let keys: Vec<Key> = op.keys.iter().map(|(key, _)| key.clone()).collect();
                for key in keys {
                    self.history(&key).retain(|(of, _)| *of != seq);
                }
            }
            _ => op.acked = Acked::Doubt,
        }
    }

    /// Nothing older than this write may be found any more.
    fn certain(&mut self, key: &Key, seq: u64) {
        let history = self.history(key);
        if let Some(at) = history.iter().position(|(of, _)| *of == seq) {
            history.drain(..at);
        }
    }

    fn acked(&self, seq: u64) -> Acked {
        // What was there from the start.
        self.ops.get(&seq).map_or(Acked::Disk, |op| op.acked)
    }

    fn flushed(&mut self, thread: u64, family: &str) {
        let prefix = format!("k{thread}-");
        let keys: Vec<Key> = self
            .histories
            .keys()
            .filter(|(name, key)| name == family && key.starts_with(&prefix))
            .cloned()
            .collect();
        for key in keys {
            let last = self.histories[&key]
                .iter()
                .rev()
                .find(|(seq, _)| self.acked(*seq) >= Acked::Buffered);
            if let Some((seq, _)) = last.copied() {
                self.certain(&key, seq);
            }
        }
    }

    /// Where in its history a key stands, going by what was found; the latest place that fits.
    fn place(&self, key: &Key, found: Option<(u64, usize)>) -> Option<usize> {
        let history = self.histories.get(key)?;
        history.iter().rposition(|(seq, item)| match found {
            Some((found, at)) => found == *seq && *item == Some(at),
            None => item.is_none(),
        })
    }

    fn show(&self, key: &Key) -> String {
        let write = |(seq, item): &Write| {
            let end = self.ops.get(seq).map_or(0, |op| op.end);
            format!(
                "{seq}{} {:?} end {end:#x}",
                if item.is_some() { " put" } else { " absent" },
                self.acked(*seq)
            )
        };
        let history = self.histories.get(key).map(Vec::as_slice).unwrap_or_default();
        history.iter().map(write).collect::<Vec<_>>().join("; ")
    }

    fn answer(&mut self, key: Key, found: Option<(u64, usize)>, disk: bool) {
        self.counts.answers += 1;
        self.counts.after_failure += u64::from(self.trouble);
        self.history(&key);
        let Some(place) = self.place(&key, found) else {
            let may = self.show(&key);
            let durable = self.durable;
            let when = if self.verifying.is_some() {
                "after the open"
            } else {
                "in a life"
            };
            return self.violation(format!(
                "{when}: {}/{} holds {found:?}, it may hold: {may} (durable {durable:#x}, trouble {})",
                key.0, key.1, self.trouble
            ));
        };
        let history = &self.histories[&key];
        let write = history[place];
        if self.verifying.is_some()
            && let Some(promised) = self.promised.get(&key).copied()
            && history
                .iter()
                .position(|(seq, _)| *seq == promised)
                .is_some_and(|least| place < least)
        {
            let may = self.show(&key);
            self.violation(format!(
                "after the death of the process: {}/{} holds {found:?}, {promised} was promised: {may}",
                key.0, key.1
            ));
            return;
        }
        if let Some(read) = &mut self.verifying {
            read.insert(key, (Some(write), disk));
            return;
        }
        let newest = history
            .iter()
            .rposition(|(seq, _)| self.acked(*seq) >= Acked::Buffered)
            .unwrap_or(0);
        if !self.trouble && place < newest {
            let may = self.show(&key);
            self.violation(format!(
                "in a life without an error: {}/{} went back to {found:?}: {may}",
                key.0, key.1
            ));
        }
        if disk {
            // It was answered: what is older is gone, and what is newer and was not shown never was.
            let history = self.history(&key);
            history.truncate(place + 1);
            history.drain(..place);
        }
    }

    fn families(&mut self, names: &str) {
        self.verifying = Some(BTreeMap::new());
        let names: BTreeSet<String> = names.split(',').map(str::to_owned).collect();
        let known: BTreeSet<String> = self.histories.keys().map(|(family, _)| family.clone()).collect();
        for family in names.union(&known).filter(|name| *name != "default") {
            let key = (family.clone(), BEING.to_owned());
            self.history(&key);
            let there = names.contains(family);
            let history = self.histories[&key].clone();
            let place = history.iter().rposition(|(_, item)| item.is_some() == there);
            let Some(place) = place else {
                let may = self.show(&key);
                let is = if there { "is there" } else { "is not there" };
                self.violation(format!("the family {family} {is}; {may}"));
                continue;
            };
            let history = self.history(&key);
            history.truncate(place + 1);
            history.drain(..place);
            if !there {
                // All of its keys are absent, and each must be allowed to be.
                let keys: Vec<Key> = known_keys(&self.histories, family);
                for key in keys {
                    self.answer(key, None, true);
                }
            }
        }
    }

    fn verified(&mut self, whole: bool) {
        let Some(read) = self.verifying.take() else { return };
        let found = |key: &Key| read.get(key).and_then(|(write, _)| *write);
        // What is there is a prefix of the commits, and none is there in part.
        let newest = read
            .values()
            .filter_map(|(write, _)| *write)
            .filter(|(_, item)| item.is_some())
            .filter_map(|(seq, _)| self.ops.get(&seq).map(|op| op.end))
            .max()
            .unwrap_or(0);
        let present: BTreeSet<u64> = read
            .values()
            .filter_map(|(write, _)| *write)
            .filter(|(_, item)| item.is_some())
            .map(|(seq, _)| seq)
            .collect();
        let mut wrong = Vec::new();
        for (seq, op) in &self.ops {
            let needed =
                present.contains(seq) || (op.acked >= Acked::Buffered && op.end > 0 && op.end <= newest);
            if op.manifest || !needed {
                continue;
            }
            for (key, _) in &op.keys {
                let Some(write) = found(key) else { continue };
                let history = &self.histories[key];
                let place = |of: u64| history.iter().rposition(|(seq, _)| *seq == of);
                if let (Some(is), Some(least)) = (place(write.0), place(*seq))
                    && is < least
                {
                    wrong.push(format!(
                        "no prefix, or in part: {}/{} is as of {}, and {seq} is there or before what is there (newest end {newest:#x}): {}",
                        key.0, key.1, write.0, self.show(key)
                    ));
                }
            }
        }
        self.violations.append(&mut wrong);
        for (key, (write, disk)) in read {
            let Some(write) = write else { continue };
            let history = self.history(&key);
            if let Some(place) = history.iter().position(|of| *of == write) {
                if disk || whole {
                    history.truncate(place + 1);
                }
                if disk {
                    history.drain(..place);
                }
            }
            // It is visible now.
            if let Some(op) = self.ops.get_mut(&write.0)
                && op.acked < Acked::Buffered
                && whole
            {
                op.acked = Acked::Buffered;
            }
        }
        if whole {
            self.promised.clear();
            self.forget();
        }
    }

    /// Forgets writes that no history has any more.
    fn forget(&mut self) {
        let kept: BTreeSet<u64> = self.histories.values().flatten().map(|(seq, _)| *seq).collect();
        self.ops.retain(|seq, _| kept.contains(seq));
    }

    /// The life is over: what was promised for such an end is certain.
    pub fn end(&mut self, end: End) {
        let least = match end {
            End::Cut => Acked::Disk,
            End::Killed => Acked::Process,
            End::Closed => Acked::Buffered,
        };
        self.promised.clear();
        let keys: Vec<Key> = self.histories.keys().cloned().collect();
        for key in keys {
            let certain = |(seq, _): &&Write| {
                self.ops.get(seq).is_none_or(|op| {
                    op.acked >= least || (op.acked >= Acked::Buffered && op.end > 0 && op.end <= self.durable)
                })
            };
            if let Some((seq, _)) = self.histories[&key].iter().rev().find(certain).copied() {
                match end {
                    // It is in the kernel, or in the ring, and no further.
                    End::Killed => {
                        self.promised.insert(key, seq);
                    }
                    End::Cut | End::Closed => self.certain(&key, seq),
                }
            }
        }
        if end == End::Closed {
            for op in self.ops.values() {
                if op.acked >= Acked::Buffered {
                    self.durable = self.durable.max(op.end);
                }
            }
        }
    }
}

fn known_keys(histories: &BTreeMap<Key, Vec<Write>>, family: &str) -> Vec<Key> {
    histories
        .keys()
        .filter(|(name, key)| name == family && key != BEING)
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the judge says of lives that end so.
    fn judged(lives: &[(&str, End)]) -> Vec<String> {
        let mut judge = Judge::default();
        for (lines, end) in lives {
            let lines: Vec<String> = lines.lines().map(|line| line.trim().to_owned()).collect();
            judge.life(&lines, false);
            judge.end(*end);
        }
        judge.violations
    }

    const FIRST: &str = "opening\nopen ok\nfams default\nverified\nw 0 1 disk default/k0-1=P\na 0 1 ok 100";

    fn next(lines: &str) -> String {
        format!("opening\nopen ok\nfams default\n{lines}\nverified")
    }

    #[test]
    fn what_was_acknowledged_is_there_or_it_is_a_violation() {
        assert_eq!(
            judged(&[(FIRST, End::Cut), (&next("r 0 default k0-1 1 1 0"), End::Killed)]),
            [""; 0]
        );
        let lost = judged(&[(FIRST, End::Cut), (&next("r 0 default k0-1 1 -"), End::Killed)]);
        assert_eq!(lost.len(), 1, "{lost:?}");
    }

    #[test]
    fn what_was_not_synced_survives_a_death_and_not_a_cut() {
        let first = format!("{FIRST}\nw 0 2 process default/k0-1=P\na 0 2 ok 200");
        let old = next("r 0 default k0-1 1 1 0");
        assert_eq!(judged(&[(&first, End::Cut), (&old, End::Killed)]), [""; 0]);
        assert_eq!(judged(&[(&first, End::Killed), (&old, End::Killed)]).len(), 1);
        assert_eq!(
            judged(&[(&first, End::Killed), ("opening", End::Cut), (&old, End::Killed)]),
            [""; 0]
        );
    }

    #[test]
    fn an_answer_after_a_failure_is_not_taken_back() {
        let doubt = format!("{FIRST}\nw 0 2 disk default/k0-1=P\na 0 2 doubt broken");
        let new = next("r 0 default k0-1 1 2 0");
        assert_eq!(judged(&[(&doubt, End::Cut), (&new, End::Killed)]), [""; 0]);
        let answered = format!("{doubt}\nr 0 default k0-1 1 1 0");
        assert_eq!(judged(&[(&answered, End::Cut), (&new, End::Killed)]).len(), 1);
        let refused = format!("{doubt}\nre 0 default k0-1 in doubt");
        assert_eq!(judged(&[(&refused, End::Cut), (&new, End::Killed)]), [""; 0]);
    }

    #[test]
    fn commits_are_a_prefix_and_whole() {
        let writes = "w 0 2 buffered default/k0-2=P\na 0 2 ok 200\nw 0 3 buffered default/k0-3=P,default/k0-4=P\na 0 3 ok 300";
        let first = format!("{FIRST}\n{writes}");
        let found = |two: &str, three: &str, four: &str| {
            let lines = format!(
                "r 0 default k0-1 1 1 0\nr 0 default k0-2 1 {two}\nr 0 default k0-3 1 {three}\nr 0 default k0-4 1 {four}"
            );
            judged(&[(&first, End::Cut), (&next(&lines), End::Killed)]).len()
        };
        assert_eq!(found("-", "-", "-"), 0);
        assert_eq!(found("2 0", "-", "-"), 0);
        assert_eq!(found("2 0", "3 0", "3 1"), 0);
        assert_eq!(found("-", "3 0", "3 1"), 1, "a hole");
        assert_eq!(found("2 0", "3 0", "-"), 1, "in part");
    }

    #[test]
    fn created_families_are_there_and_dropped_ones_are_gone() {
        let created = format!("{FIRST}\nc 0 2 x\na 0 2 ok 0");
        let with = "opening\nopen ok\nfams default,x\nverified";
        let without = "opening\nopen ok\nfams default\nverified";
        assert_eq!(judged(&[(&created, End::Cut), (with, End::Killed)]), [""; 0]);
        assert_eq!(judged(&[(&created, End::Cut), (without, End::Killed)]).len(), 1);
        let dropped = format!("{created}\nd 0 3 x\na 0 3 ok 0");
        assert_eq!(judged(&[(&dropped, End::Cut), (with, End::Killed)]).len(), 1);
        let doubtful = format!("{created}\nd 0 3 x\na 0 3 doubt broken");
        assert_eq!(judged(&[(&doubtful, End::Cut), (with, End::Killed)]), [""; 0]);
        assert_eq!(judged(&[(&doubtful, End::Cut), (without, End::Killed)]), [""; 0]);
    }

    #[test]
    fn a_store_that_does_not_open_or_is_stuck_is_a_violation() {
        let refused = "opening\nopen err 0 damaged\nopening\nopen err 1 damaged\nopening\nopen err 2 damaged";
        assert!(!judged(&[(refused, End::Killed)]).is_empty());
        assert_eq!(
            judged(&[(
                "opening\nopen ok\nfams default\nverified\nprobe stuck no room",
                End::Cut
            )])
            .len(),
            1
        );
    }
}
