//! Commits that prove themselves whole: appending them, and finding them again.

use collie_log::{AppendHook, Level, Log, LogError, Lsn, Span, Worker};

use crate::ledger::{Commit, Ledger, Promise, payload, read_payload};
use collie_sim::SimDevice;
use collie_sim::Snapshot;

/// Where the log of a simulated world is.
pub const DIR: &str = "/data/log";

/// Appends one commit that proves itself whole, waits for it, and notes all that in the ledger.
///
/// # Errors
/// The log's; the ledger then holds no promise.
pub fn commit(
    log: &Log,
    worker: &mut Worker,
    ledger: &Ledger,
    len: usize,
    level: Option<Level>,
) -> Result<(), LogError> {
    let (id, end) = append(worker, ledger, len)?;
    wait(log, ledger, id, end, level)
}

/// Appends one commit; returns its number and its end.
pub(crate) fn append(worker: &mut Worker, ledger: &Ledger, len: usize) -> Result<(u64, Lsn), LogError> {
    let id = ledger.begin();
    let mut place = Place { ledger, id };
    let span = worker.append_with(stream(id), kind(id), &payload(id, len), &mut place)?;
    ledger.visible(id, span.start);
    Ok((id, span.end))
}

/// Waits for a commit, if wanted, and notes the promise.
pub(crate) fn wait(
    log: &Log,
    ledger: &Ledger,
    id: u64,
    end: Lsn,
    level: Option<Level>,
) -> Result<(), LogError> {
    let Some(level) = level else { return Ok(()) };
    log.wait(end, level)?;
    match level {
        Level::Disk => ledger.promised(id, Promise::Disk),
        Level::Process => ledger.promised(id, Promise::Process),
        Level::Buffered => {}
    }
    Ok(())
}

/// Notes a frame's place as soon as it has one.
struct Place<'a> {
    ledger: &'a Ledger,
    id: u64,
}

impl AppendHook for Place<'_> {
    fn before_reserve(&mut self, _next: Lsn) {}

    fn reserved(&mut self, span: Span) {
        self.ledger.ordered(self.id, span.start);
    }
}

/// Appends a commit that another worker's overtakes, between reservation and copy. Returns the
/// moments in between, at which a process that dies leaves a hole, and the first error.
pub(crate) fn append_overtaken(
    [slow, fast]: [&mut Worker; 2],
    log: &Log,
    ledger: &Ledger,
    device: &SimDevice,
    level: Option<Level>,
) -> (Vec<Snapshot>, Result<(), LogError>) {
    let id = ledger.begin();
    let mut overtake = Overtake {
        log,
        worker: fast,
        ledger,
        device,
        id,
        level,
        snapshots: Vec::new(),
        result: Ok(()),
    };
    let appended = slow.append_with(stream(id), kind(id), &payload(id, SMALL), &mut overtake);
    let appended = appended.map(|span| ledger.visible(id, span.start));
    (overtake.snapshots, overtake.result.and(appended))
}

/// Payload of the frames that overtake and are overtaken: such as need no room of their own
/// secured.
const SMALL: usize = 24;

struct Overtake<'a> {
    log: &'a Log,
    worker: &'a mut Worker,
    ledger: &'a Ledger,
    device: &'a SimDevice,
    id: u64,
    level: Option<Level>,
    snapshots: Vec<Snapshot>,
    result: Result<(), LogError>,
}

impl AppendHook for Overtake<'_> {
    fn before_reserve(&mut self, _next: Lsn) {}

    fn reserved(&mut self, span: Span) {
        self.ledger.ordered(self.id, span.start);
        self.snapshots.push(self.device.snapshot());
        self.result = commit(self.log, self.worker, self.ledger, SMALL, self.level);
        self.snapshots.push(self.device.snapshot());
    }
}

/// Every commit's stream and kind follow from its number, so that a mix-up is seen.
fn stream(id: u64) -> u32 {
    u32::try_from(id % (1 << 24)).unwrap_or_default()
}

fn kind(id: u64) -> u8 {
    u8::try_from(id % 240).unwrap_or_default()
}

/// Every commit that an open log holds, as [`Ledger::check`] wants it.
///
/// # Errors
/// The log's, on reading.
pub fn find(log: &Log) -> Result<Vec<Commit>, LogError> {
    let frames = log.read(log.recovery().first_frame)?;
    let commits = frames.map(|frame| {
        frame.map(|frame| {
            let whole = |&id: &u64| stream(id) == frame.stream && kind(id) == frame.kind;
            match read_payload(&frame.payload).filter(whole) {
                Some(id) => Commit::whole(id, Some(frame.start)),
                None => Commit::torn(None, Some(frame.start)),
            }
        })
    });
    commits.collect()
}
