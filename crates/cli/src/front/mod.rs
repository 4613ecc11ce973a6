//! `collie mount | umount | drain | front`.

mod ask;
mod serving;
mod timeout;
mod users;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use collie_cli::Outcome;
use collie_cli::output::{Results, grouped, note};
use collie_front::{
    Afterwards, Left, Mount, MountError, MountOptions, Volume, check_mount, close_unmounted, detach_dir,
    is_of_mount, open_unmounted, unmount_dir,
};
use collie_server::ignore_hangup;

use crate::args::{DrainArgs, FrontCommand, MountArgs, UmountArgs};
use crate::notify::Supervisor;
use ask::{AskError, Daemon, DaemonCommand, Status};
use serving::{Signals, serve};

/// A daemon that has not answered by then may never.
const LONG: Duration = Duration::from_secs(30);
/// After it a command reports what it waits for.
const SOME_TIME: Duration = Duration::from_secs(5);

pub(crate) fn mount(args: &MountArgs) -> anyhow::Result<Outcome> {
    ignore_hangup().context("SIGHUP cannot be ignored")?;
    // What is created has the mode that the process of the server requests.
    rustix::process::umask(rustix::fs::Mode::empty());
    raise_open_files();
    let mut options = MountOptions::default();
    // No smaller than 1, as clap has it.
    options.shadow_bytes = u64::try_from(args.shadow).unwrap_or(options.shadow_bytes);
    options.page_bytes = args.page_size;
    options.allow_other = args.allow_other;
    options.policy = args.policy.into();
    options.idle_slice = Duration::from_millis(args.idle_slice);
    let room = check_mount(&args.dir, &options).map_err(|error| of_other(&args.dir, error))?;
    if room > 0 {
        note(format_args!(
            "taking room for displaced pages: {} bytes in {}",
            grouped(room),
            args.dir.join(".collie").display()
        ));
    }
    let mount = Mount::new(&args.dir, &options)?;
    // Not before: until it is mounted a signal ends the process at once.
    let signals = Signals::catch()?;
    report(&mount);
    let supervisor = Supervisor::from_environment();
    let ending = supervisor.clone().stopping_on_drop();
    supervisor.ready(&format!("mounted over {}", mount.dir().display()));
    let Some(mount) = serve(mount, signals)? else {
        note("detached while in use: what is open in it gives errors from now on");
        return Ok(Outcome::Bad);
    };
    drop(ending);
    let dir = mount.dir().to_owned();
    let state = match mount.close()? {
        Left::Plain => "it is a plain directory again",
        Left::AtHome => {
            "every page is at home; PostgreSQL starts in it on the mount only, until `collie drain` makes it \
             a plain directory"
        }
        Left::Displaced => "pages are left in .collie; `collie drain` brings them home",
    };
    say(format_args!("unmounted {}: {state}", dir.display()));
    Ok(Outcome::Good)
}

/// Why a directory cannot be mounted: with the user who has mounted it, where that is the reason.
fn of_other(dir: &Path, error: MountError) -> anyhow::Error {
    let is_refused =
        matches!(&error, MountError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied);
    let real = dir.canonicalize().ok().filter(|_| is_refused);
    match real.and_then(|dir| users::owner(&dir)) {
        Some(owner) => anyhow!(
            "{dir}: it is mounted already, for the user {owner} alone; `sudo -u {owner} collie umount {dir}` takes \
             the mount away",
            dir = dir.display()
        ),
        None => error.into(),
    }
}

/// Prints a message of the daemon. A failure does not end the daemon, which others use.
fn say(text: impl std::fmt::Display) {
    let mut results = Results::new();
    let said = results.line(&text).and_then(|()| results.flush());
    if let Err(error) = said {
        note(format_args!("{text} (standard output: {error})"));
    }
}

fn report(mount: &Mount) {
    let (volume, recovered) = (mount.volume(), mount.recovered());
    say(format_args!(
        "mounted {} · pages of {} bytes · {} of {} slots free · {} files with {} displaced pages",
        mount.dir().display(),
        grouped(u64::from(volume.page_bytes())),
        grouped(u64::from(volume.status().free_slots)),
        grouped(u64::from(volume.status().slots)),
        grouped(recovered.mapped as u64),
        grouped(recovered.displaced as u64),
    ));
    if let Some(missing) = missing(&recovered.gone) {
        note(format_args!(
            "{missing}; taken for removed right before a crash. If nothing removed them, restore a backup"
        ));
    }
}

/// Files that are missing are named, so many.
const NAMED: usize = 3;

/// What is done about them where their pages are kept.
const KEPT: &str = "their pages are kept; bring the files back, or mount the directory, which takes \
                    them for removed right before a crash";

