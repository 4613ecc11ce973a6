//! Payloads that are made to pass for frames, at the place where the log begins after a release:
//! they straddle the end of every segment, so whichever one is the oldest begins with one.

#![expect(
    clippy::disallowed_methods,
    reason = "copies directories, and reads segments to make payloads of them"
)]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, RealDevice};
use collie_log::follow::Follower;
use collie_log::inspect::{inspect, repair};
use collie_log::{FRAME_HEADER, Frame, Level, Log, LogError, LogOptions, Lsn, RingMode, Worker};

/// The length of a hostile payload: some thirty frames of [`FORGED`] bytes.
const LEN: usize = 1_200;
/// A forged frame: a header and a payload of 8 bytes.
const FORGED: usize = FRAME_HEADER + 8;
/// Marks what no program appended.
const FORGED_STREAM: u32 = 666;

fn options() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 16 << 10,
        segment_bytes: 32 << 10,
        max_workers: 2,
        threads: false,
        ..LogOptions::default()
    }
}

/// What is in a payload that straddles a segment's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hostile {
    /// Frames with the LSNs of their places, the epoch and a checksum that is right: a process
    /// that can read the log knows its salt.
    Forged,
    /// The same with a wrong checksum.
    BadChecksum,
    /// One frame's header that claims to go on far behind the payload.
    TooLong,
    /// A stretch of this log's own first segment.
    OwnSegment,
}

const KINDS: [Hostile; 4] = [
    Hostile::Forged,
    Hostile::BadChecksum,
    Hostile::TooLong,
    Hostile::OwnSegment,
];

/// Epoch and salt of a segment's header.
fn epoch_and_salt(segment: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_le_bytes(segment[at..at + 4].try_into().unwrap());
    (word(56), word(60))
}

/// A frame at `lsn` whose durable mark covers all before it. docs/design/formats/log.md
fn forged(lsn: Lsn, (epoch, salt): (u32, u32), len: usize) -> Vec<u8> {
    let payload = vec![0xee; 8];
    let mut head = Vec::new();
    head.extend_from_slice(&(len as u32).to_le_bytes());
    head.extend_from_slice(&lsn.to_le_bytes());
    head.extend_from_slice(&lsn.to_le_bytes());
    head.extend_from_slice(&epoch.to_le_bytes());
    head.extend_from_slice(&FORGED_STREAM.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(salt, &payload), &head);
    [&crc.to_le_bytes()[..], &head, &payload].concat()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|p| p.extension().is_some_and(|e| e == "seg"))
        .collect();
    paths.sort();
    paths
}

/// A program that knows where its payloads come to stand.
struct Program {
    log: Log,
    worker: Worker,
    written: BTreeMap<Lsn, Vec<u8>>,
}

impl Program {
    fn open(dir: &Path, options: LogOptions) -> Self {
        let log = Log::open(dir, options).unwrap();
        let worker = log.worker().unwrap();
        let written = BTreeMap::new();
        Self { log, worker, written }
    }

    fn append(&mut self, payload: Vec<u8>) {
        let span = self.worker.append(1, 2, &payload).unwrap();
        self.log.wait(span.end, Level::Disk).unwrap();
        self.written.insert(span.start, payload);
    }

    /// Fills `count` segments; across the end of each lies a hostile payload.
    fn fill(&mut self, dir: &Path, hostile: Hostile, count: u32) {
        let own = std::fs::read(segments(dir).last().unwrap()).unwrap();
        let known = epoch_and_salt(&own);
        let room = (32 << 10) - 8_192;
        let first = u64::from_le_bytes(own[40..48].try_into().unwrap());
        for n in 1..=u64::from(count) {
            let end = first + n * room;
            while self.log.appended() + (LEN as u64) / 2 < end - 400 {
                self.append(vec![1; 300]);
            }
            let begin = self.log.appended() + FRAME_HEADER as u64;
            assert!(begin < end && begin + LEN as u64 > end, "it straddles the end");
            let places = (begin..).step_by(FORGED).take(LEN / FORGED);
            let mut payload: Vec<u8> = match hostile {
                Hostile::Forged => places.flat_map(|lsn| forged(lsn, known, 8)).collect(),
                Hostile::BadChecksum => places
                    .flat_map(|lsn| forged(lsn, (known.0, !known.1), 8))
                    .collect(),
                Hostile::TooLong => places.flat_map(|lsn| forged(lsn, known, 9_000)).collect(),
                Hostile::OwnSegment => own[8_192..8_192 + LEN].to_vec(),
            };
            payload.resize(LEN, 0);
            self.append(payload);
        }
        (0..20).for_each(|_| self.append(vec![2; 200]));
    }

