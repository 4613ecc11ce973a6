//! What a node's logs should hold, as plain maps.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use collie_cluster::testing::{EntryId, LeaderId, NodeStore, ReplicaId, StoreError, Vote};

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known {
    Removed,
    Here(Here),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Here {
    pub(crate) vote: Option<Vote>,
    pub(crate) purged: Option<EntryId>,
    pub(crate) last: Option<EntryId>,
    pub(crate) entries: BTreeMap<u64, (LeaderId, Vec<u8>)>,
}

impl Known {
    /// It without what entries hold.
    pub(crate) fn outline(&self) -> String {
        match self {
            Self::Removed => "removed".to_owned(),
            Self::Here(here) => {
                let Here {
                    vote, purged, last, ..
                } = here;
                let entries = (here.entries.keys().next(), here.entries.len());
                format!("{vote:?}, purged {purged:?}, last {last:?}, entries {entries:?}")
            }
        }
    }
}

/// All replicas that ever were.
pub(crate) type Plain = BTreeMap<ReplicaId, Known>;

impl Here {
    pub(crate) fn append(&mut self, id: EntryId, payload: Vec<u8>) {
        self.entries.insert(id.index, (id.leader, payload));
        self.last = Some(id);
    }

    pub(crate) fn truncate(&mut self, last: Option<EntryId>) {
        self.entries.split_off(&last.map_or(0, |last| last.index + 1));
        self.last = last;
    }

    pub(crate) fn purge(&mut self, through: EntryId) {
        self.entries = self.entries.split_off(&(through.index + 1));
        self.purged = Some(through);
        if self.last.is_none_or(|last| last.index < through.index) {
            self.last = Some(through);
        }
    }

    pub(crate) fn id(&self, index: u64) -> Option<EntryId> {
        let purged = self.purged.filter(|purged| purged.index == index);
        let here = || {
            self.entries.get(&index).map(|(leader, _)| EntryId {
                leader: *leader,
                index,
            })
        };
        purged.or_else(here)
    }

    /// The last entry of each leader.
    pub(crate) fn last_of_leaders(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = Vec::new();
        for (&index, &(leader, _)) in &self.entries {
            ids.pop_if(|id| id.leader == leader);
            ids.push(EntryId { leader, index });
        }
        ids
    }
}

/// What an open store holds of these replicas.
pub(crate) fn found(store: &NodeStore, ids: RangeInclusive<ReplicaId>) -> Plain {
    let mut plain = Plain::new();
    for id in ids {
        let replica = match store.replica(id) {
            Ok(replica) => replica,
            Err(StoreError::Removed { .. }) => {
                plain.insert(id, Known::Removed);
                continue;
            }
            Err(StoreError::Unknown { .. }) => continue,
            Err(error) => panic!("replica {id}: {error}"),
        };
        let bounds = replica.bounds();
        let entries = replica.read(0..u64::MAX).unwrap();
        let here = Here {
            vote: replica.vote(),
            purged: bounds.purged,
            last: bounds.last,
            entries: entries
                .into_iter()
                .map(|entry| (entry.id.index, (entry.id.leader, entry.payload.to_vec())))
                .collect(),
        };
        assert_eq!(replica.last_of_leaders(), here.last_of_leaders(), "replica {id}");
        if let Some(committed) = replica.committed() {
            assert_eq!(
                here.id(committed.index.max(here.purged.map_or(0, |id| id.index))),
                Some(committed)
            );
        }
        plain.insert(id, Known::Here(here));
    }
    plain
}
