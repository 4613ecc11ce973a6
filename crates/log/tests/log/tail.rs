//! Following a log that is being written: every durable frame, whole, once, in order.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use collie_log::{Compression, FIRST_LSN, Frame, Level, Log, LogError, LogOptions, RingMode};

fn options() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 32 << 10,
        max_workers: 8,
        flush_interval: Duration::from_millis(2),
        ..LogOptions::default()
    }
}

/// Nothing happens behind the test's back.
fn alone() -> LogOptions {
    LogOptions {
        threads: false,
        ..options()
    }
}

fn payload(stream: u32, n: u64) -> Vec<u8> {
    let len = (n * 131 + u64::from(stream)) % 900;
    format!("{stream}/{n}\n")
        .bytes()
        .cycle()
        .take(len as usize)
        .collect()
}

#[test]
fn a_tail_sees_every_frame_once_while_segments_recycle() {
    const WRITERS: u32 = 3;
    const FRAMES: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        compression: Compression::Lz4,
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let tail = log.tail("copy", FIRST_LSN).unwrap();
    let follower = std::thread::spawn(move || {
        let (mut next, mut at) = ([0_u64; WRITERS as usize], FIRST_LSN);
        for frame in tail {
            let frame = match frame {
                Ok(frame) => frame,
                Err(LogError::Closed) => return next,
                Err(error) => panic!("{error}"),
            };
            assert!(frame.start >= at, "frames in order");
            at = frame.end;
            let n = &mut next[frame.stream as usize];
            assert_eq!(frame.payload, payload(frame.stream, *n));
            *n += 1;
        }
        panic!("the tail ended without saying why");
    });
    let writers: Vec<_> = (0..WRITERS)
        .map(|stream| {
            let log = log.clone();
            std::thread::spawn(move || {
                let mut worker = log.worker().unwrap();
                for n in 0..FRAMES {
                    let span = worker.append(stream, 1, &payload(stream, n)).unwrap();
                    if n % 32 == 0 {
                        log.wait(span.end, Level::Disk).unwrap();
                        // A program that does not read the tail releases everything.
                        log.retain("others", log.durable());
                    }
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|w| w.join().unwrap());
    log.close().unwrap();
    assert_eq!(follower.join().unwrap(), [FRAMES; WRITERS as usize]);
}

#[test]
fn a_slow_tail_is_named_as_what_pins_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), alone()).unwrap();
    let mut worker = log.worker().unwrap();
    let mut tail = log.tail("replica/7", FIRST_LSN).unwrap();
    for n in 0..200_u64 {
        worker.append(0, 0, &[n as u8; 2000]).unwrap();
    }
    let end = log.flush(Level::Disk).unwrap();
    log.retain("tables", end);
    assert_eq!(log.oldest(), FIRST_LSN);
    assert_eq!(log.holders()[0], ("tail/replica/7".to_owned(), FIRST_LSN));
    let pinned = log.stats().segments;
    for _ in 0..100 {
        tail.try_next().unwrap().unwrap();
    }
    log.retain("tables", end);
    assert!(log.oldest() > FIRST_LSN && log.oldest() <= tail.resume_at());
    assert!(log.stats().segments <= pinned / 2 + 2);
    // It goes with its hold; a program that goes on later retains the place.
    let place = tail.resume_at();
    log.retain("replica/7", place);
    drop(tail);
    log.retain("tables", end);
    let frame = log.tail("replica/7", place).unwrap().next().unwrap().unwrap();
    assert_eq!((frame.start, frame.payload), (place, vec![100; 2000]));
    log.release("replica/7");
    assert!(matches!(log.tail("x", place), Err(LogError::Missing { .. })));
}

#[test]
fn a_tail_goes_on_at_its_last_place_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut place = FIRST_LSN;
    let mut seen = Vec::new();
    for round in 0..4_u64 {
        // A floor above the end leaves a gap between two epochs.
        let min_lsn = if round == 2 { place + (1 << 20) } else { 0 };
        let log = Log::open(dir.path(), LogOptions { min_lsn, ..alone() }).unwrap();
        let mut worker = log.worker().unwrap();
        let mut tail = log.tail("copy", place).unwrap();
        for n in 0..50 {
            worker.append(0, 0, &payload(0, round * 50 + n)).unwrap();
        }
        log.flush(Level::Disk).unwrap();
        // It stops somewhere; the rest comes with the next round.
        let stop = if round == 3 { 100 } else { 20 + round };
        for _ in 0..stop {
            match tail.try_next().unwrap() {
                Some(frame) => seen.push(frame.payload),
                None => break,
            }
        }
        place = tail.resume_at();
        drop(tail);
        log.retain("copy", place);
        drop(worker);
        log.close().unwrap();
    }
    let expected: Vec<_> = (0..200).map(|n| payload(0, n)).take(seen.len()).collect();
    assert!(seen.len() > 150, "{}", seen.len());
    assert_eq!(seen, expected);
}

