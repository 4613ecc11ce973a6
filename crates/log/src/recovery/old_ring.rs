//! The ring that an earlier process left in tmpfs.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use collie_io::{Device, OpenMode};

use super::chain::Chain;
use super::report::RingOutcome;
use crate::Lsn;
use crate::append::ring::{Ring, RingFile};
use crate::error::{At, LogError};
use crate::format::{BLOCK, FRAME_HEADER, FrameHeader, RingHeader, Salt, SegmentHeader};
use crate::segments::frames::header_at;
use crate::segments::run::Run;

/// The name of a ring: which log, which incarnation.
pub(crate) fn file_name(log_id: [u8; 16], incarnation: [u8; 16]) -> String {
    format!("{}{}.ring", name_prefix(log_id), hex(incarnation))
}

/// What the names of all rings of a log begin with.
pub(crate) fn name_prefix(log_id: [u8; 16]) -> String {
    format!("collie-{}-", hex(log_id))
}

fn hex(id: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(id))
}

/// Whether a file has the name of a ring.
pub(crate) fn is_ring(name: &str) -> bool {
    name.starts_with("collie-") && name.ends_with(".ring")
}

/// The directory of an epoch's ring.
pub(crate) fn ring_dir(header: &SegmentHeader) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(header.ring_dir()))
}

/// What was found where the newest epoch's ring should be.
#[derive(Debug)]
pub(crate) enum OldRing {
    /// That epoch's ring was private.
    None,
    /// Not there.
    Gone { same_boot: bool },
    /// There, and not to be used.
    Refused {
        reason: String,
        /// It should be this log's own ring, of this boot: what only that held is lost.
        lost: bool,
    },
    /// There, ours, and its owner is dead.
    Usable(UsableRing),
}

/// A dead process's ring. Its lock is held through `ring.file`.
#[derive(Debug)]
pub(crate) struct UsableRing {
    ring: Ring,
    epoch: u32,
    salt: Salt,
    /// The segments hold everything below.
    pub(crate) written: Lsn,
}

impl OldRing {
    /// For the report, before anything was read from it.
    pub(crate) fn outcome(&self) -> RingOutcome {
        match self {
            Self::None | Self::Usable(_) => RingOutcome::None,
            Self::Gone { same_boot } => RingOutcome::Gone {
                same_boot: *same_boot,
            },
            Self::Refused { reason, .. } => RingOutcome::Refused {
                reason: reason.clone(),
            },
        }
    }

    /// Whether it is not to be used although it should be this log's own, of this boot.
    pub(crate) fn is_lost(&self) -> bool {
        !matches!(self, Self::Refused { lost: false, .. })
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Usable(left) => left.ring.file.as_ref().map(|f| f.path.as_path()),
            _ => None,
        }
    }
}

/// Finds the ring that the newest epoch's header names. Changes nothing.
///
/// # Errors
/// Those of the system. They must not pass for "there is no ring": what it holds would be lost.
pub(crate) fn open(device: &dyn Device, dir: &Path, chain: &Chain) -> Result<OldRing, LogError> {
    let Some(header) = chain
        .last()
        .and_then(|run| run.segments.first())
        .map(|s| s.header)
    else {
        return Ok(OldRing::None);
    };
    if header.ring == [0; 16] {
        return Ok(OldRing::None);
    }
    let path = ring_dir(&header).join(file_name(chain.log_id, header.ring));
    try_open(device, dir, chain, &header, &path).at("read the ring", &path)
}

fn try_open(
    device: &dyn Device,
    dir: &Path,
    chain: &Chain,
    epoch: &SegmentHeader,
    path: &Path,
) -> io::Result<OldRing> {
    let boot_id = device.boot_id()?;
    let file = match device.open(path, OpenMode::ReadWrite) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Ok(OldRing::Gone {
                same_boot: epoch.boot_id == boot_id,
            });
        }
        Err(e) => return Err(e),
    };
    let refuse = |reason: &str, lost: bool| {
        Ok(OldRing::Refused {
            reason: reason.to_owned(),
            lost,
        })
    };
    let refused = |reason: &str| refuse(reason, epoch.boot_id == boot_id);
    let stat = file.stat()?;
    if stat.uid != device.uid() || stat.mode != 0o600 {
        return refused("it belongs to another user, or others may write to it");
    }
    let mut head = [0; BLOCK];
    if stat.len < BLOCK as u64 {
        return refused("it is shorter than its header");
    }
    collie_io::read_exact_at(&*file, &mut head, 0)?;
    let Ok(header) = RingHeader::decode(&head) else {
        return refused("its header is damaged");
    };
    if header.log_id != chain.log_id || header.incarnation != epoch.ring || header.epoch != epoch.epoch {
        return refused("it belongs to another log or another epoch");
    }
    if header.boot_id != boot_id {
        return refuse("it was left before the machine was restarted", false);
    }
    let home = device.stat(dir)?;
    if header.dir_dev.get() != home.dev || header.dir_ino.get() != home.ino {
        let reason = "it belongs to another directory: this one is a copy or was restored from a backup";
        return refuse(reason, false);
    }
    let capacity = header.capacity.get();
    if !capacity.is_power_of_two() || stat.len != BLOCK as u64 + capacity {
        return refused("its length is not what its header says");
    }
    if !file.try_lock()? {
        // The directory's lock is ours, so its owner is not a log that works: a poisoned one whose
        // workers live on, or a child that inherited the file. It may still be needed.
        return Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "a living process holds the ring; end it first",
        ));
    }
    let memory = file.map(stat.len as usize)?;
    let ring = Ring::shared(
        memory,
        RingFile {
            path: path.to_owned(),
            file,
        },
    );
    let written = ring.written_mark();
    // What was released had been written: so the mark was above it, and a mark never goes back.
    if !epoch.begins_epoch() && written < epoch.first_lsn.get() {
        return refused(
            "it is older than the segments: what lay before them was released, and it does not know",
        );
    }
    // The mark has no checksum, for it is written with every flight. One that is rotten must not
    // send recovery searching for frames as far as it points.
    let segments_end = chain.last().map_or(0, Run::end);
    let joins = written.saturating_sub(capacity) <= segments_end;
    if !joins || written.checked_add(capacity).is_none() {
        return refused("its mark of what the segments hold lies too far behind the end of the segments");
    }
    Ok(OldRing::Usable(UsableRing {
        ring,
        epoch: epoch.epoch.get(),
        salt: Salt(epoch.salt.get()),
        written,
    }))
}

