//! A few keys, overwritten very often, while clients keep what is old: watched keys, cursors, unread replies.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::model::{Rng, judge_scan};
use crate::probe::Probe;
use crate::resp::{Conn, Reply, Res};
use crate::server::{Place, Server, bytes_under};

/// The fastest of the reads in one stretch of the overwrites: what the server needs for one, however busy the
/// machine is.
#[derive(Clone, Copy, Default)]
struct Pace {
    get: Duration,
    scan: Duration,
    exec: Duration,
}

/// Reads must not get slower with what was overwritten.
fn judge(paces: &[Pace]) -> Res<()> {
    for (name, of) in [
        ("GET", (|p| p.get) as fn(&Pace) -> Duration),
        ("SCAN", |p| p.scan),
        ("EXEC", |p| p.exec),
    ] {
        let mut best = paces.iter().take(3).map(of).max().unwrap_or_default();
        best = best.max(Duration::from_micros(300));
        let mut last: Vec<Duration> = paces.iter().rev().take(3).map(of).collect();
        last.sort_unstable();
        if last.first().is_some_and(|last| *last > 6 * best) {
            return Err(format!(
                "{name} took {best:?} at first, {last:?} in the last stretches of overwrites"
            ));
        }
    }
    Ok(())
}

pub fn run(place: &Place, dir: &Path, writes: usize, rng: &mut Rng, limit: Duration) -> Res<String> {
    let server = Server::start(place, dir, &[])?;
    let mut conn = server.conn()?;
    let still: BTreeSet<Vec<u8>> = (0..2_000).map(|n| format!("s{n:05}").into_bytes()).collect();
    still.iter().for_each(|key| conn.push(&[b"SET", key, b"still"]));
    conn.flush()?;
    for _ in &still {
        conn.reply()?;
    }
    let hot: Vec<Vec<u8>> = (0..rng.pick(&[2, 4, 8]))
        .map(|n| format!("s{:05}h", n * 7).into_bytes())
        .collect();
    let large = vec![b'x'; 1 << 20];
    conn.call(&[b"SET", b"zlarge", &large])?;
    // Holders: watched keys with a queue, one of them hot; a cursor; replies that nobody reads for now.
    let (mut watcher, mut loser) = (server.conn()?, server.conn()?);
    for (holder, key) in [(&mut watcher, &b"s00001"[..]), (&mut loser, &hot[0])] {
        holder.call(&[b"WATCH", key])?;
        holder.words("MULTI")?;
        (0..1_000).try_for_each(|_| holder.call(&[b"GET", key]).map(drop))?;
    }
    let mut cursor = server.conn()?;
    let (mut next, mut scanned) = cursor.scan(b"0", "COUNT 100")?;
    let mut deaf = server.conn()?;
    (0..64).for_each(|_| deaf.push(&[b"MGET", b"zlarge", &hot[0], b"zlarge", &hot[1]]));
    deaf.flush()?;
    let probe = Probe::start(server.port, false, limit)?;

    let (port, keys, len) = (server.port, hot.clone(), rng.pick(&[10, 100, 1_000]));
    let rounds = writes.div_ceil(keys.len());
    let writer = std::thread::spawn(move || -> Res<()> {
        let mut conn = Conn::open(port)?;
        let mut left = rounds;
        for n in (0..rounds).step_by(200) {
            let batch = left.min(200);
            for m in n..n + batch {
                let value = format!("{m:0len$}").into_bytes();
                let args = keys.iter().flat_map(|key| [key.as_slice(), &value]);
                conn.push(&[&b"MSET"[..]].into_iter().chain(args).collect::<Vec<_>>());
            }
            conn.flush()?;
            for _ in 0..batch {
                let reply = conn.reply()?;
                if !reply.is_ok() {
                    return Err(format!("MSET: {}", reply.brief()));
                }
            }
            left -= batch;
        }
        Ok(())
    });
    let (mut paces, mut rss, begun) = (Vec::new(), 0.0, Instant::now());
    while !writer.is_finished() {
        paces.push(read(&mut conn, &hot)?);
        rss = server.metric("process_resident_memory_bytes")?.max(rss);
        if next != b"0" && paces.len() % 4 == 0 {
            let (then, keys) = cursor.scan(&next, "COUNT 100")?;
            next = then;
            scanned.extend(keys);
        }
    }
    writer.join().map_err(|_| "the writer panicked")??;
    let (took, waits) = (begun.elapsed(), probe.take("overwrites")?);
    while next != b"0" {
        let (then, keys) = cursor.scan(&next, "COUNT 100")?;
        next = then;
        scanned.extend(keys);
    }
    let mut ever: BTreeSet<Vec<u8>> = still.iter().chain(&hot).cloned().collect();
    ever.insert(b"zlarge".to_vec());
    judge_scan(&scanned, &still, &ever)?;
    let won = watcher.words("EXEC")?;
    let all_still = |all: &[Reply]| all.iter().all(|r| *r == Reply::Bulk(b"still".into()));
    if !matches!(&won, Reply::Array(all) if all.len() == 1_000 && all_still(all)) {
        return Err(format!(
            "EXEC of a watched key that nobody changed: {}",
            won.brief()
        ));
    }
    let lost = loser.words("EXEC")?;
    if lost != Reply::Null {
        return Err(format!(
            "EXEC of a watched key that was overwritten: {}",
            lost.brief()
        ));
    }
    for _ in 0..64 {
        let reply = deaf.reply()?;
        let whole = matches!(&reply, Reply::Array(all)
            if all[0] == Reply::Bulk(large.clone()) && all[0] == all[2] && all[1] == all[3]);
        if !whole {
            return Err(format!("MGET: {}", reply.brief()));
        }
    }
    judge(&paces)?;
    // Ring, four memtables, cache, and what clients do not read.
    if rss > 900e6 {
        return Err(format!(
            "{} MB of memory after {writes} overwrites of {} keys",
            rss / 1e6,
            hot.len()
        ));
    }
    let [first, last] = [paces.first(), paces.last()].map(|pace| pace.copied().unwrap_or_default());
    let (rate, mib) = (writes as f64 / took.as_secs_f64() / 1e3, bytes_under(dir) >> 20);
    server.stop()?;
    Ok(format!(
        "{writes} overwrites of {} keys at {rate:.0} k/s: GET {:?} to {:?}, SCAN {:?} to {:?}, EXEC {:?} to \
         {:?}, {:.0} MB, {mib} MiB on disk; {waits}",
        hot.len(),
        first.get,
        last.get,
        first.scan,
        last.scan,
        first.exec,
        last.exec,
        rss / 1e6
    ))
}

