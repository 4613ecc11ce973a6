//! Beginning a new epoch, with a copy of everything past the last promise.
//!
//! Order: the new ring exists; the copied frames are synced in fresh segments, and so is every old segment
//! that the log still relies on; then the header of the epoch's first segment is written and synced, which
//! names the new ring and records where the old epoch ends. From there on the new epoch is the log. Only
//! then does the old ring go, and what the new epoch took over.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, write_all_at};
use zerocopy::IntoBytes;

use super::chain::{Chain, Run};
use super::frames::Rereader;
use super::new_ring::{Home, NewRing, remove_rings};
use super::old_ring::OldRing;
use super::scan::{Found, Piece, Source};
use super::write_path::{self, Chosen, spare_blocks};
use super::{DirLock, History, RecoveryReport, RingOutcome};
use crate::Lsn;
use crate::archive::Archive;
use crate::beginning;
use crate::core::Opened;
use crate::directory::Directory;
use crate::error::{At, LogError};
use crate::format::{
    BLOCK, FRAME_HEADER, FrameHeader, FrameStart, KIND_CLOSE, KIND_FILLER, KIND_SEAL, SEGMENT_HEAD, Salt,
    SegmentHeader,
};
use crate::options::{FIRST_LSN, LogId, LogOptions};
use crate::pad::filler_len;
use crate::segments::{self, Segment, Segments, remove_for_good};

/// How much of a new epoch's first segment is zeroed before the log opens; the rest follows in the
/// background.
pub(crate) const READY: u64 = 2 << 20;
/// How much is copied with one write.
const PIECE: usize = 1 << 20;

/// A fresh log: nothing to carry.
pub(crate) fn begin_first(
    dir: &Path,
    options: LogOptions,
    mut chain: Chain,
    history: History,
    lock: DirLock,
) -> Result<Opened, LogError> {
    match options.log_id {
        Some(LogId(id)) => chain.log_id = id,
        None => options
            .device
            .random(&mut chain.log_id)
            .at("get random bytes for", dir)?,
    }
    let start = FIRST_LSN.max(options.min_lsn);
    let found = Found {
        first_frame: start,
        end: start,
        promise: start,
        unpromised: VecDeque::new(),
        frames: 0,
        beginnings: Vec::new(),
        torn: None,
        mended: None,
        ring: RingOutcome::None,
    };
    carry_on(dir, options, chain, OldRing::None, found, history, lock)
}

