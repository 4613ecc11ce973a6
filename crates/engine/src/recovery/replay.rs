//! Replay: inserts into the memtables what the log has and the tables lack.
//!
//! One thread reads and checks frames, some pieces of the log ahead; others insert, each the pieces
//! that are sent to it. Inserting only stores a write with its LSN; the writes are sorted together
//! at the end, or when a memtable is flushed. Memtables are sealed between two pieces, when all
//! earlier inserts are done: a commit's writes to a family are in one memtable, and a sealed
//! memtable is complete.
//!
//! Parts of large commits are passed over. Where the last frame of one comes, its parts are read
//! again, and it is linked as it was when it was made (`write/large.rs`).
//!
//! Its parts lie before that frame, possibly before the place from which the log is replayed; it is
//! retained for them until every family that the commit writes is flushed past it. So as long as one
//! of these needs the commit, all parts are there, and anything else is damage.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use collie_log::{Frame, Log, Lsn, Reader};

use crate::background::flush;
use crate::events::FlushCause;
use crate::memtable::{At, Mem, UNPLACED};
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::wal::Replayed;
use crate::write::encoding::{KIND_COMMIT, KIND_LAST, KIND_PART, Last, Ops, Part};
use crate::{Error, Result};

/// Inserting threads, at most. More would wait for the reading thread.
const INSERTERS_MOST: usize = 4;
/// Pieces in the channel between two threads.
const PIECES_AHEAD: usize = 4;
/// The least and the largest size of a piece, in bytes of log. A memtable outgrows its buffer by a
/// piece at most.
const PIECE_LEAST: u64 = 4 << 10;
const PIECE_MOST: u64 = 256 << 10;

/// Commits that follow one another in the log; the last frame of a large one is alone.
type Piece = Vec<Frame>;

/// What the inserting threads share.
pub(super) struct Replay<'a> {
    families: &'a HashMap<u32, Arc<FamilyState>>,
    /// From where on each family's commits are inserted: what the manifest called flushed before
    /// the first flush of this opening.
    from: HashMap<u32, Lsn>,
    next_family: u32,
    log_dir: &'a Path,
    inserters: usize,
}

/// For an inserting thread.
enum Task {
    Insert(Piece),
    /// Reply when all earlier inserts are done.
    Barrier(Sender<()>),
    /// Sort this thread's share of the active memtables. All writes are inserted.
    Sort,
}

/// Fills the memtables with the commits from `from` on.
pub(crate) fn replay(
    store: &Store,
    log: &Log,
    from: Lsn,
    families: &HashMap<u32, Arc<FamilyState>>,
    log_dir: &Path,
) -> Result<Replayed> {
    let started = store.now();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let replay = Replay {
        families,
        from: families
            .iter()
            .map(|(id, family)| (*id, family.flushed().get()))
            .collect(),
        next_family: store.manifest().next_family,
        log_dir,
        inserters: cores.min(INSERTERS_MOST),
    };
    let buffers = families
        .values()
        .map(|family| family.options().write_buffer_bytes);
    let piece = (buffers.min().unwrap_or(0) / 4).clamp(PIECE_LEAST, PIECE_MOST);
    let reader = log.read(from)?;
    let mut replayed = std::thread::scope(|scope| {
        let (pieces, coming) = sync_channel(PIECES_AHEAD);
        let reading = start(scope, "collie-replay-read", move || read(reader, piece, &pieces))?;
        let mut tasks = Vec::new();
        let mut inserting = Vec::new();
        for share in 0..replay.inserters {
            let (sender, receiver) = sync_channel(PIECES_AHEAD);
            let replay = &replay;
            let insert = move || replay.insert(share, &receiver);
            inserting.push(start(scope, &format!("collie-replay-{share}"), insert)?);
            tasks.push(sender);
        }
        let dealt = distribute(store, families, &coming, &tasks, |last| {
            replay_large(store, log, &replay, last)
        });
        // Ends the threads that still wait for this one.
        drop((coming, tasks));
        // Of several errors the first by its position in the log is reported: it may have caused
        // the others.
        let inserted = inserting.into_iter().map(join).collect::<Vec<_>>();
        let first = inserted
            .into_iter()
            .filter_map(Result::err)
            .min_by_key(|(lsn, _)| *lsn);
        match first {
            Some((_, error)) => Err(error),
            None => join(reading).map_err(|(_, error)| error).and(dealt),
        }
    })?;
    replayed.ns = store.ns_since(started);
    Ok(replayed)
}

/// A failure, and where in the log.
type FailedAt = (Lsn, Error);

