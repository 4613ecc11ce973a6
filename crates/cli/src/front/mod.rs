//! `collie mount | umount | drain | front`.

mod ask;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use collie_front::{
    Mount, MountError, MountOptions, close_unmounted, detach_dir, open_unmounted, unmount_dir,
};
use collie_io::{Device, RealDevice};
use collie_server::{ignore_hangup, termination};

use crate::Outcome;
use crate::args::{DrainArgs, FrontCommand, MountArgs, UmountArgs};
use crate::notify::Supervisor;
use crate::output::{Results, grouped, note};
use ask::{AskError, Command, Daemon};

pub(crate) fn mount(args: &MountArgs) -> anyhow::Result<Outcome> {
    ignore_hangup().context("SIGHUP cannot be ignored")?;
    // What is created has the mode that the process asks for.
    rustix::process::umask(rustix::fs::Mode::empty());
    raise_open_files();
    let mut options = MountOptions::default();
    // No smaller than 1, as clap has it.
    options.shadow_bytes = u64::try_from(args.shadow).unwrap_or(options.shadow_bytes);
    options.page_bytes = args.page_size;
    options.allow_other = args.allow_other;
    options.policy = args.policy.into();
    options.idle_slice = Duration::from_millis(args.idle_slice);
    if RealDevice::new().stat(&args.dir.join(".collie/shadow")).is_err() {
        note(format_args!(
            "taking room for displaced pages: {} bytes in {}",
            grouped(options.shadow_bytes),
            args.dir.join(".collie").display()
        ));
    }
    let mount = Mount::new(&args.dir, &options)?;
    report(&mount)?;
    let supervisor = Supervisor::from_environment();
    let ending = supervisor.clone().stopping_on_drop();
    supervisor.ready(&format!("mounted over {}", mount.dir().display()));
    match serve(&mount)? {
        Served::Unmounted => {}
        Served::Detached => {
            note("detached while in use: what is open in it gives errors from now on");
            return Ok(Outcome::Bad);
        }
    }
    drop(ending);
    let dir = mount.dir().to_owned();
    let is_plain = mount.close()?;
    let mut results = Results::new();
    if is_plain {
        results.line(format_args!("unmounted {}: every page is at home", dir.display()))?;
    } else {
        results.line(format_args!(
            "unmounted {}: pages are left in .collie; `collie drain` brings them home",
            dir.display()
        ))?;
    }
    results.flush()?;
    Ok(Outcome::Good)
}