/// Names the files with displaced pages that are missing, where some are.
fn missing(gone: &[PathBuf]) -> Option<String> {
    let named: Vec<_> = gone
        .iter()
        .take(NAMED)
        .map(|path| path.display().to_string())
        .collect();
    let more = match gone.len() - named.len() {
        0 => String::new(),
        more => format!(" and {} more", grouped(more as u64)),
    };
    (!gone.is_empty()).then(|| {
        format!(
            "missing, with pages that are not at home: {}{more}",
            named.join(", ")
        )
    })
}

/// Opens the page map of a directory that is not mounted.
fn open(dir: &Path) -> anyhow::Result<Volume> {
    raise_open_files();
    Ok(open_unmounted(dir, &MountOptions::default())?)
}

/// Homes of files with displaced pages stay open.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Without it fewer files can be open.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Does `work` with the daemon of a directory, which may take its time, or be stopped.
fn ask<T: Send + 'static>(
    dir: &Path,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let say = || {
        note(format_args!(
            "the daemon of {} is still at it; where it is stopped (`ps` says T), SIGCONT lets it go on",
            dir.display()
        ));
    };
    timeout::with_notice(SOME_TIME, say, work)?
}

/// Does `work` with the daemon of a directory, which is done at once.
fn ask_at_once<T: Send + 'static>(
    dir: &Path,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let why = || {
        format!(
            "{}: its daemon has not answered for {} s; is it stopped (`ps` says T; SIGCONT lets it go on), or \
             does its disk hang?",
            dir.display(),
            LONG.as_secs()
        )
    };
    timeout::within(LONG, why, work)?
}

pub(crate) fn umount(args: &UmountArgs) -> anyhow::Result<Outcome> {
    let (dir, drains, is_dead) = (args.dir.clone(), args.drain, args.dead);
    ask(&args.dir, move || take_away(&dir, drains, is_dead))
}

fn take_away(dir: &Path, drains: bool, is_dead: bool) -> anyhow::Result<Outcome> {
    let shown = dir.display();
    let daemon = match Daemon::of(dir) {
        Ok(Some(daemon)) if is_dead => {
            bail!(
                "{shown} is mounted, and its daemon, process {}, lives",
                daemon.pid()
            );
        }
        Ok(Some(daemon)) => daemon,
        Ok(None) if is_dead => return Ok(Outcome::Good),
        Ok(None) => bail!("{shown} is not mounted by collie"),
        Err(AskError::Dead { dir }) => return take_dead_away(&dir, drains),
        Err(error) => return Err(error.into()),
    };
    let failure = match daemon.command(if drains {
        DaemonCommand::Leave
    } else {
        DaemonCommand::Commit
    }) {
        Ok(()) => daemon.failure(),
        Err(AskError::Dead { dir }) => return take_dead_away(&dir, drains),
        // The answer to a command is no more than the system's number of an error.
        Err(error) => daemon.failure().or(Some(error.to_string())),
    };
    match &failure {
        Some(failure) if drains => bail!(
            "{shown}: not every page can be brought home, and it stays mounted: {failure}; what was synced is safe: \
             `collie umount {shown}` takes the mount away without bringing pages home, then mount it again"
        ),
        Some(failure) => note(format_args!(
            "{shown}: what was not synced yet cannot be made durable: {failure}; what was synced is safe; it is \
             unmounted all the same"
        )),
        None => {}
    }
    if let Err(error) = unmount_dir(daemon.dir()) {
        if drains {
            // It is used on, and is not to be a plain directory whenever it is unmounted.
            let _ = daemon.command(DaemonCommand::Commit);
        }
        return Err(users::busy(daemon.dir(), daemon.pid(), error));
    }
    daemon.wait_for_end()?;
    if drains && is_of_mount(daemon.dir())? {
        bail!(
            "{shown}: pages are left in .collie: something was written to it after they were brought home, or the \
             daemon died; `collie drain {shown}` brings them home"
        );
    }
    Ok(if failure.is_some() {
        Outcome::Bad
    } else {
        Outcome::Good
    })
}

/// Takes away a mount whose daemon has died; `dir` has no symbolic links, through which nothing is
/// detached.
fn take_dead_away(dir: &Path, drains: bool) -> anyhow::Result<Outcome> {
    let shown = dir.display();
    detach_dir(dir)?;
    note(format_args!(
        "{shown}: the daemon had died; its mount is taken away; what it had committed is recovered by the next mount"
    ));
    if drains {
        bail!(
            "{shown}: pages may be left in .collie, for the daemon has died; `collie drain {shown}` brings them home"
        );
    }
    Ok(Outcome::Good)
}

