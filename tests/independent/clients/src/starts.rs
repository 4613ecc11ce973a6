//! How long the log is after very many values, and how long a start takes after a stop and after a kill.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::model::Val;
use crate::resp::Res;
use crate::server::{Place, Server, bytes_under};

pub fn run(place: &Place, dir: &Path, keys: usize) -> Res<String> {
    let server = Server::start(place, dir, &[])?;
    let mut conn = server.conn()?;
    let begun = Instant::now();
    for some in (0..keys as u64).collect::<Vec<_>>().chunks(500) {
        for n in some {
            let key = format!("key:{n}").into_bytes();
            conn.push(&[
                b"SET",
                &key,
                &Val {
                    version: *n,
                    len: 1_000,
                }
                .bytes(&key),
            ]);
        }
        conn.flush()?;
        for _ in some {
            let reply = conn.reply()?;
            if !reply.is_ok() {
                return Err(format!("SET: {}", reply.brief()));
            }
        }
    }
    let (set, log) = (begun.elapsed(), bytes_under(&dir.join("log")) >> 20);
    let stopped = server.stop()?;
    let count = |server: &Server| -> Res<Duration> {
        let begun = Instant::now();
        match server.conn()?.int("DBSIZE")? {
            size if size == keys as i64 => Ok(begun.elapsed()),
            size => Err(format!("DBSIZE {size} of {keys} keys")),
        }
    };
    let server = Server::start(place, dir, &[])?;
    let after_stop = (server.started, count(&server)?);
    server.conn()?.words("SET key:0 x")?;
    server.kill();
    let server = Server::start(place, dir, &[])?;
    let after_kill = (server.started, count(&server)?);
    let all = bytes_under(dir) >> 20;
    server.stop()?;
    Ok(format!(
        "{keys} of 1 kB in {set:.1?}, log {log} MiB, store {all} MiB, stopped in {stopped:.1?}; start and \
         DBSIZE after a stop {:.2?}, {:.2?}, after a kill {:.2?}, {:.2?}",
        after_stop.0, after_stop.1, after_kill.0, after_kill.1
    ))
}
