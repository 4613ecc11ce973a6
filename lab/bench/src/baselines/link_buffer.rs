//! MySQL 8's redo log: a place is reserved by fetch-and-add, the copy is made without a lock, and a
//! link from its start to its end is left in `recent_written`; the writer follows the links.
//!
//! (`log0buf.cc`, `ut0link_buf.h`.) A frame whose link would fall outside the link buffer waits
//! until the tail has come closer, as there.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Insertion;
use crate::error::BenchError;

/// How many links fit: MySQL's innodb_log_recent_written_size. Frames start at multiples of 8, so
/// that one link serves 8 bytes of log.
const LINKS: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct LinkBuffer {
    next: Next,
    /// At a frame's start its length, until the tail has passed it; 0: not copied yet.
    links: Box<[AtomicU64]>,
    /// Everything below is copied. Advanced by the group's leader only.
    tail: Next,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Next(AtomicU64);

impl Default for LinkBuffer {
    fn default() -> Self {
        Self {
            next: Next::default(),
            links: (0..LINKS).map(|_| AtomicU64::new(0)).collect(),
            tail: Next::default(),
        }
    }
}

impl LinkBuffer {
    fn link(&self, lsn: u64) -> Option<&AtomicU64> {
        self.links.get((lsn / 8) as usize % LINKS)
    }
}

impl Insertion for LinkBuffer {
    const NAME: &'static str = "link-buffer";
    type Hint = ();

    fn insert(
        &self,
        (): &mut (),
        len: u64,
        fill: impl FnOnce(u64) -> Result<(), BenchError>,
    ) -> Result<u64, BenchError> {
        // AcqRel, as MySQL's default: nothing here depends on more than the atomicity.
        let start = self.next.0.fetch_add(len, Ordering::AcqRel);
        fill(start)?;
        if let Some(link) = self.link(start) {
            // Release pairs with the Acquire in `boundary`: the leader sees the copy.
            link.store(len, Ordering::Release);
        }
        Ok(start + len)
    }

    fn appended(&self) -> u64 {
        self.next.0.load(Ordering::Acquire)
    }

    fn boundary(&self) -> u64 {
        // Relaxed: leaders follow one another under the group's lock.
        let mut tail = self.tail.0.load(Ordering::Relaxed);
        while let Some(link) = self.link(tail) {
            let len = link.load(Ordering::Acquire);
            if len == 0 {
                break;
            }
            // Relaxed: the next user of the link waits until it has seen the tail pass.
            link.store(0, Ordering::Relaxed);
            tail += len;
        }
        // Release pairs with the Acquire in `has_room`: the links below are free again.
        self.tail.0.store(tail, Ordering::Release);
        tail
    }

    fn has_room(&self, end: u64) -> bool {
        end <= self.tail.0.load(Ordering::Acquire) + self.reach()
    }

    fn reach(&self) -> u64 {
        8 * LINKS as u64
    }
}
