//! The copy of everything past the durable mark, in segments of a new epoch.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, write_all_at};
use zerocopy::IntoBytes;

use super::chain::Chain;
use super::new_ring::{NewRing, RingOwner};
use super::old_ring::OldRing;
use super::scan::{CopyPiece, CopySource, Found};
use super::write_path::spare_blocks;
use crate::Lsn;
use crate::append::space::Space;
use crate::error::{At, LogError};
use crate::format::{
    BLOCK, FRAME_HEADER, FrameHeader, FrameStart, KIND_CLOSE, KIND_FILLER, KIND_SEAL, SEGMENT_HEAD, Salt,
    SegmentHeader,
};
use crate::options::LogOptions;
use crate::segments::files::{Directory, create, file_name};
use crate::segments::frames::{Window, corrupt};
use crate::segments::segment::{Segment, in_use};

/// Room for the first appends: so much of a new epoch's first segment is zeroed before the log
/// opens, beside what is kept for others. The rest follows in the background.
const READY: u64 = 256 << 10;
/// In a set, where the rest follows with the first appends.
const READY_IN_SET: u64 = 64 << 10;
/// How much is copied with one write.
const PIECE: usize = 1 << 20;

/// The epoch that is being begun.
pub(super) struct NewEpoch<'a> {
    pub(super) device: &'a dyn Device,
    pub(super) dir: &'a Path,
    pub(super) directory: &'a Directory,
    pub(super) options: &'a LogOptions,
    pub(super) log_id: [u8; 16],
    /// The last number and epoch seen anywhere, then those given out last.
    pub(super) number: u64,
    pub(super) epoch: u32,
    /// The files made so far for the epoch under way, until the first of its headers is written.
    pub(super) unfinished: Vec<PathBuf>,
}

/// An epoch that was begun.
pub(super) struct Begun {
    pub(super) segments: Vec<Segment>,
    pub(super) template: SegmentHeader,
    /// Zeroed bytes of the last segment's data.
    pub(super) ready: u64,
    /// Where in it zeroed blocks lie that hold nothing.
    pub(super) spare: Range<u64>,
    /// What the last block holds.
    pub(super) partial: Vec<u8>,
    /// Bytes that were copied.
    pub(super) copied: u64,
}

/// How much of a new epoch's first segment is zeroed before the log opens.
pub(super) fn ready(options: &LogOptions) -> u64 {
    let first = match options.set {
        None => READY,
        Some(_) => READY_IN_SET,
    };
    let wanted = first + Space::of(options, 0, false).kept();
    let data = options.segment_bytes - SEGMENT_HEAD as u64;
    wanted.next_multiple_of(BLOCK as u64).min(data)
}

impl NewEpoch<'_> {
    /// What a ring belongs to.
    pub(super) fn home(&self) -> RingOwner<'_> {
        let Self {
            device,
            dir,
            options,
            log_id,
            epoch,
            ..
        } = self;
        RingOwner {
            device: *device,
            dir,
            options,
            log_id: *log_id,
            epoch: epoch + 1,
        }
    }

    /// Removes what was made of an epoch that does not come to count; `false` where it may count
    /// already.
    pub(super) fn give_up(&mut self) -> bool {
        let unfinished = std::mem::take(&mut self.unfinished);
        for path in &unfinished {
            // What cannot be removed is a stray for the next open.
            let _ = self.device.remove_file(path);
        }
        !unfinished.is_empty()
    }

    /// Begins an epoch whose data starts at `first_lsn`, with a copy of what `found` has past its
    /// durable mark.
    pub(super) fn begin(
        &mut self,
        chain: &Chain,
        old: &OldRing,
        found: &Found,
        ring: Option<&NewRing>,
        first_lsn: Lsn,
    ) -> Result<Begun, LogError> {
        self.epoch += 1;
        let template = self.template(found, ring, first_lsn)?;
        let salt = Salt(template.salt.get());
        let mut writer = Writer {
            epoch: self,
            template,
            files: Vec::new(),
            buffer: Vec::new(),
            at: first_lsn,
        };
        let mut reread = Rereader::default();
        for piece in &found.past_mark {
            writer.copy(chain, old, &mut reread, *piece, salt)?;
        }
        let begun = writer.finish()?;
        for segment in &begun.segments {
            let next = found
                .past_mark
                .partition_point(|piece| piece.start < segment.first_lsn);
            segment
                .beginning
                .set_lsn(found.past_mark.get(next).map_or(found.end, |piece| piece.start));
        }
        Ok(begun)
    }

    fn template(
        &self,
        found: &Found,
        ring: Option<&NewRing>,
        first_lsn: Lsn,
    ) -> Result<SegmentHeader, LogError> {
        let mut salt = [0; 4];
        self.device
            .random(&mut salt)
            .at("get random bytes for", self.dir)?;
        let mut header = SegmentHeader::blank();
        header.log_id = self.log_id;
        header.first_lsn = first_lsn.into();
        header.data_bytes = (self.options.segment_bytes - SEGMENT_HEAD as u64).into();
        header.epoch = self.epoch.into();
        header.salt = u32::from_le_bytes(salt).into();
        header.epoch_first = (self.number + 1).into();
        header.predecessor_end = found.durable_mark.into();
        header.copied_end = found.end.max(first_lsn).into();
        header.boot_id = self.device.boot_id().at("read the boot id for", self.dir)?;
        if let Some(NewRing { incarnation, ring }) = ring
            && let Some(file) = &ring.file
        {
            header.ring = *incarnation;
            let ring_dir = file.path.parent().unwrap_or(Path::new("/"));
            // Its length was checked with the options.
            header.set_ring_dir(ring_dir.as_os_str().as_bytes());
        }
        Ok(header)
    }
}

