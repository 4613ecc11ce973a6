//! `collie serve`.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, bail};
use collie_db::{Db, Options, RecoveryReport};
use collie_io::{Device, OpenMode, RealDevice};
use collie_log::RingOutcome;
use collie_server::{Ack, Server, ServerConfig, termination};

use crate::args::ServeArgs;
use crate::output::{grouped, note};
use crate::{Outcome, log};

/// The longest password file that is read, in bytes.
const PASSWORD_FILE_MAX: usize = 4096;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<Outcome> {
    let password = args.password_file.as_deref().map(read_password).transpose()?;
    let options = Options {
        ring: args.ring.mode(),
        ..Options::default()
    };
    let config = ServerConfig {
        listen: args.listen,
        threads: args.threads,
        ack: args.ack.ack(),
        password,
        open_to_network: args.open_to_network,
        ..ServerConfig::default()
    };
    serve(&args.dir, options, config, |_| {})
}

/// Opens the store in `dir`, says what was recovered, and serves until it is asked to end. `listening` is
/// called as soon as clients can connect.
pub(crate) fn serve(
    dir: &Path,
    options: Options,
    config: ServerConfig,
    listening: impl FnOnce(SocketAddr),
) -> anyhow::Result<Outcome> {
    let ack = config.ack;
    let config = ServerConfig {
        ring_bytes: options.ring_bytes,
        ..config
    };
    let db = Db::open(dir, options).with_context(|| format!("cannot open the store in {}", dir.display()))?;
    note(format_args!(
        "collie {} · {} · {}",
        env!("CARGO_PKG_VERSION"),
        dir.display(),
        db.recovery()
            .map_or_else(|| "the log is off".to_owned(), recovered)
    ));
    let server = match Server::bind(config, db.clone()) {
        Ok(server) => server,
        Err(error) => {
            // What was to be said about the store has been said; why nobody is served counts more.
            let _ = db.close();
            return Err(error.into());
        }
    };
    drop(db);
    let addr = server.local_addr();
    note(format_args!(
        "listening on {addr} · replies leave when {}",
        when(ack)
    ));
    listening(addr);
    server.run(termination())?;
    note("ended in order: everything is on disk");
    Ok(Outcome::Good)
}

fn when(ack: Ack) -> &'static str {
    match ack {
        Ack::Disk => "what they tell survives a power cut",
        Ack::Process => "what they tell survives the death of the process (not a power cut)",
        Ack::Buffered => "they are ready: a crash may take back what they told",
    }
}

/// What opening a store found, in a line.
pub(crate) fn recovered(report: &RecoveryReport) -> String {
    use std::fmt::Write;
    if report.epoch == 1 {
        return "a new store".to_owned();
    }
    let mut text = format!(
        "recovered: epoch {}, {} frames read, log ends at LSN {}",
        report.epoch,
        grouped(report.frames),
        report.end
    );
    // Writing to a string cannot fail.
    let _ = match &report.ring {
        RingOutcome::None | RingOutcome::Closed => Ok(()),
        RingOutcome::Recovered { frames, .. } => {
            write!(text, ", {} of them saved from the shared ring", grouped(*frames))
        }
        other => write!(text, ", ring {}", log::ring(other)),
    };
    if let Some(torn) = &report.torn {
        let _ = write!(text, ", {}", log::torn_tail(torn));
    }
    text
}

/// The first line of a file that nobody else should be able to read.
fn read_password(path: &Path) -> anyhow::Result<String> {
    let read = || {
        let file = RealDevice::new().open(path, OpenMode::Read)?;
        let mut buffer = vec![0; PASSWORD_FILE_MAX];
        let mut len = 0;
        loop {
            match file.read_at(buffer.get_mut(len..).unwrap_or_default(), len as u64)? {
                0 => break,
                n => len += n,
            }
        }
        buffer.truncate(len);
        anyhow::Ok(buffer)
    };
    let bytes = read().with_context(|| format!("cannot read the password from {}", path.display()))?;
    let text = String::from_utf8(bytes)
        .with_context(|| format!("the password in {} is not UTF-8", path.display()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => bail!(
            "{} begins with an empty line, not with a password",
            path.display()
        ),
    }
}
