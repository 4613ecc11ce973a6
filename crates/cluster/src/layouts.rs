//! Which log each replica of a node is to be in.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::ReplicaId;

/// Which logs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// All replicas in one log, on the first disk.
    Shared,
    /// One log for each disk.
    #[default]
    PerDisk,
    /// A log for each replica, on its disk.
    Private,
}

/// The layout of a node, and those of disks and replicas that have another one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Layouts {
    node: Layout,
    disks: BTreeMap<u32, Layout>,
    replicas: BTreeMap<ReplicaId, Layout>,
    /// Disks that the process was started without: nothing is to be there.
    #[serde(skip)]
    absent: BTreeSet<u32>,
}

impl From<Layout> for Layouts {
    fn from(node: Layout) -> Self {
        Self {
            node,
            ..Self::default()
        }
    }
}

impl Layouts {
    /// The layout that a replica with its home on this disk has.
    #[must_use]
    pub fn of(&self, replica: ReplicaId, disk: usize) -> Layout {
        let of_replica = self.replicas.get(&replica);
        *of_replica.unwrap_or_else(|| self.of_disk(disk))
    }

    fn of_disk(&self, disk: usize) -> &Layout {
        let disk = u32::try_from(disk).ok();
        disk.and_then(|disk| self.disks.get(&disk)).unwrap_or(&self.node)
    }

    /// That of the node.
    #[must_use]
    pub fn node(&self) -> Layout {
        self.node
    }

    /// The process is started without these disks.
    pub(crate) fn set_absent(&mut self, disks: BTreeSet<u32>) {
        self.absent = disks;
    }

    /// The disks that the process was started without.
    pub(crate) fn absent(&self) -> &BTreeSet<u32> {
        &self.absent
    }

    /// Whether any replica on this disk may be in a log of the disk.
    pub(crate) fn has_log_of_disk(&self, disk: usize) -> bool {
        let is_absent = u32::try_from(disk).is_ok_and(|disk| self.absent.contains(&disk));
        if is_absent {
            return false;
        }
        *self.of_disk(disk) == Layout::PerDisk
            || self.replicas.values().any(|layout| *layout == Layout::PerDisk)
    }

    /// All replicas of the node have this layout.
    pub(crate) fn set_node(&mut self, layout: Layout) {
        *self = Self {
            absent: std::mem::take(&mut self.absent),
            ..layout.into()
        };
    }

    /// All replicas on a disk, which are these, have this layout.
    pub(crate) fn set_disk(&mut self, disk: u32, layout: Layout, replicas: &[ReplicaId]) {
        self.replicas.retain(|replica, _| !replicas.contains(replica));
        self.disks.insert(disk, layout);
        self.disks.retain(|_, layout| *layout != self.node);
    }

    /// A replica, which has its home on this disk, has this layout.
    pub(crate) fn set_replica(&mut self, replica: ReplicaId, disk: usize, layout: Layout) {
        self.replicas.remove(&replica);
        if self.of(replica, disk) != layout {
            self.replicas.insert(replica, layout);
        }
    }

    /// Forgets replicas that are not among these.
    pub(crate) fn keep_replicas(&mut self, here: &[ReplicaId]) {
        self.replicas.retain(|replica, _| here.contains(replica));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_last_counts() {
        let mut layouts = Layouts::from(Layout::PerDisk);
        layouts.set_replica(7, 1, Layout::Private);
        layouts.set_disk(0, Layout::Shared, &[5]);
        assert_eq!(
            [(5, 0), (6, 1), (7, 1), (8, 0)].map(|(replica, disk)| layouts.of(replica, disk)),
            [Layout::Shared, Layout::PerDisk, Layout::Private, Layout::Shared]
        );
        assert!(layouts.has_log_of_disk(1) && !layouts.has_log_of_disk(0));
        layouts.set_disk(1, Layout::Shared, &[6, 7]);
        assert_eq!(layouts.of(7, 1), Layout::Shared);
        layouts.set_replica(6, 1, Layout::Private);
        layouts.set_replica(7, 1, Layout::Private);
        layouts.keep_replicas(&[7]);
        assert_eq!(
            (layouts.of(6, 1), layouts.of(7, 1)),
            (Layout::Shared, Layout::Private)
        );
        layouts.set_replica(7, 1, Layout::Shared);
        layouts.set_node(Layout::Shared);
        assert_eq!(layouts, Layouts::from(Layout::Shared));
        assert!(!layouts.has_log_of_disk(1));
    }
}
