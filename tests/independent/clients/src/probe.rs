//! A client that asks little at a steady rate, and what it waited. Two controls tell a server that holds up its
//! clients from a machine that does: the same of a socket without a server, and how much longer than alone a
//! thread takes that only computes.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::resp::{Conn, Reply, Res};

const KEY: &[u8] = b"probe";
const VALUE: &[u8] = b"steady";
/// Where nothing else is.
const DATABASE: &str = "SELECT 9";

#[derive(Default)]
struct Seen {
    waits: Vec<Duration>,
    fault: Option<String>,
}

struct Asker {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

impl Asker {
    /// Four connections in turn, so that each thread of a server has one. `gone`: the key may be missing.
    fn start(port: u16, get: bool, gone: bool) -> Res<Self> {
        let mut conns = (0..4).map(|_| Conn::open(port)).collect::<Res<Vec<_>>>()?;
        for conn in &mut conns {
            conn.words(DATABASE)?;
        }
        let (stop, seen) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Mutex::new(Seen::default())),
        );
        let (ends, found) = (stop.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            for turn in 0.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let args: &[&[u8]] = if get && turn % 8 > 3 {
                    &[b"GET", KEY]
                } else {
                    &[b"PING"]
                };
                let begun = Instant::now();
                let reply = conns[turn % 4].call(args);
                let Ok(mut seen) = found.lock() else { return };
                seen.waits.push(begun.elapsed());
                match reply {
                    Ok(Reply::Status(pong)) if pong == "PONG" => {}
                    Ok(Reply::Bulk(value)) if value == VALUE => {}
                    Ok(Reply::Null) if gone => {}
                    other => {
                        seen.fault = Some(format!("{args:?}: {}", other.map_or_else(|e| e, |r| r.brief())));
                        return;
                    }
                }
                drop(seen);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Ok(Self {
            stop,
            seen,
            thread: Some(thread),
        })
    }

    fn take(&self) -> Res<Vec<Duration>> {
        let mut seen = self.seen.lock().map_err(|e| e.to_string())?;
        match &seen.fault {
            Some(fault) => Err(format!("the client at a steady rate: {fault}")),
            None => Ok(std::mem::take(&mut seen.waits)),
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub struct Probe {
    server: Asker,
    control: Asker,
    computer: Computer,
    pub limit: Duration,
}

/// Of a while: how often was asked, the longest waits, the longest of the control, and how many times longer
/// than alone computing took.
#[derive(Clone, Copy, Default)]
pub struct Waits {
    pub asked: usize,
    pub p99: Duration,
    pub max: Duration,
    pub control: Duration,
    pub slowed: f64,
}

impl Waits {
    fn of(mut waits: Vec<Duration>, control: &[Duration], slowed: f64) -> Self {
        waits.sort_unstable();
        Self {
            asked: waits.len(),
            p99: waits
                .get(waits.len().saturating_sub(1) * 99 / 100)
                .copied()
                .unwrap_or_default(),
            max: waits.last().copied().unwrap_or_default(),
            control: control.iter().max().copied().unwrap_or_default(),
            slowed,
        }
    }

    /// A server that holds up others longer than the machine does.
    pub fn judge(&self, what: &str, limit: Duration) -> Res<()> {
        if self.max <= limit.mul_f64(self.slowed) + 3 * self.control {
            return Ok(());
        }
        Err(format!("{what} kept other clients waiting: {self}"))
    }
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let (p99, max, control) = (ms(self.p99), ms(self.max), ms(self.control));
        write!(
            f,
            "p99 {p99:.1} max {max:.1} ms of {} (control {control:.1}, slowed {:.1})",
            self.asked, self.slowed
        )
    }
}

impl Probe {
    pub fn start(port: u16, gone: bool, limit: Duration) -> Res<Self> {
        let mut conn = Conn::open(port)?;
        conn.words(DATABASE)?;
        let set = conn.call(&[b"SET", KEY, VALUE])?;
        if !set.is_ok() && !gone {
            return Err(format!("SET of the probe's key: {}", set.brief()));
        }
        let server = Asker::start(port, true, gone)?;
        Ok(Self {
            server,
            control: Asker::start(echo()?, false, false)?,
            computer: Computer::start(),
            limit,
        })
    }

    /// The waits since this was called last; a limit that was passed is the fault of `what`.
    pub fn take(&self, what: &str) -> Res<Waits> {
        let waits = Waits::of(self.server.take()?, &self.control.take()?, self.computer.take());
        waits.judge(what, self.limit)?;
        Ok(waits)
    }
}

/// A thread that computes from time to time.
struct Computer {
    stop: Arc<AtomicBool>,
    slowed: Arc<Mutex<Vec<f64>>>,
    thread: Option<JoinHandle<()>>,
}

impl Computer {
    /// Longer than the kernel lets a thread go on beside others.
    const STEPS: u64 = 1 << 22;
    const EVERY: Duration = Duration::from_millis(400);

    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let slowed = Arc::new(Mutex::new(Vec::new()));
        let (ends, all) = (stop.clone(), slowed.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let (begun, before) = (Instant::now(), waited());
                for n in 0..Self::STEPS {
                    black_box(n);
                }
                let (took, waited) = (begun.elapsed(), waited().saturating_sub(before));
                let alone = took.saturating_sub(waited).max(Duration::from_millis(1));
                let Ok(mut all) = all.lock() else { return };
                all.push(took.as_secs_f64() / alone.as_secs_f64());
                drop(all);
                std::thread::park_timeout(Self::EVERY);
            }
        });
        Self {
            stop,
            slowed,
            thread: Some(thread),
        }
    }

    /// How many times longer than alone it took, the median since this was called last.
    fn take(&self) -> f64 {
        let mut slowed = self
            .slowed
            .lock()
            .map(|mut all| std::mem::take(&mut *all))
            .unwrap_or_default();
        slowed.sort_unstable_by(f64::total_cmp);
        slowed.get(slowed.len() / 2).map_or(1.0, |slowed| slowed.max(1.0))
    }
}

/// How long this thread has waited for a processor; zero where the kernel does not say.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

impl Drop for Computer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// A port where each request is answered with PONG.
fn echo() -> Res<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
    let port = listener.local_addr().map_err(|e| e.to_string())?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(4).flatten() {
            std::thread::spawn(move || {
                let (mut stream, mut request) = (stream, [0; 64]);
                let _ = stream.set_nodelay(true);
                while stream.read(&mut request).is_ok_and(|n| n > 0) {
                    if stream.write_all(b"+PONG\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_holds_up_is_told_from_a_machine_that_does() {
        let ms = Duration::from_millis;
        let limit = ms(50);
        assert!(
            Waits::of(vec![ms(1), ms(400), ms(2)], &[ms(1)], 1.0)
                .judge("KEYS", limit)
                .is_err()
        );
        assert!(
            Waits::of(vec![ms(1), ms(400), ms(2)], &[ms(150)], 1.0)
                .judge("KEYS", limit)
                .is_ok()
        );
        assert!(
            Waits::of(vec![ms(1), ms(40)], &[ms(1)], 1.0)
                .judge("KEYS", limit)
                .is_ok()
        );
        assert!(
            Waits::of(vec![ms(1), ms(90)], &[ms(1)], 2.0)
                .judge("KEYS", limit)
                .is_ok()
        );
    }
}
