//! Going on behind damage in what was durable, [`RecoveryMode::SkipDamaged`]: every frame that the
//! damage does not touch is there, none is wrong, and each stretch is reported, by this opening and by
//! those that follow.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_check::images::DIR;
use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_log::{
    Compression, Damaged, FIRST_LSN, FRAME_HEADER, Frame, Level, Log, LogError, LogOptions, Lsn,
    RecoveryMode, RingMode, RingOutcome,
};
use collie_sim::{Image, Rng, SimDevice, VOLATILE_DIR};

use crate::thorough;

/// Where in a segment its frames begin.
const DATA: u64 = 8_192;

fn options(device: &SimDevice) -> LogOptions {
    LogOptions {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 32 << 10,
        segment_bytes: 32 << 10,
        max_workers: 4,
        threads: false,
        ..LogOptions::default()
    }
}

fn skipping(device: &SimDevice) -> LogOptions {
    LogOptions {
        recovery_mode: RecoveryMode::SkipDamaged,
        ..options(device)
    }
}

fn append(log: &Log, payload: &[u8]) -> Frame {
    let span = log.worker().unwrap().append(3, 4, payload).unwrap();
    Frame {
        start: span.start,
        end: span.end,
        stream: 3,
        kind: 4,
        payload: payload.to_vec(),
    }
}

fn append_durably(log: &Log, payload: &[u8]) -> Frame {
    let frame = append(log, payload);
    log.wait(frame.end, Level::Disk).unwrap();
    frame
}

fn payload(n: usize, len: usize) -> Vec<u8> {
    format!("frame {n}, ").bytes().cycle().take(len).collect()
}

/// Opens the log and demands that all ways to read it agree; returns what they give.
fn open(options: LogOptions) -> (Log, Vec<Frame>) {
    let mut seen = Vec::new();
    let log = Log::open_with(DIR, options, |frame| {
        seen.push(frame.to_frame());
        Ok::<(), LogError>(())
    })
    .unwrap();
    let read: Result<Vec<_>, _> = log.read(log.recovery().first_frame).unwrap().collect();
    assert_eq!(read.unwrap(), seen, "a reader and the opening");
    for frame in &seen {
        assert_eq!(log.get(frame.start).unwrap(), *frame);
    }
    for damaged in &log.recovery().damaged {
        for lsn in [damaged.from, damaged.to - 8] {
            let Err(LogError::Corrupt { found, .. }) = log.get(lsn) else {
                panic!("LSN {lsn} lies in {damaged:?}");
            };
            assert!(found.contains("damage"), "{found}");
        }
        // Also a reader that begins in the middle of it.
        let first = log.read(damaged.to - 8).unwrap().next().transpose().unwrap();
        let next = seen.iter().find(|frame| frame.start >= damaged.to);
        assert_eq!(first.as_ref(), next);
    }
    (log, seen)
}

/// Where damage was reported.
fn stretches(log: &Log) -> Vec<(Lsn, Lsn)> {
    let damaged = log.recovery().damaged.iter();
    damaged.map(|Damaged { from, to, .. }| (*from, *to)).collect()
}

fn segment(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("{number:016x}.seg"))
}

/// A small log that was closed, and its frames; the first segment has room for all.
fn small_log() -> (Image, Vec<Frame>) {
    let device = SimDevice::new(5);
    let (log, _) = open(options(&device));
    let lens = [30, 0, 45, 8, 100, 1, 64, 17, 3];
    let frames = lens.iter().enumerate().map(|(n, len)| {
        let frame = append(&log, &payload(n, *len));
        // Groups of two frames.
        if n % 2 == 1 {
            log.flush(Level::Disk).unwrap();
        }
        frame
    });
    let frames = frames.collect();
    log.close().unwrap();
    (device.snapshot().process_death(), frames)
}

