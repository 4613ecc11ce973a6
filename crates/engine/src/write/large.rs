//! A commit that is larger than a frame of the log can be.
//!
//! Its operations go to the log in parts, which count only with the last frame, and at the same time
//! into memtables that no view has yet, one for each family. The last frame's LSN is the commit's
//! position: when it has that, the memtables are linked into the families' views. So other writers
//! wait for the link alone, whatever the commit's size, and recovery finds all of it or nothing.
//!
//! A quarter of the ring is written between two waits for the device: the rest is for others.

use std::sync::Arc;

use collie_log::{FRAME_HEADER, Level, Lsn, Room};

use crate::memtable::{At, Mem, UNPLACED};
use crate::store::Store;
use crate::store::family::{FamilyState, ViewLink};
use crate::store::wal::RetainedParts;
use crate::write::appenders::Record;
use crate::write::encoding::{KIND_LAST, KIND_PART, KIND_UNLOGGED, Last, PART_HEAD, Part};
use crate::write::pipeline::HeldAppender;
use crate::{Batch, Error, Result};

/// The largest part, in bytes of its frame.
const PART_MOST: usize = 512 << 10;

/// A commit whose parts are in the log and whose memtables are filled. Dropping it leaves
/// parts that never count.
pub(crate) struct Prepared<'a> {
    store: &'a Store,
    /// In the order of the families' ids.
    mems: Vec<(Arc<FamilyState>, Mem)>,
    room: Room,
    /// `None` where the commit is kept out of the log.
    logged: Option<Logged<'a>>,
}

/// The part of a commit that is in the log.
struct Logged<'a> {
    retained: RetainedParts<'a>,
    /// The payload of the last frame.
    last: Vec<u8>,
}

impl<'a> Prepared<'a> {
    /// Appends the parts and fills the memtables. On an error nothing of it counts.
    pub(crate) fn new(store: &'a Store, batch: &Batch, unlogged: bool) -> Result<Self> {
        let has_log = !unlogged && store.sequencer().durable().is_some();
        let (mems, logged) = std::thread::scope(|scope| {
            let filling = std::thread::Builder::new()
                .name("collie-large".into())
                .spawn_scoped(scope, || fill(store, batch, !has_log))
                .map_err(|e| Error::io("start the thread", "collie-large", e))?;
            let logged = has_log.then(|| append_parts(store, batch)).transpose();
            let mems = filling.join().map_err(|_| Error::Background {
                cause: "a thread that filled the memtables of a large commit panicked".into(),
            })?;
            Ok::<_, Error>((mems, logged?))
        })?;
        Ok(Self {
            store,
            mems,
            room: batch.room(),
            logged,
        })
    }

    /// The last frame says so many more of both.
    #[cfg(test)]
    pub(crate) fn claim_more(&mut self, parts: u64, bytes: u64) {
        if let Some(logged) = &mut self.logged
            && let Ok(mut last) = Last::decode(&logged.last)
        {
            last.parts += parts;
            last.bytes += bytes;
            logged.last = last.encode();
        }
    }

    /// Appends the last frame and links the memtables. On return the commit is applied; it is
    /// visible when every earlier one is.
    pub(crate) fn finish(self, appender: HeldAppender<'_>) -> Result<At> {
        let Self {
            store,
            mems,
            room,
            logged,
        } = self;
        let families: Vec<_> = mems.iter().map(|(family, _)| Arc::clone(family)).collect();
        let (retained, last) = logged.map(|logged| (logged.retained, logged.last)).unzip();
        let (kind, record) = match &last {
            Some(last) => (KIND_LAST, Record::Encoded(last)),
            None => (KIND_UNLOGGED, Record::Empty),
        };
        // A commit of one of the families that comes behind this one waits until the links are
        // dropped. The appender was taken before, as it may be the last one.
        let links: Vec<ViewLink<'_>> = families.iter().map(|family| family.begin_link()).collect();
        reach!("links have begun");
        let committed = appender.commit(kind, record, room, |at| {
            if let Some(retained) = retained {
                retained.link(at.start, families.clone());
            }
            for (link, (family, mem)) in links.iter().zip(mems) {
                link.publish(at, mem, store.new_mem(at.end, &family));
            }
        });
        drop(links);
        let at = committed?;
        for family in &families {
            store.queue().flush(family);
            store.update_stall(family);
        }
        // A family that was dropped meanwhile keeps nothing back.
        store.release_parts();
        Ok(at)
    }
}

/// A memtable for each family, sorted, with its writes.
fn fill(store: &Store, batch: &Batch, unlogged: bool) -> Vec<(Arc<FamilyState>, Mem)> {
    let filled = batch.ops_by_family().map(|(family, ops)| {
        let mem = store.new_commit_mem(family);
        for op in ops {
            mem.load(op.key, UNPLACED, op.write);
        }
        mem.sort(0, 1);
        if unlogged {
            mem.note_unlogged();
        }
        (Arc::clone(family), mem)
    });
    let mut mems: Vec<_> = filled.collect();
    mems.sort_by_key(|(family, _)| family.id());
    mems
}

/// Appends all parts.
fn append_parts<'a>(store: &'a Store, batch: &Batch) -> Result<Logged<'a>> {
    let window = store.options().ring_bytes / 4;
    let largest = PART_MOST.min(window).min(store.max_frame_bytes());
    let pieces = batch.payload().chunks(largest - FRAME_HEADER - PART_HEAD);
    let mut last = Last {
        first: Lsn::MAX,
        parts: pieces.len() as u64,
        bytes: batch.payload().len() as u64,
        families: batch.families().iter().map(|family| family.id()).collect(),
    };
    let last_bytes = last.encode().len();
    if last_bytes > store.max_frame_bytes() {
        let reason = format!(
            "a commit over {} families ends with a frame of {last_bytes} bytes, and with this ring a frame \
             has at most {}",
            last.families.len(),
            store.max_frame_bytes()
        );
        return Err(Error::invalid_option(
            "ring_bytes",
            store.options().ring_bytes,
            &reason,
        ));
    }
    let retained = store.retain_parts(store.sequencer().appended());
    let mut payload = Vec::with_capacity(largest);
    let (mut first, mut awaited) = (None, 0);
    for piece in pieces {
        payload.clear();
        Part { first, piece }.encode(&mut payload);
        // `None` would ask for row locks, which a part needs none of.
        let appender = store.appender(true)?.ok_or(Error::Closed)?;
        let at = appender.commit(KIND_PART, Record::Encoded(&payload), batch.room(), |_| ())?;
        store.check_wal_size(at.end);
        if first.is_none() {
            (first, awaited) = (Some(at.start), at.start);
        }
        if at.end - awaited >= window as u64 {
            store.sequencer().wait(at.end, Level::Disk)?;
            awaited = at.end;
        }
    }
    reach!("parts are appended");
    last.first = first.unwrap_or(Lsn::MAX);
    Ok(Logged {
        retained,
        last: last.encode(),
    })
}