    fn release(&self) {
        self.log.retain("test", self.log.durable());
    }

    /// Demands that these are all frames from the first one on.
    fn check(&self, found: impl IntoIterator<Item = Result<Frame, LogError>>, context: &str) {
        let found: BTreeMap<_, _> = found
            .into_iter()
            .map(|frame| frame.map(|frame| (frame.start, frame.payload)))
            .collect::<Result<_, _>>()
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        let (first, last) = (*found.keys().next().unwrap(), *found.keys().next_back().unwrap());
        let expected: BTreeMap<_, _> = self.written.range(first..=last).collect();
        // No durable mark says yet that the last one was durable: a follower does not give it.
        assert!(self.written.range(last..).count() <= 2, "{context}: up to {last}");
        assert!(expected.len() > 20, "{context}: {} frames", expected.len());
        let found: BTreeMap<_, _> = found.iter().collect();
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>(),
            "{context}"
        );
        assert!(found == expected, "{context}");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &name);
        } else {
            std::fs::copy(&path, name).unwrap();
        }
    }
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = segments(dir).into_iter();
    paths
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

fn followed(device: &Arc<dyn Device>, dir: &Path) -> Vec<Result<Frame, LogError>> {
    let mut follower = Follower::open(device, dir, None).unwrap();
    let mut frames = Vec::new();
    while let Some(followed) = follower.poll_to_end().transpose() {
        frames.push(followed.map(|followed| followed.frame));
    }
    frames
}

/// Looks at a log from all sides: none takes a payload for a frame, and nothing is repaired.
fn look(program: &Program, dir: &Path, options: LogOptions, context: &str) {
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let before = contents(dir);
    let (mut frames, mut starts) = (0, Vec::new());
    let found = inspect(&device, dir, |frame| {
        assert_ne!(frame.stream, FORGED_STREAM, "{context}");
        frames += 1;
        starts.push(frame.lsn);
    });
    let found = found.unwrap_or_else(|e| panic!("{context}: {e}"));
    assert_eq!((found.frames, found.torn), (frames, None), "{context}");
    let expected = program.written.range(starts[0]..).map(|(start, _)| start);
    assert!(
        expected.clone().count() > 20 && expected.into_iter().all(|lsn| starts.contains(lsn)),
        "{context}"
    );
    let repaired = repair(&device, dir).unwrap();
    assert_eq!((repaired.damage, repaired.kept), (None, Vec::new()), "{context}");
    assert!(contents(dir) == before, "{context}: a repair changed a whole log");
    program.check(followed(&device, dir), context);

    let log = Log::open(dir, options).unwrap_or_else(|e| panic!("{context}: {e}"));
    let first = log.recovery().first_frame;
    program.check(log.read(first).unwrap(), context);
    let mut tail = log.tail("test", first).unwrap();
    program.check(std::iter::from_fn(|| tail.try_next().transpose()), context);
}

#[test]
fn a_payload_at_the_logs_beginning_is_not_taken_for_a_frame() {
    for hostile in KINDS {
        for filled in [2, 4, 5] {
            let dir = tempfile::tempdir().unwrap();
            let mut program = Program::open(dir.path(), options());
            for round in 1..=2 {
                program.fill(dir.path(), hostile, filled);
                program.release();
                // As a process would leave it that died now, and closed.
                let context = format!("{hostile:?}, {filled} segments, {round}");
                let died = tempfile::tempdir().unwrap();
                copy(dir.path(), died.path());
                look(&program, died.path(), options(), &format!("{context}, died"));
                let Program { log, worker, written } = program;
                drop(worker);
                log.close().unwrap();
                program = Program::open(dir.path(), options());
                program.written = written;
                let closed = tempfile::tempdir().unwrap();
                copy(dir.path(), closed.path());
                look(&program, closed.path(), options(), &format!("{context}, closed"));
            }
            assert!(
                !segments(dir.path())[0].ends_with("0000000000000001.seg"),
                "nothing was released"
            );
        }
    }
}