/// GET, SCAN over the hot keys, and EXEC, in which all of one MSET must be seen.
fn read(conn: &mut Conn, hot: &[Vec<u8>]) -> Res<Pace> {
    let mut times = [Duration::MAX; 3];
    for n in 0..40 {
        let begun = Instant::now();
        conn.call(&[b"GET", &hot[n % hot.len()]])?;
        times[0] = times[0].min(begun.elapsed());
        let begun = Instant::now();
        let (_, keys) = conn.scan(b"0", "COUNT 60")?;
        times[1] = times[1].min(begun.elapsed());
        if keys.len() < 60 {
            return Err(format!("SCAN 0 COUNT 60 of 2,000 keys: {} keys", keys.len()));
        }
        let begun = Instant::now();
        conn.push(&[b"MULTI"]);
        hot.iter().for_each(|key| conn.push(&[b"GET", key]));
        conn.push(&[b"EXEC"]);
        conn.flush()?;
        (0..=hot.len()).try_for_each(|_| conn.reply().map(drop))?;
        let reply = conn.reply()?;
        times[2] = times[2].min(begun.elapsed());
        let whole = |all: &[Reply]| all.len() == hot.len() && all.iter().all(|one| *one == all[0]);
        if !matches!(&reply, Reply::Array(all) if whole(all)) {
            return Err(format!("EXEC saw a part of an MSET: {}", reply.brief()));
        }
    }
    let [get, scan, exec] = times;
    Ok(Pace { get, scan, exec })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_get_slower_are_found() {
        let pace = |ms: u64| Pace {
            scan: Duration::from_millis(ms),
            ..Pace::default()
        };
        assert!(judge(&[pace(1), pace(2), pace(1), pace(20), pace(3), pace(2)]).is_ok());
        assert!(judge(&[pace(1), pace(2), pace(1), pace(20), pace(30), pace(40)]).is_err());
    }
}