/// One bit turned at each place of the log, its headers included: with `COLLIE_THOROUGH=1` every bit,
/// else one of each byte.
#[test]
fn whichever_bit_rots_all_frames_that_it_is_not_in_are_there() {
    let (image, frames) = small_log();
    let end = DATA + frames.last().unwrap().end - FIRST_LSN;
    // Behind the close frame, too.
    let data = (0..1_024).chain(4_096..5_120).chain(DATA..end + 64);
    let (mut lost, mut kept) = (0, 0);
    for byte in data {
        let bits = if thorough() { 0..8 } else { byte % 8..byte % 8 + 1 };
        for bit in bits {
            let mut image = image.clone();
            assert!(image.flip_bit(&segment(1), byte * 8 + bit));
            let lsn = FIRST_LSN + byte.saturating_sub(DATA);
            let hit = frames.iter().find(|frame| {
                // Not the padding, which no checksum covers.
                let covered = frame.start + (FRAME_HEADER + frame.payload.len()) as u64;
                byte >= DATA && (frame.start..covered).contains(&lsn)
            });
            let mut left = frames.clone();
            left.retain(|frame| Some(frame) != hit);
            let device = image.device();
            let (log, seen) = open(skipping(&device));
            assert_eq!(seen, left, "bit {bit} of byte {byte}");
            let expected: Vec<_> = hit.map(|frame| (frame.start, frame.end)).into_iter().collect();
            assert_eq!(stretches(&log), expected, "bit {bit} of byte {byte}");
            match hit {
                None => kept += 1,
                Some(frame) => {
                    lost += 1;
                    let damaged = &log.recovery().damaged[0];
                    assert_eq!(damaged.path, segment(1));
                    assert_eq!(damaged.offset, DATA + frame.start - FIRST_LSN);
                    assert!(log.recovery().warnings.iter().any(|w| w.contains("is lost")));
                }
            }
            // It is found again, by each opening, and nothing else is lost by going on.
            if byte % 8 == 0 {
                left.push(append_durably(&log, b"later"));
                log.close().unwrap();
                let (log, seen) = open(skipping(&device));
                assert_eq!((seen, stretches(&log)), (left, expected));
                log.close().unwrap();
                if hit.is_some() {
                    let refused = Log::open(DIR, options(&device)).unwrap_err();
                    assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
                }
            }
        }
    }
    assert!(lost > 400 && kept > 2_000, "{lost} lost, {kept} kept");
}

/// The bytes of the log by LSN, of the epoch that counts there.
struct Bytes {
    device: SimDevice,
    /// First LSN, its end, path, latest epoch first.
    segments: Vec<(Lsn, Lsn, PathBuf)>,
}

impl Bytes {
    fn of(device: &SimDevice) -> Self {
        let seam: Arc<dyn Device> = Arc::new(device.clone());
        let found = collie_log::inspect::inspect(&seam, Path::new(DIR), |_| {}).unwrap();
        let segments = found.segments.into_iter().rev();
        Self {
            device: device.clone(),
            segments: segments.map(|s| (s.first_lsn, s.end, s.path)).collect(),
        }
    }

    fn write(&self, lsn: Lsn, bytes: &[u8]) {
        for (lsn, byte) in (lsn..).zip(bytes) {
            let holds = |(first, end, _): &&(Lsn, Lsn, PathBuf)| (*first..*end).contains(&lsn);
            let (first, _, path) = self.segments.iter().find(holds).unwrap();
            let file = self.device.open(path, OpenMode::ReadWrite).unwrap();
            write_all_at(&*file, &[*byte], DATA + lsn - first).unwrap();
        }
    }

    fn read(&self, lsn: Lsn, len: u64) -> Vec<u8> {
        let read = |lsn| {
            let holds = |(first, end, _): &&(Lsn, Lsn, PathBuf)| (*first..*end).contains(&lsn);
            let (first, _, path) = self.segments.iter().find(holds).unwrap();
            let file = self.device.open(path, OpenMode::Read).unwrap();
            let mut byte = [0];
            read_exact_at(&*file, &mut byte, DATA + lsn - first).unwrap();
            byte[0]
        };
        (lsn..lsn + len).map(read).collect()
    }
}