/// A segment that is being filled.
struct Fresh {
    header: SegmentHeader,
    path: PathBuf,
    file: Arc<dyn File>,
    /// How much of its data is zeroed.
    ready: u64,
}

/// Reads pieces again, in order, for copying.
#[derive(Debug, Default)]
struct Rereader {
    window: Window,
    run: Option<usize>,
}

impl Rereader {
    /// Header and payload of a frame in a run.
    fn frame(&mut self, chain: &Chain, index: usize, at: Lsn) -> Result<(FrameHeader, &[u8]), LogError> {
        let run = chain.runs.get(index).ok_or(LogError::Closed)?;
        if self.run.replace(index) != Some(index) {
            self.window.clear();
        }
        let frame = self.window.frame(run, at)?;
        frame.map_err(|bad| corrupt(run, at, "the frame that was there a moment ago", bad))
    }
}

/// Writes the copy into as many segments as it takes.
struct Writer<'a, 'e> {
    epoch: &'a mut NewEpoch<'e>,
    template: SegmentHeader,
    files: Vec<Fresh>,
    /// What is not written yet; it begins on a block.
    buffer: Vec<u8>,
    /// The LSN of the buffer's first byte.
    at: Lsn,
}

impl Writer<'_, '_> {
    fn copy(
        &mut self,
        chain: &Chain,
        old: &OldRing,
        reread: &mut Rereader,
        piece: CopyPiece,
        salt: Salt,
    ) -> Result<(), LogError> {
        match piece.source {
            CopySource::Run(run) => {
                let (header, payload) = reread.frame(chain, run, piece.start)?;
                self.put(piece.start, header, payload, salt);
            }
            CopySource::Ring => {
                let OldRing::Usable(left) = old else {
                    return Err(LogError::Closed);
                };
                let (header, payload) = left.frame(piece.start).ok_or(LogError::Closed)?;
                self.put(piece.start, header, &payload, salt);
            }
            CopySource::Hole => {
                let payload = vec![0; (piece.end - piece.start) as usize - FRAME_HEADER];
                let filler = FrameStart {
                    payload_crc: salt.crc(&payload),
                    len: payload.len() as u32,
                    compressed: false,
                    stream: 0,
                    kind: KIND_FILLER,
                };
                self.put_frame(piece.start, filler, &payload);
            }
        }
        if self.buffer.len() >= PIECE {
            self.flush(false)
        } else {
            Ok(())
        }
    }

    fn put(&mut self, lsn: Lsn, header: FrameHeader, payload: &[u8], salt: Salt) {
        let kind = if header.kind() == KIND_CLOSE {
            KIND_SEAL
        } else {
            header.kind()
        };
        let start = FrameStart {
            payload_crc: salt.crc(payload),
            len: payload.len() as u32,
            compressed: header.is_compressed(),
            stream: header.stream(),
            kind,
        };
        self.put_frame(lsn, start, payload);
    }

