//! Three logs that take locks, or wait for one another, where Collie's does not: for comparison.
//!
//! They do the same work. Frames have Collie's size and a checksum over the same bytes, computed at
//! the same stage; the ring has the same size and lies in the same kind of memory; it drains to
//! zeroed segments through the same calls (`O_DIRECT | O_DSYNC`, or `fdatasync`), in pieces of the
//! same size; a background thread drains it past half full and after the same interval. Durability
//! is group commit: the first waiter that finds no thread flushing writes and syncs for all, and
//! wakes all when it is done. They differ in how a frame gets its place and how the end of the
//! complete prefix is found: that is [`Insertion`]. What they leave out speaks for them: recovery,
//! epochs, running out of space, statistics.

mod frame;
mod insert_locks;
mod link_buffer;
mod mutex;
mod ring;
mod sink;

use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use collie_io::Device;
use collie_log::{Level, RingMode, WritePath};
use zerocopy::IntoBytes;

use crate::contender::{Appender, Contender};
use crate::error::{At, BenchError};

pub(crate) use insert_locks::InsertLocks;
pub(crate) use link_buffer::LinkBuffer;
pub(crate) use mutex::OneMutex;

use frame::{FrameHeader, frame_len, payload_crc};
use ring::Ring;
use sink::Sink;

/// How a frame gets its place.
pub(crate) trait Insertion: Debug + Default + Send + Sync + 'static {
    /// The baseline's name.
    const NAME: &'static str;
    /// What a thread remembers from one insertion to the next.
    type Hint: Debug + Default + Send;

    /// Reserves `len` bytes, has them filled, and marks them complete. Returns their end.
    fn insert(
        &self,
        hint: &mut Self::Hint,
        len: u64,
        fill: impl FnOnce(u64) -> Result<(), BenchError>,
    ) -> Result<u64, BenchError>;

    /// Everything below is reserved.
    fn appended(&self) -> u64;

    /// Everything below is complete. Called by one thread at a time.
    fn boundary(&self) -> u64;

    /// Whether a frame that ends at `end` may be copied, as far as this structure is concerned.
    fn has_room(&self, _end: u64) -> bool {
        true
    }

    /// How far beyond what is written this structure can go.
    fn reach(&self) -> u64 {
        u64::MAX
    }
}

/// How a baseline is set up; the same figures as Collie's.
#[derive(Debug, Clone)]
pub(crate) struct BaselineOptions {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) ring: RingMode,
    pub(crate) ring_bytes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) write_path: WritePath,
    pub(crate) flush_interval: Duration,
}

/// How far a flight goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    Written,
    Durable,
}

#[derive(Debug)]
#[repr(align(128))]
struct Mark(AtomicU64);

#[derive(Debug)]
struct Core<I> {
    insertion: I,
    ring: Ring,
    ring_shared: bool,
    interval: Duration,
    /// Where the background thread is called.
    call_at: u64,
    written: Mark,
    durable: Mark,
    /// Whether a thread flushes.
    flying: Mutex<bool>,
    landed: Condvar,
    sink: Mutex<Sink>,
    called: AtomicBool,
    background: (Mutex<bool>, Condvar),
    failure: OnceLock<String>,
}

/// A lock-based log.
#[derive(Debug)]
pub(crate) struct Baseline<I: Insertion> {
    core: Arc<Core<I>>,
    drainer: Option<JoinHandle<()>>,
}

/// A thread's handle to a [`Baseline`].
#[derive(Debug)]
pub(crate) struct BaselineAppender<'a, I: Insertion> {
    core: &'a Core<I>,
    hint: I::Hint,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I: Insertion> Baseline<I> {
    pub(crate) fn open(dir: &Path, options: &BaselineOptions) -> Result<Self, BenchError> {
        let device = &*options.device;
        let insertion = I::default();
        let reach = insertion.reach().min(options.ring_bytes as u64);
        let core = Arc::new(Core {
            ring: Ring::new(device, &options.ring, options.ring_bytes)?,
            ring_shared: matches!(options.ring, RingMode::Shared { .. }),
            interval: options.flush_interval,
            call_at: reach / 2,
            written: Mark(AtomicU64::new(0)),
            durable: Mark(AtomicU64::new(0)),
            flying: Mutex::new(false),
            landed: Condvar::new(),
            sink: Mutex::new(Sink::new(device, dir, options.segment_bytes, options.write_path)?),
            called: AtomicBool::new(false),
            background: (Mutex::new(false), Condvar::new()),
            failure: OnceLock::new(),
            insertion,
        });
        let draining = Arc::clone(&core);
        let drainer = std::thread::Builder::new()
            .name(format!("{}-flush", I::NAME))
            .spawn(move || draining.drain())
            .at("start a thread for", dir)?;
        Ok(Self {
            core,
            drainer: Some(drainer),
        })
    }
}

