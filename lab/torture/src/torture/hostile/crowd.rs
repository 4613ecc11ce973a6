//! A good client beside a crowd of connections that are silent, or send a request a byte at a time.
//!
//! The good client is measured alone and beside the crowd, in turns and in one run, so that what
//! else the machine does strikes both alike. What is compared are the medians of the turns' p99.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use collie_cli::resp::Client;
use collie_io::{Clock, RealClock};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::client;
use crate::limits::allow_files;

/// How long a turn is.
const TURN: Duration = Duration::from_millis(1_500);
/// How often bytes are sent, and to how many turns of that each connection comes once: a byte every
/// 250 ms.
const TICK: Duration = Duration::from_millis(10);
const TICKS: usize = 25;
/// How long a connection of the crowd waits for the reply to its request.
const PATIENCE: Duration = Duration::from_secs(30);
/// Open files that are needed beside those of the crowd.
const FILES: u64 = 64;
/// What a latency is recorded as at most, in ns, and to how many digits.
const LONGEST_NS: u64 = 120_000_000_000;
const DIGITS: u8 = 3;
/// The reply that the crowd gets.
const OK: &[u8] = b"+OK\r\n";

/// How many, and what is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) connections: usize,
    pub(crate) turns: u32,
    /// How many times the p99 without the crowd that beside it may be.
    pub(crate) factor: f64,
    /// Below this a p99 beside the crowd is no violation, in µs.
    pub(crate) floor_us: f64,
}

/// What was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    connections: usize,
    /// Bytes that the crowd sent beside the good client, each by itself.
    bytes: u64,
    /// Calls of the good client.
    calls: u64,
    /// Medians of the turns' p99.
    p99_alone_us: f64,
    p99_beside_us: f64,
    ratio: f64,
}

/// One connection of the crowd.
struct Slow {
    stream: TcpStream,
    request: Vec<u8>,
    sent: usize,
    /// A silent one sends nothing until the end.
    is_silent: bool,
}

pub(crate) fn run(port: u16, plan: Plan, violations: &mut Vec<String>) -> anyhow::Result<Report> {
    allow_files(plan.connections as u64 + FILES)?;
    let mut good = client::connect(port)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut report = Report {
        connections: plan.connections,
        ..Report::default()
    };
    for _ in 0..plan.turns {
        let (calls, p99) = measure(&mut good)?;
        alone.push(p99);
        report.calls += calls;
        let mut crowd = gather(port, plan.connections)?;
        let stop = AtomicBool::new(false);
        let measured = std::thread::scope(|scope| {
            let crowd = scope.spawn(|| dribble(&mut crowd, &stop));
            let measured = measure(&mut good);
            // Relaxed: a byte more does no harm.
            stop.store(true, Ordering::Relaxed);
            match crowd.join() {
                Ok(bytes) => Ok((measured?, bytes?)),
                Err(_) => anyhow::bail!("the crowd's thread panicked"),
            }
        });
        let ((calls, p99), bytes) = measured?;
        beside.push(p99);
        report.calls += calls;
        report.bytes += bytes;
        let sent = crowd.iter_mut().try_for_each(Slow::send_rest);
        let finished = sent.and_then(|()| crowd.iter_mut().try_for_each(Slow::take_reply));
        if let Err(error) = finished {
            violations.push(format!(
                "a connection of the crowd was not served in the end: {error}"
            ));
        }
    }
    report.p99_alone_us = median(&mut alone);
    report.p99_beside_us = median(&mut beside);
    report.ratio = report.p99_beside_us / report.p99_alone_us.max(1.0);
    violations.extend(report.judge(&plan));
    Ok(report)
}

impl Report {
    fn judge(&self, plan: &Plan) -> Option<String> {
        let is_slow = self.ratio > plan.factor && self.p99_beside_us > plan.floor_us;
        is_slow.then(|| {
            format!(
                "p99 of a good client is {:.0} µs beside {} slow connections and {:.0} µs alone: {:.2} times, at most \
                 {} were expected",
                self.p99_beside_us, self.connections, self.p99_alone_us, self.ratio, plan.factor
            )
        })
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "crowd: {} connections, {} bytes one at a time · p99 of a good client {:.0} µs alone, {:.0} µs beside \
             them, {:.2} times",
            self.connections, self.bytes, self.p99_alone_us, self.p99_beside_us, self.ratio
        )
    }
}