    /// A frame under the new epoch. It records no durable mark: the epoch's header does.
    fn put_frame(&mut self, lsn: Lsn, start: FrameStart, payload: &[u8]) {
        debug_assert_eq!(lsn, self.at + self.buffer.len() as u64);
        let header = FrameHeader::finish(start, lsn, 0, self.epoch.epoch);
        self.buffer.extend_from_slice(header.as_bytes());
        self.buffer.extend_from_slice(payload);
        self.buffer.resize(self.buffer.len().next_multiple_of(8), 0);
    }

    /// Writes the whole blocks of the buffer, or all of it.
    fn flush(&mut self, all: bool) -> Result<(), LogError> {
        loop {
            let in_segment = match self.files.last() {
                Some(fresh) if self.at < fresh.header.end() => fresh.header.end() - self.at,
                _ => self.next_segment()?,
            };
            let n = (self.buffer.len() as u64).min(in_segment) as usize;
            let n = if all || n as u64 == in_segment {
                n
            } else {
                n / BLOCK * BLOCK
            };
            if n == 0 {
                return Ok(());
            }
            let Some(Fresh {
                header, path, file, ..
            }) = self.files.last()
            else {
                return Ok(());
            };
            let offset = header.data_at() + (self.at - header.first_lsn.get());
            let (now, _) = self.buffer.split_at(n);
            write_all_at(&**file, now, offset).at("write", path)?;
            if all && n == self.buffer.len() {
                // The last block stays, for the flusher to go on with.
                self.at += (n / BLOCK * BLOCK) as u64;
                self.buffer.drain(..n / BLOCK * BLOCK);
                return Ok(());
            }
            self.at += n as u64;
            self.buffer.drain(..n);
        }
    }

    /// Begins a segment at the current position; returns its room. Its header comes last.
    fn next_segment(&mut self) -> Result<u64, LogError> {
        self.epoch.number += 1;
        let mut header = self.template;
        header.number = self.epoch.number.into();
        header.first_lsn = self.at.into();
        let path = self.epoch.dir.join(file_name(self.epoch.number));
        let data = header.data_bytes.get();
        let copied = (self.buffer.len() as u64).next_multiple_of(BLOCK as u64);
        let ready = data.min(ready(self.epoch.options).max(copied));
        self.epoch.unfinished.push(path.clone());
        let file = create(self.epoch.directory, &path, ready, None)?;
        self.files.push(Fresh {
            header,
            path,
            file,
            ready,
        });
        Ok(data)
    }

    /// Syncs the copy, then the headers, the first one last.
    fn finish(mut self) -> Result<Begun, LogError> {
        if self.files.is_empty() {
            self.next_segment()?;
        }
        self.flush(true)?;
        for Fresh { path, file, .. } in &self.files {
            file.sync_data().at("sync", path)?;
        }
        self.epoch.unfinished.clear();
        let end = self.at + self.buffer.len() as u64;
        for fresh in &mut self.files {
            // The copy may have gone beyond what was zeroed when the segment began.
            let used = end.min(fresh.header.end()) - fresh.header.first_lsn.get();
            fresh.header.set_prepared(fresh.ready.max(used));
        }
        for Fresh {
            header, path, file, ..
        } in self.files.iter().rev()
        {
            write_all_at(&**file, &header.encode(), 0).at("write", path)?;
            file.sync_data().at("sync", path)?;
        }
        let (ready, used) = self.files.last().map_or((0, 0), |f| {
            let used = end - f.header.first_lsn.get();
            let blocks = used.next_multiple_of(BLOCK as u64);
            (f.ready.max(blocks).min(f.header.data_bytes.get()), used)
        });
        let segments = self
            .files
            .into_iter()
            .map(|f| in_use(&f.header, f.path, f.file, None));
        Ok(Begun {
            segments: segments.collect(),
            template: self.template,
            ready,
            spare: spare_blocks(self.template.data_at(), ready, used),
            partial: self.buffer,
            copied: end - self.template.first_lsn.get(),
        })
    }
}