impl<I: Insertion> Contender for Baseline<I> {
    type Appender<'a> = BaselineAppender<'a, I>;

    fn appender(&self) -> Result<Self::Appender<'_>, BenchError> {
        Ok(BaselineAppender {
            core: &self.core,
            hint: I::Hint::default(),
        })
    }

    fn wait(&self, end: u64, level: Level) -> Result<(), BenchError> {
        self.core.wait(end, level)
    }

    fn reached(&self, level: Level) -> u64 {
        match level {
            Level::Disk => self.core.durable(),
            _ => self.core.written(),
        }
    }

    fn tidy(&self) {}

    fn close(mut self) -> Result<(), BenchError> {
        self.core.wait(self.core.insertion.appended(), Level::Disk)?;
        self.stop();
        Ok(())
    }
}

impl<I: Insertion> Baseline<I> {
    fn stop(&mut self) {
        *lock(&self.core.background.0) = true;
        self.core.background.1.notify_all();
        if let Some(drainer) = self.drainer.take() {
            // A panic of the drainer has been printed, and stalls no thread that is measured.
            let _ = drainer.join();
        }
    }
}

impl<I: Insertion> Drop for Baseline<I> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<I: Insertion> Appender for BaselineAppender<'_, I> {
    fn append(&mut self, payload: &[u8]) -> Result<u64, BenchError> {
        let core = self.core;
        let crc = payload_crc(payload);
        let len = frame_len(payload.len());
        let end = core.insertion.insert(&mut self.hint, len, |start| {
            core.room(start + len)?;
            let header = FrameHeader::finish(crc, payload.len(), start, core.durable());
            let body = start + size_of::<FrameHeader>() as u64;
            let padding = (start + len - body) as usize - payload.len();
            #[expect(unsafe_code, reason = "the copy into the ring")]
            // SAFETY: the three ranges make up this thread's reservation, and there is room for it.
            unsafe {
                core.ring.copy_in(start, header.as_bytes());
                core.ring.copy_in(body, payload);
                core.ring
                    .copy_in(body + payload.len() as u64, [0; 8].split_at(padding).0);
            }
            Ok(())
        })?;
        core.call_drainer(end);
        Ok(end)
    }
}

impl<I: Insertion> Core<I> {
    /// Acquire pairs with the Release in `fly`.
    fn written(&self) -> u64 {
        self.written.0.load(Ordering::Acquire)
    }

    /// Acquire pairs with the Release in `fly`.
    fn durable(&self) -> u64 {
        self.durable.0.load(Ordering::Acquire)
    }

    fn reached(&self, end: u64, level: Level) -> bool {
        match level {
            Level::Buffered => true,
            Level::Process => self.ring_shared || self.written() >= end,
            Level::Disk => self.durable() >= end,
        }
    }

    fn wait(&self, end: u64, level: Level) -> Result<(), BenchError> {
        let until = if level == Level::Disk {
            Until::Durable
        } else {
            Until::Written
        };
        self.lead_until(until, || self.reached(end, level))
    }

    /// Waits until the frame that ends at `end` has room in the ring.
    fn room(&self, end: u64) -> Result<(), BenchError> {
        let has_room = || self.written() + self.ring.capacity() >= end && self.insertion.has_room(end);
        if has_room() {
            return Ok(());
        }
        self.lead_until(Until::Written, has_room)
    }