fn start<'s, T: Send + 's>(
    scope: &'s std::thread::Scope<'s, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 's,
) -> Result<std::thread::ScopedJoinHandle<'s, T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, run)
        .map_err(|e| Error::io("start the thread", name, e))
}

fn join(
    thread: std::thread::ScopedJoinHandle<'_, std::result::Result<(), FailedAt>>,
) -> std::result::Result<(), FailedAt> {
    thread.join().unwrap_or_else(|_| {
        let cause = "a thread that replayed the log panicked".into();
        Err((0, Error::Background { cause }))
    })
}

/// Reads commits until the log's end, an error, or the receiver is dropped.
fn read(reader: Reader, piece: u64, pieces: &SyncSender<Piece>) -> std::result::Result<(), FailedAt> {
    let mut frames = Vec::new();
    let mut bytes = 0;
    for frame in reader {
        let frame = frame.map_err(|error| (Lsn::MAX, error.into()))?;
        let is_last = frame.kind == KIND_LAST;
        if frame.kind != KIND_COMMIT && !is_last {
            continue;
        }
        if is_last && !frames.is_empty() && pieces.send(std::mem::take(&mut frames)).is_err() {
            return Ok(());
        }
        bytes += frame.len_in_log();
        frames.push(frame);
        if bytes >= piece || is_last {
            bytes = 0;
            if pieces.send(std::mem::take(&mut frames)).is_err() {
                return Ok(());
            }
        }
    }
    // The receiver is dropped where another thread failed, which reports its error.
    let _ = pieces.send(frames);
    Ok(())
}

/// Sends the pieces to the inserting threads, one after the other, and seals full memtables in
/// between, or links a large commit, of which `large` gets the last frame, and returns what it read.
fn distribute(
    store: &Store,
    families: &HashMap<u32, Arc<FamilyState>>,
    coming: &Receiver<Piece>,
    tasks: &[SyncSender<Task>],
    large: impl Fn(&Frame) -> Result<u64>,
) -> Result<Replayed> {
    let mut replayed = Replayed::default();
    for (piece, task) in coming.iter().zip(tasks.iter().cycle()) {
        let Some(first) = piece.first() else { continue };
        if first.kind == KIND_LAST {
            if wait_for_inserts(tasks) {
                replayed.bytes += first.len_in_log() + large(first)?;
                replayed.commits += 1;
            }
            continue;
        }
        let at = At {
            start: first.start,
            end: first.end,
        };
        let full = |family: &&Arc<FamilyState>| family.is_memtable_full();
        if families.values().any(|family| full(&family)) && wait_for_inserts(tasks) {
            for family in families.values().filter(full) {
                seal(store, family, at)?;
            }
        }
        replayed.commits += piece.len() as u64;
        replayed.bytes += piece.iter().map(Frame::len_in_log).sum::<u64>();
        // A receiver that is dropped has failed; its error is reported when it is joined.
        if task.send(Task::Insert(piece)).is_err() {
            return Ok(replayed);
        }
    }
    if wait_for_inserts(tasks) {
        for task in tasks {
            // A thread that has ended leaves its share to the first read.
            let _ = task.send(Task::Sort);
        }
    }
    Ok(replayed)
}

/// Waits until all pieces that were sent are inserted. Returns `false` where a thread failed.
fn wait_for_inserts(tasks: &[SyncSender<Task>]) -> bool {
    let (done, waiting) = channel();
    let asked = tasks
        .iter()
        .filter(|task| task.send(Task::Barrier(done.clone())).is_ok())
        .count();
    drop(done);
    asked == tasks.len() && waiting.iter().count() == asked
}

