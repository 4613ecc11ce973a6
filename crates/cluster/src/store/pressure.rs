//! Keeping the log short: a replica that is quiet or behind holds all that was appended since.

use std::sync::atomic::Ordering;

use crate::ids::ReplicaId;
use crate::store::error::StoreError;
use crate::store::node_log::NodeLog;
use crate::store::replica_log::ReplicaLog;

/// A replica whose entries take no more in the log is appended anew at its end; of one with more,
/// only what is no entry.
const REWRITE_BYTES: u64 = 1 << 20;
/// A log with fewer segments than this has hardly any to let go of: little room on its disk is no
/// reason then to make it shorter.
const SEGMENTS_MIN: u64 = 4;

impl ReplicaLog {
    /// As [`NodeLog::admit`], of the log that this replica is in.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::NoRoom`].
    pub fn admit(&self) -> Result<(), StoreError> {
        self.node_log().admit()
    }
}

impl NodeLog {
    /// Whether more may be proposed: ask before an entry is handed to raft, which takes a refusal of
    /// [`ReplicaLog::append`] for the end of the replica.
    ///
    /// # Errors
    /// [`StoreError::Full`] where the log has reached its limit, [`StoreError::NoRoom`] where its disk
    /// is full.
    pub fn admit(&self) -> Result<(), StoreError> {
        if let Some(full) = self.shortage() {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return Err(full);
        }
        let (used, limit) = (self.shared.used(), self.shared.options.log_limit);
        if used < limit {
            return Ok(());
        }
        self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        let holder = self.log().holders().into_iter().next();
        let holder = holder.map_or_else(|| "its last segment".to_owned(), |(name, _)| name);
        Err(StoreError::Full { used, limit, holder })
    }

    /// What is to be done once a second: says what is committed, shrinks what is in memory, appends
    /// the directory where it is due and, from three quarters of the log's limit on, or where its disk
    /// has [little room](crate::NodeLogOptions::free_min), makes the replicas let go that hold its
    /// oldest quarter. `flush` is called for those that have many
    /// entries: their store is to flush, and then to purge. The others are appended anew.
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
        let (used, limit) = (self.shared.used(), self.shared.options.log_limit);
        if used >= limit / 4 * 3 || self.is_crowded(used) {
            let mark = self.log().oldest() + used / 4;
            for replica in &replicas {
                match self.relieve(replica, mark, flush).await {
                    // Others may let go without an append.
                    Err(full) if full.is_no_room() => {}
                    done => gone_is_done(done)?,
                }
            }
            if self.shared.directory_holds(mark) {
                self.shared.append_directory_async().await?;
            }
        }
        Ok(())
    }

    /// Whether the log is to be made shorter since its disk has little room.
    fn is_crowded(&self, used: u64) -> bool {
        let options = &self.shared.options;
        if options.free_min == 0 || used < SEGMENTS_MIN * options.log.segment_bytes {
            return false;
        }
        // A device that does not say is not asked to.
        let room = options.log.device.statfs(&self.shared.dir);
        room.is_ok_and(|room| room.available.saturating_mul(room.block_size) < options.free_min)
    }

    /// Makes a replica hold nothing below `mark`, if that is possible here.
    async fn relieve(
        &self,
        replica: &ReplicaLog,
        mark: u64,
        flush: &(dyn Fn(ReplicaId) + Sync),
    ) -> Result<(), StoreError> {
        let (bytes, pinned) = replica.weight();
        if pinned >= mark {
            return Ok(());
        }
        let few = bytes <= REWRITE_BYTES;
        // Until it is appended.
        let _room = few.then(|| self.shared.reserve(bytes)).transpose()?;
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