impl UsableRing {
    /// One past the last LSN that can be in the ring.
    pub(crate) fn end(&self) -> Lsn {
        self.written + self.ring.capacity()
    }

    /// The frame at `at`, where a complete one stands there.
    pub(crate) fn frame(&self, at: Lsn) -> Option<(FrameHeader, Vec<u8>)> {
        if at + FRAME_HEADER as u64 > self.end() {
            return None;
        }
        let mut head = [0; FRAME_HEADER];
        self.read(at, &mut head);
        let header = header_at(&head, at, self.epoch, self.end()).ok()?;
        // Below the mark, what its length says may reach around the ring and beyond its memory.
        if header.end() - at > self.ring.capacity() {
            return None;
        }
        let mut payload = vec![0; header.stored_len()];
        self.read(at + FRAME_HEADER as u64, &mut payload);
        header.matches(self.salt, &payload).then_some((header, payload))
    }

    /// The first complete frame above `at`: what lies between was reserved and never filled.
    pub(crate) fn next_frame(&self, at: Lsn) -> Option<Lsn> {
        let step = crate::format::ALIGN as usize;
        (at + step as u64..self.end())
            .step_by(step)
            .find(|lsn| self.frame(*lsn).is_some())
    }

    /// The first complete frame at or above `from` and below `to` that is still there.
    pub(crate) fn first_frame(&self, from: Lsn, to: Lsn) -> Option<Lsn> {
        let kept = self.written.saturating_sub(self.ring.capacity()).max(from);
        let step = crate::format::ALIGN;
        (kept.next_multiple_of(step)..to.min(self.end()))
            .step_by(step as usize)
            .find(|lsn| self.frame(*lsn).is_some())
    }

    /// Whether a frame began at `from` or above and below `to`, in what the segments must hold: it
    /// is still here, or there is more in between than the longest frame.
    pub(crate) fn began_between(&self, from: Lsn, to: Lsn) -> bool {
        to.saturating_sub(from) > self.ring.capacity() / 2 || self.first_frame(from, to).is_some()
    }

    /// Where the complete frames end that follow one another from `at` on, as far as they begin
    /// below `to`.
    pub(crate) fn follow(&self, mut at: Lsn, to: Lsn) -> Lsn {
        while at < to
            && let Some((header, _)) = self.frame(at)
        {
            at = header.end();
        }
        at
    }

    /// Whether complete frames lead from `at` to the mark, so that the segments are not needed in
    /// between.
    pub(crate) fn bridges(&self, at: Lsn) -> bool {
        self.follow(at, self.written) >= self.written
    }

    fn read(&self, at: Lsn, out: &mut [u8]) {
        #[expect(unsafe_code, reason = "reads the ring of a dead process")]
        // SAFETY: its lock is ours, so its owner is dead and no process writes to it.
        unsafe {
            self.ring.copy_out(at, out);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::format::FrameStart;

    #[test]
    fn a_frame_that_claims_more_than_the_ring_is_none() {
        const CAPACITY: usize = 8192;
        let written = crate::FIRST_LSN + 4 * CAPACITY as u64;
        let left = |len: usize| {
            let ring = Ring::private(CAPACITY).unwrap();
            let at = written - CAPACITY as u64;
            let payload = vec![7; len.min(CAPACITY - FRAME_HEADER)];
            let start = FrameStart {
                payload_crc: Salt(3).crc(&payload),
                len: len as u32,
                compressed: false,
                stream: 1,
                kind: 1,
            };
            let header = FrameHeader::finish(start, at, at, 5);
            #[expect(unsafe_code, reason = "writes a ring that no other thread has")]
            // SAFETY: no other thread has the ring.
            unsafe {
                ring.copy_in(at, header.as_bytes());
                ring.copy_in(at + FRAME_HEADER as u64, &payload);
            }
            let left = UsableRing {
                ring,
                epoch: 5,
                salt: Salt(3),
                written,
            };
            left.frame(at).map(|(_, payload)| payload.len())
        };
        assert_eq!(left(CAPACITY - FRAME_HEADER), Some(CAPACITY - FRAME_HEADER));
        // It would end before the last place that the ring may reach, and beyond the ring's memory.
        assert_eq!(left(CAPACITY), None);
        assert_eq!(left(2 * CAPACITY - FRAME_HEADER), None);
    }
}
