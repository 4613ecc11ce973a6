//! Files that vanish under a server: its file system, its directory, its ring.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use collie_cli::resp::{Client, Reply};
use collie_io::{Clock, Device, RealClock, RealDevice};
use serde::Serialize;

use super::stage::Stage;
use super::tmpfs::Tmpfs;
use crate::client;
use crate::torture::served::Served;

/// The file system's size.
const DISK: u64 = 64 << 20;
/// How long writes may be acknowledged that no later process will find: the log looks for its
/// directory once a second.
const UNTIL_NOTICED: Duration = Duration::from_secs(5);
/// How long after that none is.
const AFTER: Duration = Duration::from_millis(1_500);
/// Between two writes.
const PAUSE: Duration = Duration::from_millis(5);
/// What the error that a client gets for a directory that is gone says.
const REFUSAL: [&str; 2] = ["MISCONF", "reopen"];
/// Keys that are there before.
const KEYS: u64 = 100;

/// What was seen.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    /// Milliseconds until the first refusal, after the file system was taken away and after the
    /// directory was removed.
    unmounted_ms: u64,
    removed_ms: u64,
    /// The error that the client got.
    refusal: String,
    /// Writes that were acknowledged without a ring's file and found again after the server was
    /// killed.
    kept_without_ring: u64,
}

impl Report {
    pub(crate) fn line(&self) -> String {
        format!(
            "vanished: refused {} ms after the file system was unmounted, {} ms after the directory was removed (\"{}\") · \
             without its ring {} writes survived a kill",
            self.unmounted_ms, self.removed_ms, self.refusal, self.kept_without_ring
        )
    }
}

/// The file system, and the directory. The first needs a namespace; `None` leaves it out.
pub(crate) fn run(stage: &Stage, violations: &mut Vec<String>) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let disk = Tmpfs::mount(&stage.dir.join("unmounted"), DISK)?;
    let store = disk.path().join("store");
    let server = Served::start(&disk.before(), &stage.server(&store)?)?;
    let take_away = || disk.detach();
    report.unmounted_ms = vanish(server, "unmounted", take_away, &mut report, violations)?;
    let store = stage.dir.join("removed");
    let server = Served::start(&[], &stage.server(&store)?)?;
    let take_away = || Ok(RealDevice::new().remove_dir_all(&store)?);
    report.removed_ms = vanish(server, "removed", take_away, &mut report, violations)?;
    report.kept_without_ring = without_ring(stage, violations)?;
    Ok(report)
}

fn set(client: &mut Client, number: u64) -> std::io::Result<Reply> {
    let key = format!("key{number}");
    client.call(&[b"SET", key.as_bytes(), number.to_string().as_bytes()])
}

fn is_ok(reply: &Reply) -> bool {
    *reply == Reply::Text("OK".to_owned())
}

/// Takes the store away while a client writes. Gives the milliseconds until a write was refused.
fn vanish(
    mut server: Served,
    how: &str,
    take_away: impl FnOnce() -> anyhow::Result<()>,
    report: &mut Report,
    violations: &mut Vec<String>,
) -> anyhow::Result<u64> {
    let mut client = client::connect(server.port)?;
    for number in 0..KEYS {
        set(&mut client, number)?.good()?;
    }
    take_away()?;
    let clock = RealClock;
    let began = clock.monotonic();
    let elapsed = || Duration::from_nanos(clock.monotonic().saturating_sub(began));
    let mut number = KEYS;
    let refused = loop {
        match set(&mut client, number)? {
            Reply::Error(text) => break Some(text),
            reply if !is_ok(&reply) => anyhow::bail!("SET was answered with {reply:?}"),
            _ if elapsed() > UNTIL_NOTICED => break None,
            _ => std::thread::sleep(PAUSE),
        }
        number += 1;
    };
    let took = elapsed();
    match refused {
        Some(text) => {
            if !REFUSAL.iter().all(|part| text.contains(part)) {
                violations.push(format!(
                    "{how}: a write was refused without a word of what to do: {text}"
                ));
            }
            report.refusal = text;
        }
        None => violations.push(format!(
            "{how}: {UNTIL_NOTICED:?} after the store had vanished writes were acknowledged"
        )),
    }
    let until = elapsed() + AFTER;
    let mut acknowledged = 0;
    while elapsed() < until {
        acknowledged += u64::from(is_ok(&set(&mut client, number)?));
        std::thread::sleep(PAUSE);
    }
    if acknowledged > 0 {
        violations.push(format!(
            "{how}: {acknowledged} writes were acknowledged afterwards"
        ));
    }
    // What is in memory can be read.
    let read = client.call(&[b"GET", b"key0"])?;
    if read != Reply::Bulk(b"0".to_vec()) {
        violations.push(format!("{how}: what was in memory was read as {read:?}"));
    }
    // Its end may report a failure, but it comes, and nothing panics.
    server
        .end()
        .with_context(|| format!("{how}: the end of the server"))?;
    violations.extend(server.panics().into_iter().map(|line| format!("{how}: {line}")));
    Ok(u64::try_from(took.as_millis()).unwrap_or(u64::MAX))
}

/// The ring's file goes; what is acknowledged at the level `process` from then on survives the
/// process without it.
fn without_ring(stage: &Stage, violations: &mut Vec<String>) -> anyhow::Result<u64> {
    let Some(rings) = &stage.rings else { return Ok(0) };
    let store = stage.dir.join("without-ring");
    let mut command = stage.server(&store)?;
    command.extend(["--ack".into(), "process".into()]);
    let mut server = Served::start(&[], &command)?;
    let mut client = client::connect(server.port)?;
    for number in 0..KEYS {
        set(&mut client, number)?.good()?;
    }
    remove_all(rings)?;
    // The log looks for it once a second.
    std::thread::sleep(UNTIL_NOTICED);
    for number in KEYS..2 * KEYS {
        set(&mut client, number)?.good()?;
    }
    violations.extend(server.panics());
    server.kill()?;
    let mut server = Served::start(&[], &command)?;
    let mut client = client::connect(server.port)?;
    let mut kept = 0;
    for number in 0..2 * KEYS {
        let key = format!("key{number}");
        let found = client.call(&[b"GET", key.as_bytes()])?;
        kept += u64::from(found == Reply::Bulk(number.to_string().into_bytes()));
    }
    if kept < 2 * KEYS {
        let lost = 2 * KEYS - kept;
        violations.push(format!(
            "without its ring {lost} acknowledged writes of {} are gone",
            2 * KEYS
        ));
    }
    stage.end(&mut server, violations)?;
    Ok(kept)
}

fn remove_all(dir: &Path) -> anyhow::Result<()> {
    let device = RealDevice::new();
    for entry in device.list(dir).context("cannot list the rings")? {
        device
            .remove_file(&dir.join(entry.name))
            .context("cannot remove a ring")?;
    }
    Ok(())
}
