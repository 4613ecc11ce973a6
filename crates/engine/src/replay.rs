//! Replay: what the log has and the tables have not goes to the memtables.
//!
//! One thread reads and checks frames, a piece of the log ahead; some insert, each the pieces that it is dealt.
//! Inserting only stores a write; the order, which a write's LSN tells whoever inserted it first, is made for
//! all of them at the end or when a memtable is flushed. Memtables are sealed between two pieces, when all
//! inserts of those before are done: a commit's writes to a family are in one memtable, and one that is sealed
//! is complete.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use collie_log::{Frame, Log, Lsn, Reader};

use crate::codec::{KIND_COMMIT, Ops};
use crate::core::{Core, FamilyState};
use crate::memtable::At;
use crate::view::{FlushCause, Sealed, View};
use crate::{Error, Result, flush};

/// Inserting threads, at most. More would wait for the one that reads.
const INSERTERS_MOST: usize = 4;
/// Pieces on their way between two threads.
const PIECES_AHEAD: usize = 4;
/// The size of a piece in bytes of log, from and to: a memtable outgrows its buffer by a piece at most.
const PIECE_LEAST: u64 = 4 << 10;
const PIECE_MOST: u64 = 256 << 10;

/// What was replayed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Replayed {
    pub(crate) commits: u64,
    /// Bytes of log that they take.
    pub(crate) bytes: u64,
    pub(crate) ns: u64,
}

/// Commits that follow one another in the log.
type Piece = Vec<Frame>;

/// What inserting needs.
struct Replay<'a> {
    families: &'a HashMap<u32, Arc<FamilyState>>,
    /// Where each family's part begins: what the manifest called flushed before the first flush of
    /// this opening.
    from: HashMap<u32, Lsn>,
    next_family: u32,
    log_dir: &'a Path,
    inserters: usize,
}

/// For an inserting thread.
enum Task {
    Insert(Piece),
    /// Say when everything before is done.
    Settle(Sender<()>),
    /// Put this thread's share of the active memtables in order; all is inserted.
    Sort,
}

/// Fills the memtables with the commits from `from` on.
pub(crate) fn replay(
    core: &Core,
    log: &Log,
    from: Lsn,
    families: &HashMap<u32, Arc<FamilyState>>,
    log_dir: &Path,
) -> Result<Replayed> {
    let started = core.device.clock().monotonic();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let replay = Replay {
        families,
        from: families
            .iter()
            .map(|(id, family)| (*id, family.flushed.get()))
            .collect(),
        next_family: core.manifest.lock().next_family,
        log_dir,
        inserters: cores.min(INSERTERS_MOST),
    };
    let buffers = families.values().map(|family| family.options.write_buffer_bytes);
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
        let dealt = deal(core, families, &coming, &tasks);
        // Whoever still waits for this thread learns that nothing more comes.
        drop((coming, tasks));
        // The first damage is what counts, whatever it did to the others: by its place in the log.
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
    replayed.ns = core.device.clock().monotonic().saturating_sub(started);
    Ok(replayed)
}

/// A failure, and where in the log.
type Failed = (Lsn, Error);

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
    thread: std::thread::ScopedJoinHandle<'_, std::result::Result<(), Failed>>,
) -> std::result::Result<(), Failed> {
    thread.join().unwrap_or_else(|_| {
        let cause = "a thread that replayed the log panicked".into();
        Err((0, Error::Background { cause }))
    })
}

/// Reads commits until the log's end, an error, or nobody wants more.
fn read(reader: Reader, piece: u64, pieces: &SyncSender<Piece>) -> std::result::Result<(), Failed> {
    let mut frames = Vec::new();
    let mut bytes = 0;
    for frame in reader {
        let frame = frame.map_err(|error| (Lsn::MAX, error.into()))?;
        if frame.kind != KIND_COMMIT {
            continue;
        }
        bytes += frame.len_in_log();
        frames.push(frame);
        if bytes >= piece {
            bytes = 0;
            if pieces.send(std::mem::take(&mut frames)).is_err() {
                return Ok(());
            }
        }
    }
    // Nobody there to take it: somebody else failed, and tells.
    let _ = pieces.send(frames);
    Ok(())
}

/// Deals the pieces to those who insert, in turn, and seals what is full in between.
fn deal(
    core: &Core,
    families: &HashMap<u32, Arc<FamilyState>>,
    coming: &Receiver<Piece>,
    tasks: &[SyncSender<Task>],
) -> Result<Replayed> {
    let mut replayed = Replayed::default();
    for (piece, task) in coming.iter().zip(tasks.iter().cycle()) {
        let Some(first) = piece.first() else { continue };
        let at = At {
            start: first.start,
            end: first.end,
        };
        let full = |family: &&Arc<FamilyState>| {
            family.view.load().active.bytes() >= family.options.write_buffer_bytes
        };
        if families.values().any(|family| full(&family)) && settle(tasks) {
            for family in families.values().filter(full) {
                seal(core, family, at)?;
            }
        }
        replayed.commits += piece.len() as u64;
        replayed.bytes += piece.iter().map(Frame::len_in_log).sum::<u64>();
        // Who takes no more has failed, and tells why when it is joined.
        if task.send(Task::Insert(piece)).is_err() {
            return Ok(replayed);
        }
    }
    if settle(tasks) {
        for task in tasks {
            // Who ends before only leaves it to whoever looks first.
            let _ = task.send(Task::Sort);
        }
    }
    Ok(replayed)
}