/// Several lives, several segments, several stretches of any length, in frames of any length: across
/// segments and epochs.
#[test]
fn random_damage_costs_the_frames_that_it_touches_and_no_others() {
    let mut found = 0;
    for seed in 0..if thorough() { 400 } else { 40 } {
        let mut rng = Rng::new(seed);
        let mut device = SimDevice::new(seed);
        let mut frames = Vec::new();
        for _ in 0..=rng.below(3) {
            let options = LogOptions {
                compression: if rng.coin() {
                    Compression::Lz4
                } else {
                    Compression::None
                },
                ..options(&device)
            };
            let (log, seen) = open(options);
            assert_eq!(seen, frames);
            for n in 0..5 + rng.index(30) {
                let most = 1 << (4 + rng.below(9));
                let len = rng.index(most);
                frames.push(append(&log, &payload(n, len)));
                if rng.one_in(3) {
                    log.flush(Level::Disk).unwrap();
                }
            }
            if rng.coin() {
                log.close().unwrap();
            } else {
                log.flush(Level::Disk).unwrap();
                device = device.snapshot().process_death().device();
            }
        }
        // So that what comes last is proven to have been durable.
        let (log, _) = open(options(&device));
        log.close().unwrap();

        let bytes = Bytes::of(&device);
        let mut damage = Vec::new();
        for _ in 0..=rng.below(3) {
            let from = frames[rng.index(frames.len())].start + rng.below(40);
            let end = frames.last().unwrap().end;
            let most = 1 << rng.below(13);
            let len = (1 + rng.below(most)).min(end.saturating_sub(from + 1));
            let fill = rng.coin();
            let garbage: Vec<_> = (0..len)
                .map(|_| if fill { 0 } else { rng.below(256) as u8 })
                .collect();
            bytes.write(from, &garbage);
            damage.push(from..from + len);
        }
        let touched = |frame: &Frame| {
            let meets = |range: &std::ops::Range<Lsn>| range.start < frame.end && frame.start < range.end;
            damage.iter().any(meets)
        };
        let (log, seen) = open(skipping(&device));
        let mut left = frames.iter();
        for frame in &seen {
            let at = left.by_ref().find(|known| {
                assert!(
                    *known == frame || touched(known),
                    "seed {seed}: {} was not touched",
                    known.start
                );
                *known == frame
            });
            assert!(at.is_some(), "seed {seed}: no such frame: {}", frame.start);
        }
        assert!(left.all(touched), "seed {seed}: the last ones are missing");
        // Whatever is missing is in a stretch that was reported, and nothing else is in one.
        let is_reported = |frame: &Frame| {
            let stretches = stretches(&log);
            stretches
                .iter()
                .any(|(from, to)| *from <= frame.start && frame.end <= *to)
        };
        for frame in &frames {
            assert_eq!(
                !seen.contains(frame),
                is_reported(frame),
                "seed {seed}: {}",
                frame.start
            );
        }
        found += stretches(&log).len();
        let before = (seen, stretches(&log));
        log.close().unwrap();
        let (log, seen) = open(skipping(&device));
        assert_eq!((seen, stretches(&log)), before, "seed {seed}: opened again");
    }
    assert!(found > 20, "{found} stretches");
}

/// The payload of the damaged frame holds frames: copies of others of the log, and one that has the
/// LSN and the epoch of its place, and a checksum under a salt that is off by one bit.
#[test]
fn a_payload_that_looks_like_frames_is_never_taken_for_one() {
    let device = SimDevice::new(5);
    let (log, _) = open(options(&device));
    let first = append_durably(&log, &payload(0, 200));
    let bytes = Bytes {
        device: device.clone(),
        segments: vec![(FIRST_LSN, FIRST_LSN + (24 << 10), segment(1))],
    };
    let copied = bytes.read(first.start, first.end - first.start);
    let mut head = [0; 76];
    let file = device.open(&segment(1), OpenMode::Read).unwrap();
    read_exact_at(&*file, &mut head, 0).unwrap();
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    let (epoch, salt) = (number(56), number(60));

    let mut payload = copied.clone();
    for wrong in [salt ^ 1, 0, !salt] {
        let at = log.appended() + (FRAME_HEADER + payload.len()) as u64;
        let text = b"never appended, ";
        let mut rest = Vec::new();
        rest.extend_from_slice(&(text.len() as u32).to_le_bytes());
        rest.extend_from_slice(&at.to_le_bytes());
        rest.extend_from_slice(&0_u64.to_le_bytes());
        rest.extend_from_slice(&epoch.to_le_bytes());
        rest.extend_from_slice(&(3_u32 | 4 << 24).to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c_append(wrong, text), &rest);
        payload.extend_from_slice(&sum.to_le_bytes());
        payload.extend_from_slice(&rest);
        payload.extend_from_slice(text);
    }
    payload.extend_from_slice(&copied);
    let outer = append_durably(&log, &payload);
    let last = append_durably(&log, b"the next one");
    log.close().unwrap();
    // Its header rots; its payload is as it was.
    bytes.write(outer.start + 4, &[0xff]);
    let (log, seen) = open(skipping(&device));
    assert_eq!(seen, [first, last.clone()]);
    assert_eq!(stretches(&log), [(outer.start, last.start)]);
}

