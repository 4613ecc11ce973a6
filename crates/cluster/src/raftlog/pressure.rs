//! Keeping the log short: a replica that is quiet or behind holds all that was appended since.

use std::sync::atomic::Ordering;

use crate::ids::ReplicaId;
use crate::raftlog::error::StoreError;
use crate::raftlog::limit::disk;
use crate::raftlog::node_log::NodeLog;
use crate::raftlog::replica_log::ReplicaLog;
use crate::raftlog::room::Purpose;

/// A replica whose entries take no more in the log is appended anew at its end; of one with more,
/// only what is no entry. And no more than its part of so large a part of the limit: what all replicas
/// have together would otherwise be appended anew again and again, and fill the log with itself.
const REWRITE_BYTES: u64 = 1 << 20;
const REWRITTEN_OF_LIMIT: u64 = 8;
/// A log with fewer segments than this has hardly any to let go of: little room on its disk is no
/// reason then to make it shorter.
const SEGMENTS_MIN: u64 = 4;

impl NodeLog {
    /// What is to be done once a second, and when the log is pressed: says what is committed, shrinks
    /// what is in memory, appends the directory where it is due, and makes the replicas let go of what
    /// the log [keeps no longer](crate::Retention): entries are purged. Where they are not in tables yet,
    /// `flush` is called for those that have many: their store is to flush, and then to purge. Those
    /// that have few are appended anew. Where the disk has [little
    /// room](crate::NodeLogOptions::free_min), or the log is full, at least its oldest quarter goes.
    ///
    /// Blocks on reads of entries that are not in memory.
    ///
    /// # Errors
    /// The log's, and those of [`ReplicaLog::read`]. What was not done is done by the next call.
    pub async fn maintain(&self, flush: &(dyn Fn(ReplicaId) + Sync)) -> Result<(), StoreError> {
        let replicas = self.replicas();
        // A hint, for which the last of the room is not spent.
        let is_short = self.shortage().is_some();
        for replica in replicas.iter().filter(|_| !is_short) {
            gone_is_done(replica.say_committed().await)?;
        }
        let cut = self.shared.cache_cut();
        for replica in self.shared.replicas() {
            replica.trim_cache(cut);
        }
        if self.shared.directory_is_due() && !is_short {
            self.shared.append_directory_async().await?;
        }
        self.shared.limit.set_crowded(self.is_crowded());
        let cuts = self.shared.cuts();
        if self.full().is_some() {
            self.shared.let_go_of_damaged();
        }
        let each = self.shared.limit.bytes() / REWRITTEN_OF_LIMIT / replicas.len().max(1) as u64;
        let most = each.min(REWRITE_BYTES);
        for replica in &replicas {
            replica.want_purge_below(cuts.soft);
            match self.relieve(replica, (cuts.hard, most), flush).await {
                // Others may let go without an append.
                Err(full) if full.is_no_room() => {}
                done => gone_is_done(done)?,
            }
        }
        if self.log().oldest() < cuts.hard && self.shared.directory_holds(cuts.hard) {
            self.shared.append_directory_async().await?;
        }
        Ok(())
    }

    /// Whether the log is to be made shorter since its disk has little room.
    fn is_crowded(&self) -> bool {
        let options = &self.shared.options;
        if options.free_min == 0 || self.shared.used() < SEGMENTS_MIN * options.log.segment_bytes {
            return false;
        }
        // A device that does not say is not asked to.
        let room = disk(&*options.log.device, &self.shared.dir);
        room.is_some_and(|(size, free)| free < options.free_min.min(size / 4))
    }

    /// Makes a replica hold nothing below `mark`, if that is possible here; of one whose entries have at
    /// most so many bytes, they are appended anew.
    async fn relieve(
        &self,
        replica: &ReplicaLog,
        (mark, most): (u64, u64),
        flush: &(dyn Fn(ReplicaId) + Sync),
    ) -> Result<(), StoreError> {
        let (bytes, pinned) = replica.weight();
        if pinned >= mark {
            return Ok(());
        }
        let few = bytes <= most;
        // Until it is appended.
        let _room = few
            .then(|| self.shared.reserve(bytes, Purpose::Write))
            .transpose()?;
        if !few {
            flush(replica.replica());
            self.shared.counters.flushes.fetch_add(1, Ordering::Relaxed);
        }
        if few || replica.said_at().is_some_and(|at| at < mark) {
            replica.rewrite(few).await?;
            self.shared.counters.rewrites.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A replica that was removed meanwhile needs nothing more.
fn gone_is_done<T>(answer: Result<T, StoreError>) -> Result<(), StoreError> {
    match answer {
        Ok(_) | Err(StoreError::Removed { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