/// Goes on from what the walk found.
pub(crate) fn carry_on(
    dir: &Path,
    options: LogOptions,
    chain: Chain,
    old: OldRing,
    found: Found,
    history: History,
    lock: DirLock,
) -> Result<Opened, LogError> {
    let device = Arc::clone(&options.device);
    let mut warnings = losses(&found, &history);
    // They proved nothing, and on a full device they are in the way.
    let strays = chain.strays.iter();
    let strays: Vec<_> = strays.map(|s| (s.path.clone(), Arc::clone(&s.file))).collect();
    let directory = Directory::open(&device, dir)?;
    remove_for_good(&directory, &strays)?;
    let mut live = old_segments(&chain, &found);
    rely_on(&chain, &live)?;
    // An opening that died before it could do so left them; on a full device they would be in the way of the next epoch.
    remove_for_good(&directory, &chain.superseded)?;
    shorten(&chain, &live);

    let mut epoch = Epoch {
        device: &*device,
        dir,
        directory: &directory,
        options: &options,
        log_id: chain.log_id,
        number: chain.max_number,
        epoch: chain.max_epoch,
        unfinished: Vec::new(),
    };
    // Tables that are ahead of the log (it ran without one for a while): the LSNs go on above them. The copy
    // then has an epoch of its own, which ends where it ends.
    let mut end = options.min_lsn.max(found.end);
    let (taken_over_at, mut found) = (found.promise, found);
    if end > found.end && !chain.is_empty() {
        let carried = epoch.begin(&chain, &old, &found, None, found.promise)?;
        live.extend(carried.segments);
        live.iter_mut().for_each(|s| cut(s, found.end));
        (found.promise, found.unpromised) = (found.end, VecDeque::new());
    }
    let first_lsn = if chain.is_empty() || end > found.end {
        end
    } else {
        found.promise
    };
    if options.pad_to_block && end > first_lsn {
        end = pad(&mut found, first_lsn);
    }
    let ring = NewRing::make(&epoch.home(), end, &mut warnings)?;
    let mut last = match epoch.begin(&chain, &old, &found, Some(&ring), first_lsn) {
        Ok(last) => last,
        Err(error) => {
            // Whether the header is on the device is unknown once its write was tried: then the files stay, and
            // the next open decides.
            if epoch.give_up() {
                ring.remove(&*device);
            }
            return Err(error);
        }
    };

    // The new epoch counts. An error from here on is mended by the next open.
    tidy(&directory, &chain, taken_over_at, &mut warnings)?;
    let archive = Archive::open(dir, &options, &mut warnings)?;
    remove_rings(&epoch.home(), &chain, &old, &found.ring, &ring, &mut warnings);
    // With a private ring `Process` means a write call, which must not wait for the device.
    let shared = ring.ring.file.is_some();
    let Chosen {
        direct,
        in_flight,
        probe,
    } = if shared {
        write_path::choose(&options, &mut last.segments, &last.spare, &mut warnings)?
    } else {
        Chosen::cached()
    };
    let template = last.template;
    live.extend(last.segments);
    let report = RecoveryReport {
        log_id: LogId(chain.log_id),
        epoch: epoch.epoch,
        first_frame: if found.frames > 0 { found.first_frame } else { end },
        end,
        frames: found.frames,
        carried_bytes: last.carried,
        torn: found.torn,
        cut: history.cut,
        set_aside: history.set_aside,
        ring: found.ring,
        ring_shared: ring.ring.file.is_some(),
        direct,
        writes_in_flight: in_flight,
        probe,
        warnings,
    };
    for warning in &report.warnings {
        tracing::warn!(dir = %dir.display(), "{warning}");
    }
    let live = live.into_iter().map(Arc::new).collect();
    let epoch = epoch.epoch;
    let segments = Segments::new(
        Arc::clone(&device),
        directory,
        template,
        live,
        last.ready,
        archive,
    )?;
    Ok(Opened {
        dir: dir.to_owned(),
        epoch,
        salt: Salt(template.salt.get()),
        end,
        partial: last.partial,
        ring: ring.ring,
        segments,
        report,
        lock,
        options,
    })
}

/// What the user must hear of.
fn losses(found: &Found, history: &History) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(cut) = &history.cut {
        warnings.push(format!(
            "the log was cut at LSN {}, and what followed is lost to it: {}",
            cut.lsn, cut.damage
        ));
    }
    for path in &history.set_aside {
        warnings.push(format!(
            "{} holds what was cut from the log; remove it when it is not needed any more",
            path.display()
        ));
    }
    if let Some(torn) = &found.torn {
        let (path, offset) = (torn.path.display(), torn.offset);
        warnings.push(format!(
            "the log was cut in {path} at byte {offset} (LSN {}), where it held {}",
            torn.lsn, torn.found
        ));
    }
    if let Some(mended) = &found.mended {
        let (path, offset) = (mended.path.display(), mended.offset);
        warnings.push(format!(
            "{path} is damaged at byte {offset} (LSN {}), where it holds {}; the ring had all from there on, and \
             nothing is lost",
            mended.lsn, mended.found
        ));
    }
    match &found.ring {
        RingOutcome::Gone { same_boot: true } => warnings.push(
            "the ring of the process before is gone although the machine was not restarted: what was acknowledged at \
             the process level and not yet flushed may be lost"
                .to_owned(),
        ),
        RingOutcome::Refused { reason } => warnings.push(format!("the ring of the process before was not used: {reason}")),
        _ => {}
    }
    warnings
}