    /// Group commit: a thread that finds no other flushing flushes for all, the others sleep
    /// meanwhile.
    fn lead_until(&self, until: Until, done: impl Fn() -> bool) -> Result<(), BenchError> {
        let mut tries = 0;
        if done() {
            return Ok(());
        }
        let mut flying = lock(&self.flying);
        while !done() {
            if let Some(cause) = self.failure.get() {
                return Err(BenchError::Stopped { cause: cause.clone() });
            }
            if *flying {
                flying = self.landed.wait(flying).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            *flying = true;
            drop(flying);
            let flown = self.fly(until);
            if let Err(error) = flown {
                // The first failure is the one that counts.
                let _ = self.failure.set(error.to_string());
            }
            flying = lock(&self.flying);
            *flying = false;
            self.landed.notify_all();
            if !done() {
                // A thread is in mid-copy, and runs as we stand by.
                drop(flying);
                tries += 1;
                stand_by(tries);
                flying = lock(&self.flying);
            }
        }
        Ok(())
    }

    fn fly(&self, until: Until) -> Result<(), BenchError> {
        let mut sink = lock(&self.sink);
        let target = self.insertion.boundary();
        while sink.written() < target {
            let written = sink.write(&self.ring, target)?;
            // Release pairs with the Acquire in `written`: what was read out may be overwritten.
            self.written.0.store(written, Ordering::Release);
        }
        if until == Until::Durable && self.durable() < sink.written() {
            let durable = sink.sync()?;
            // Release pairs with the Acquire in `durable`.
            self.durable.0.store(durable, Ordering::Release);
        }
        Ok(())
    }

    fn call_drainer(&self, end: u64) {
        // Relaxed: a call that is missed is made by the next append.
        if end > self.written() + self.call_at && !self.called.load(Ordering::Relaxed) {
            self.called.store(true, Ordering::Relaxed);
            drop(lock(&self.background.0));
            self.background.1.notify_one();
        }
    }

    /// Flushes what no thread waits for.
    fn drain(&self) {
        let (stopped, called) = &self.background;
        loop {
            {
                let guard = lock(stopped);
                if *guard {
                    return;
                }
                if !self.called.load(Ordering::Relaxed) {
                    let woken = called.wait_timeout(guard, self.interval);
                    drop(woken);
                }
            }
            self.called.store(false, Ordering::Relaxed);
            // A failure is kept for those who wait.
            let _ = self.wait(self.insertion.appended(), Level::Disk);
        }
    }
}

/// Sleeps a moment while another thread finishes its copy, as Collie's leader does.
fn stand_by(tries: u32) {
    const SPINS: u32 = 16;
    if tries < SPINS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test reads the files from outside")]
mod tests {
    use super::*;

    const PAYLOAD: usize = 150;
    const THREADS: usize = 4;

    /// Every byte of a segment of the size that fits all frames is checked: each frame stands at
    /// its place under a good checksum, none is missing and none is there twice.
    fn frames_lie_without_a_gap<I: Insertion>(ring: RingMode, write_path: WritePath) {
        let dir = tempfile::tempdir().unwrap();
        let options = BaselineOptions {
            device: Arc::new(collie_io::RealDevice::new()),
            ring,
            ring_bytes: 64 << 10,
            segment_bytes: 4 << 20,
            write_path,
            flush_interval: Duration::from_millis(5),
        };
        let each = (4 << 20) / frame_len(PAYLOAD) / THREADS as u64 - 1;
        let log = Baseline::<I>::open(dir.path(), &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let log = &log;
                scope.spawn(move || {
                    let mut appender = log.appender().unwrap();
                    for n in 0..each {
                        let mut payload = [thread as u8; PAYLOAD];
                        payload[..8].copy_from_slice(&n.to_le_bytes());
                        let end = appender.append(&payload).unwrap();
                        if n % 100 == 0 {
                            log.wait(end, Level::Disk).unwrap();
                            assert!(log.reached(Level::Disk) >= end);
                        }
                    }
                });
            }
        });
        log.close().unwrap();
        let bytes = std::fs::read(dir.path().join("even.seg")).unwrap();
        let mut next = [0_u64; THREADS];
        let len = frame_len(PAYLOAD) as usize;
        for n in 0..each as usize * THREADS {
            let frame = &bytes[n * len..][..len];
            let (payload, padding) = frame[32..].split_at(PAYLOAD);
            let durable_mark = u64::from_le_bytes(frame[16..24].try_into().unwrap());
            let expected = FrameHeader::finish(payload_crc(payload), PAYLOAD, (n * len) as u64, durable_mark);
            assert_eq!(&frame[..32], expected.as_bytes(), "{}, frame {n}", I::NAME);
            assert!(durable_mark <= (n * len) as u64 && padding.iter().all(|b| *b == 0));
            let thread = usize::from(payload[8]);
            assert_eq!(u64::from_le_bytes(payload[..8].try_into().unwrap()), next[thread]);
            next[thread] += 1;
        }
        assert_eq!(next, [each; THREADS]);
    }

    #[test]
    fn every_baseline_writes_every_frame_once_at_its_place() {
        for (ring, path) in [
            (RingMode::default(), WritePath::Direct),
            (RingMode::Private, WritePath::FdataSync),
        ] {
            frames_lie_without_a_gap::<OneMutex>(ring.clone(), path);
            frames_lie_without_a_gap::<InsertLocks>(ring.clone(), path);
            frames_lie_without_a_gap::<LinkBuffer>(ring, path);
        }
    }
}
