//! A log's directory: its lock, the check before that which leaves foreign directories alone, and the
//! room that is kept back in it for the next opening.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use collie_io::{Device, File, OpenMode, Reserve, write_all_at};

use super::copy_forward::ready;
use super::truncate::CUT_SUFFIX;
use crate::error::{At, LogError};
use crate::format::BLOCK;
use crate::options::LogOptions;
use crate::segments::archive;
use crate::segments::files::parse_file_name;

const LOCK: &str = "LOCK";
/// The file of the room that is kept back, which holds nothing.
const RESERVE: &str = "RESERVE";

/// Held while a log is open. The kernel releases it when the process dies.
#[derive(Debug, Clone)]
pub(crate) struct DirLock(Arc<Mutex<Option<Arc<dyn File>>>>);

impl DirLock {
    /// Creates `dir` if needed and locks it.
    pub(crate) fn take(device: &dyn Device, dir: &Path) -> Result<Self, LogError> {
        check_directory(device, dir)?;
        device.create_dir_all(dir).at("create", dir)?;
        let path = dir.join(LOCK);
        let file = device.open(&path, OpenMode::OpenOrCreate).at("open", &path)?;
        if !file.try_lock().at("lock", &path)? {
            return Err(LogError::Locked {
                path: dir.to_owned(),
                pid: holder(&*file),
            });
        }
        let pid = std::process::id().to_string();
        // For people. On a full device there may be no room for it, and the lock is as good
        // without.
        if let Err(error) = file
            .set_len(0)
            .and_then(|()| write_all_at(&*file, pid.as_bytes(), 0))
        {
            tracing::debug!(path = %path.display(), %error, "the lock file does not say who holds it");
        }
        Ok(Self(Arc::new(Mutex::new(Some(file)))))
    }

    pub(crate) fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The process id in a lock file.
fn holder(file: &dyn File) -> Option<u32> {
    let mut text = [0; 16];
    let len = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(text.get(..len)?).ok()?.trim().parse().ok()
}

/// Refuses a directory that holds anything that is not a log's.
fn check_directory(device: &dyn Device, dir: &Path) -> Result<(), LogError> {
    let entries = match device.list(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            return Err(LogError::WrongDirectory {
                path: dir.to_owned(),
                found: "a file in its place".into(),
            });
        }
        Err(e) => return Err(e).at("list", dir),
    };
    // Others have directories of that name, too.
    let is_log = entries
        .iter()
        .any(|e| !e.is_dir() && (e.name == LOCK || parse_file_name(&e.name).is_some()));
    let foreign = entries.iter().find(|e| {
        let ours = e.name == LOCK
            || e.name == RESERVE
            || e.name.ends_with(CUT_SUFFIX)
            || parse_file_name(&e.name).is_some();
        if e.is_dir() {
            e.name != archive::DIR || !is_log
        } else {
            !ours
        }
    });
    match foreign {
        None => Ok(()),
        Some(entry) => {
            let what = if entry.is_dir() { "a directory" } else { "a file" };
            let found = format!("{what} named {:?}", entry.name);
            Err(LogError::WrongDirectory {
                path: PathBuf::from(dir),
                found,
            })
        }
    }
}

/// The room that openings may need: for what the ring holds, and for the beginning of a segment,
/// once more where one was interrupted.
pub(crate) fn reserve(dir: &Path, options: &LogOptions) -> Reserve {
    let beginning = 2 * (ready(options) + 4 * BLOCK as u64);
    let room = options
        .reserve_bytes
        .unwrap_or(options.ring_bytes as u64 + beginning);
    Reserve::new(dir.join(RESERVE), room)
}