/// The old epochs' segments as parts of the open log, each cut where the next epoch begins.
fn old_segments(chain: &Chain, found: &Found) -> Vec<Segment> {
    let (mut live, promise) = (Vec::new(), found.promise);
    for (at, run) in chain.runs.iter().enumerate() {
        let end = chain.runs.get(at + 1).map_or(promise, Run::predecessor_end);
        for file in run.segments.iter().filter(|s| s.first_lsn() < end) {
            let mut segment = segments::in_use(&file.header, file.path.clone(), Arc::clone(&file.file), None);
            if let Some((_, lsn)) = found
                .beginnings
                .iter()
                .find(|(number, _)| *number == segment.number)
            {
                segment.beginning.set_lsn(*lsn);
            }
            cut(&mut segment, end);
            live.push(segment);
        }
    }
    live
}

/// Has the copy that begins at `first_lsn`, a block's beginning, end with a block: what is appended begins in another
/// one. Returns the end.
fn pad(found: &mut Found, first_lsn: Lsn) -> Lsn {
    let start = found.end;
    found.end += filler_len(start - first_lsn);
    if found.end > start {
        found.unpromised.push_back(Piece {
            start,
            end: found.end,
            source: Source::Hole,
        });
    }
    found.end
}

/// Gives back the room behind where a later epoch took over, as `tidy` does for the one that begins now.
fn shorten(chain: &Chain, live: &[Segment]) {
    let newest = chain.last().and_then(|run| run.segments.first());
    for segment in live {
        let len = segment.offset(segment.end).next_multiple_of(BLOCK as u64);
        let is_older = newest.is_some_and(|newest| segment.epoch < newest.header.epoch.get());
        if is_older && segment.file.stat().is_ok_and(|stat| stat.len > len) {
            // Where it cannot be shortened it takes more room than it needs, and is released with the others.
            let _ = segment.file.set_len(len);
        }
    }
}

fn cut(segment: &mut Segment, end: Lsn) {
    segment.meta.end = segment.end.min(end);
    segment.meta.reusable = false;
}

/// Makes durable what the log goes on to rely on: a reopened file may show pages that are not on the device.
/// Nor need the newest epoch's own header be there: an open whose last sync failed has left it in the page
/// cache, clean. Writing it again, as it is, dirties it.
fn rely_on(chain: &Chain, live: &[Segment]) -> Result<(), LogError> {
    if let Some(first) = chain
        .last()
        .filter(|run| run.is_whole())
        .and_then(|run| run.segments.first())
    {
        beginning::rewrite(&*first.file, &first.path, &first.header)?;
    }
    live.iter()
        .try_for_each(|s| s.file.sync_data().at("sync", &s.path))
}

/// The epoch that is being begun.
struct Epoch<'a> {
    device: &'a dyn Device,
    dir: &'a Path,
    directory: &'a Directory,
    options: &'a LogOptions,
    log_id: [u8; 16],
    /// The last number and epoch seen anywhere, then those given out last.
    number: u64,
    epoch: u32,
    /// The files made so far for the epoch under way, until the first of its headers is written.
    unfinished: Vec<PathBuf>,
}

/// An epoch that was begun.
struct Begun {
    segments: Vec<Segment>,
    template: SegmentHeader,
    /// Zeroed bytes of the last segment's data.
    ready: u64,
    /// Where in it zeroed blocks lie that hold nothing.
    spare: Range<u64>,
    /// What the last block holds.
    partial: Vec<u8>,
    /// Bytes that were copied.
    carried: u64,
}

