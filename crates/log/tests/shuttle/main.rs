//! The whole log under shuttle: its code as shipped, on a simulated device, through random
//! schedules.
//!
//! `scripts/models shuttle` runs it. `COLLIE_SCHEDULES` sets how many schedules all tests together
//! try, `COLLIE_SEED` where they begin. A failure prints its schedule; `COLLIE_REPLAY=SCHEDULE`
//! with the test's name replays it. Shuttle takes every atomic for sequentially consistent;
//! orderings are loom's business.

#![cfg(shuttle)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, which shows its figures"
)]

mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use collie_log::{
    Frame, Level, Log, LogError, LogOptions, LogSet, LogSetOptions, RingMode, Span, Worker, WritePath,
};
use collie_sim::{Fault, FaultKind, PowerCut, SimDevice, VOLATILE_DIR};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::sync::Mutex;
use shuttle::{Config, Runner, future, thread};

const DIR: &str = "/log";
/// How many tests share `COLLIE_SCHEDULES`.
const TESTS: u64 = 14;
const RING: usize = 8 << 10;
const SEGMENT: u64 = 32 << 10;

/// Runs a test through its share of schedules: half of them at random, half by priorities that
/// change at few points (which finds bugs of few ordering constraints more often).
fn explore(name: &str, test: impl Fn() + Send + Sync + 'static) {
    let from_env = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.silence_warnings = true;
        config
    };
    if let Ok(schedule) = std::env::var("COLLIE_REPLAY") {
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config()).run(test);
        return;
    }
    let share = (from_env("COLLIE_SCHEDULES").unwrap_or(400) / TESTS).div_ceil(2) as usize;
    let seed = from_env("COLLIE_SEED").unwrap_or_else(fresh_seed);
    println!("test {name}: COLLIE_SEED={seed}");
    let test = Arc::new(test);
    let again = Arc::clone(&test);
    let random = Runner::new(RandomScheduler::new_from_seed(seed, share), config()).run(move || test());
    let by_priority = Runner::new(PctScheduler::new_from_seed(seed, 4, share), config()).run(move || again());
    println!("model {name}: {} schedules", random + by_priority);
}

/// A seed that differs from run to run.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) >> 16
}