fn report(mount: &Mount) -> anyhow::Result<()> {
    let (volume, recovered) = (mount.volume(), mount.recovered());
    let mut results = Results::new();
    results.line(format_args!(
        "mounted {} · pages of {} bytes · {} of {} slots free · {} files with {} displaced pages",
        mount.dir().display(),
        grouped(u64::from(volume.page_bytes())),
        grouped(u64::from(volume.status().free_slots)),
        grouped(u64::from(volume.status().slots)),
        grouped(recovered.mapped as u64),
        grouped(recovered.displaced as u64),
    ))?;
    results.flush()?;
    for gone in &recovered.gone {
        note(format_args!("{} was removed before the crash", gone.display()));
    }
    Ok(())
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

/// How serving ended.
enum Served {
    Unmounted,
    /// Taken away while processes use it.
    Detached,
}

/// Serves until the mount is gone. The first signal unmounts, the next detaches what is in use.
fn serve(mount: &Mount) -> anyhow::Result<Served> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("signals cannot be caught")?;
    std::thread::scope(|scope| {
        let (sender, mut gone) = tokio::sync::oneshot::channel();
        scope.spawn(move || {
            mount.wait();
            // Where it is not received, the mount is detached.
            let _ = sender.send(());
        });
        runtime.block_on(async {
            let mut refusals = 0;
            loop {
                tokio::select! {
                    _ = &mut gone => return Ok(Served::Unmounted),
                    () = termination() => {}
                }
                match mount.unmount() {
                    Ok(()) => {}
                    Err(error @ MountError::Io { .. }) if refusals == 0 => {
                        refusals += 1;
                        note(format_args!(
                            "{error}; everything is durable; stop the server, or send the signal again"
                        ));
                    }
                    Err(MountError::Io { .. }) => {
                        detach_dir(mount.dir())?;
                        return Ok(Served::Detached);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        })
    })
}

pub(crate) fn umount(args: &UmountArgs) -> anyhow::Result<Outcome> {
    let daemon = match Daemon::of(&args.dir) {
        Ok(Some(daemon)) if args.dead => {
            bail!(
                "{} is mounted, and its daemon, process {}, lives",
                args.dir.display(),
                daemon.pid()
            );
        }
        Ok(Some(daemon)) => daemon,
        Ok(None) if args.dead => return Ok(Outcome::Good),
        Ok(None) => bail!("{} is not mounted by collie", args.dir.display()),
        Err(AskError::Dead { .. }) => {
            detach_dir(&args.dir)?;
            note(format_args!(
                "{}: the daemon had died; its mount is taken away; what it had committed is recovered by the next mount",
                args.dir.display()
            ));
            return Ok(Outcome::Good);
        }
        Err(error) => return Err(error.into()),
    };
    daemon.command(if args.drain {
        Command::Drain
    } else {
        Command::Commit
    })?;
    unmount_dir(daemon.dir())?;
    daemon.wait_for_end()?;
    Ok(Outcome::Good)
}

pub(crate) fn drain(args: &DrainArgs) -> anyhow::Result<Outcome> {
    let mut results = Results::new();
    if let Some(daemon) = Daemon::of(&args.dir)? {
        daemon.command(Command::Drain)?;
        let status = daemon.status()?;
        results.line(format_args!(
            "drained {}: {} pages are displaced",
            args.dir.display(),
            grouped(status.displaced_pages)
        ))?;
        results.flush()?;
        return Ok(Outcome::Good);
    }
    require_map(&args.dir)?;
    let volume = open_unmounted(&args.dir, &MountOptions::default())?;
    volume.drain()?;
    let is_plain = close_unmounted(&args.dir, volume)?;
    results.line(if is_plain {
        format!("drained {}: it is a plain directory again", args.dir.display())
    } else {
        format!("drained {}: some pages are still displaced", args.dir.display())
    })?;
    results.flush()?;
    Ok(if is_plain { Outcome::Good } else { Outcome::Bad })
}

/// Refuses a directory without a page map: opening would make one.
fn require_map(dir: &Path) -> anyhow::Result<()> {
    let map = dir.join(".collie/MAP");
    RealDevice::new().stat(&map).with_context(|| {
        format!(
            "{} was never mounted by collie: there is no {}",
            dir.display(),
            map.display()
        )
    })?;
    Ok(())
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

fn status(dir: &Path, json: bool, prometheus: bool) -> anyhow::Result<Outcome> {
    let Some(daemon) = Daemon::of(dir)? else {
        bail!("{} is not mounted by collie", dir.display());
    };
    let mut results = Results::new();
    if json {
        results.line(daemon.text("status")?.trim_end())?;
    } else if prometheus {
        results.line(daemon.text("metrics")?.trim_end())?;
    } else {
        let status = daemon.status()?;
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
    Ok(if daemon.status()?.failure.is_some() {
        Outcome::Bad
    } else {
        Outcome::Good
    })
}

fn check(dir: &Path, json: bool) -> anyhow::Result<Outcome> {
    if Daemon::of(dir)?.is_some() {
        bail!("{} is mounted; unmount it first", dir.display());
    }
    require_map(dir)?;
    let volume = open_unmounted(dir, &MountOptions::default())?;
    let recovered = volume.recovered().clone();
    let damaged = volume.check()?;
    let status = volume.status();
    close_unmounted(dir, volume)?;
    let mut results = Results::new();
    if json {
        let found = serde_json::json!({
            "files": status.mapped,
            "pages": status.displaced,
            "removed": recovered.gone,
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
    }
    results.flush()?;
    Ok(if damaged.is_empty() {
        Outcome::Good
    } else {
        Outcome::Bad
    })
}
