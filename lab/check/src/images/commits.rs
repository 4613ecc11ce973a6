//! Commits that prove themselves whole: appending them, and finding them again.

use collie_log::{Level, Log, LogError, Lsn, Worker};

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
    // Noted as soon as the frame has its place.
    let mut place = |start| ledger.ordered(id, start);
    let points: [&mut dyn FnMut(Lsn); 2] = [&mut |_| (), &mut place];
    let span = worker.append_paused(stream(id), kind(id), &payload(id, len), points)?;
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
    let (mut moments, mut committed) = (Vec::new(), Ok(()));
    let mut overtake = |start| {
        ledger.ordered(id, start);
        moments.push(device.snapshot());
        committed = commit(log, fast, ledger, SMALL, level);
        moments.push(device.snapshot());
    };
    let points: [&mut dyn FnMut(Lsn); 2] = [&mut |_| (), &mut overtake];
    let appended = slow.append_paused(stream(id), kind(id), &payload(id, SMALL), points);
    let appended = appended.map(|span| ledger.visible(id, span.start));
    (moments, committed.and(appended))
}

/// Payload of the frames that overtake and are overtaken: such as need no room of their own
/// secured.
const SMALL: usize = 24;

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
