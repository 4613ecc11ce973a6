//! What a program that uses a log does, and how such programs are made up.

use std::sync::Arc;
use std::time::Duration;

use collie_io::{BLOCK, Device};
use collie_log::{Level, LogOptions, RingMode, WritePath};

use crate::images::as_index;
use collie_sim::SimDevice;

use collie_sim::FaultKind;
use collie_sim::Rng;
use collie_sim::VOLATILE_DIR;

/// How a program's log writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// To the page cache, and then a sync.
    Syncs,
    /// Past the page cache, up to three at once.
    Direct,
    /// As users have it who say nothing: the log tries both ways on the device and takes the faster
    /// one.
    Found {
        /// Writes past the page cache are slow there.
        slow_direct: bool,
    },
}

/// The options of a program's log that matter for crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Whether the ring is shared memory.
    pub shared: bool,
    /// Its size in bytes.
    pub ring_bytes: usize,
    /// The size of a segment in bytes.
    pub segment_bytes: u64,
    /// Whether writes bypass the page cache, or who says so.
    pub writes: Writes,
    /// The largest payload appended, in bytes.
    pub payload_max: usize,
    /// Whether write groups end with a block, [`LogOptions::pad_to_block`].
    pub pad: bool,
    /// Whether the last two released segments are archived.
    pub archive: bool,
}

impl Setup {
    /// Small sizes, so that a short program goes around the ring and into further segments.
    #[must_use]
    pub fn small(shared: bool, direct: bool) -> Self {
        Self {
            shared,
            ring_bytes: 8 << 10,
            segment_bytes: 32 << 10,
            writes: if direct { Writes::Direct } else { Writes::Syncs },
            payload_max: 2_000,
            pad: false,
            archive: false,
        }
    }

    /// The same with write groups that end with a block, in a ring that has room for that.
    #[must_use]
    pub fn padded(self) -> Self {
        Self {
            pad: true,
            ring_bytes: self.ring_bytes.max(16 << 10),
            ..self
        }
    }

    fn random(rng: &mut Rng) -> Self {
        let pad = rng.one_in(3);
        let setup = Self {
            shared: !rng.one_in(3),
            ring_bytes: (8 << 10) << rng.below(4),
            // The smallest as often as all others, so that segments are filled and used again.
            segment_bytes: (32 << 10) + (4 << 10) * rng.below(9) * rng.below(2),
            writes: match rng.below(8) {
                0..3 => Writes::Direct,
                3..6 => Writes::Syncs,
                n => Writes::Found { slow_direct: n == 7 },
            },
            payload_max: 1 << (6 + rng.below(7)),
            pad,
            archive: rng.one_in(3),
        };
        if pad { setup.padded() } else { setup }
    }

    /// Whether the log measures how to write.
    pub(crate) fn finds_out(&self) -> bool {
        matches!(self.writes, Writes::Found { .. })
    }

    /// A random length of a payload that the log takes.
    pub(crate) fn payload_len(&self, rng: &mut Rng) -> usize {
        let block = if self.pad { BLOCK } else { 0 };
        let largest = self.ring_bytes / 2 - block - collie_log::FRAME_HEADER;
        // Now and then as large as it can be.
        if rng.one_in(12) {
            return largest.min(as_index(self.segment_bytes / 3));
        }
        (24 + rng.index(self.payload_max)).min(largest)
    }

    /// Options for a log on `device`, whose direct writes become as slow as the setup says.
    #[must_use]
    pub fn options(&self, device: &SimDevice, threads: bool) -> LogOptions {
        let slow = self.writes == Writes::Found { slow_direct: true };
        device.slow_direct_writes(if slow { 1_000 } else { 0 });
        LogOptions {
            device: Arc::new(device.clone()) as Arc<dyn Device>,
            ring: match self.shared {
                true => RingMode::Shared {
                    dir: VOLATILE_DIR.into(),
                },
                false => RingMode::Private,
            },
            ring_bytes: self.ring_bytes,
            segment_bytes: self.segment_bytes,
            max_workers: 8,
            write_path: match self.writes {
                Writes::Syncs => WritePath::FdataSync,
                Writes::Direct => WritePath::Direct,
                Writes::Found { .. } => WritePath::Auto,
            },
            pad_to_block: self.pad,
            archive_bytes: if self.archive { 2 * self.segment_bytes } else { 0 },
            flush_interval: Duration::from_millis(1),
            threads,
            ..LogOptions::default()
        }
    }
}

