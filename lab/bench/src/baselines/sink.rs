//! Where the baselines' rings drain to: two segment files, zeroed beforehand and used in turn,
//! written as Collie writes its segments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{BLOCK, Device, File, OpenMode, write_all_at};
use collie_log::WritePath;
use zerocopy::{FromZeros, IntoBytes};

use super::ring::{Block, Ring};
use crate::error::{At, BenchError};

/// The most that one write call takes, in bytes; Collie's figure.
const PIECE: usize = 1 << 20;

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    file: Arc<dyn File>,
    direct: Option<Arc<dyn File>>,
}

/// Writes the ring's prefix out. The group's leader owns it.
#[derive(Debug)]
pub(crate) struct Sink {
    segments: [Segment; 2],
    segment_bytes: u64,
    staging: Vec<Block>,
    /// Bytes at the start of `staging` that belong to the last block and are written already.
    partial: usize,
    /// Where the next byte goes.
    written: u64,
    /// Which segments were written to past the page cache's last sync.
    unsynced: [bool; 2],
}

impl Sink {
    /// Zeroed, synced segments of `segment_bytes`, a multiple of a block, in `dir`.
    pub(crate) fn new(
        device: &dyn Device,
        dir: &Path,
        segment_bytes: u64,
        write_path: WritePath,
    ) -> Result<Self, BenchError> {
        device.create_dir_all(dir).at("create", dir)?;
        let segment = |name| create(device, dir.join(name), segment_bytes, write_path);
        let segments = [segment("even.seg")?, segment("odd.seg")?];
        device.sync_dir(dir).at("sync", dir)?;
        let mut staging = Vec::new();
        staging.resize_with(PIECE / BLOCK + 1, Block::new_zeroed);
        Ok(Self {
            segments,
            segment_bytes,
            staging,
            partial: 0,
            written: 0,
            unsynced: [false; 2],
        })
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Writes `[written, to)`, at most a piece of it; `to` is at most the boundary. Returns the new
    /// written.
    pub(crate) fn write(&mut self, ring: &Ring, to: u64) -> Result<u64, BenchError> {
        let number = self.written / self.segment_bytes;
        let segment_end = (number + 1) * self.segment_bytes;
        let which = usize::from(!number.is_multiple_of(2));
        let begins = self.written.is_multiple_of(self.segment_bytes);
        let (Some(segment), Some(unsynced)) = (self.segments.get(which), self.unsynced.get_mut(which)) else {
            return Ok(self.written);
        };
        if begins && *unsynced {
            // What it held is overwritten only once it was durable.
            segment.file.sync_data().at("sync", &segment.path)?;
        }
        let n = (to.min(segment_end) - self.written).min(PIECE as u64) as usize;
        let filled = self.partial + n;
        let staging = self.staging.as_mut_slice().as_mut_bytes();
        let (data, rest) = staging.split_at_mut(filled);
        if let Some(fresh) = data.get_mut(self.partial..) {
            #[expect(unsafe_code, reason = "reads what the boundary says is complete")]
            // SAFETY: [written, to) lies below the boundary, and no writer touches it before
            // `written` passes it.
            unsafe {
                ring.copy_out(self.written, fresh);
            }
        }
        let whole = filled.next_multiple_of(BLOCK);
        rest.iter_mut().take(whole - filled).for_each(|b| *b = 0);
        let offset = self.written % self.segment_bytes - self.partial as u64;
        let (blocks, _) = staging.split_at(whole);
        match &segment.direct {
            Some(direct) => write_all_at(&**direct, blocks, offset).at("write", &segment.path)?,
            None => {
                write_all_at(&*segment.file, blocks, offset).at("write", &segment.path)?;
                *unsynced = true;
            }
        }
        self.written += n as u64;
        self.partial = if self.written == segment_end {
            0
        } else {
            filled % BLOCK
        };
        staging.copy_within(filled - self.partial..filled, 0);
        Ok(self.written)
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&mut self) -> Result<u64, BenchError> {
        for (segment, unsynced) in self.segments.iter().zip(&mut self.unsynced) {
            if std::mem::take(unsynced) {
                segment.file.sync_data().at("sync", &segment.path)?;
            }
        }
        Ok(self.written)
    }
}

fn create(
    device: &dyn Device,
    path: PathBuf,
    bytes: u64,
    write_path: WritePath,
) -> Result<Segment, BenchError> {
    let file = device.open(&path, OpenMode::CreateNew).at("create", &path)?;
    let zeros = vec![0; PIECE];
    let mut offset = 0;
    while offset < bytes {
        let n = (bytes - offset).min(PIECE as u64) as usize;
        write_all_at(&*file, zeros.get(..n).unwrap_or_default(), offset).at("write", &path)?;
        offset += n as u64;
    }
    file.sync_data().at("sync", &path)?;
    let direct = match write_path {
        // Where the file system cannot do it, Collie's log falls back as well.
        WritePath::Direct => device.open(&path, OpenMode::DirectSync).ok(),
        _ => None,
    };
    Ok(Segment { path, file, direct })
}