/// Waits until all that was handed out is inserted; `false` where somebody failed.
fn settle(tasks: &[SyncSender<Task>]) -> bool {
    let (done, waiting) = channel();
    let asked = tasks
        .iter()
        .filter(|task| task.send(Task::Settle(done.clone())).is_ok())
        .count();
    drop(done);
    asked == tasks.len() && waiting.iter().count() == asked
}

impl Replay<'_> {
    /// Inserts all that comes.
    fn insert(&self, share: usize, tasks: &Receiver<Task>) -> std::result::Result<(), Failed> {
        for task in tasks {
            match task {
                Task::Insert(piece) => {
                    for frame in &piece {
                        self.insert_commit(frame).map_err(|error| (frame.start, error))?;
                    }
                }
                // Who asked has failed meanwhile.
                Task::Settle(done) => drop(done.send(())),
                Task::Sort => {
                    for family in self.families.values() {
                        family.view.load().active.sort(share, self.inserters);
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
            let (Some(family), Some(&from)) = (self.families.get(&op.family), self.from.get(&op.family))
            else {
                if op.family < self.next_family {
                    continue; // Dropped since.
                }
                let found = format!("family {}", op.family);
                return Err(self.corrupt(frame, 0, "a family that was created before", found));
            };
            if frame.start >= from && !family.tables.has_newer(op.key, at.start)? {
                family.view.load().mem_for(at.start).load(op.key, at, op.write);
            }
        }
        Ok(())
    }

    fn corrupt(&self, frame: &Frame, offset: u64, expected: &str, found: String) -> Error {
        Error::Corrupt {
            path: self.log_dir.into(),
            offset: frame.start + offset,
            expected: format!("{expected} in the commit at LSN {}", frame.start),
            found,
        }
    }
}

/// Seals the active memtable before the commit at `at`. That commit's frame stands for the rotation's own: a
/// frame starts there, and it is durable.
fn seal(core: &Core, family: &Arc<FamilyState>, at: At) -> Result<()> {
    if family.view.load().sealed.len() + 1 >= family.options.max_write_buffers {
        flush::flush_sealed(core, family)?;
    }
    let _edit = family.edit.lock();
    let view = family.view.load_full();
    let mut sealed = view.sealed.clone();
    sealed.push(Sealed {
        mem: Arc::clone(&view.active),
        until: at.start,
        until_end: at.end,
        cause: FlushCause::Recovery,
    });
    family.view.store(Arc::new(View {
        active: Arc::new(core.new_mem(at.start, &family.options)),
        sealed,
        tables: Arc::clone(&view.tables),
    }));
    core.tasks.flush(family);
    Ok(())
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

    /// A memtable that is sealed while an insert into it is under way would go to tables without that.
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
        // Two commits that are there: a flush waits for the end of the one at which a memtable was sealed.
        let [first, second, end] = ["a", "b", "c"].map(|key| db.put(key, "v").unwrap());
        let core = db.core();
        let family = Arc::clone(db.default_family().state());
        let families = &HashMap::from([(family.id, Arc::clone(&family))]);
        let active = || family.view.load().active.from();
        let before = active();
        let (pieces, coming) = sync_channel(2);
        let (task, tasks) = sync_channel(4);
        std::thread::scope(|scope| {
            let dealing = scope.spawn(move || deal(core, families, &coming, &[task]));
            pieces.send(piece(first, second)).unwrap();
            assert!(matches!(tasks.recv().unwrap(), Task::Insert(_)));
            let at = At {
                start: first,
                end: second,
            };
            family
                .view
                .load()
                .active
                .insert(b"big", at, Write::Put(&[1; 9000]));
            pieces.send(piece(second, end)).unwrap();
            let asked = tasks.recv().unwrap();
            let unsealed = active() == before;
            if let Task::Settle(done) = &asked {
                done.send(()).unwrap();
            }
            let settling = matches!(asked, Task::Settle(_));
            drop((asked, pieces));
            let rest = tasks.iter().map(|task| match task {
                Task::Insert(_) => "insert",
                Task::Settle(done) => done.send(()).map_or("", |()| "settle"),
                Task::Sort => "sort",
            });
            let rest: Vec<&str> = rest.collect();
            // Looked at before anything is asserted: a thread that waits would keep the test from ending.
            assert!(settling && unsealed, "sealed while an insert was under way");
            assert_eq!(rest, ["insert", "settle", "sort"]);
            assert_eq!(active(), second);
            let replayed = dealing.join().unwrap().unwrap();
            assert_eq!((replayed.commits, replayed.bytes), (2, end - first));
        });
    }
}
