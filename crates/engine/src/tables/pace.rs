//! Tables reach the device in pieces while they are written.
//!
//! The table library writes to the page cache and syncs a table when it is complete: up to 64 MiB
//! at once, behind which a commit's sync waits (1.4 s at 60 MB/s). So whenever a flush or a merge
//! has gone over another [`PIECE`], what it has in the page cache is written out, in pieces that
//! begin when the [`Scheduler`] lets them, and the library's own sync finds little to do.
//!
//! The library does not show its files. They are found by the numbers that it gives out. A flush
//! and a merge of one family may each write out what the other one wrote, which harms neither.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use collie_io::{Device, File, OpenMode, Policy, RealDevice, Scheduler};
use lsm_tree::SequenceNumberCounter;

/// How much goes to the device at a time, in bytes: what a commit may have to wait for.
const PIECE: u64 = 512 << 10;

/// How much of a file may be in the device's queue where writers are about to be delayed, in bytes.
const QUEUED: u64 = 4 * PIECE;

/// What the flushes and merges of a family share.
pub(super) struct Pace {
    scheduler: Arc<Scheduler>,
    /// Where the files are.
    dir: PathBuf,
    /// Gives the files their numbers.
    numbers: OnceLock<SequenceNumberCounter>,
    /// Writers are about to be delayed until there is room in memory or in level 0.
    urgent: AtomicBool,
}

impl Pace {
    pub(super) fn new(scheduler: Arc<Scheduler>, dir: PathBuf) -> Self {
        Self {
            scheduler,
            dir,
            numbers: OnceLock::new(),
            urgent: AtomicBool::new(false),
        }
    }

    /// The tree is open.
    pub(super) fn number_by(&self, numbers: SequenceNumberCounter) {
        // It is opened once.
        let _ = self.numbers.set(numbers);
    }

    pub(super) fn set_urgent(&self, urgent: bool) {
        // Relaxed here and where it is read: no other data depends on it, and a piece late or early
        // is no harm.
        self.urgent.store(urgent, Ordering::Relaxed);
    }

    fn next(&self) -> u64 {
        self.numbers.get().map_or(0, SequenceNumberCounter::get)
    }

    /// For a flush or a merge that has no file yet.
    pub(super) fn pieces(self: &Arc<Self>) -> Pieces {
        Pieces {
            pace: Arc::clone(self),
            from: self.next(),
            growing: Vec::new(),
            passed: 0,
        }
    }
}

/// The files of one flush or merge.
pub(super) struct Pieces {
    pace: Arc<Pace>,
    /// The first number whose file was not looked for yet.
    from: u64,
    growing: Vec<Growing>,
    /// Bytes of entries since files were last written out.
    passed: u64,
}

struct Growing {
    file: Arc<dyn File>,
    number: u64,
    /// What is being written out, or is, ends here.
    begun: u64,
    /// What is written out ends here.
    done: u64,
}

impl Pieces {
    /// An entry of so many bytes is written to a table. May wait for the device.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.passed += bytes as u64;
        if self.passed >= PIECE && self.pace.scheduler.policy() != Policy::None {
            self.passed = 0;
            self.write_out();
        }
    }

    fn write_out(&mut self) {
        let next = self.pace.next();
        for number in self.from..next {
            let path = self.pace.dir.join(number.to_string());
            // One that is not there, or cannot be opened for want of descriptors, is written out by
            // the library's sync.
            if let Ok(file) = RealDevice::new().open(&path, OpenMode::Read) {
                self.growing.push(Growing {
                    file,
                    number,
                    begun: 0,
                    done: 0,
                });
            }
        }
        self.from = next;
        let pace = &self.pace;
        self.growing
            .retain_mut(|growing| growing.write_out(pace) || growing.number + 1 == next);
    }
}