impl Replay<'_> {
    /// Inserts the pieces that are sent, until the sender is dropped.
    fn insert(&self, share: usize, tasks: &Receiver<Task>) -> std::result::Result<(), FailedAt> {
        for task in tasks {
            match task {
                Task::Insert(piece) => {
                    for frame in &piece {
                        self.insert_commit(frame).map_err(|error| (frame.start, error))?;
                    }
                }
                // Fails only where the asking thread has failed meanwhile.
                Task::Barrier(done) => drop(done.send(())),
                Task::Sort => {
                    for family in self.families.values() {
                        family.view().active.sort(share, self.inserters);
                    }
                }
            }
        }
        Ok(())
    }

    fn insert_commit(&self, frame: &Frame) -> Result<()> {
        let at = At {
            start: frame.start,
            end: frame.end,
        };
        for op in Ops::new(&frame.payload) {
            let op = op.map_err(|e| self.corrupt(frame, e.offset as u64, e.expected, e.found))?;
            if let Some(family) = self.needed_by(frame, op.family)? {
                family.view().mem_for(at.start).load(op.key, at, op.write);
            }
        }
        Ok(())
    }

    /// The family of that id, if it needs the commit at `frame`.
    pub(super) fn needed_by(&self, frame: &Frame, id: u32) -> Result<Option<&Arc<FamilyState>>> {
        let (Some(family), Some(&from)) = (self.families.get(&id), self.from.get(&id)) else {
            if id < self.next_family {
                return Ok(None); // Dropped since.
            }
            let found = format!("family {id}");
            let expected = "a family that the MANIFEST has (it is of an earlier time, if that is not one)";
            return Err(self.corrupt(frame, 0, expected, found));
        };
        Ok((frame.start >= from).then_some(family))
    }

    pub(super) fn corrupt(&self, frame: &Frame, offset: u64, expected: &str, found: String) -> Error {
        Error::Corrupt {
            path: self.log_dir.into(),
            offset: frame.start + offset,
            expected: format!("{expected} in the commit at LSN {}", frame.start),
            found,
        }
    }
}

/// Seals the active memtable before the commit at `at`. That commit's frame serves as the
/// rotation's mark: a frame starts there, and it is durable.
fn seal(store: &Store, family: &Arc<FamilyState>, at: At) -> Result<()> {
    let options = family.options();
    if family.view().buffers(&options) >= options.max_write_buffers {
        flush::flush_sealed(store, family)?;
    }
    family.seal(at, FlushCause::Recovery, store.new_mem(at.start, family));
    store.queue().flush(family);
    Ok(())
}

/// Reads the parts of the commit that `frame` ends, and links it into the families that need it. All
/// commits before it are inserted. Returns how many bytes of operations were read.
pub(super) fn replay_large(store: &Store, log: &Log, replay: &Replay<'_>, frame: &Frame) -> Result<u64> {
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
        if view.is_full_of_large(&options) || view.buffers(&options) >= options.max_write_buffers {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::Write;
    use crate::{Db, FamilyOptions, Options, RingMode};

    fn piece(start: Lsn, end: Lsn) -> Piece {
        vec![Frame {
            start,
            end,
            stream: 0,
            kind: KIND_COMMIT,
            payload: Vec::new(),
        }]
    }

    /// A memtable that is sealed while an insert into it is under way would go to tables without
    /// that.
    #[test]
    fn a_full_memtable_is_sealed_when_all_inserts_before_are_done() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            ring: RingMode::Private,
            default_family: FamilyOptions {
                write_buffer_bytes: 4096,
                ..FamilyOptions::default()
            },
            ..Options::default()
        };
        let db = Db::open(dir.path(), options).unwrap();
        // Two commits that are there: a flush waits for the end of the one at which a memtable was
        // sealed.
        let [first, second, end] = ["a", "b", "c"].map(|key| db.put(key, "v").unwrap());
        let store = db.store();
        let family = Arc::clone(db.default_family().state());
        let families = &HashMap::from([(family.id(), Arc::clone(&family))]);
        let active = || family.view().active.from();
        let before = active();
        let (pieces, coming) = sync_channel(2);
        let (task, tasks) = sync_channel(4);
        std::thread::scope(|scope| {
            let dealing = scope.spawn(move || distribute(store, families, &coming, &[task], |_| Ok(0)));
            pieces.send(piece(first, second)).unwrap();
            assert!(matches!(tasks.recv().unwrap(), Task::Insert(_)));
            let at = At {
                start: first,
                end: second,
            };
            family.view().active.insert(b"big", at, Write::Put(&[1; 9000]));
            pieces.send(piece(second, end)).unwrap();
            let asked = tasks.recv().unwrap();
            let unsealed = active() == before;
            if let Task::Barrier(done) = &asked {
                done.send(()).unwrap();
            }
            let settling = matches!(asked, Task::Barrier(_));
            drop((asked, pieces));
            let rest = tasks.iter().map(|task| match task {
                Task::Insert(_) => "insert",
                Task::Barrier(done) => done.send(()).map_or("", |()| "barrier"),
                Task::Sort => "sort",
            });
            let rest: Vec<&str> = rest.collect();
            // Looked at before anything is asserted: a thread that waits would keep the test from
            // ending.
            assert!(settling && unsealed, "sealed while an insert was under way");
            assert_eq!(rest, ["insert", "barrier", "sort"]);
            assert_eq!(active(), second);
            let replayed = dealing.join().unwrap().unwrap();
            assert_eq!((replayed.commits, replayed.bytes), (2, end - first));
        });
    }
}
