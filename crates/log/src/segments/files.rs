//! The files of a log: its directory, and a segment's file, which is named, made, opened, zeroed,
//! read, given a header, and removed for good.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use collie_io::{Device, Dir, File, OpenMode, write_all_at};
use zerocopy::{FromZeros, IntoBytes};

use crate::append::ring::Block;
use crate::error::{At, LogError};
use crate::format::{BLOCK, BadHeader, SEGMENT_HEAD, SegmentHeader, VERSION};

/// How much of a segment one write zeroes: past the page cache, writes of frames to the same file
/// wait for it.
const PIECE: usize = 1 << 20;

/// The log's directory, open for as long as the log is: its names can be synced when no further file
/// can be opened.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    device: Arc<dyn Device>,
    path: PathBuf,
    open: Arc<dyn Dir>,
}

impl Directory {
    pub(crate) fn open(device: &Arc<dyn Device>, path: &Path) -> Result<Self, LogError> {
        Ok(Self {
            device: Arc::clone(device),
            path: path.to_owned(),
            open: device.open_dir(path).at("open", path)?,
        })
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes its names durable.
    pub(crate) fn sync(&self) -> Result<(), LogError> {
        self.open.sync().at("sync", &self.path)
    }
}

/// The name of segment `number`.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:016x}.seg")
}

/// The number in a segment's name.
pub(crate) fn parse_file_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (file_name(number) == name).then_some(number)
}

/// Makes a segment file whose first `ready` data bytes are zeros really written (a reserved extent
/// would make every later sync write metadata), synced, name included.
pub(crate) fn create(
    dir: &Directory,
    path: &Path,
    ready: u64,
    header: Option<&SegmentHeader>,
) -> Result<Arc<dyn File>, LogError> {
    let make = || dir.device().open(path, OpenMode::CreateNew);
    let file = match make() {
        // An earlier attempt has left it, and a failed sync may have lost its name for good: only a
        // new one is synced.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            dir.device().remove_file(path).at("remove", path)?;
            make()
        }
        made => made,
    };
    let file = file.at("create", path)?;
    zero(&*file, path, 0, SEGMENT_HEAD as u64 + ready)?;
    if let Some(header) = header {
        write_all_at(&*file, &header.encode(), 0).at("write", path)?;
    }
    file.sync_data().at("sync", path)?;
    dir.sync()?;
    Ok(file)
}

/// Removes files of `dir` that no reader needs, for good. A failed sync may leave any of their names,
/// also one that a renaming took away, on the device: it would come back with the power when what
/// followed it is gone. So the files are emptied first.
pub(crate) fn remove_for_good(dir: &Directory, files: &[(PathBuf, Arc<dyn File>)]) -> Result<(), LogError> {
    if files.is_empty() {
        return Ok(());
    }
    for (path, file) in files {
        empty(&**file, path)?;
    }
    for (path, _) in files {
        dir.device().remove_file(path).at("remove", path)?;
    }
    dir.sync()
}

/// Empties a file, unless it has a second name. By two changes of its length: one that an earlier failed
/// sync has lost shows in memory, and making it again would change nothing that is to be synced.
fn empty(file: &dyn File, path: &Path) -> Result<(), LogError> {
    if file.stat().at("stat", path)?.links > 1 {
        return Ok(());
    }
    match file.set_len(1).and_then(|()| file.set_len(0)).at("empty", path) {
        // A file system that writes nothing in place may need room to make some.
        Err(error) if error.is_full() => Ok(()),
        emptied => {
            emptied?;
            file.sync_data().at("sync", path)
        }
    }
}

pub(crate) fn open_direct(device: &dyn Device, path: &Path) -> Result<Arc<dyn File>, LogError> {
    device
        .open(path, OpenMode::DirectSync)
        .at("open for direct writes", path)
}