impl Epoch<'_> {
    /// What a ring belongs to.
    fn home(&self) -> Home<'_> {
        let Self {
            device,
            dir,
            options,
            log_id,
            epoch,
            ..
        } = self;
        Home {
            device: *device,
            dir,
            options,
            log_id: *log_id,
            epoch: epoch + 1,
        }
    }

    /// Removes what was made of an epoch that does not come to count; `false` where it may count already.
    fn give_up(&mut self) -> bool {
        let unfinished = std::mem::take(&mut self.unfinished);
        for path in &unfinished {
            // What cannot be removed is a stray for the next open.
            let _ = self.device.remove_file(path);
        }
        !unfinished.is_empty()
    }

    /// Begins an epoch whose data starts at `first_lsn`, with a copy of what `found` has past its promise.
    fn begin(
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
        for piece in &found.unpromised {
            writer.copy(chain, old, &mut reread, *piece, salt)?;
        }
        let begun = writer.finish()?;
        for segment in &begun.segments {
            let next = found
                .unpromised
                .partition_point(|piece| piece.start < segment.first_lsn);
            segment
                .beginning
                .set_lsn(found.unpromised.get(next).map_or(found.end, |piece| piece.start));
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
        header.predecessor_end = found.promise.into();
        header.carried_end = found.end.max(first_lsn).into();
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

/// Writes the copy into as many segments as it takes.
struct Writer<'a, 'e> {
    epoch: &'a mut Epoch<'e>,
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
        piece: Piece,
        salt: Salt,
    ) -> Result<(), LogError> {
        match piece.source {
            Source::Run(run) => {
                let (header, payload) = reread.frame(chain, run, piece.start)?;
                self.put(piece.start, header, payload, salt);
            }
            Source::Ring => {
                let OldRing::Usable(left) = old else {
                    return Err(LogError::Closed);
                };
                let (header, payload) = left.frame(piece.start).ok_or(LogError::Closed)?;
                self.put(piece.start, header, &payload, salt);
            }
            Source::Hole => {
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

    /// A frame under the new epoch. It promises nothing: the epoch's header does.
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
        let path = self.epoch.dir.join(segments::file_name(self.epoch.number));
        let data = header.data_bytes.get();
        let ready = data.min(READY.max((self.buffer.len() as u64).next_multiple_of(BLOCK as u64)));
        self.epoch.unfinished.push(path.clone());
        let file = segments::create(self.epoch.directory, &path, ready, None)?;
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
        for Fresh {
            header, path, file, ..
        } in self.files.iter().rev()
        {
            write_all_at(&**file, &header.encode(), 0).at("write", path)?;
            file.sync_data().at("sync", path)?;
        }
        // The copy may have gone beyond what was zeroed when the segment began.
        let end = self.at + self.buffer.len() as u64;
        let (ready, used) = self.files.last().map_or((0, 0), |f| {
            let used = end - f.header.first_lsn.get();
            let blocks = used.next_multiple_of(BLOCK as u64);
            (f.ready.max(blocks).min(f.header.data_bytes.get()), used)
        });
        let segments = self
            .files
            .into_iter()
            .map(|f| segments::in_use(&f.header, f.path, f.file, None));
        Ok(Begun {
            segments: segments.collect(),
            template: self.template,
            ready,
            spare: spare_blocks(self.template.data_at(), ready, used),
            partial: self.buffer,
            carried: end - self.template.first_lsn.get(),
        })
    }
}

/// Removes what a later epoch took over, for good: if it came back after its successors are released, it would
/// pass for the log.
fn tidy(dir: &Directory, chain: &Chain, promise: Lsn, warnings: &mut Vec<String>) -> Result<(), LogError> {
    let mut litter = chain.superseded.clone();
    for segment in chain.last().iter().flat_map(|run| run.segments.iter().rev()) {
        if segment.first_lsn() >= promise {
            litter.push((segment.path.clone(), Arc::clone(&segment.file)));
        } else if segment.data_end() > promise {
            let len = segment.offset(promise).next_multiple_of(BLOCK as u64);
            if let Err(error) = segment.file.set_len(len) {
                // It takes more room than it needs, and is released with the others.
                warnings.push(format!("cannot shorten {}: {error}", segment.path.display()));
            }
        }
    }
    remove_for_good(dir, &litter)
}
