//! Truncating a log at its first damage, with copies of all that is removed: for repairs, and for
//! recovery to a point in time.

use std::path::{Path, PathBuf};

use collie_io::{Device, OpenMode, read_exact_at, write_all_at};

use super::chain::Chain;
use super::new_ring::keep_aside;
use super::old_ring::open as find_ring;
use super::report::Truncation;
use crate::Lsn;
use crate::error::{At, LogError};
use crate::format::{BLOCK, SEGMENT_HEAD, SEGMENT_NUMBERS, SegmentHeader};
use crate::segments::files::{parse_file_name, read_or_zeros, rewrite};

/// How the names of files end that hold what was truncated.
pub(crate) const CUT_SUFFIX: &str = ".cut";

/// Truncates the log at `error`, which is damage in one of its segments; any other error is given
/// back. The directory's lock is held by the caller. Interrupted, it can be run again with what is
/// found then.
pub(crate) fn truncate(device: &dyn Device, dir: &Path, error: LogError) -> Result<Truncation, LogError> {
    let LogError::Corrupt {
        path: damaged,
        offset,
        lsn,
        ..
    } = &error
    else {
        return Err(error);
    };
    let segments = segment_paths(device, dir)?;
    if !segments.contains(damaged) {
        // A frame that only the ring has: the next open writes it to a segment, where it can be
        // truncated.
        return Err(error);
    }
    if would_leave_nothing(device, dir, &error)? {
        // Whatever can be read would go with it.
        return Err(error);
    }
    let ring = ring_of(device, dir);
    let mut kept = Vec::new();
    let part_stays = *offset >= BLOCK as u64;
    let mut copied = None;
    if part_stays {
        // Before anything that proves that it was durable goes: without that an interrupted
        // truncation would leave what passes for a torn tail, of which no copy is kept.
        let name = free_name(device, damaged)?;
        copy(device, damaged, &name)?;
        device.sync_dir(dir).at("sync", dir)?;
        copied = Some(name);
    }
    // From the last one down, so that an interrupted truncation leaves the same damage first.
    for path in segments.into_iter().rev() {
        if path == *damaged && part_stays {
            truncate_file(device, &path, *offset)?;
            kept.extend(copied.take());
        } else if path >= *damaged {
            let name = free_name(device, &path)?;
            device.rename(&path, &name).at("rename", &path)?;
            device.sync_dir(dir).at("sync", dir)?;
            kept.push(name);
        } else {
            lower_copied_end(device, &path, *lsn)?;
        }
    }
    if part_stays {
        lower_copied_end(device, damaged, *lsn)?;
    }
    if let Some(ring) = ring {
        // What it holds follows the damage.
        kept.push(keep_aside(device, &ring).at("rename", &ring)?);
    }
    kept.reverse();
    Ok(Truncation {
        damage: error.to_string(),
        lsn: *lsn,
        kept,
    })
}

/// What was truncated at any time and is still there, by name.
pub(crate) fn left_over(device: &dyn Device, dir: &Path) -> Result<Vec<PathBuf>, LogError> {
    let entries = device.list(dir).at("list", dir)?;
    let names = entries.into_iter().map(|e| e.name);
    Ok(names
        .filter(|name| name.ends_with(CUT_SUFFIX))
        .map(|name| dir.join(name))
        .collect())
}

/// Whether nothing of the log would be left.
pub(crate) fn would_leave_nothing(
    device: &dyn Device,
    dir: &Path,
    error: &LogError,
) -> Result<bool, LogError> {
    let LogError::Corrupt { path, offset, .. } = error else {
        return Ok(false);
    };
    let segments = segment_paths(device, dir)?;
    Ok(*offset < BLOCK as u64 && segments.first().is_none_or(|first| path <= first))
}

/// A name beside `path` for what is truncated from it. Numbers of segments come again after a
/// truncation: what an earlier one kept stays.
fn free_name(device: &dyn Device, path: &Path) -> Result<PathBuf, LogError> {
    let mut time = 1;
    loop {
        let mut name = path.to_owned().into_os_string();
        if time > 1 {
            name.push(format!(".{time}"));
        }
        name.push(CUT_SUFFIX);
        let name = PathBuf::from(name);
        match device.stat(&name) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(name),
            Err(e) => return Err(e).at("stat", &name),
            Ok(_) => time += 1,
        }
    }
}

/// The ring of the newest epoch, where there is one. Damage may leave no chain that names it.
fn ring_of(device: &dyn Device, dir: &Path) -> Option<PathBuf> {
    let chain = Chain::load(device, dir).ok()?;
    let ring = find_ring(device, dir, &chain).ok()?;
    ring.path().map(Path::to_owned)
}

/// All segment files, by number.
fn segment_paths(device: &dyn Device, dir: &Path) -> Result<Vec<PathBuf>, LogError> {
    let entries = device.list(dir).at("list", dir)?;
    let names = entries
        .into_iter()
        .map(|e| e.name)
        .filter(|name| parse_file_name(name).is_some_and(|number| number < SEGMENT_NUMBERS));
    let mut paths = Vec::new();
    for path in names.map(|name| dir.join(name)) {
        // An empty one holds nothing: an opening was about to remove it.
        if device.stat(&path).at("stat", &path)?.len > 0 {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn copy(device: &dyn Device, from: &Path, to: &Path) -> Result<(), LogError> {
    let source = device.open(from, OpenMode::Read).at("open", from)?;
    let target = device.open(to, OpenMode::OpenOrCreate).at("create", to)?;
    let len = source.stat().at("stat", from)?.len;
    let mut buffer = vec![0; 1 << 18];
    let mut offset = 0;
    while offset < len {
        let n = (buffer.len() as u64).min(len - offset) as usize;
        let Some(part) = buffer.get_mut(..n) else { break };
        read_exact_at(&*source, part, offset).at("read", from)?;
        write_all_at(&*target, part, offset).at("write", to)?;
        offset += n as u64;
    }
    target.sync_data().at("sync", to)
}

/// Drops what lies at `offset` and beyond; it reads as zeros from now on.
fn truncate_file(device: &dyn Device, path: &Path, offset: u64) -> Result<(), LogError> {
    let file = device.open(path, OpenMode::ReadWrite).at("open", path)?;
    // First: a file shorter than its header says is damaged.
    let mut head = [0; SEGMENT_HEAD];
    read_or_zeros(&*file, &mut head, 0).at("read", path)?;
    if let Ok(mut header) = SegmentHeader::decode(&head)
        && header.forget_prepared()
    {
        rewrite(&*file, path, &header)?;
    }
    file.set_len(offset).at("truncate", path)?;
    file.sync_data().at("sync", path)
}

/// Has no header record any more that the log was durable beyond `end`.
fn lower_copied_end(device: &dyn Device, path: &Path, end: Lsn) -> Result<(), LogError> {
    let file = device.open(path, OpenMode::ReadWrite).at("open", path)?;
    let mut head = [0; SEGMENT_HEAD];
    read_or_zeros(&*file, &mut head, 0).at("read", path)?;
    let copies = SegmentHeader::copies(&head);
    let says_so = copies.iter().flatten().any(|copy| copy.copied_end > end);
    match SegmentHeader::decode(&head) {
        Ok(mut header) if says_so => {
            header.copied_end = end.into();
            rewrite(&*file, path, &header)
        }
        _ => Ok(()),
    }
}