/// One thing that a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Appends a frame with a payload of so many bytes, and waits for it at the level, if any.
    Append(usize, Option<Level>),
    /// Flushes everything.
    Flush(Level),
    /// One worker reserves and is overtaken by another one that appends and is acknowledged; a
    /// process that dies there leaves a hole.
    Hole,
    /// Gives up everything that is durable so far, so that segments are released.
    Release,
    /// Closes the log and opens it again.
    Reopen,
    /// The process dies, and a new one goes on with what it finds.
    Die,
    /// The power goes, and a new process goes on with what it finds.
    PowerCut,
    /// The device fails in this way once, at some later operation.
    Fault(FaultKind),
    /// The disk has no more room than this many bytes.
    Full(u64),
    /// The disk has room again.
    Room,
}

/// A program and the log that it runs on.
#[derive(Debug, Clone)]
pub struct Program {
    /// The log's options.
    pub setup: Setup,
    /// What it does, in order; on several threads each does all of it.
    pub steps: Vec<Step>,
    /// The number of threads.
    pub threads: usize,
}

impl Program {
    /// A random program.
    #[must_use]
    pub fn random(seed: u64, threaded: bool) -> Self {
        let mut rng = Rng::new(seed);
        let setup = Setup::random(&mut rng);
        let len = 2 + rng.index(50);
        let faulty = rng.one_in(3);
        let mut steps: Vec<Step> = Vec::new();
        for _ in 0..len {
            steps.push(if threaded {
                threaded_step(&mut rng, &setup)
            } else {
                lone_step(&mut rng, &setup, faulty)
            });
        }
        let threads = if threaded { 2 + rng.index(3) } else { 1 };
        Self {
            setup,
            steps,
            threads,
        }
    }

    /// Every program of one up to `steps` of the steps that matter, on each of sixteen set-ups.
    #[must_use]
    pub fn all(steps: u32) -> Vec<Self> {
        const ALPHABET: [Step; 9] = [
            Step::Append(100, Some(Level::Disk)),
            Step::Append(3_000, Some(Level::Disk)),
            Step::Append(700, Some(Level::Process)),
            Step::Append(50, None),
            Step::Flush(Level::Disk),
            Step::Hole,
            Step::Reopen,
            Step::Die,
            Step::PowerCut,
        ];
        let mut programs = Vec::new();
        for len in 1..=steps {
            for number in 0..ALPHABET.len().pow(len) {
                let mut rest = number;
                let steps = (0..len).filter_map(|_| {
                    let step = ALPHABET.get(rest % ALPHABET.len()).copied();
                    rest /= ALPHABET.len();
                    step
                });
                let mut setup = Setup::small(!number.is_multiple_of(3), number % 2 == 0);
                if number % 7 == 6 {
                    let slow_direct = setup.writes == Writes::Syncs;
                    setup.writes = Writes::Found { slow_direct };
                }
                programs.push(Self {
                    // All set-ups come up in turn, whatever the number of steps.
                    setup: if number % 5 == 4 { setup.padded() } else { setup },
                    steps: steps.collect(),
                    threads: 1,
                });
            }
        }
        programs
    }
}

fn lone_step(rng: &mut Rng, setup: &Setup, faulty: bool) -> Step {
    match rng.below(20) {
        0..2 if faulty => some_fault(rng),
        0..12 => Step::Append(setup.payload_len(rng), some_level(rng)),
        12 | 13 => Step::Flush(if rng.coin() { Level::Disk } else { Level::Process }),
        14 => Step::Hole,
        15 => Step::Release,
        16 => match rng.below(3) {
            0 => Step::Reopen,
            1 => Step::Die,
            _ => Step::PowerCut,
        },
        17 if faulty => some_fault(rng),
        18 if faulty => Step::Full(rng.below(100_000)),
        19 if faulty => Step::Room,
        _ => Step::Append(setup.payload_len(rng), Some(Level::Disk)),
    }
}

fn some_fault(rng: &mut Rng) -> Step {
    const FAULTS: [FaultKind; 10] = [
        FaultKind::SyncFails,
        FaultKind::WriteFails,
        FaultKind::ReadFails,
        FaultKind::AnyFails,
        FaultKind::Interrupted,
        FaultKind::ShortRead,
        FaultKind::ShortWrite,
        FaultKind::NoSpace,
        FaultKind::StaleSector,
        FaultKind::MisdirectedSector,
    ];
    Step::Fault(
        FAULTS
            .get(rng.index(FAULTS.len()))
            .copied()
            .unwrap_or(FaultKind::AnyFails),
    )
}

fn threaded_step(rng: &mut Rng, setup: &Setup) -> Step {
    match rng.below(10) {
        0 => Step::Flush(Level::Disk),
        1 => Step::Release,
        _ => Step::Append(setup.payload_len(rng), some_level(rng)),
    }
}

fn some_level(rng: &mut Rng) -> Option<Level> {
    match rng.below(5) {
        0 => None,
        1 | 2 => Some(Level::Process),
        _ => Some(Level::Disk),
    }
}
