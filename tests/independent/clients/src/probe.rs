//! A client that asks little at a steady rate, and what it waited; the same of a socket without a server is
//! the control, which tells a server that holds up its clients from a machine that does.

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
    pub limit: Duration,
}

/// Of a while: how often was asked, the longest waits, and the longest of the control.
#[derive(Clone, Copy, Default)]
pub struct Waits {
    pub asked: usize,
    pub p99: Duration,
    pub max: Duration,
    pub control: Duration,
}

impl Waits {
    fn of(mut waits: Vec<Duration>, control: &[Duration]) -> Self {
        waits.sort_unstable();
        Self {
            asked: waits.len(),
            p99: waits
                .get(waits.len().saturating_sub(1) * 99 / 100)
                .copied()
                .unwrap_or_default(),
            max: waits.last().copied().unwrap_or_default(),
            control: control.iter().max().copied().unwrap_or_default(),
        }
    }

    /// A server that holds up others longer than the machine does.
    pub fn judge(&self, what: &str, limit: Duration) -> Res<()> {
        if self.max <= limit + 3 * self.control {
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
            "p99 {p99:.1} max {max:.1} ms of {} (control {control:.1})",
            self.asked
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
            limit,
        })
    }

    /// The waits since this was called last; a limit that was passed is the fault of `what`.
    pub fn take(&self, what: &str) -> Res<Waits> {
        let waits = Waits::of(self.server.take()?, &self.control.take()?);
        waits.judge(what, self.limit)?;
        Ok(waits)
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
            Waits::of(vec![ms(1), ms(400), ms(2)], &[ms(1)])
                .judge("KEYS", limit)
                .is_err()
        );
        assert!(
            Waits::of(vec![ms(1), ms(400), ms(2)], &[ms(150)])
                .judge("KEYS", limit)
                .is_ok()
        );
        assert!(
            Waits::of(vec![ms(1), ms(40)], &[ms(1)])
                .judge("KEYS", limit)
                .is_ok()
        );
    }
}