/// The frame behind the damage records as durable what ends in the middle of it, and the log ends
/// there: what is copied forward begins behind the damage.
#[test]
fn a_durable_mark_in_the_middle_of_the_damage_does_no_harm() {
    let device = SimDevice::new(5);
    let (log, _) = open(options(&device));
    let first = append_durably(&log, &payload(0, 50));
    let [a, b] = [
        append_durably(&log, &payload(1, 50)),
        append(&log, &payload(2, 50)),
    ];
    let last = append_durably(&log, &payload(3, 50));
    let device = device.snapshot().process_death().device();
    let bytes = Bytes::of(&device);
    bytes.write(a.start + 40, b"rot");
    bytes.write(b.start + 40, b"rot");
    let mut left = vec![first, last];
    for round in 0..3 {
        let (log, seen) = open(skipping(&device));
        assert_eq!(seen, left, "round {round}");
        assert_eq!(stretches(&log), [(a.start, b.end)]);
        left.push(append_durably(&log, b"on it goes"));
        log.close().unwrap();
    }
}

/// No frame behind it, but the epoch is known to have gone on: it is a stretch up to there, and the
/// log ends there.
#[test]
fn damage_up_to_a_recorded_end_ends_there() {
    let device = SimDevice::new(5);
    let (log, _) = open(options(&device));
    append_durably(&log, &payload(0, 50));
    // Not known to be durable: recovery copies it forward, and records how far.
    let copied = append_durably(&log, &payload(1, 50));
    let device = device.snapshot().process_death().device();
    let (log, seen) = open(options(&device));
    assert_eq!(seen.len(), 2);
    let end = log.recovery().end;
    drop(log);
    let mut image = device.snapshot().process_death();
    let last = segment(2);
    for byte in 0..copied.end - copied.start {
        image.flip_bit(&last, (DATA + byte) * 8);
    }
    // What closed the log, too: nothing of the epoch is left.
    for byte in copied.end - copied.start..copied.end - copied.start + 64 {
        image.flip_bit(&last, (DATA + byte) * 8 + 1);
    }
    let device = image.device();
    let (log, seen) = open(skipping(&device));
    assert_eq!(seen.len(), 1);
    assert_eq!(stretches(&log), [(copied.start, end)]);
    assert_eq!(log.recovery().end, end);
    let next = append_durably(&log, b"on it goes");
    log.close().unwrap();
    let (log, seen) = open(skipping(&device));
    assert_eq!(seen[1..], [next]);
    assert_eq!(stretches(&log), [(copied.start, end)]);
}

/// The end of the log is torn, and damage lies before it: each is what it is.
#[test]
fn a_torn_end_stays_a_torn_end() {
    let device = SimDevice::new(5);
    let (log, _) = open(options(&device));
    let frames: Vec<_> = (0..6).map(|n| append_durably(&log, &payload(n, 50))).collect();
    let device = device.snapshot().process_death().device();
    let bytes = Bytes::of(&device);
    bytes.write(frames[2].start + 40, b"rot");
    bytes.write(frames[5].start + 40, b"rot");
    let (log, seen) = open(skipping(&device));
    let left = [0, 1, 3, 4].map(|n| frames[n].clone());
    assert_eq!(seen, left);
    assert_eq!(stretches(&log), [(frames[2].start, frames[2].end)]);
    assert_eq!(log.recovery().torn.as_ref().unwrap().lsn, frames[5].start);
    assert_eq!(log.recovery().end, frames[5].start);
    log.close().unwrap();
    assert_eq!(open(skipping(&device)).1, left);
}

