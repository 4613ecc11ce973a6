//! How a log is read when it is opened and replayed: each byte about once, in large pieces, through
//! a buffer whose size does not depend on the log's. Shown by the operations that the device was
//! asked for, not by the clock.

use std::sync::Arc;

use collie_log::{Compression, FIRST_LSN, Level, Log, LogOptions, RingMode};
use collie_sim::{OpKind, SimDevice};

const DIR: &str = "/log";
const SEGMENT: u64 = 4 << 20;
/// The pieces that the log is read in.
const PIECE: u64 = 1 << 20;
const FRAMES: u64 = 20_000;

fn options(device: &SimDevice, compression: Compression) -> LogOptions {
    LogOptions {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 1 << 20,
        segment_bytes: SEGMENT,
        max_workers: 4,
        threads: false,
        compression,
        ..LogOptions::default()
    }
}

/// Text that shrinks a little, so that compressed frames are not tiny.
fn payload(n: u64) -> Vec<u8> {
    (0..1000)
        .map(|i| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i % 61) & 0x1f) as u8 + b'a')
        .collect()
}

/// What was read of segments since the device had done `before` operations: how often, how much in
/// all, and at most at once.
fn reads(device: &SimDevice, before: u64) -> (u64, u64, u64) {
    let trace = device.trace();
    assert!(
        trace[0].number <= before + 1,
        "the trace reaches back to the beginning"
    );
    trace
        .iter()
        .filter(|op| op.number > before && op.kind == OpKind::Read)
        .filter(|op| op.path.extension().is_some_and(|e| e == "seg"))
        .fold((0, 0, 0), |(count, sum, most), op| {
            (count + 1, sum + op.len, most.max(op.len))
        })
}

#[test]
fn a_log_is_replayed_in_large_reads_and_bounded_memory() {
    for compression in [Compression::None, Compression::Lz4] {
        let device = SimDevice::new(1);
        let log = Log::open(DIR, options(&device, compression)).unwrap();
        let mut worker = log.worker().unwrap();
        for n in 0..FRAMES {
            worker.append(0, 0, &payload(n)).unwrap();
            if n % 500 == 0 {
                log.flush(Level::Disk).unwrap();
            }
        }
        let end = log.flush(Level::Disk).unwrap();
        drop(worker);
        log.close().unwrap();
        let bytes = end - FIRST_LSN;
        let segments = bytes.div_ceil(SEGMENT) + 1;
        // A piece that reaches into the next segment takes two reads; a header takes one, and the
        // newest epoch's another one before it is written again.
        let most_reads = bytes / PIECE + 3 * segments + 9;

        let before = device.operations();
        let log = Log::open(DIR, options(&device, compression)).unwrap();
        let (count, sum, most) = reads(&device, before);
        assert!(
            count <= most_reads,
            "{count} reads of {bytes} bytes to open, not {most_reads}"
        );
        assert!(sum >= bytes, "everything is verified");
        // Behind its end the last segment is looked through for later frames.
        assert!(
            sum <= bytes + bytes / 10 + 2 * SEGMENT,
            "{sum} bytes were read of {bytes}"
        );
        assert!(most <= PIECE, "{most} bytes at once");

        let before = device.operations();
        let mut frames = 0;
        for frame in log.read(FIRST_LSN).unwrap() {
            assert_eq!(frame.unwrap().payload, payload(frames));
            frames += 1;
        }
        assert_eq!(frames, FRAMES);
        let (count, sum, most) = reads(&device, before);
        assert!(
            count <= most_reads,
            "{count} reads of {bytes} bytes to replay, not {most_reads}"
        );
        assert!(
            (bytes..=bytes + bytes / 10).contains(&sum),
            "{sum} bytes were read of {bytes}"
        );
        assert!(most <= PIECE, "{most} bytes at once");
    }
}
