//! What a check is given, and what it says.

use std::fmt;

/// What an acknowledgement covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// The commit survives the death of its process.
    Process,
    /// The commit survives a loss of power.
    Disk,
}

/// What the fault left whole, hence what must be there after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// A process died: every acknowledgement holds.
    Process,
    /// The power went, or the shared memory is gone or not ours: acknowledgements at
    /// [`Promise::Disk`] hold, and what is there is a prefix.
    Power,
    /// A process died, and the power went before the next one had recovered: acknowledgements at
    /// [`Promise::Disk`] hold; a commit may be there without an earlier one that the dead process
    /// never completed.
    ProcessThenPower,
    /// The device itself lost or damaged what it had: no acknowledgement can hold, but what is
    /// there is a prefix of whole commits.
    Damage,
}

/// A commit that recovery found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its number in the ledger; `None` where its content does not say.
    pub id: Option<u64>,
    /// Its position in the commit order, where what was found has one.
    pub order: Option<u64>,
    /// Whether all of it is there, unchanged.
    pub whole: bool,
    /// The commits that it had read, by its own content.
    pub saw: Vec<u64>,
}

impl Commit {
    /// A whole commit.
    #[must_use]
    pub fn whole(id: u64, order: Option<u64>) -> Self {
        Self {
            id: Some(id),
            order,
            whole: true,
            saw: Vec::new(),
        }
    }

    /// Part of a commit, or something that is none.
    #[must_use]
    pub fn torn(id: Option<u64>, order: Option<u64>) -> Self {
        Self {
            id,
            order,
            whole: false,
            saw: Vec::new(),
        }
    }

    /// The same, made after it had read these.
    #[must_use]
    pub fn after(self, saw: Vec<u64>) -> Self {
        Self { saw, ..self }
    }
}

/// The kinds of violations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// An acknowledged commit is not there.
    Lost,
    /// A commit is there in part, or was never made.
    Partial,
    /// A commit is missing though a later one is there; or one is out of order, there twice, or
    /// back after its removal, its refusal, or a recovery without it.
    Reordered,
}

/// What one check found, or all checks of a run together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Commits whose acknowledgement covers the fault.
    pub acknowledged: u64,
    /// Commits that recovery found.
    pub recovered: u64,
    /// Violations of the kind [`Violation::Lost`].
    pub lost: u64,
    /// Violations of the kind [`Violation::Partial`].
    pub partial: u64,
    /// Violations of the kind [`Violation::Reordered`].
    pub reordered: u64,
    /// The first few violations in words.
    pub findings: Vec<String>,
}

/// Violations that a verdict describes; the others it counts.
const FINDINGS_MAX: usize = 8;

impl Verdict {
    /// Whether nothing is violated.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.lost == 0 && self.partial == 0 && self.reordered == 0
    }

    /// The counts in words.
    #[must_use]
    pub fn counts(&self) -> String {
        format!(
            "acknowledged {} · recovered {} · lost {} · partial {} · reordered {}",
            self.acknowledged, self.recovered, self.lost, self.partial, self.reordered
        )
    }

    /// Notes `times` violations of a kind, described together.
    pub fn find(&mut self, kind: Violation, times: u64, text: impl FnOnce() -> String) {
        let (count, name) = match kind {
            Violation::Lost => (&mut self.lost, "lost"),
            Violation::Partial => (&mut self.partial, "partial"),
            Violation::Reordered => (&mut self.reordered, "reordered"),
        };
        *count += times;
        if times > 0 && self.findings.len() < FINDINGS_MAX {
            self.findings.push(format!("{name}: {}", text()));
        }
    }

    /// Adds what a further check found.
    pub fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.recovered += other.recovered;
        self.lost += other.lost;
        self.partial += other.partial;
        self.reordered += other.reordered;
        let room = FINDINGS_MAX.saturating_sub(self.findings.len());
        self.findings.extend(other.findings.iter().take(room).cloned());
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.counts())?;
        self.findings.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}
