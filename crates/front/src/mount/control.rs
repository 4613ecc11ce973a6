//! The directory `.collie` of the mount: virtual, and not listed. Its files show the state of the
//! daemon and take commands, in every mount namespace that sees the mount, and without a socket
//! that could outlive the daemon.

use std::ffi::OsStr;
use std::fmt::Write;
use std::time::Duration;

use collie_io::{FileKind, Stat};
use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::marker::Afterwards;
use super::names::{NodeId, OWN, ROOT};
use crate::volume::{OWN as OWN_DIR, Volume, VolumeStatus};
use crate::{FrontError, Scope};

const DIR: NodeId = OWN;
/// `status`: the state as a JSON object.
const STATUS: NodeId = OWN + 1;
/// `metrics`: the same in the text format of Prometheus.
const METRICS: NodeId = OWN + 2;
/// `command`: takes one command with each write, which returns when it is done.
const COMMAND: NodeId = OWN + 3;

const FILES: [(&str, NodeId, u32); 3] = [
    ("status", STATUS, 0o400),
    ("metrics", METRICS, 0o400),
    ("command", COMMAND, 0o200),
];

/// The commands of a mount.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// The commands that are being done.
    under_way: Mutex<Vec<Command>>,
    /// What the directory is to be after the mount, by the last command that sets it.
    afterwards: Mutex<Afterwards>,
    /// How long syncs took, in microseconds; none before the first one.
    syncs: Mutex<Option<Histogram<u64>>>,
}

/// Syncs that took longer count as an hour.
const LONGEST: Duration = Duration::from_secs(3600);
const DIGITS: u8 = 2;

/// Syncs since the directory was mounted.
#[derive(Debug, Clone, Copy, Default)]
struct Syncs {
    count: u64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

impl Control {
    /// Records how long a sync took, from the request to the reply.
    pub(super) fn synced(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mut syncs = self.syncs.lock();
        if syncs.is_none() {
            // Made here since it may fail: then there are no figures.
            *syncs = Histogram::new_with_bounds(1, LONGEST.as_micros() as u64, DIGITS).ok();
        }
        if let Some(syncs) = &mut *syncs {
            syncs.saturating_record(us);
        }
    }

    /// What the directory is to be after the mount.
    pub(super) fn afterwards(&self) -> Afterwards {
        *self.afterwards.lock()
    }

    pub(super) fn set_afterwards(&self, afterwards: Afterwards) {
        *self.afterwards.lock() = afterwards;
    }

    /// The whole text of one of the files of its directory.
    pub(super) fn text(&self, volume: &Volume, id: NodeId) -> String {
        let status = volume.status();
        let figures = figures(&status, volume.page_bytes(), self.syncs());
        match id {
            STATUS => json(&figures, &status, &self.under_way.lock()),
            METRICS => prometheus(&figures, &status),
            _ => String::new(),
        }
    }

    /// Executes a command; returns when it is done.
    pub(super) fn run(&self, volume: &Volume, command: Command) -> Result<(), FrontError> {
        self.under_way.lock().push(command);
        match command {
            // Before an unmount: that of a directory that is used on.
            Command::Commit => self.set_afterwards(Afterwards::OfMount),
            Command::Drain => {}
            Command::Leave => self.set_afterwards(Afterwards::Plain),
        }
        let committed = volume
            .forget_removed()
            .and_then(|()| volume.commit_all(Scope::All));
        let drained = committed.and_then(|()| match command {
            Command::Commit => Ok(()),
            Command::Drain | Command::Leave => volume.drain(),
        });
        let done = drained.and_then(|()| volume.checkpoint());
        let mut under_way = self.under_way.lock();
        if let Some(at) = under_way.iter().position(|other| *other == command) {
            under_way.remove(at);
        }
        done
    }