/// Calls of the good client for a turn, durable writes and reads by turns, and their p99 in µs.
fn measure(client: &mut Client) -> anyhow::Result<(u64, f64)> {
    let clock = RealClock;
    let mut latencies: Histogram<u64> =
        Histogram::new_with_max(LONGEST_NS, DIGITS).context("cannot make a histogram of latencies")?;
    let began = clock.monotonic();
    let length = u64::try_from(TURN.as_nanos()).unwrap_or(u64::MAX);
    let mut calls = 0_u64;
    loop {
        let before = clock.monotonic();
        if before.saturating_sub(began) >= length {
            break;
        }
        let text = calls.to_string();
        let command: &[&[u8]] = match calls % 2 {
            0 => &[b"SET", b"good", text.as_bytes()],
            _ => &[b"GET", b"good"],
        };
        client.call(command)?.good()?;
        latencies.saturating_record(clock.monotonic().saturating_sub(before));
        calls += 1;
    }
    Ok((calls, latencies.value_at_quantile(0.99) as f64 / 1_000.0))
}

/// Connects the crowd; every second one is silent.
fn gather(port: u16, connections: usize) -> anyhow::Result<Vec<Slow>> {
    let connect = |number| {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let key = format!("crowd:{number}");
        let request = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$4\r\nslow\r\n", key.len());
        Ok(Slow {
            stream,
            request: request.into_bytes(),
            sent: 0,
            is_silent: number % 2 == 0,
        })
    };
    let crowd: std::io::Result<Vec<Slow>> = (0..connections).map(connect).collect();
    crowd.context("cannot connect the crowd")
}

/// Sends a byte of each slow request now and then, until `stop` is set. Gives how many bytes that
/// were.
fn dribble(crowd: &mut [Slow], stop: &AtomicBool) -> std::io::Result<u64> {
    let mut bytes = 0;
    for tick in (0..TICKS).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        for slow in crowd.iter_mut().skip(tick).step_by(TICKS) {
            slow.send_byte()?;
            bytes += u64::from(!slow.is_silent);
        }
        std::thread::sleep(TICK);
    }
    Ok(bytes)
}

impl Slow {
    /// Sends the next byte; after the last one, takes the reply and begins anew.
    fn send_byte(&mut self) -> std::io::Result<()> {
        if self.is_silent {
            return Ok(());
        }
        if self.sent == self.request.len() {
            self.take_reply()?;
        }
        let byte = self.request.get(self.sent..=self.sent).unwrap_or_default();
        self.stream.write_all(byte)?;
        self.sent += 1;
        Ok(())
    }

    /// Takes the reply to a request that was sent.
    fn take_reply(&mut self) -> std::io::Result<()> {
        let mut reply = [0; OK.len()];
        self.stream.read_exact(&mut reply)?;
        self.sent = 0;
        if reply != OK {
            let text = String::from_utf8_lossy(&reply).into_owned();
            return Err(std::io::Error::other(format!(
                "a slow SET was answered with {text:?}"
            )));
        }
        Ok(())
    }

    /// Sends what is left of the request, a silent one's all.
    fn send_rest(&mut self) -> std::io::Result<()> {
        let rest = self.request.get(self.sent..).unwrap_or_default();
        self.stream.write_all(rest)?;
        self.sent = self.request.len();
        Ok(())
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p99_is_judged_by_its_ratio_above_the_floor() {
        let plan = Plan {
            connections: 1,
            turns: 1,
            factor: 2.0,
            floor_us: 1_000.0,
        };
        let judged = |alone: f64, beside: f64| {
            let report = Report {
                p99_alone_us: alone,
                p99_beside_us: beside,
                ratio: beside / alone,
                ..Report::default()
            };
            report.judge(&plan).is_some()
        };
        assert!(judged(600.0, 1_300.0));
        assert!(!judged(600.0, 1_200.0), "at the factor");
        assert!(!judged(60.0, 900.0), "below the floor");
    }
}