/// What the segments lost and the ring has is not lost; what both have lost is a stretch up to where
/// the ring goes on.
#[test]
fn what_the_ring_has_of_a_damaged_stretch_is_taken_from_there() {
    let shared = |options: LogOptions| LogOptions {
        ring: RingMode::Shared {
            dir: VOLATILE_DIR.into(),
        },
        ring_bytes: 8 << 10,
        ..options
    };
    let device = SimDevice::new(5);
    let (log, _) = open(shared(options(&device)));
    let frames: Vec<_> = (0..40)
        .map(|n| {
            let frame = append(&log, &payload(n, 600));
            let level = if n < 38 { Level::Disk } else { Level::Process };
            log.wait(frame.end, level).unwrap();
            frame
        })
        .collect();
    let image = device.snapshot().process_death();
    // A stretch from far before the ring to the end of what is written.
    let device = image.device();
    let bytes = Bytes::of(&device);
    let written = frames[37].end;
    bytes.write(
        frames[20].start,
        &vec![0xa5; (written - frames[20].start) as usize],
    );
    let (log, seen) = open(shared(skipping(&device)));
    let kept = seen
        .iter()
        .position(|frame| frame.start > frames[19].start)
        .unwrap();
    assert_eq!(seen[..kept], frames[..20]);
    let from_ring = &seen[kept..];
    assert!(from_ring.len() > 10, "{} frames from the ring", from_ring.len());
    assert_eq!(*from_ring, frames[40 - from_ring.len()..]);
    assert_eq!(stretches(&log), [(frames[20].start, from_ring[0].start)]);
    assert!(matches!(log.recovery().ring, RingOutcome::Recovered { .. }));
    log.close().unwrap();
    assert_eq!(open(shared(skipping(&device))).1, seen);
}

/// A segment whose header is lost in both copies may hold good frames: nothing is passed over, and
/// nothing removed.
#[test]
fn a_segment_without_a_header_still_refuses_to_open() {
    let device = SimDevice::new(5);
    let (log, _) = open(options(&device));
    for n in 0..60 {
        append_durably(&log, &payload(n, 1_000));
    }
    log.close().unwrap();
    let image = device.snapshot().process_death();
    for number in [1, 2, 3] {
        let mut image = image.clone();
        assert!(image.flip_bit(&segment(number), 800) && image.flip_bit(&segment(number), 4_096 * 8 + 800));
        let device = image.device();
        let before = image.files(DIR.as_ref());
        let refused = Log::open(DIR, skipping(&device)).unwrap_err();
        assert!(
            matches!(
                refused,
                LogError::Corrupt { .. } | LogError::BeginningUnknown { .. }
            ),
            "segment {number}: {refused}"
        );
        assert_eq!(device.snapshot().process_death().files(DIR.as_ref()), before);
    }
}

/// The segments of a stretch are released as others are, and with them what is known of it.
#[test]
fn a_stretch_is_reported_as_long_as_its_segments_are_there() {
    let device = SimDevice::new(5);
    let (log, _) = open(options(&device));
    let frames: Vec<_> = (0..100)
        .map(|n| append_durably(&log, &payload(n, 1_000)))
        .collect();
    log.close().unwrap();
    let bytes = Bytes::of(&device);
    // Across the end of the first segment.
    let across = frames
        .iter()
        .position(|f| f.end > FIRST_LSN + (24 << 10))
        .unwrap();
    bytes.write(frames[across - 2].start, &[0xa5; 4_000]);
    let stretch = (frames[across - 2].start, frames[across + 2].start);
    let (log, seen) = open(skipping(&device));
    assert_eq!(stretches(&log), [stretch]);
    // What is needed begins in the second segment, with a frame that is lost.
    log.retain("test", frames[across + 1].start);
    assert_eq!(log.oldest(), FIRST_LSN, "a part of the stretch is needed");
    log.close().unwrap();
    let (log, again) = open(skipping(&device));
    assert_eq!((again, stretches(&log)), (seen, vec![stretch]));
    log.retain("test", frames[80].start);
    let oldest = log.oldest();
    assert!(oldest > stretch.1, "nothing was released");
    log.close().unwrap();
    let (log, left) = open(skipping(&device));
    assert_eq!(stretches(&log), []);
    assert_eq!(left.last(), frames.last());
    assert_eq!(*left, frames[100 - left.len()..]);
}
