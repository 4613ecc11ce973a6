//! Room that is kept back on a file system for work that frees room.
//!
//! On a full file system, work that would free room fails too. The owner of a reserve keeps an
//! allocated file there without content, and gives it up for such work.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::{Device, OpenMode, allocate_or_zero};

/// Where there is no room for all of it, the available room is taken in steps that shrink to this,
/// in bytes.
const LEAST: u64 = 64 << 10;

/// The size of the file system that `dir` is on, or will be, in bytes. A device that does not say is taken
/// to be large: `u64::MAX`.
#[must_use]
pub fn file_system_bytes(device: &dyn Device, dir: &Path) -> u64 {
    let found = dir.ancestors().find_map(|dir| device.statfs(dir).ok());
    found.map_or(u64::MAX, |found| found.blocks.saturating_mul(found.block_size))
}

/// A file that occupies room and has no content. It need not be durable: what a crash loses of it
/// is free room, which the next [`Reserve::fill`] takes again.
///
/// Its owner orders the calls.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    bytes: u64,
}

impl Reserve {
    /// The reserve of `bytes` bytes that is kept at `path`. Nothing is done yet.
    #[must_use]
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        Self { path, bytes }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes when all of it is there.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the room that is missing. `true`: all of it is there. `false`: the file system is
    /// full, and has given what it could. A reserve of 0 bytes is always there, and has no file.
    ///
    /// # Errors
    /// The device's, where it is no lack of room.
    pub fn fill(&self, device: &dyn Device) -> io::Result<bool> {
        if self.bytes == 0 {
            return self.give_up(device).map(|_| true);
        }
        let file = device.open(&self.path, OpenMode::OpenOrCreate);
        let file = match file {
            Err(e) if is_full(&e) => return Ok(false),
            file => file?,
        };
        let mut have = file.stat()?.len;
        if have > self.bytes {
            file.set_len(self.bytes)?;
        }
        // An attempt that fails takes as long as one that succeeds: it is given back what it took.
        let room = device.statfs(&self.path);
        let available = room.map_or(u64::MAX, |room| room.available.saturating_mul(room.block_size));
        let mut step = self.bytes.saturating_sub(have).min(available.max(LEAST));
        while have < self.bytes {
            // What is there was allocated, so that it stays what it is.
            let end = self.bytes.min(have + step);
            match allocate_or_zero(&*file, have, end) {
                Err(e) if is_full(&e) => {
                    // Some file systems have taken a part before they find that it is too much.
                    file.set_len(have)?;
                    if end - have <= LEAST {
                        return Ok(false);
                    }
                    step = ((end - have) / 2).max(LEAST);
                }
                allocated => {
                    allocated?;
                    have = end;
                }
            }
        }
        Ok(true)
    }

    /// Gives the room back; `false` where there is none to give.
    ///
    /// # Errors
    /// The device's.
    pub fn give_up(&self, device: &dyn Device) -> io::Result<bool> {
        match device.remove_file(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RealDevice;

    #[test]
    fn a_reserve_takes_its_room_and_gives_it_back() {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        let path = dir.path().join("RESERVE");
        let reserve = Reserve::new(path.clone(), 1 << 20);
        assert!(!reserve.give_up(&device).unwrap());
        assert!(reserve.fill(&device).unwrap() && reserve.fill(&device).unwrap());
        assert_eq!(device.stat(&path).unwrap().len, 1 << 20);
        // Other options want less, or none.
        let less = Reserve::new(path.clone(), 1 << 19);
        assert!(less.fill(&device).unwrap());
        assert_eq!(device.stat(&path).unwrap().len, 1 << 19);
        assert!(Reserve::new(path.clone(), 0).fill(&device).unwrap());
        assert_eq!(device.stat(&path).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(reserve.fill(&device).unwrap());
        assert!(reserve.give_up(&device).unwrap());
    }

    #[test]
    fn a_reserve_that_lacks_little_is_filled() {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        let path = dir.path().join("RESERVE");
        for bytes in [1 << 20, (1 << 20) + 1, (1 << 20) + LEAST - 1, (1 << 21) + 5] {
            assert!(
                Reserve::new(path.clone(), bytes).fill(&device).unwrap(),
                "{bytes}"
            );
            assert_eq!(device.stat(&path).unwrap().len, bytes);
        }
    }
}
