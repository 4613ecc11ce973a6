//! The lock-free core under loom: every model runs the shipped code of `boundary`, `limit`, `group`
//! and `sync` through all interleavings, and all values that its orderings let a load return,
//! within a bound.
//!
//! Two threads are explored completely, three up to a number of preemptions. `scripts/models loom`
//! runs them and shows how many schedules each took. What loom cannot see: it treats SeqCst as
//! AcqRel, never lets a load take a value that is stored later, and wakes sleepers in the order in
//! which they came.

mod admission;
mod applied;
mod boundary;
mod group;
pub(crate) mod steps;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::cell::UnsafeCell;

use crate::Lsn;
use crate::lockfree::boundary::{CompletionBoundary, Reservations, SlotId};

/// Explores every schedule; for models of two threads.
const COMPLETE: Option<usize> = None;
/// Explores the schedules with up to three preemptions, or `LOOM_MAX_PREEMPTIONS` of them.
const THREE: Option<usize> = Some(3);
/// Explores the schedules with up to two preemptions, where three take too long, or
/// `LOOM_MAX_PREEMPTIONS` of them.
const TWO: Option<usize> = Some(2);

/// Every modelled frame has this many bytes.
const FRAME: u64 = 8;

/// As [`explore`], with every order of the core's steps: for what loom's own choice of orders
/// leaves out.
fn explore_every_order(name: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    steps::try_every_order(true);
    explore(name, preemptions, model);
    steps::try_every_order(false);
}

/// Runs a model through its schedules and prints how many there were.
fn explore(name: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let schedules = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&schedules);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.map(|bound| builder.preemption_bound.unwrap_or(bound));
    let bound = match builder.preemption_bound {
        Some(bound) => format!("up to {bound} preemptions"),
        None => "complete".to_owned(),
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a model takes is shown, and asserted nowhere"
    )]
    let start = std::time::Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!(
        "model {name}: {} schedules, {bound}, {:.1} s",
        schedules.load(Ordering::Relaxed),
        start.elapsed().as_secs_f64()
    );
}

/// Bytes that loom watches: reading them without having seen their writing is an error, and so is
/// writing them while another thread may read.
struct Bytes(Vec<UnsafeCell<Lsn>>);

#[expect(unsafe_code, reason = "shared bytes, watched by loom")]
// SAFETY: every access goes through loom's cells, which fail the model where two of them race.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Room for `frames` frames; a ring if more are written.
    fn new(frames: usize) -> Self {
        Self((0..frames).map(|_| UnsafeCell::new(u64::MAX)).collect())
    }

    fn cell(&self, lsn: Lsn) -> &UnsafeCell<Lsn> {
        &self.0[(lsn / FRAME) as usize % self.0.len()]
    }

    /// Writes the frame at `lsn`.
    fn write(&self, lsn: Lsn) {
        #[expect(unsafe_code, reason = "shared bytes, watched by loom")]
        // SAFETY: loom checks that no other thread accesses the cell.
        self.cell(lsn).with_mut(|bytes| unsafe { *bytes = lsn });
    }

    /// Demands that the frame at `lsn` is complete.
    fn check(&self, lsn: Lsn) {
        #[expect(unsafe_code, reason = "shared bytes, watched by loom")]
        // SAFETY: loom checks that no thread writes to the cell.
        let found = self.cell(lsn).with(|bytes| unsafe { *bytes });
        assert_eq!(found, lsn, "a hole below the boundary");
    }

    /// Demands that all frames in `[from, to)` are complete.
    fn check_all(&self, from: Lsn, to: Lsn) {
        (from..to).step_by(FRAME as usize).for_each(|lsn| self.check(lsn));
    }
}

/// The boundary, the counter and the bytes of a log that never fills its ring.
struct Model {
    completion: CompletionBoundary,
    next: Reservations,
    bytes: Bytes,
}

impl Model {
    fn new(workers: usize, frames: usize) -> Arc<Self> {
        Arc::new(Self {
            completion: CompletionBoundary::new(workers, 0),
            next: Reservations::new(0),
            bytes: Bytes::new(frames),
        })
    }

    fn register(&self) -> SlotId {
        self.completion.register().unwrap()
    }

    /// An append as a worker does it, as long as the ring has room. Returns the frame's end.
    fn append(&self, slot: &SlotId) -> Lsn {
        let start = self.completion.reserve(slot, &self.next, FRAME, |_| ());
        self.bytes.write(start);
        self.completion.set_complete(slot, start + FRAME);
        start + FRAME
    }

    /// A filler as a leader places it: exactly at the boundary, or not at all. Returns its end.
    fn pad(&self, slot: &SlotId) -> Option<Lsn> {
        let at = self.boundary();
        let placed = self.completion.try_reserve_at(slot, &self.next, at, FRAME);
        placed.then(|| {
            self.bytes.write(at);
            self.completion.complete_at_boundary(slot, at + FRAME);
            at + FRAME
        })
    }

    fn append_some(&self, frames: usize, slot: &SlotId) {
        for _ in 0..frames {
            self.append(slot);
        }
    }

    fn boundary(&self) -> Lsn {
        self.completion.scan(|| self.next.cutoff())
    }

    /// Scans, and checks everything below the boundary.
    fn check(&self) -> Lsn {
        let boundary = self.boundary();
        self.bytes.check_all(0, boundary);
        boundary
    }
}
