//! Where power cuts are aimed, and where they fell.

use std::path::Path;

use collie_sim::faultfs::{Asked, Fell, Moment, Trap};
use collie_sim::{OpKind, Rng};

/// What a cut is aimed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Aim {
    /// Any change.
    Any,
    /// A moment, whatever happens then.
    Moment,
    /// A server that opens its store.
    Recovery,
    /// What a flush does.
    Flush,
    /// What a compaction does.
    Compaction,
    /// A file of a table.
    Table,
    /// What names the tables.
    Version,
    /// The store's manifest.
    Manifest,
    /// A segment of the log.
    Log,
    /// A segment that is used again, or goes.
    Recycling,
    /// The sync of a directory.
    DirectorySync,
    /// A renaming.
    Rename,
    /// A removal.
    Removal,
}

impl Aim {
    /// Those for Collie while it serves, and for how many operations each waits at most: so many
    /// that it comes about while the clients write.
    const COLLIE: [(Self, u64); 12] = [
        (Self::Any, 1_000),
        (Self::Moment, 1),
        (Self::Flush, 100),
        (Self::Compaction, 60),
        (Self::Table, 60),
        (Self::Version, 24),
        (Self::Manifest, 12),
        (Self::Log, 200),
        (Self::Recycling, 5),
        (Self::DirectorySync, 20),
        (Self::Rename, 8),
        (Self::Removal, 8),
    ];
    /// Those that any product's files allow.
    const OTHERS: [(Self, u64); 5] = [
        (Self::Any, 2_000),
        (Self::Moment, 1),
        (Self::DirectorySync, 4),
        (Self::Rename, 4),
        (Self::Removal, 4),
    ];

    /// As the command line has it.
    pub(crate) fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// One of those for a server that serves, and the number of its operation.
    pub(crate) fn draw(rng: &mut Rng, is_collie: bool, only: Option<Self>) -> (Self, u64) {
        let all: &[(Self, u64)] = if is_collie { &Self::COLLIE } else { &Self::OTHERS };
        let drawn = all.get(rng.index(all.len())).copied();
        let asked = only.map(|only| {
            let most = all
                .iter()
                .find(|(aim, _)| *aim == only)
                .map_or(1, |(_, most)| *most);
            (only, most)
        });
        let (aim, most) = asked.or(drawn).unwrap_or((Self::Any, 1));
        (aim, 1 + rng.below(most))
    }

    /// Stops the disk at the `nth` operation that it is aimed at.
    pub(crate) fn trap(self, nth: u64, rng: &mut Rng) -> Trap {
        let moment = if rng.coin() { Moment::Before } else { Moment::After };
        Trap::new(nth, moment, move |asked| self.concerns(asked))
    }

    fn concerns(self, asked: &Asked) -> bool {
        let is = |place| places_of(asked).contains(&place);
        match self {
            Self::Any | Self::Moment | Self::Recovery => true,
            Self::Flush => is(FLUSH),
            Self::Compaction => is(COMPACTION),
            Self::Table => is(TABLE),
            Self::Version => is(VERSION),
            Self::Manifest => is(MANIFEST),
            Self::Log => is(LOG),
            Self::Recycling => is(RECYCLING),
            Self::DirectorySync => is(DIRECTORY_SYNC),
            Self::Rename => is(RENAME),
            Self::Removal => is(REMOVAL),
        }
    }
}

pub(crate) const RECOVERY: &str = "recovery";
const FLUSH: &str = "flush";
const COMPACTION: &str = "compaction";
const TABLE: &str = "table";
const VERSION: &str = "version of tables";
const MANIFEST: &str = "manifest";
const LOG: &str = "log segment";
const RECYCLING: &str = "segment recycled";
const DIRECTORY_SYNC: &str = "directory sync";
const RENAME: &str = "renaming";
const REMOVAL: &str = "removal";
const SYNC: &str = "file sync";
const WRITE: &str = "write";
const NOWHERE: &str = "no operation";

/// Where a cut fell; most fall into several.
pub(crate) fn places(fell: &Fell, in_recovery: bool) -> Vec<&'static str> {
    let mut places = match &fell.at {
        Some((asked, _)) => places_of(asked),
        None => vec![NOWHERE],
    };
    places.extend(in_recovery.then_some(RECOVERY));
    places
}

fn places_of(asked: &Asked) -> Vec<&'static str> {
    let mut places = Vec::new();
    let name = asked.path.file_name().unwrap_or_default().to_string_lossy();
    let is_segment = |path: &Path| path.extension().is_some_and(|extension| extension == "seg");
    // The kernel knows the first fifteen bytes of a thread's name.
    if asked.thread.starts_with("collie-flush-") {
        places.push(FLUSH);
    } else if asked.thread.starts_with("collie-merge-") {
        places.push(COMPACTION);
    }
    if asked.path.components().any(|part| part.as_os_str() == "tables") {
        places.push(TABLE);
    } else if name == "current" || name.starts_with(".tmp") || is_version(&name) {
        places.push(VERSION);
    } else if name.starts_with("MANIFEST") {
        places.push(MANIFEST);
    } else if is_segment(&asked.path) {
        places.push(LOG);
        if matches!(asked.kind, OpKind::Rename | OpKind::RemoveFile) || &*asked.thread == "collie-prepare" {
            places.push(RECYCLING);
        }
    }
    places.extend(match asked.kind {
        OpKind::SyncDir => Some(DIRECTORY_SYNC),
        OpKind::Rename => Some(RENAME),
        OpKind::RemoveFile | OpKind::RemoveDir => Some(REMOVAL),
        OpKind::SyncData => Some(SYNC),
        OpKind::Write | OpKind::DirectWrite => Some(WRITE),
        _ => None,
    });
    places
}

/// Whether a file names the tables of one version: `v17`.
fn is_version(name: &str) -> bool {
    name.strip_prefix('v')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}