#[test]
fn nor_at_the_beginning_of_an_archive() {
    let options = || LogOptions {
        archive_bytes: 100 << 10,
        ..options()
    };
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    for hostile in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("archive");
        let mut program = Program::open(dir.path(), options());
        for round in 0..3 {
            program.fill(dir.path(), hostile, 4);
            program.release();
            let context = format!("{hostile:?}, round {round}");
            let archived = segments(&archive);
            assert!(!archived.is_empty(), "{context}");
            let mut first = None;
            let found = inspect(&device, &archive, |frame| {
                assert_ne!(frame.stream, FORGED_STREAM, "{context}");
                first.get_or_insert(frame.lsn);
            });
            found.unwrap_or_else(|e| panic!("{context}: {e}"));
            program.check(followed(&device, dir.path()), &context);
            program.check(program.log.read(first.unwrap()).unwrap(), &context);
            // Released all at once, after an open that found them.
            let Program { log, worker, written } = program;
            drop(worker);
            log.close().unwrap();
            program = Program::open(dir.path(), options());
            program.written = written;
        }
        let first = segments(&archive).remove(0);
        assert!(
            !first.to_str().unwrap().contains("0000000000000001-"),
            "nothing left the archive"
        );
    }
}

/// Without the segment before it it is unknown where the first frame begins: nothing is guessed,
/// and nothing cut.
#[test]
fn where_the_beginning_is_not_known_a_repair_cuts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Program::open(dir.path(), options());
    program.fill(dir.path(), Hostile::Forged, 3);
    let Program { log, worker, written } = program;
    drop(worker);
    log.close().unwrap();
    let first = segments(dir.path()).remove(0);
    let whole = std::fs::read(&first).unwrap();
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    for damaged in [false, true] {
        if damaged {
            let mut damaged = whole.clone();
            damaged[..8_192].fill(0xa5);
            std::fs::write(&first, damaged).unwrap();
        } else {
            std::fs::remove_file(&first).unwrap();
        }
        let before = contents(dir.path());
        let opened = Log::open(dir.path(), options()).map(|_| ()).unwrap_err();
        let looked = inspect(&device, dir.path(), |_| {}).map(|_| ()).unwrap_err();
        let repaired = repair(&device, dir.path()).map(|_| ()).unwrap_err();
        for error in [opened, looked, repaired] {
            let is_told = matches!(
                (&error, damaged),
                (LogError::BeginningUnknown { .. }, false) | (LogError::Corrupt { .. }, true)
            );
            assert!(is_told, "{error}");
        }
        assert!(contents(dir.path()) == before, "something was changed");
        if !damaged {
            let followed = Follower::open(&device, dir.path(), None).map(|_| ()).unwrap_err();
            assert!(
                matches!(followed, LogError::BeginningUnknown { .. }),
                "{followed}"
            );
        }
    }
    // A caller that knows where to go on, does.
    let last = *written.keys().next_back().unwrap();
    let options = LogOptions {
        resume_at: Some(last),
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    assert_eq!(log.read(last).unwrap().count(), 1);
}

