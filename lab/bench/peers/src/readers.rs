//! What reads pay for writes on a slow device: 50 clients that SET and GET in turn, replies
//! durable, each sync longer by a millisecond. Collie's server runs in this process, on a device
//! that waits after each sync and each write past the page cache; Redis runs with a library before
//! its own that waits after `fdatasync`. (A tracer that injects the wait stops all threads for each
//! call, and is none the wiser about which of them waits.)

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use collie_bench::SyncDevice;
use collie_db::{Db, Options};
use collie_server::{Server, ServerConfig, ServerError};

const DELAY: Duration = Duration::from_millis(1);
const CLIENTS: u64 = 50;
const WARM_UP: Duration = Duration::from_millis(500);
const DURATION: Duration = Duration::from_secs(3);

const SLOW_FDATASYNC: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int result = real(fd), error = errno;
    usleep(1000);
    errno = error;
    return result;
}
"#;

enum Running {
    Collie(JoinHandle<Result<(), ServerError>>),
    Redis(Child),
}

/// Clients' view of a load: the median and 99th percentile in milliseconds, and requests per
/// second.
#[derive(Clone, Copy)]
struct Load {
    p50: f64,
    p99: f64,
    per_second: f64,
}

pub fn run(repeat: usize, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let slow = dir
        .join("slow_fdatasync.so")
        .canonicalize()
        .or_else(|_| compile(dir))?;
    let mut runs: [Vec<(Load, Load)>; 2] = [Vec::new(), Vec::new()];
    for round in 0..repeat {
        for (name, runs) in ["collie", "redis"].iter().zip(&mut runs) {
            eprint!("\rreaders, round {} of {repeat}, {name:<8}", round + 1);
            let home = dir.join(name);
            let _ = std::fs::remove_dir_all(&home);
            std::fs::create_dir_all(&home)?;
            let (running, addr) = if *name == "collie" {
                collie(&home)?
            } else {
                redis(&home, &slow)?
            };
            runs.push(measure(addr)?);
            stop(running, addr)?;
            let _ = std::fs::remove_dir_all(&home);
        }
    }
    eprint!("\r{:60}\r", "");
    println!("{CLIENTS} clients, SET and GET in turn, each sync 1 ms longer; medians of {repeat} rounds");
    let p99 = |runs: &[(Load, Load)]| median(runs.iter().map(|run| run.0.p99));
    for (name, runs) in ["collie", "redis"].iter().zip(&runs) {
        let of = |pick: fn(&(Load, Load)) -> f64| median(runs.iter().map(pick));
        println!(
            "{name:<7} GET p50 {:.3} ms, p99 {:.3} ms, {:.0}/s   SET p50 {:.3} ms, p99 {:.3} ms, {:.0}/s",
            of(|r| r.0.p50),
            of(|r| r.0.p99),
            of(|r| r.0.per_second),
            of(|r| r.1.p50),
            of(|r| r.1.p99),
            of(|r| r.1.per_second),
        );
    }
    println!("p99 of GET, Collie / Redis: {:.3}", p99(&runs[0]) / p99(&runs[1]));
    Ok(())
}

fn compile(dir: &Path) -> io::Result<std::path::PathBuf> {
    let source = dir.join("slow_fdatasync.c");
    std::fs::write(&source, SLOW_FDATASYNC)?;
    let library = dir.join("slow_fdatasync.so");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl")
        .status()?;
    if !compiled.success() {
        return Err(io::Error::other(
            "cc could not compile the library that slows fdatasync",
        ));
    }
    library.canonicalize()
}

fn collie(home: &Path) -> Result<(Running, SocketAddr)> {
    let options = Options {
        create_if_missing: true,
        device: Arc::new(SyncDevice::new(DELAY)),
        ..Options::default()
    };
    let config = ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..ServerConfig::default()
    };
    let server = Server::bind(config, Db::open(home.join("store"), options)?)?;
    let addr = server.local_addr();
    Ok((
        Running::Collie(std::thread::spawn(|| server.run(std::future::pending()))),
        addr,
    ))
}

fn redis(home: &Path, slow: &Path) -> Result<(Running, SocketAddr)> {
    // Another program may take it in between; then Redis says so and ends.
    let addr = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let server = Command::new("redis-server")
        .args([
            "--port",
            &addr.port().to_string(),
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
        ])
        .arg("--dir")
        .arg(home)
        .env("LD_PRELOAD", slow)
        .stdout(Stdio::null())
        .spawn()
        .context("redis-server (Debian package redis-server)")?;
    for _ in 0..100 {
        if TcpStream::connect(addr).is_ok() {
            return Ok((Running::Redis(server), addr));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("redis-server does not answer at {addr}")
}

fn stop(running: Running, addr: SocketAddr) -> Result<()> {
    let port = addr.port().to_string();
    // The server goes without a reply.
    let _ = Command::new("redis-cli")
        .args(["-p", &port, "shutdown", "nosave"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    match running {
        Running::Collie(thread) => match thread.join() {
            Ok(ended) => Ok(ended?),
            Err(_) => bail!("the server panicked"),
        },
        Running::Redis(mut child) => {
            child.wait()?;
            Ok(())
        }
    }
}

/// Every client sends a SET, then a GET, and waits for each reply.
fn measure(addr: SocketAddr) -> Result<(Load, Load)> {
    let until = Instant::now() + WARM_UP + DURATION;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| std::thread::spawn(move || client(addr, number, until)))
        .collect();
    let (mut gets, mut sets) = (Vec::new(), Vec::new());
    for client in clients {
        let Ok(times) = client.join() else {
            bail!("a client panicked");
        };
        let (of_gets, of_sets) = times?;
        gets.extend(of_gets);
        sets.extend(of_sets);
    }
    Ok((load(gets)?, load(sets)?))
}

/// Microseconds of each GET and each SET, once warm.
fn client(addr: SocketAddr, number: u64, until: Instant) -> Result<(Vec<u64>, Vec<u64>)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    let (mut gets, mut sets) = (Vec::new(), Vec::new());
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut reply = [0; 256];
    let value = "v".repeat(100);
    let warm = until - DURATION;
    for turn in 0_u64.. {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let key = format!("key:{:012}", state % 1_000_000);
        let request = if turn % 2 == 0 {
            format!("*3\r\n$3\r\nSET\r\n$16\r\n{key}\r\n$100\r\n{value}\r\n")
        } else {
            format!("*2\r\n$3\r\nGET\r\n$16\r\n{key}\r\n")
        };
        let start = Instant::now();
        if start >= until {
            break;
        }
        stream.write_all(request.as_bytes())?;
        let mut len = 0;
        loop {
            let n = stream.read(&mut reply[len..])?;
            ensure!(n > 0, "the server closed a connection");
            len += n;
            // +OK, or $-1, or $100 and the value: 108 bytes.
            match &reply[..len] {
                [b'+' | b'$', .., b'\r', b'\n'] if reply[0] == b'+' || reply[1] == b'-' || len == 108 => {
                    break;
                }
                [b'-', ..] => bail!("the server answered {}", String::from_utf8_lossy(&reply[..len])),
                _ => {}
            }
        }
        if start >= warm {
            let times = if turn % 2 == 0 { &mut sets } else { &mut gets };
            times.push(start.elapsed().as_micros() as u64);
        }
    }
    Ok((gets, sets))
}

fn load(mut times: Vec<u64>) -> Result<Load> {
    ensure!(!times.is_empty(), "no request was answered in time");
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    Ok(Load {
        p50: at(0.5),
        p99: at(0.99),
        per_second: times.len() as f64 / DURATION.as_secs_f64(),
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