/// A device, and a log's options that vary with the schedule's seed.
fn setting() -> (SimDevice, LogOptions) {
    let device = SimDevice::new(thread_rng().r#gen());
    let options = options(&device);
    (device, options)
}

fn options(device: &SimDevice) -> LogOptions {
    let coin = || thread_rng().gen_bool(0.5);
    let pad_to_block = coin();
    LogOptions {
        pad_to_block,
        device: Arc::new(device.clone()),
        ring: if coin() {
            RingMode::Private
        } else {
            RingMode::Shared {
                dir: PathBuf::from(VOLATILE_DIR),
            }
        },
        // A frame is a block less than half of it where write groups are padded.
        ring_bytes: if pad_to_block { 2 * RING } else { RING },
        segment_bytes: SEGMENT,
        max_workers: 4,
        write_path: if coin() {
            WritePath::Direct
        } else {
            WritePath::FdataSync
        },
        flush_interval: Duration::from_secs(1),
        threads: false,
        ..LogOptions::default()
    }
}

/// What its appender says about a frame, to be compared with what is read back.
#[derive(Default)]
struct Expected {
    appended: BTreeMap<u64, (u32, Vec<u8>)>,
    /// Ends that were acknowledged as being on the device.
    durable: Vec<Span>,
}

/// Everything that a test's threads share.
#[derive(Clone)]
struct World {
    device: SimDevice,
    options: LogOptions,
    log: Log,
    expected: Arc<Mutex<Expected>>,
}

impl World {
    fn open() -> Self {
        let (device, options) = setting();
        Self::on(device, options)
    }

    fn on(device: SimDevice, options: LogOptions) -> Self {
        let log = Log::open(DIR, options.clone()).unwrap();
        let expected = Arc::default();
        Self {
            device,
            options,
            log,
            expected,
        }
    }

    /// Appends a frame whose bytes differ from every other's, and notes it.
    fn append(&self, worker: &mut Worker, stream: u32, n: usize, len: usize) -> Result<Span, LogError> {
        let payload: Vec<u8> = (0..len)
            .map(|i| (stream as usize * 83 + n * 29 + i * 7) as u8)
            .collect();
        let span = worker.append(stream, 1, &payload)?;
        // The watermark only grows: if it is too low now, it was when the frame was copied.
        assert!(
            span.end <= self.log.written() + self.options.ring_bytes as u64,
            "a frame was copied over bytes that were not written yet"
        );
        let earlier = self
            .expected
            .lock()
            .unwrap()
            .appended
            .insert(span.start, (stream, payload));
        assert!(earlier.is_none(), "two frames have one place");
        Ok(span)
    }

    /// Waits for the device and notes the acknowledgement.
    fn commit(&self, span: Span) -> Result<(), LogError> {
        self.log.wait(span.end, Level::Disk)?;
        assert!(
            self.log.durable() >= span.end,
            "acknowledged before it was durable"
        );
        self.expected.lock().unwrap().durable.push(span);
        Ok(())
    }

    /// Cuts the power, opens what is left on another machine, and demands what was acknowledged.
    fn cut_power(&self) {
        let acknowledged = self.expected.lock().unwrap().durable.clone();
        let (name, cut) = PowerCut::WAYS[thread_rng().gen_range(0..PowerCut::WAYS.len())];
        let image = self.device.snapshot().power_cut(cut, thread_rng().r#gen());
        let device = image.device();
        let options = LogOptions {
            device: Arc::new(device.clone()),
            ring: RingMode::Private,
            ..self.options.clone()
        };
        let log = Log::open(DIR, options).unwrap_or_else(|e| panic!("after a power cut ({name}): {e}"));
        self.demand(&log, &acknowledged, name);
        // A crash, not a close: the other machine is of no further use.
        device.kill();
    }

    /// Demands that every frame of `acknowledged` is there, and that whatever is there was
    /// appended.
    fn demand(&self, log: &Log, acknowledged: &[Span], after: &str) {
        let oldest = log.recovery().first_frame;
        let found: Vec<Frame> = log.read(oldest).unwrap().collect::<Result<_, _>>().unwrap();
        let starts: BTreeSet<u64> = found.iter().map(|f| f.start).collect();
        for span in acknowledged.iter().filter(|span| span.start >= oldest) {
            assert!(
                starts.contains(&span.start),
                "acknowledged and lost ({after}): {span:?}"
            );
        }
        self.compare(&found);
    }

    /// Demands that a reader from `from` on finds every frame of `acknowledged`.
    fn demand_all(&self, from: u64, acknowledged: &[Span]) {
        let frames: Vec<_> = self.log.read(from).unwrap().collect::<Result<_, _>>().unwrap();
        let starts: BTreeSet<u64> = frames.iter().map(|f| f.start).collect();
        for span in acknowledged {
            assert!(starts.contains(&span.start), "a reader missed {span:?}");
        }
        self.compare(&frames);
    }

    /// Demands that frames are what their appenders say. One that is being noted right now is let
    /// pass.
    fn compare(&self, found: &[Frame]) {
        let expected = self.expected.lock().unwrap();
        for frame in found {
            if let Some((stream, payload)) = expected.appended.get(&frame.start) {
                assert!(
                    *stream == frame.stream && *payload == frame.payload,
                    "the frame at {} is not what was appended there",
                    frame.start
                );
            }
        }
    }

    /// Closes the log, opens it again and demands all that was acknowledged.
    fn close_and_reopen(&self) {
        self.log.clone().close().unwrap();
        let log = Log::open(DIR, self.options.clone()).unwrap();
        assert_eq!(log.recovery().torn, None, "closed, and torn");
        let acknowledged = self.expected.lock().unwrap().durable.clone();
        self.demand(&log, &acknowledged, "close");
    }
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// Runs `work` on threads of their own; each gets its number.
fn spawn(
    world: &World,
    count: u32,
    work: impl Fn(&World, u32) + Send + Sync + 'static,
) -> Vec<thread::JoinHandle<()>> {
    let work = Arc::new(work);
    (0..count)
        .map(|n| {
            let (world, work) = (world.clone(), Arc::clone(&work));
            thread::spawn(move || work(&world, n))
        })
        .collect()
}

/// Appends and commits until the log says that it stopped.
fn commit_until_stopped(world: &World, stream: u32, frames: usize, len: usize) {
    let Ok(mut worker) = world.log.worker() else {
        return;
    };
    for n in 0..frames {
        let done = world
            .append(&mut worker, stream, n, len)
            .and_then(|span| world.commit(span));
        match done {
            Ok(()) => {}
            Err(LogError::Poisoned { .. } | LogError::Closed) => return,
            // No room could be prepared: nothing is at stake.
            Err(LogError::Unprepared { .. }) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn acknowledged_groups_survive_a_power_cut_at_any_moment() {
    explore("group commit", || {
        let world = World::open();
        let committers = spawn(&world, 3, |world, stream| {
            let mut worker = world.log.worker().unwrap();
            for n in 0..2 {
                let span = world.append(&mut worker, stream, n, 40).unwrap();
                world.commit(span).unwrap();
            }
        });
        world.cut_power();
        join(committers);
        world.close_and_reopen();
    });
}

/// One thread writes for `Process`, another syncs: the sync covers what it makes durable.
#[test]
fn a_sync_covers_what_another_thread_wrote() {
    explore("a write beside a sync", || {
        let (device, options) = setting();
        let world = World::on(
            device,
            LogOptions {
                ring: RingMode::Private,
                write_path: WritePath::FdataSync,
                ..options
            },
        );
        let mut worker = world.log.worker().unwrap();
        let first = world.append(&mut worker, 0, 0, 100).unwrap();
        world.commit(first).unwrap();
        let second = world.append(&mut worker, 0, 1, 100).unwrap();
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.log.wait(second.end, Level::Process).unwrap())
        };
        world.commit(second).unwrap();
        world.cut_power();
        writer.join().unwrap();
    });
}

#[test]
fn a_full_ring_and_full_segments_lose_and_mix_nothing() {
    explore("rotation", || {
        let world = World::open();
        let workers = spawn(&world, 3, |world, stream| {
            let mut worker = world.log.worker().unwrap();
            // Large frames and small ones, more than a segment, of which the ring takes a fifth.
            for (n, len) in [3_900, 900, 4_000].into_iter().enumerate() {
                world.append(&mut worker, stream, n, len).unwrap();
            }
        });
        world.log.flush(Level::Process).unwrap();
        join(workers);
        let end = world.log.flush(Level::Disk).unwrap();
        assert_eq!(world.log.durable(), world.log.appended());
        // A filler may follow.
        assert!(world.log.durable() >= end);
        let frames: Vec<_> = world
            .log
            .read(world.log.recovery().first_frame)
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(frames.len(), 9);
        world.compare(&frames);
        world.cut_power();
        world.close_and_reopen();
    });
}

#[test]
fn held_frames_are_readable_while_the_rest_is_recycled() {
    explore("release", || {
        let world = World::open();
        let committers = spawn(&world, 2, |world, stream| {
            let mut worker = world.log.worker().unwrap();
            for n in 0..6 {
                let span = world.append(&mut worker, stream, n, 4_000).unwrap();
                world.commit(span).unwrap();
            }
        });
        let mut at = world.log.recovery().first_frame;
        for _ in 0..4 {
            world.log.retain("keeper", at);
            let frames: Vec<_> = world.log.read(at).unwrap().collect::<Result<_, _>>().unwrap();
            world.compare(&frames);
            at = frames.last().map_or(at, |frame| frame.end);
            thread::yield_now();
        }
        world.cut_power();
        join(committers);
        world.log.retain("keeper", world.log.durable());
        assert!(
            world.log.oldest() > world.log.recovery().first_frame,
            "nothing was released"
        );
        world.close_and_reopen();
    });
}

#[test]
fn readers_find_every_segment_while_it_goes_to_the_archive() {
    explore("archive", || {
        let (device, options) = setting();
        let options = LogOptions {
            archive_ttl: Duration::from_secs(3600),
            ..options
        };
        let world = World::on(device, options);
        let from = world.log.recovery().first_frame;
        let mut threads = spawn(&world, 2, |world, stream| {
            let mut worker = world.log.worker().unwrap();
            for n in 0..6 {
                let span = world.append(&mut worker, stream, n, 3_900).unwrap();
                world.commit(span).unwrap();
                world.log.retain("keeper", world.log.durable());
            }
        });
        threads.extend(spawn(&world, 1, move |world, _| {
            let mut tail = world.log.tail("copy", from).unwrap();
            let mut at = from;
            for _ in 0..12 {
                at = tail.next().unwrap().unwrap().end;
            }
            assert_eq!(at, tail.resume_at());
        }));
        for _ in 0..4 {
            let acknowledged = world.expected.lock().unwrap().durable.clone();
            world.demand_all(from, &acknowledged);
            thread::yield_now();
        }
        join(threads);
        world.log.retain("keeper", world.log.durable());
        assert!(world.log.stats().archived_segments > 0, "nothing was archived");
        let acknowledged = world.expected.lock().unwrap().durable.clone();
        world.demand_all(from, &acknowledged);
        assert_eq!(acknowledged.len(), 12);
    });
}

/// Only the log's threads write and prepare: a lost wake-up would leave a task waiting.
#[test]
fn tasks_that_await_room_get_it() {
    explore("room", || {
        let (device, options) = setting();
        let world = World::on(
            device,
            // Nothing is written but for room, and a frame takes what was prepared for another: a
            // segment is as long.
            LogOptions {
                threads: true,
                manual_flush: true,
                ring_bytes: 64 << 10,
                ..options
            },
        );
        let tasks = spawn(&world, 3, |world, stream| {
            let mut worker = world.log.worker().unwrap();
            for len in [20_000, 900, 27_000, 24_000] {
                let span =
                    future::block_on(worker.append_async(stream, 1, &vec![stream as u8; len])).unwrap();
                assert!(
                    span.end <= world.log.written() + world.options.ring_bytes as u64,
                    "a frame was copied over bytes that were not written yet"
                );
            }
        });
        join(tasks);
        world.log.flush(Level::Disk).unwrap();
        let from = world.log.recovery().first_frame;
        let frames: Vec<_> = world.log.read(from).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(frames.len(), 12);
        assert!(
            frames
                .iter()
                .all(|frame| frame.payload.iter().all(|byte| u32::from(*byte) == frame.stream))
        );
        world.close_and_reopen();
    });
}

/// Two logs with the threads of one set: a call that is missed would leave a task waiting, and one
/// that a closing log misses would leave the other without its threads. Nothing comes with time in a
/// model.
#[test]
fn logs_that_share_threads_are_served_and_closed_each_by_itself() {
    explore("set", || {
        let (device, options) = setting();
        let flushers = thread_rng().gen_range(1..3);
        let set = LogSet::new(LogSetOptions {
            flushers,
            ..LogSetOptions::default()
        })
        .unwrap();
        let options = LogOptions {
            threads: true,
            set: Some(set),
            ..options
        };
        let tasks: Vec<_> = ["/one", "/two"]
            .into_iter()
            .map(|dir| {
                let (options, device) = (options.clone(), device.clone());
                thread::spawn(move || {
                    let log = Log::open(dir, options.clone()).unwrap();
                    let committers: Vec<_> = (0..2)
                        .map(|stream| {
                            let log = log.clone();
                            thread::spawn(move || {
                                let mut worker = log.worker().unwrap();
                                let level = if stream == 0 { Level::Disk } else { Level::Process };
                                for len in [10, 3_000, 600] {
                                    let span = worker.append(stream, 1, &vec![7; len]).unwrap();
                                    future::block_on(log.wait_async(span.end, level)).unwrap();
                                }
                            })
                        })
                        .collect();
                    committers.into_iter().for_each(|task| task.join().unwrap());
                    let durable = log.flush(Level::Disk).unwrap();
                    // By its last handle, or by hand.
                    if thread_rng().gen_bool(0.5) {
                        log.close().unwrap();
                    } else {
                        drop(log);
                    }
                    let unshared = LogOptions {
                        device: Arc::new(device),
                        set: None,
                        threads: false,
                        ..options
                    };
                    let log = Log::open(dir, unshared).unwrap();
                    let recovered = log.recovery();
                    assert!(recovered.end >= durable && recovered.frames >= 6, "{recovered:?}");
                })
            })
            .collect();
        drop(options);
        join(tasks);
    });
}

#[test]
fn a_failing_device_poisons_the_log_and_leaves_nobody_waiting() {
    explore("poison", || {
        let world = World::open();
        let kind = [FaultKind::WriteFails, FaultKind::SyncFails][thread_rng().gen_range(0..2)];
        let operations = thread_rng().gen_range(0..8);
        world.device.inject(Fault::new(kind).on(".seg").after(operations));
        let committers = spawn(&world, 3, |world, stream| {
            commit_until_stopped(world, stream, 4, if stream == 0 { 40 } else { 3_900 });
        });
        join(committers);
        let cause = world.log.poisoned();
        assert!(
            cause.is_none() || world.device.fired(kind) > 0,
            "poisoned by what happened, and by nothing else: {cause:?}"
        );
        world.device.heal();
        world.cut_power();
        if cause.is_some() {
            assert!(world.log.clone().close().is_err());
        }
    });
}

#[test]
fn a_close_among_appends_keeps_acknowledged_frames() {
    explore("close", || {
        let world = World::open();
        let committers = spawn(&world, 3, |world, stream| match stream {
            // At the Process level: the ring goes, and its content must not.
            0 => {
                let Ok(mut worker) = world.log.worker() else {
                    return;
                };
                for n in 0..4 {
                    let Ok(span) = world.append(&mut worker, stream, n, 900) else {
                        return;
                    };
                    match world.log.wait(span.end, Level::Process) {
                        Ok(()) => world.expected.lock().unwrap().durable.push(span),
                        Err(error) => assert!(matches!(error, LogError::Closed), "{error}"),
                    }
                }
            }
            _ => commit_until_stopped(world, stream, 3, 2_000),
        });
        world.log.clone().close().unwrap();
        let reopened = Log::open(DIR, world.options.clone()).unwrap();
        join(committers);
        let acknowledged = world.expected.lock().unwrap().durable.clone();
        world.demand(&reopened, &acknowledged, "close");
    });
}

#[test]
fn futures_are_woken_by_the_thread_that_flushes() {
    explore("futures without background threads", || {
        let world = World::open();
        let tasks = spawn(&world, 2, |world, stream| {
            let mut worker = world.log.worker().unwrap();
            let span = world.append(&mut worker, stream, 0, 100).unwrap();
            future::block_on(world.log.wait_async(span.end, Level::Disk)).unwrap();
            assert!(
                world.log.durable() >= span.end,
                "acknowledged before it was durable"
            );
            world.expected.lock().unwrap().durable.push(span);
        });
        while world.expected.lock().unwrap().durable.len() < 2 {
            world.log.flush(Level::Disk).unwrap();
            thread::yield_now();
        }
        join(tasks);
        world.cut_power();
    });
}

/// One tail blocks and one is awaited; a commit, or a close, wakes both.
#[test]
fn tails_see_every_frame_once_and_wake_at_close() {
    const FRAMES: usize = 2;
    explore("tails", || {
        let world = World::open();
        let from = world.log.durable();
        let followers: Vec<_> = [true, false]
            .map(|blocks| {
                let mut tail = world.log.tail("follower", from).unwrap();
                thread::spawn(move || {
                    let mut frames = Vec::new();
                    loop {
                        let next = if blocks {
                            tail.next().unwrap()
                        } else {
                            future::block_on(tail.next_frame())
                        };
                        match next {
                            Ok(frame) => frames.push((frame.start, frame.stream)),
                            Err(LogError::Closed) => return frames,
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .into();
        let committers = spawn(&world, 2, |world, stream| {
            let mut worker = world.log.worker().unwrap();
            for n in 0..FRAMES {
                let span = world.append(&mut worker, stream, n, 100).unwrap();
                if n == 0 {
                    world.commit(span).unwrap();
                }
            }
        });
        join(committers);
        let appended = world.expected.lock().unwrap().appended.clone();
        world.log.clone().close().unwrap();
        for follower in followers {
            let seen = follower.join().unwrap();
            let expected: Vec<_> = appended
                .iter()
                .map(|(start, (stream, _))| (*start, *stream))
                .collect();
            assert_eq!(seen, expected, "a tail missed a frame, or saw one twice");
        }
    });
}

/// A world whose log has its background threads.
fn with_threads() -> World {
    let (device, options) = setting();
    let options = LogOptions {
        threads: true,
        // One is the background flusher's own.
        max_workers: 5,
        ..options
    };
    World::on(device, options)
}

#[test]
fn the_flusher_serves_every_future_despite_dropped_ones() {
    explore("futures with background threads", || {
        let world = with_threads();
        let tasks = spawn(&world, 2, |world, stream| {
            let mut worker = world.log.worker().unwrap();
            let span = world.append(&mut worker, stream, 0, 100).unwrap();
            drop(future::block_on(async {
                let mut dropped = Box::pin(world.log.wait_async(span.end, Level::Disk));
                std::future::poll_fn(|cx| std::task::Poll::Ready(dropped.as_mut().poll(cx))).await
            }));
            let mut kept = Box::pin(world.log.wait_async(span.end, Level::Disk));
            future::block_on(kept.as_mut()).unwrap();
            world.expected.lock().unwrap().durable.push(span);
            // A future that has its answer and is still there keeps no thread busy.
            thread::yield_now();
        });
        join(tasks);
        world.cut_power();
        world.close_and_reopen();
    });
}

#[test]
fn background_threads_share_the_work_and_stop_with_the_log() {
    explore("background threads", || {
        let world = with_threads();
        world.log.retain("keeper", world.log.recovery().first_frame);
        let committers = spawn(&world, 2, |world, stream| {
            commit_until_stopped(world, stream, 4, 3_900);
        });
        world.log.retain("keeper", world.log.durable());
        if thread_rng().gen_bool(0.5) {
            world.log.clone().close().unwrap();
        }
        join(committers);
        world.cut_power();
        world.close_and_reopen();
    });
}
