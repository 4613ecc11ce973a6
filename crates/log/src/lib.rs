//! **A write-ahead log that any number of threads append to without a lock**, with one commit
//! order, group durability and exact recovery.
//!
//! * An append is one fetch-and-add and one copy into a ring; no thread waits for another while the
//!   ring has room. How far the log is complete is found by a scan of one word per worker
//!   (`lockfree/boundary.rs` has the proof).
//! * The first thread that waits for durability flushes for all that wait ([`Log::wait`]); futures
//!   are served by a background flusher ([`Log::wait_async`], [`Worker::append_async`]).
//! * The ring lives in shared memory, so what was appended survives the death of the process
//!   without a system call per append ([`Level::Process`]).
//! * Recovery decides by a table and never appends to an old tail; what was durable and is damaged
//!   is reported with its place, never skipped ([`LogError::Corrupt`]).
//! * A failed write or sync is final until the log is reopened ([`LogError::Poisoned`]); a full
//!   device is not ([`LogError::StorageFull`]).
//!
//! ```
//! use collie_log::{Level, Log, LogOptions};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("log");
//! let log = Log::open(&path, LogOptions::default())?;
//! let mut worker = log.worker()?; // One per thread.
//! let first = worker.append(0, 1, b"hello")?;
//! let second = worker.append(0, 1, b"world")?;
//! log.wait(second.end, Level::Disk)?; // One sync for both.
//!
//! let frames: Vec<_> = log.read(first.start)?.collect::<Result<_, _>>()?;
//! assert_eq!(frames[1].payload, b"world");
//!
//! // Frames as they become durable: resumable, and awaited as well as waited for.
//! let mut tail = log.tail("replica", second.start)?;
//! assert_eq!(tail.try_next()?.map(|frame| frame.payload), Some(b"world".to_vec()));
//! let follower = std::thread::spawn(move || tail.next()); // Blocks until there is one.
//! let third = worker.append(0, 1, b"again")?;
//! log.wait(third.end, Level::Disk)?;
//! let followed = follower.join().map_err(|_| "panicked")?.transpose()?;
//! assert_eq!(followed.map(|frame| frame.start), Some(third.start));
//! log.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Words
//!
//! An [`Lsn`] is a byte position in the frame stream. *appended*: reserved up to here. *boundary*:
//! complete without a hole up to here. *written*: in the segment files up to here. *durable*: on
//! the device up to here. durable ≤ written ≤ boundary ≤ appended, and each only grows.
//!
//! The algorithm is Border-Collie's (Kim et al., SIGMOD 2019), with the corrections that
//! `lockfree/boundary.rs` argues. The repository's `docs/design/formats/log.md` draws the formats. The
//! examples are a program with checkpoints (`examples/accounts.rs`) and one with tokio tasks
//! (`examples/async_appends.rs`).

// Loom builds the folder `lockfree` alone: `tests/loom.rs`.
#![cfg(not(loom))]

mod append;
mod core;
mod error;
mod flush;
mod format;
mod lockfree;
mod log;
mod options;
mod read;
mod recovery;
mod segments;
mod set;
mod stats;
#[doc(hidden)]
pub mod threads;

pub use {
    append::sequence::{Sequence, SequenceWorker},
    append::worker::Worker,
    error::{AppendError, Failure, LogError},
    flush::futures::{Durable, DurableChanges, NextDurable, RoomFor},
    format::{FRAME_HEADER, LogId},
    lockfree::Lsn,
    lockfree::limit::Room,
    log::Log,
    options::{
        Compression, FIRST_LSN, Level, LogOptions, NoteRing, OnLostRing, OnPoisoned, RecoveryMode, RingMode,
        WritePath,
    },
    read::follow,
    read::reader::Reader,
    read::tail::{NextFrame, Tail},
    recovery::{Damaged, Probe, RecoveryReport, RingOutcome, TornTail, Truncation},
    recovery::{inspect, rings},
    set::{LogSet, LogSetOptions},
    stats::{Compressed, LogStats, SAMPLE, Stages, Summary},
};

/// The code of README.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The place of a frame: `start` is its LSN, and watermarks are compared with `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Its first byte.
    pub start: Lsn,
    /// One past its last byte, padding included; the next frame's start.
    pub end: Lsn,
}

/// A frame as it is read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its LSN.
    pub start: Lsn,
    /// One past its last byte.
    pub end: Lsn,
    /// The stream that it was appended to.
    pub stream: u32,
    /// Its kind, as its appender gave it.
    pub kind: u8,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// A frame whose payload is the log's own memory: as recovery hands it out, [`Log::open_with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRef<'a> {
    /// Its LSN.
    pub start: Lsn,
    /// One past its last byte.
    pub end: Lsn,
    /// The stream that it was appended to.
    pub stream: u32,
    /// Its kind, as its appender gave it.
    pub kind: u8,
    /// What it carries, as it was appended.
    pub payload: &'a [u8],
}

impl FrameRef<'_> {
    /// A copy that owns its payload.
    #[must_use]
    pub fn to_frame(self) -> Frame {
        Frame {
            start: self.start,
            end: self.end,
            stream: self.stream,
            kind: self.kind,
            payload: self.payload.to_vec(),
        }
    }
}
