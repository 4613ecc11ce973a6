//! A replica's log as openraft wants it.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds, RangeInclusive};

use futures_util::{Stream, stream};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::{EntryPayload, OptionalSend};

use crate::blocking::blocking;
use crate::raft::body;
use crate::raft::types::{Groups, from_log_id, from_vote, to_log_id, to_vote};
use crate::raftlog::{Entry, ReplicaLog, StoreError};

/// Entries are read for other replicas, and to be applied, in parts of about so many bytes.
const PART_BYTES: u64 = 1 << 20;

impl RaftLogReader<Groups> for ReplicaLog {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<EntryOf<Groups>>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        read(self, from_bounds(&range), u64::MAX).await
    }

    /// One part after the other. What is applied is committed, so that no part changes meanwhile.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<EntryOf<Groups>, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let left = (self.clone(), from_bounds(&range), Vec::new().into_iter());
        stream::try_unfold(left, |(log, mut range, mut part)| async move {
            loop {
                if let Some(entry) = part.next() {
                    return Ok(Some((entry, (log, range, part))));
                }
                let read = read(&log, range.clone(), PART_BYTES).await?;
                let Some(last) = read.last() else { return Ok(None) };
                range.start = last.index() + 1;
                part = read.into_iter();
            }
        })
    }

    async fn read_vote(&mut self) -> Result<Option<VoteOf<Groups>>, io::Error> {
        Ok(self.vote().map(to_vote))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<EntryOf<Groups>>, io::Error> {
        let entries = read(self, start..end, PART_BYTES).await?;
        // A follower has lost entries that it had acknowledged, and those were purged while it was asked: raft counts on
        // that nowhere, and would send what is behind the gap. See `ReplicaLink::send_append`.
        let is_purged = entries.first().is_some_and(|first| first.index() != start);
        Ok(if is_purged { Vec::new() } else { entries })
    }

    /// The last entry of each leader, and of the range.
    async fn get_key_log_ids(
        &mut self,
        range: RangeInclusive<LogIdOf<Groups>>,
    ) -> Result<Vec<LogIdOf<Groups>>, io::Error> {
        let (start, end) = range.into_inner();
        let here = self.last_of_leaders().into_iter().map(to_log_id);
        let inside = here.filter(|id| start.index < id.index && id.index < end.index);
        let mut ids = vec![start];
        for id in inside.chain([end]) {
            ids.pop_if(|before| before.leader_id == id.leader_id);
            ids.push(id);
        }
        Ok(ids)
    }
}

impl RaftLogStorage<Groups> for ReplicaLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Groups>, io::Error> {
        let bounds = self.bounds();
        Ok(LogState {
            last_purged_log_id: bounds.purged.map(to_log_id),
            last_log_id: bounds.last.map(to_log_id),
        })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Groups>) -> Result<(), io::Error> {
        Self::save_vote(self, from_vote(vote))
            .await
            .map_err(io::Error::other)
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<Groups>>) -> Result<(), io::Error> {
        if let Some(id) = committed {
            Self::save_committed(self, from_log_id(&id));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogIdOf<Groups>>, io::Error> {
        Ok(self.committed().map(to_log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Groups>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = EntryOf<Groups>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (mut appended, mut reserved) = (Vec::new(), Vec::new());
        for entry in entries {
            appended.push(encode(&entry)?);
            if let EntryPayload::Normal(effects) = entry.payload {
                reserved.push(effects.room);
            }
        }
        let done = |answer: Result<(), StoreError>| {
            callback.io_completed(answer.map_err(io::Error::other));
        };
        let answer = Self::append(self, appended, done).await;
        drop(reserved);
        answer.map_err(io::Error::other)
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Groups>>) -> Result<(), io::Error> {
        let last = last.as_ref().map(from_log_id);
        self.truncate(last).await.map_err(io::Error::other)
    }

    async fn purge(&mut self, through: LogIdOf<Groups>) -> Result<(), io::Error> {
        Self::purge(self, from_log_id(&through))
            .await
            .map_err(io::Error::other)
    }
}

/// Reads entries: those that are in memory at once, others on a thread that may block.
async fn read(log: &ReplicaLog, range: Range<u64>, bytes: u64) -> io::Result<Vec<EntryOf<Groups>>> {
    let entries = match log.read_cached(range.clone(), bytes) {
        Some(entries) => entries,
        None => {
            let log = log.clone();
            let read = blocking(move || log.read_up_to(range, bytes)).await;
            read.map_err(io::Error::other)?
        }
    };
    entries.iter().map(decode).collect()
}

fn encode(entry: &EntryOf<Groups>) -> io::Result<Entry> {
    Ok(Entry {
        id: from_log_id(&entry.log_id),
        payload: body::encode(&entry.payload)?.into(),
    })
}

fn decode(entry: &Entry) -> io::Result<EntryOf<Groups>> {
    let body = body::decode(entry.id, &entry.payload)?;
    Ok(RaftEntry::new(to_log_id(entry.id), body))
}

fn from_bounds(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EntryId, LeaderId};
    use crate::raft::types::EncodedEffects;
    use crate::raftlog::{NodeLog, NodeLogOptions};
    use collie_log::{LogOptions, RingMode};
    use collie_sim::SimDevice;
    use futures_util::StreamExt;

    /// What is behind the first part is read later: so it may be gone by then.
    #[tokio::test]
    async fn a_stream_of_entries_reads_one_part_after_the_other() {
        let log = LogOptions {
            device: std::sync::Arc::new(SimDevice::new(1)),
            ring: RingMode::Private,
            ring_bytes: 4 << 20,
            segment_bytes: 4 << 20,
            max_workers: 2,
            ..LogOptions::default()
        };
        let options = NodeLogOptions {
            log,
            ..NodeLogOptions::default()
        };
        let log = NodeLog::open("/data/log", options).unwrap();
        tokio::spawn(log.run());
        let mut replica = log.create(1, 10).await.unwrap();
        let leader = LeaderId { term: 1, replica: 10 };
        let entry = |index| Entry {
            id: EntryId { leader, index },
            payload: body::encode(&EntryPayload::Normal(EncodedEffects::from(vec![7; 200_000])))
                .unwrap()
                .into(),
        };
        let all = (0..12).map(entry).collect();
        ReplicaLog::append(&replica, all, |_| {}).await.unwrap();
        let entries = replica.entries_stream(1..40).await;
        let mut entries = std::pin::pin!(entries);
        let first = entries.next().await.unwrap().unwrap();
        let last = EntryId { leader, index: 8 };
        log.replica(10).unwrap().truncate(Some(last)).await.unwrap();
        let later: Vec<_> = entries.map(|entry| entry.unwrap().log_id.index).collect().await;
        assert_eq!(first.log_id.index, 1);
        assert_eq!(later, (2..=8).collect::<Vec<_>>());
    }
}