#[test]
fn a_file_with_a_number_that_no_segment_has_is_refused_by_name() {
    for name in ["ffffffffffffffff.seg", "4000000000000000.seg"] {
        for bytes in [&b""[..], &[0xa5; 9_000]] {
            let dir = tempfile::tempdir().unwrap();
            let mut program = Program::open(dir.path(), options());
            program.fill(dir.path(), Hostile::Forged, 1);
            let Program { log, worker, .. } = program;
            drop(worker);
            log.close().unwrap();
            std::fs::write(dir.path().join(name), bytes).unwrap();
            let before = contents(dir.path());
            let device: Arc<dyn Device> = Arc::new(RealDevice::new());
            for error in [
                Log::open(dir.path(), options()).map(|_| ()).unwrap_err(),
                inspect(&device, dir.path(), |_| {}).map(|_| ()).unwrap_err(),
                repair(&device, dir.path()).map(|_| ()).unwrap_err(),
            ] {
                assert!(error.to_string().contains(name), "{error}");
            }
            assert!(contents(dir.path()) == before, "something was changed");
            std::fs::remove_file(dir.path().join(name)).unwrap();
            Log::open(dir.path(), options()).unwrap();
        }
    }
}

/// A follower searches behind the last frame, and no further than the file goes. It would not come
/// to an end within a lifetime otherwise.
#[test]
fn a_follower_searches_no_further_than_a_file_goes() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Program::open(dir.path(), options());
    for _ in 0..3 {
        program.append(vec![7; 100]);
    }
    let died = tempfile::tempdir().unwrap();
    copy(dir.path(), died.path());
    let path = segments(died.path()).remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    for at in [0, 4096] {
        let (copy, _) = bytes[at..].split_at_mut(390);
        copy[48..56].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        let crc = crc32c::crc32c(&copy[..386]);
        copy[386..].copy_from_slice(&crc.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    // The last one is not known to be durable.
    assert_eq!(followed(&device, died.path()).len(), 2);
}

/// A segment as a version with format 2 would have left it: both copies of the header in one block,
/// without the LSN of its first frame.
fn as_format_2(segment: &[u8]) -> Vec<u8> {
    let mut header = segment[..378].to_vec();
    header[8] = 2;
    let crc = crc32c::crc32c(&header).to_le_bytes();
    let mut block = [header, crc.to_vec()].concat();
    block.resize(2_048, 0);
    [&block, &block, &segment[8_192..]].concat()
}

/// Format 2 does not say where its first frame begins. There it is looked for; what looks like one
/// and is none is reported, and never repaired; and a caller that says where to resume goes on in
/// the current format.
#[test]
fn a_log_of_format_2_with_a_hostile_payload_is_not_cut() {
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    for hostile in [Hostile::OwnSegment, Hostile::BadChecksum] {
        let dir = tempfile::tempdir().unwrap();
        let mut program = Program::open(dir.path(), options());
        program.fill(dir.path(), hostile, 5);
        let Program { log, worker, written } = program;
        drop(worker);
        log.close().unwrap();
        // Released, and gone.
        for path in segments(dir.path()).into_iter().take(2) {
            std::fs::remove_file(path).unwrap();
        }
        for path in segments(dir.path()) {
            let old = as_format_2(&std::fs::read(&path).unwrap());
            std::fs::write(&path, old).unwrap();
        }
        let before = contents(dir.path());
        let looked = inspect(&device, dir.path(), |_| {});
        let repaired = repair(&device, dir.path());
        assert!(
            contents(dir.path()) == before,
            "{hostile:?}: something was changed"
        );
        let mut resume_at = None;
        if hostile == Hostile::OwnSegment {
            assert_eq!((looked.unwrap().torn, repaired.unwrap().damage), (None, None));
        } else {
            for error in [looked.map(|_| ()).unwrap_err(), repaired.map(|_| ()).unwrap_err()] {
                assert!(matches!(error, LogError::BeginningUnknown { .. }), "{error}");
            }
            let opened = Log::open(dir.path(), options()).map(|_| ()).unwrap_err();
            assert!(matches!(opened, LogError::BeginningUnknown { .. }), "{opened}");
            resume_at = written.keys().rev().nth(30).copied();
        }
        let resuming = LogOptions {
            resume_at,
            ..options()
        };
        let mut program = Program::open(dir.path(), resuming);
        program.written = written;
        let first = program.log.recovery().first_frame;
        program.check(program.log.read(first).unwrap(), "format 2");
        program.fill(dir.path(), hostile, 4);
        program.release();
        let copied = tempfile::tempdir().unwrap();
        copy(dir.path(), copied.path());
        look(&program, copied.path(), options(), "from format 2");
    }
}