/// Counts wake-ups.
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_awaited_frame_wakes_its_task_once_durable_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), alone()).unwrap();
    let mut worker = log.worker().unwrap();
    let mut tail = log.tail("task", log.durable()).unwrap();
    let woken = Arc::new(Woken(AtomicU64::new(0)));
    let waker = Arc::clone(&woken).into();
    let mut context = Context::from_waker(&waker);

    // A dropped future leaves nothing behind, and loses nothing.
    assert!(pin!(tail.next_frame()).poll(&mut context).is_pending());
    let mut next = pin!(tail.next_frame());
    assert!(next.as_mut().poll(&mut context).is_pending());
    let span = worker.append(3, 4, b"soon").unwrap();
    assert!(next.as_mut().poll(&mut context).is_pending(), "only in the ring");
    assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    log.wait(span.end, Level::Disk).unwrap();
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "one waits, one is woken");
    let Poll::Ready(Ok(frame)) = next.as_mut().poll(&mut context) else {
        panic!("it is durable");
    };
    let expected = Frame {
        start: span.start,
        end: span.end,
        stream: 3,
        kind: 4,
        payload: b"soon".to_vec(),
    };
    assert_eq!(frame, expected);
}

#[test]
fn a_poisoned_log_ends_its_tails_after_what_was_durable() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), alone()).unwrap();
    let mut tail = log.tail("copy", FIRST_LSN).unwrap();
    let waiting = log.tail("sleeper", FIRST_LSN).unwrap();
    let sleeping = Arc::new(AtomicBool::new(false));
    let sleeper = {
        let sleeping = Arc::clone(&sleeping);
        std::thread::spawn(move || {
            waiting
                .inspect(|_| sleeping.store(true, Ordering::SeqCst))
                .map(|next| next.map(|frame| frame.payload))
                .collect::<Vec<_>>()
        })
    };
    let mut worker = log.worker().unwrap();
    let span = worker.append(0, 0, b"safe").unwrap();
    log.wait(span.end, Level::Disk).unwrap();
    while !sleeping.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let poisoner = log.clone();
    let panicked = std::thread::spawn(move || {
        let mut worker = poisoner.worker().unwrap();
        let _ = worker.append_paused(0, 0, b"never", [&mut |_| (), &mut |_| panic!("on purpose")]);
    });
    assert!(panicked.join().is_err());
    assert_eq!(tail.next().unwrap().unwrap().payload, b"safe");
    assert!(matches!(tail.next(), Some(Err(LogError::Poisoned { .. }))));
    assert!(tail.next().is_none(), "once is enough");
    let slept = sleeper.join().unwrap();
    assert!(
        matches!(&slept[..], [Ok(safe), Err(LogError::Poisoned { .. })] if safe == b"safe"),
        "{slept:?}"
    );
}

#[test]
fn a_tail_of_what_is_not_there_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), alone()).unwrap();
    let span = log.worker().unwrap().append(0, 0, b"not yet durable").unwrap();
    for from in [FIRST_LSN - 8, span.end] {
        let error = log.tail("early", from).unwrap_err();
        assert!(
            matches!(error, LogError::Missing { wanted, .. } if wanted == from),
            "{error}"
        );
    }
    assert_eq!(log.holders(), [], "a refusal leaves no holder");
}