pub(crate) fn drain(args: &DrainArgs) -> anyhow::Result<Outcome> {
    let dir = args.dir.clone();
    let of_daemon = ask(&args.dir, move || {
        let Some(daemon) = Daemon::of(&dir)? else {
            return Ok(None);
        };
        daemon.command(DaemonCommand::Drain)?;
        Ok(Some(daemon.status()?))
    })?;
    let mut results = Results::new();
    if let Some(status) = of_daemon {
        results.line(format_args!(
            "drained {}: {} pages are displaced",
            args.dir.display(),
            grouped(status.displaced_pages)
        ))?;
        results.flush()?;
        return Ok(Outcome::Good);
    }
    let volume = open(&args.dir)?;
    if let Some(missing) = missing(&volume.recovered().gone) {
        note(format_args!("{missing}; {KEPT}"));
    }
    volume.drain()?;
    let left = close_unmounted(&args.dir, volume, Afterwards::Plain)?;
    results.line(match left {
        Left::Plain => format!("drained {}: it is a plain directory again", args.dir.display()),
        Left::AtHome | Left::Displaced => {
            format!("drained {}: some pages are still displaced", args.dir.display())
        }
    })?;
    results.flush()?;
    Ok(match left {
        Left::Plain => Outcome::Good,
        Left::AtHome | Left::Displaced => Outcome::Bad,
    })
}

pub(crate) fn run(command: &FrontCommand) -> anyhow::Result<Outcome> {
    match command {
        FrontCommand::Status {
            dir,
            json,
            prometheus,
        } => status(dir, *json, *prometheus),
        FrontCommand::Check { dir, json } => check(dir, *json),
    }
}

/// The state of a daemon, for people.
struct Answer {
    status: Status,
    /// In the format that was requested.
    text: Option<String>,
}

fn status(dir: &Path, json: bool, prometheus: bool) -> anyhow::Result<Outcome> {
    let asked = dir.to_owned();
    let answer = ask_at_once(dir, move || {
        let Some(daemon) = Daemon::of(&asked)? else {
            bail!("{} is not mounted by collie", asked.display());
        };
        let text = match (json, prometheus) {
            (true, _) => Some(daemon.text("status")?),
            (_, true) => Some(daemon.text("metrics")?),
            _ => None,
        };
        let status = daemon.status()?;
        Ok(Answer { status, text })
    })?;
    let mut results = Results::new();
    let status = answer.status;
    if let Some(text) = answer.text {
        results.line(text.trim_end())?;
    } else {
        let rows = [
            ("daemon", format!("process {}", status.pid)),
            ("page size", format!("{} bytes", grouped(status.page_bytes))),
            (
                "shadow file",
                format!(
                    "{} of {} slots free",
                    grouped(status.free_slots),
                    grouped(status.slots)
                ),
            ),
            (
                "displaced",
                format!(
                    "{} pages of {} files",
                    grouped(status.displaced_pages),
                    grouped(status.mapped_files)
                ),
            ),
            ("not committed", format!("{} pages", grouped(status.dirty_pages))),
            (
                "log",
                format!("{} bytes since the map was written", grouped(status.log_bytes)),
            ),
            (
                "syncs",
                format!(
                    "{}; 99 of 100 took {} µs at most, the longest {}",
                    grouped(status.fsyncs),
                    grouped(status.fsync_p99_us),
                    grouped(status.fsync_max_us)
                ),
            ),
        ];
        for (name, value) in rows {
            results.line(format_args!("{name:<14} {value}"))?;
        }
        for command in &status.under_way {
            results.line(format_args!("{:<14} {command}", "under way"))?;
        }
        if let Some(failure) = &status.failure {
            results.line(format_args!("{:<14} {failure}", "FAILED"))?;
        }
    }
    results.flush()?;
    Ok(if status.failure.is_some() {
        Outcome::Bad
    } else {
        Outcome::Good
    })
}

fn check(dir: &Path, json: bool) -> anyhow::Result<Outcome> {
    let asked = dir.to_owned();
    if ask_at_once(dir, move || Ok(Daemon::of(&asked)?.is_some()))? {
        bail!("{} is mounted; unmount it first", dir.display());
    }
    let volume = open(dir)?;
    let recovered = volume.recovered().clone();
    let damaged = volume.check()?;
    let status = volume.status();
    close_unmounted(dir, volume, Afterwards::OfMount)?;
    let mut results = Results::new();
    if json {
        let found = serde_json::json!({
            "files": status.mapped,
            "pages": status.displaced,
            "missing": recovered.gone,
            "damaged": damaged.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        results.json(&found)?;
    } else {
        results.line(format_args!(
            "{} displaced pages of {} files, {} damaged",
            grouped(status.displaced as u64),
            grouped(status.mapped as u64),
            grouped(damaged.len() as u64)
        ))?;
        for damage in &damaged {
            results.line(damage)?;
        }
        if let Some(missing) = missing(&recovered.gone) {
            results.line(format_args!("{missing}; {KEPT}"))?;
        }
    }
    results.flush()?;
    Ok(if damaged.is_empty() && recovered.gone.is_empty() {
        Outcome::Good
    } else {
        Outcome::Bad
    })
}
