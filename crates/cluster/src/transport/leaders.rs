//! What nodes say of the groups that they lead. Each node tells it to all its peers, anew whenever it
//! changes: a node without a replica of a group has no other way to know.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::ids::GroupId;
use crate::transport::wire::{Leads, NodeId};

/// What a peer has said last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Led {
    boot: [u8; 16],
    count: u64,
    groups: BTreeMap<GroupId, u64>,
}

/// What all peers have said, whether they still answer or not.
pub type LedByNode = BTreeMap<NodeId, Led>;

impl Led {
    /// The process that has said it.
    pub fn boot(&self) -> [u8; 16] {
        self.boot
    }

    /// The term in which the node leads a group, if it does.
    pub fn term_of(&self, group: GroupId) -> Option<u64> {
        self.groups.get(&group).copied()
    }
}

/// What is said here, and what was heard.
#[derive(Debug, Default)]
pub(super) struct Leaders {
    pub(super) own: watch::Sender<Leads>,
    pub(super) heard: watch::Sender<LedByNode>,
}

impl Leaders {
    /// This node leads these groups, each in its term, and no others.
    pub(super) fn set(&self, groups: Vec<(GroupId, u64)>) {
        self.own.send_if_modified(|leads| {
            // The first word ends what a process before this one has said.
            let is_new = leads.count == 0 || leads.groups != groups;
            if is_new {
                leads.count += 1;
                leads.groups = groups;
            }
            is_new
        });
    }

    /// A peer has said what it leads. What one connection brings may come behind what a later
    /// connection of the same process has brought.
    pub(super) fn heard(&self, node: NodeId, boot: [u8; 16], leads: &Leads) {
        self.heard.send_if_modified(|all| {
            let is_late = |known: &Led| known.boot == boot && known.count >= leads.count;
            if all.get(&node).is_some_and(is_late) {
                return false;
            }
            let led = Led {
                boot,
                count: leads.count,
                groups: leads.groups.iter().copied().collect(),
            };
            all.insert(node, led);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_said_last_holds_in_whatever_order_it_comes() {
        let leaders = Leaders::default();
        let said = |boot: u8, count, groups: &[(GroupId, u64)]| {
            let leads = Leads {
                count,
                groups: groups.to_vec(),
            };
            leaders.heard(7, [boot; 16], &leads);
        };
        let term = |group| leaders.heard.borrow().get(&7).and_then(|led| led.term_of(group));
        said(1, 2, &[(5, 3)]);
        said(1, 1, &[(5, 2), (6, 1)]);
        assert_eq!((term(5), term(6)), (Some(3), None));
        said(1, 3, &[]);
        assert_eq!(term(5), None);
        // Another process counts anew.
        said(2, 1, &[(6, 9)]);
        assert_eq!(term(6), Some(9));
    }

    #[test]
    fn what_is_said_is_counted_where_it_changes() {
        let leaders = Leaders::default();
        for groups in [vec![], vec![(5, 1)], vec![(5, 1)], vec![(5, 2)]] {
            leaders.set(groups);
        }
        assert_eq!(leaders.own.borrow().count, 3, "also that it is nothing");
    }
}