impl Growing {
    /// Returns whether more may come.
    fn write_out(&mut self, pace: &Pace) -> bool {
        let Ok(stat) = self.file.stat() else {
            return false;
        };
        let grew = stat.len > self.begun;
        while self.begun < stat.len {
            // A failure of the device is reported again, by the sync of the library's own
            // descriptor; nothing relies on this one.
            if self.piece((stat.len - self.begun).min(PIECE), pace).is_err() {
                return false;
            }
        }
        grew
    }

    /// Writes out `len` bytes more.
    fn piece(&mut self, len: u64, pace: &Pace) -> io::Result<()> {
        let to = self.begun + len;
        // Relaxed: see `Pace::set_urgent`.
        let known_done = if pace.urgent.load(Ordering::Relaxed) {
            // The device is kept busy, and its queue short.
            self.file.sync_range(self.begun, len)?;
            to.saturating_sub(QUEUED).max(self.done)
        } else {
            to
        };
        if self.done < known_done {
            let _turn = (known_done == to).then(|| pace.scheduler.background());
            self.file.write_out(self.done, known_done - self.done)?;
        }
        (self.begun, self.done) = (to, known_done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extend(dir: &std::path::Path, number: u64, len: u64) {
        let device = RealDevice::new();
        let file = device.open(&dir.join(number.to_string()), OpenMode::OpenOrCreate);
        file.unwrap().set_len(len).unwrap();
    }

    fn ends(pieces: &Pieces) -> Vec<(u64, u64, u64)> {
        let of = |growing: &Growing| (growing.number, growing.done, growing.begun);
        pieces.growing.iter().map(of).collect()
    }

    #[test]
    fn what_has_grown_is_written_out_and_files_are_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let scheduler = Arc::new(Scheduler::new(Policy::Classes));
        let pace = Arc::new(Pace::new(Arc::clone(&scheduler), dir.path().into()));
        let numbers = SequenceNumberCounter::new(7);
        pace.number_by(numbers.clone());
        let mut pieces = pace.pieces();
        assert_eq!(numbers.next(), 7);
        extend(dir.path(), 7, PIECE * 3 + 10);
        pieces.pass(PIECE as usize - 1);
        assert_eq!(ends(&pieces), [], "not a whole piece yet");
        pieces.pass(1);
        let end = PIECE * 3 + 10;
        assert_eq!(ends(&pieces), [(7, end, end)]);
        assert_eq!(scheduler.begun().background, 4);
        // Another flush's, one that is not there, and the next one of this merge.
        extend(dir.path(), 8, 5);
        extend(dir.path(), 10, 6);
        let _ = (numbers.next(), numbers.next(), numbers.next());
        extend(dir.path(), 7, end + 1);
        pieces.pass(PIECE as usize);
        assert_eq!(ends(&pieces), [(7, end + 1, end + 1), (8, 5, 5), (10, 6, 6)]);
        pieces.pass(PIECE as usize);
        assert_eq!(ends(&pieces), [(10, 6, 6)], "the newest may still grow");
    }

    #[test]
    fn an_urgent_piece_waits_for_no_turn_and_leaves_a_short_queue() {
        let dir = tempfile::tempdir().unwrap();
        let scheduler = Arc::new(Scheduler::new(Policy::Fair));
        let pace = Arc::new(Pace::new(Arc::clone(&scheduler), dir.path().into()));
        let numbers = SequenceNumberCounter::new(0);
        pace.number_by(numbers.clone());
        let mut pieces = pace.pieces();
        let _ = numbers.next();
        pace.set_urgent(true);
        {
            // It would be waited for.
            let _other = scheduler.background();
            for (grown, done) in [(1, 0), (QUEUED / PIECE, 0), (QUEUED / PIECE + 2, 2)] {
                extend(dir.path(), 0, grown * PIECE);
                pieces.pass(PIECE as usize);
                assert_eq!(ends(&pieces), [(0, done * PIECE, grown * PIECE)]);
            }
        }
        pace.set_urgent(false);
        extend(dir.path(), 0, 20 * PIECE);
        pieces.pass(PIECE as usize);
        assert_eq!(ends(&pieces), [(0, 20 * PIECE, 20 * PIECE)]);
    }
}
