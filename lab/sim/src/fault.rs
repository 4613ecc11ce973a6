//! Faults that a simulated device injects while a program runs, and the proof that each fired.

use std::collections::BTreeMap;
use std::path::Path;

use crate::rng::Rng;
use crate::trace::OpKind;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Any operation fails; a write or a sync in the way of the kinds below.
    AnyFails,
    /// A read fails.
    ReadFails,
    /// A write fails; a part of it may have happened.
    WriteFails,
    /// A sync fails: a random part of what was to be synced is durable, the rest never will be, and
    /// the next sync reports success all the same.
    SyncFails,
    /// A read or write is interrupted before it did anything.
    Interrupted,
    /// A read returns less than was asked for.
    ShortRead,
    /// A write takes less than was offered.
    ShortWrite,
    /// A written sector never reaches the device, though every sync succeeds.
    StaleSector,
    /// A written sector reaches another place of the same file.
    MisdirectedSector,
    /// A file, or a directory, cannot be opened: too many are open (`EMFILE`).
    OpenFails,
    /// A file cannot be removed (`EPERM`).
    RemoveFails,
    /// A file cannot be renamed (`EPERM`).
    RenameFails,
    /// Space cannot be reserved: the file system has no call for it (`EOPNOTSUPP`).
    AllocateFails,
    /// There is no room left for what a write or allocation needs.
    NoSpace,
    /// A sync had to wait at a [`Gate`](crate::Gate) or for the device's sync delay.
    SlowSync,
}

impl FaultKind {
    /// Whether it can strike an operation of this kind.
    fn concerns(self, op: OpKind) -> bool {
        let read = op == OpKind::Read;
        let write = matches!(op, OpKind::Write | OpKind::DirectWrite);
        match self {
            Self::AnyFails => true,
            Self::ReadFails | Self::ShortRead => read,
            Self::WriteFails | Self::ShortWrite | Self::StaleSector | Self::MisdirectedSector => write,
            Self::SyncFails => matches!(op, OpKind::SyncData | OpKind::SyncDir),
            Self::Interrupted => read || write,
            Self::OpenFails => matches!(op, OpKind::Open | OpKind::Create),
            Self::RemoveFails => op == OpKind::RemoveFile,
            Self::RenameFails => op == OpKind::Rename,
            Self::AllocateFails => op == OpKind::Allocate,
            Self::NoSpace => {
                write
                    || matches!(
                        op,
                        OpKind::Allocate
                            | OpKind::Create
                            | OpKind::CreateDir
                            | OpKind::Symlink
                            | OpKind::HardLink
                    )
            }
            Self::SlowSync => false,
        }
    }
}

/// A rule by which a device misbehaves. Build one with [`Fault::new`] and narrow it.
#[derive(Debug, Clone)]
pub struct Fault {
    kind: FaultKind,
    path: Option<String>,
    skip: u64,
    times: u64,
    one_in: u64,
    code: i32,
    seen: u64,
    fired: u64,
}

impl Fault {
    /// Strikes every operation that `kind` concerns, for good.
    #[must_use]
    pub fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            path: None,
            skip: 0,
            times: u64::MAX,
            one_in: 1,
            code: match kind {
                FaultKind::NoSpace => libc::ENOSPC,
                FaultKind::Interrupted => libc::EINTR,
                FaultKind::OpenFails => libc::EMFILE,
                FaultKind::RemoveFails | FaultKind::RenameFails => libc::EPERM,
                FaultKind::AllocateFails => libc::EOPNOTSUPP,
                _ => libc::EIO,
            },
            seen: 0,
            fired: 0,
        }
    }

    /// Only operations on paths that contain `part`.
    #[must_use]
    pub fn on(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Lets the first `n` operations that it concerns pass.
    #[must_use]
    pub fn after(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// Strikes `n` times at most.
    #[must_use]
    pub fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Strikes once.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// Strikes at random, once in `n` operations on average.
    #[must_use]
    pub fn one_in(mut self, n: u64) -> Self {
        self.one_in = n;
        self
    }

    /// Fails with this error number in place of `EIO` (or what the kind says).
    #[must_use]
    pub fn code(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    fn strikes(&mut self, op: OpKind, path: &Path, rng: &mut Rng) -> bool {
        if !self.kind.concerns(op) {
            return false;
        }
        if let Some(part) = &self.path
            && !path.to_string_lossy().contains(part.as_str())
        {
            return false;
        }
        self.seen += 1;
        if self.seen <= self.skip || self.fired >= self.times || !rng.one_in(self.one_in) {
            return false;
        }
        self.fired += 1;
        true
    }
}

/// What happens to one operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strike {
    pub(crate) kind: FaultKind,
    pub(crate) code: i32,
}

/// How often each kind of fault fired.
pub type FaultCounts = BTreeMap<FaultKind, u64>;

/// The rules in force, and the counters.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Fault>,
    pub(crate) counts: FaultCounts,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.rules.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn count(&mut self, kind: FaultKind) {
        *self.counts.entry(kind).or_default() += 1;
    }

    /// The first rule that strikes.
    pub(crate) fn strike(&mut self, op: OpKind, path: &Path, rng: &mut Rng) -> Option<Strike> {
        let rule = self.rules.iter_mut().find_map(|rule| {
            let strikes = rule.strikes(op, path, rng);
            strikes.then_some(Strike {
                kind: rule.kind,
                code: rule.code,
            })
        })?;
        self.count(rule.kind);
        Some(rule)
    }
}