    fn syncs(&self) -> Syncs {
        let syncs = self.syncs.lock();
        syncs.as_ref().map_or_else(Syncs::default, |syncs| Syncs {
            count: syncs.len(),
            p50_us: syncs.value_at_quantile(0.5),
            p99_us: syncs.value_at_quantile(0.99),
            max_us: syncs.max(),
        })
    }
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Make everything durable that was written, and write the map.
    Commit,
    /// Bring all displaced pages home.
    Drain,
    /// The same, and the directory is to be a plain one after the mount.
    Leave,
}

impl Command {
    pub(super) fn parse(text: &[u8]) -> Option<Command> {
        match text.trim_ascii() {
            b"commit" => Some(Command::Commit),
            b"drain" => Some(Command::Drain),
            b"leave" => Some(Command::Leave),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Command::Commit => "commit",
            Command::Drain => "drain",
            Command::Leave => "leave",
        }
    }
}

/// What the kernel finds under a name.
pub(super) fn find(parent: NodeId, name: &OsStr) -> Option<NodeId> {
    match parent {
        ROOT if name == OWN_DIR => Some(DIR),
        DIR => FILES
            .iter()
            .find(|(file, ..)| name == *file)
            .map(|(_, id, _)| *id),
        _ => None,
    }
}

/// Whether a node is of this directory.
pub(super) fn is_control(id: NodeId) -> bool {
    id >= OWN
}

/// Whether it takes commands.
pub(super) fn is_command(id: NodeId) -> bool {
    id == COMMAND
}

/// Attributes: those of the root, but for what it is and who may use it.
pub(super) fn attributes(id: NodeId, root: &Stat) -> Stat {
    let (kind, mode) = match FILES.iter().find(|(_, file, _)| *file == id) {
        Some((.., mode)) => (FileKind::File, *mode),
        None => (FileKind::Directory, 0o500),
    };
    Stat {
        ino: id,
        kind,
        mode,
        len: 0,
        blocks: 0,
        links: 1,
        ..*root
    }
}

/// The names in the directory.
pub(super) fn names() -> impl Iterator<Item = (&'static str, NodeId)> {
    FILES.iter().map(|(name, id, _)| (*name, *id))
}

/// A figure of the status: its name, what it is, and its value.
type Figure = (&'static str, &'static str, u64);

fn figures(status: &VolumeStatus, page_bytes: u32, syncs: Syncs) -> [Figure; 12] {
    [
        ("page_bytes", "Bytes of a page.", u64::from(page_bytes)),
        ("slots", "Pages of the shadow file.", u64::from(status.slots)),
        (
            "free_slots",
            "Pages of the shadow file that are free.",
            u64::from(status.free_slots),
        ),
        (
            "mapped_files",
            "Files with displaced pages.",
            status.mapped as u64,
        ),
        (
            "displaced_pages",
            "Committed pages that are in the shadow file.",
            status.displaced as u64,
        ),
        (
            "dirty_pages",
            "Pages that were written and not yet committed.",
            status.dirty as u64,
        ),
        (
            "removed_files",
            "Removed files whose slots are not given back yet.",
            status.removed as u64,
        ),
        (
            "log_bytes",
            "Bytes of the log since the map was written.",
            status.log_bytes,
        ),
        ("fsyncs", "Syncs of files since the mount.", syncs.count),
        (
            "fsync_p50_us",
            "Microseconds that half of them took at most.",
            syncs.p50_us,
        ),
        (
            "fsync_p99_us",
            "Microseconds that 99 of 100 took at most.",
            syncs.p99_us,
        ),
        (
            "fsync_max_us",
            "Microseconds that the longest took.",
            syncs.max_us,
        ),
    ]
}

fn json(figures: &[Figure], status: &VolumeStatus, under_way: &[Command]) -> String {
    let mut text = format!("{{\"pid\":{}", std::process::id());
    for (name, _, value) in figures {
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, ",\"{name}\":{value}");
    }
    let commands: Vec<String> = under_way
        .iter()
        .map(|command| format!("\"{}\"", command.name()))
        .collect();
    let _ = write!(text, ",\"under_way\":[{}]", commands.join(","));
    match &status.poisoned {
        None => text.push_str(",\"failure\":null"),
        Some(failure) => {
            let _ = write!(text, ",\"failure\":{}", quoted(failure));
        }
    }
    text.push_str("}\n");
    text
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(char);
            }
            char if char.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(char));
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

fn prometheus(figures: &[Figure], status: &VolumeStatus) -> String {
    let mut text = String::new();
    for (name, help, value) in figures {
        let _ = write!(
            text,
            "# HELP collie_front_{name} {help}\n# TYPE collie_front_{name} gauge\ncollie_front_{name} {value}\n"
        );
    }
    let failed = u8::from(status.poisoned.is_some());
    let _ = write!(
        text,
        "# HELP collie_front_failed Whether a failed write or sync has ended all writes.\n\
         # TYPE collie_front_failed gauge\ncollie_front_failed {failed}\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_words_on_a_line() {
        assert_eq!(Command::parse(b"drain\n"), Some(Command::Drain));
        assert_eq!(Command::parse(b" commit "), Some(Command::Commit));
        assert_eq!(Command::parse(b"leave"), Some(Command::Leave));
        assert_eq!(Command::parse(b"drain now"), None);
        assert_eq!(Command::parse(b""), None);
    }

    #[test]
    fn strings_are_quoted() {
        assert_eq!(quoted("a\"b\\\n"), "\"a\\\"b\\\\\\u000a\"");
    }
}
