//! Replay of a large commit, whose last frame was found.
//!
//! Its parts lie before that frame, possibly before the place from which the log is replayed; it is
//! retained for them until every family that the commit writes is flushed past it. So as long as one
//! of these needs the commit, all parts are there, and anything else is damage.

use std::collections::BTreeMap;
use std::sync::Arc;

use collie_log::{Frame, Log};

use crate::Result;
use crate::background::flush;
use crate::memtable::{At, Mem, UNPLACED};
use crate::recovery::replay::Replay;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::write::encoding::{KIND_PART, Last, Ops, Part};

/// Reads the parts of the commit that `frame` ends, and links it into the families that need it. All
/// commits before it are inserted. Returns how many bytes of operations were read.
pub(super) fn replay(store: &Store, log: &Log, replay: &Replay<'_>, frame: &Frame) -> Result<u64> {
    let last = Last::decode(&frame.payload)
        .map_err(|e| replay.corrupt(frame, e.offset as u64, e.expected, e.found))?;
    let mut mems: BTreeMap<u32, (Arc<FamilyState>, Mem)> = BTreeMap::new();
    for id in &last.families {
        if let Some(family) = replay.needed_by(frame, *id)? {
            let mem = store.new_commit_mem(family);
            mems.insert(*id, (Arc::clone(family), mem));
        }
    }
    if mems.is_empty() {
        return Ok(0);
    }
    // As when it was made, before it takes memory.
    for (family, _) in mems.values() {
        let (view, options) = (Arc::clone(&family.view()), family.options());
        if view.is_full_of_large(options) || view.buffers(options) >= options.max_write_buffers {
            flush::flush_sealed(store, family)?;
        }
    }
    if store.is_full_of_large() {
        let families = store.families();
        for family in families.iter().filter(|family| family.view().large_bytes() > 0) {
            flush::flush_sealed(store, family)?;
        }
    }
    let retained = store.retain_parts(last.first);
    for op in Ops::new(&read_parts(log, replay, frame, &last)?) {
        let op = op.map_err(|e| replay.corrupt(frame, 0, e.expected, in_operations(e.offset, &e.found)))?;
        if !last.families.contains(&op.family) {
            let found = format!("family {}", op.family);
            return Err(replay.corrupt(frame, 0, "an operation of a family that is announced", found));
        }
        if let Some((_, mem)) = mems.get(&op.family) {
            mem.load(op.key, UNPLACED, op.write);
        }
    }
    let at = At {
        start: frame.start,
        end: frame.end,
    };
    let families: Vec<_> = mems.values().map(|(family, _)| Arc::clone(family)).collect();
    retained.link(at.start, families);
    for (family, mem) in mems.into_values() {
        mem.sort(0, 1);
        family.link(at, mem, store.new_mem(at.end, &family));
        store.queue().flush(&family);
    }
    Ok(last.bytes)
}

/// The commit's operations.
fn read_parts(log: &Log, replay: &Replay<'_>, frame: &Frame, last: &Last) -> Result<Vec<u8>> {
    let mut payload = Vec::new();
    let mut parts = 0;
    for part in log.read(last.first)? {
        let part = part?;
        if part.start >= frame.start {
            break;
        }
        if part.kind != KIND_PART {
            continue;
        }
        let decoded = Part::decode(&part.payload)
            .map_err(|e| replay.corrupt(&part, e.offset as u64, e.expected, e.found))?;
        // Another large commit's parts may lie in between.
        if decoded.first.unwrap_or(part.start) == last.first {
            parts += 1;
            payload.extend_from_slice(decoded.piece);
        }
    }
    let found = (parts, payload.len() as u64);
    if found != (last.parts, last.bytes) {
        let expected = format!(
            "{} parts of {} bytes, from LSN {} on",
            last.parts, last.bytes, last.first
        );
        let found = format!("{} parts of {} bytes", found.0, found.1);
        return Err(replay.corrupt(frame, 0, &expected, found));
    }
    Ok(payload)
}

fn in_operations(offset: usize, found: &str) -> String {
    format!("{found}, {offset} bytes into the operations of all parts")
}