pub(super) fn open_for_zeros(
    device: &dyn Device,
    path: &Path,
    direct: bool,
) -> Result<Arc<dyn File>, LogError> {
    if direct {
        open_direct(device, path)
    } else {
        device.open(path, OpenMode::ReadWrite).at("open", path)
    }
}

/// Reserves room, where the file system has a call for that; the zeros that are written then take
/// it anyway.
pub(super) fn allocate(file: &dyn File, path: &Path, len: u64) -> Result<(), LogError> {
    match file.allocate(len) {
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(()),
        allocated => allocated.at("allocate", path),
    }
}

pub(super) fn zero(file: &dyn File, path: &Path, mut offset: u64, mut len: u64) -> Result<(), LogError> {
    static ZEROS: OnceLock<Vec<Block>> = OnceLock::new();
    let zeros = ZEROS
        .get_or_init(|| vec![Block::new_zeroed(); PIECE / size_of::<Block>()])
        .as_bytes();
    while len > 0 {
        let n = len.min(zeros.len() as u64);
        let (piece, _) = zeros.split_at(n as usize);
        write_all_at(file, piece, offset).at("write", path)?;
        offset += n;
        len -= n;
    }
    Ok(())
}

/// A file, open to be read; `None` where it is gone.
pub(crate) fn open_if_there(device: &dyn Device, path: &Path) -> Result<Option<Arc<dyn File>>, LogError> {
    match device.open(path, OpenMode::Read) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.at("open", path).map(Some),
    }
}

/// Fills `buf` from `offset`; what lies beyond the file's end is zeros.
pub(crate) fn read_or_zeros(file: &dyn File, buf: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    let mut rest = buf;
    while !rest.is_empty() {
        match file.read_at(rest, offset) {
            Ok(0) => {
                rest.fill(0);
                return Ok(());
            }
            Ok(n) => {
                rest = rest.split_at_mut(n).1;
                offset += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A segment's header; `None` where there is no good one.
pub(crate) fn read_header(file: &dyn File, path: &Path) -> Result<Option<SegmentHeader>, LogError> {
    let mut head = [0; SEGMENT_HEAD];
    read_or_zeros(file, &mut head, 0).at("read", path)?;
    match SegmentHeader::decode(&head) {
        Ok(header) if header.block.get() as usize == BLOCK => Ok(Some(header)),
        Ok(_) | Err(BadHeader::Blank | BadHeader::Damaged) => Ok(None),
        Err(BadHeader::Version(found)) => Err(LogError::Version {
            path: path.to_owned(),
            found,
            supported: VERSION,
        }),
    }
}

/// Writes a header where one stands, copy by copy, each durable before the other is touched, and a
/// damaged one first: a write that the power interrupts may leave anything in its block.
pub(crate) fn rewrite(file: &dyn File, path: &Path, header: &SegmentHeader) -> Result<(), LogError> {
    let head = header.encode();
    if header.is_one_block() {
        write_all_at(file, &head, 0).at("write", path)?;
        return file.sync_data().at("sync", path);
    }
    let mut there = [0; SEGMENT_HEAD];
    read_or_zeros(file, &mut there, 0).at("read", path)?;
    let [first, second] = SegmentHeader::copies(&there);
    let (one, two) = head.split_at(BLOCK);
    let mut copies = [(one, 0), (two, BLOCK as u64)];
    if first.is_ok() && second.is_err() {
        copies.reverse();
    }
    for (copy, at) in copies {
        write_all_at(file, copy, at).at("write", path)?;
        file.sync_data().at("sync", path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_numbers_and_nothing_else_is_taken_for_one() {
        for number in [1, 255, u64::MAX] {
            assert_eq!(parse_file_name(&file_name(number)), Some(number));
        }
        for name in [
            "1.seg",
            "000000000000000A.seg",
            "0000000000000001",
            "LOCK",
            "+000000000000001.seg",
        ] {
            assert_eq!(parse_file_name(name), None, "{name}");
        }
    }
}
