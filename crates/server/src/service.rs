//! Whether a node of a cluster serves keys, decided in one place: `CLUSTER INFO`, `/healthz` and, by the
//! first, `collie cluster status` show the same.

use std::ops::RangeInclusive;

use crate::cluster::{PartitionInfo, Topology};

/// How the slots are served, as seen from one node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// Slots whose leader answers.
    pub(crate) served: usize,
    /// Slots whose leader is known and is silent.
    pub(crate) silent: usize,
    /// Slots of which no leader is known.
    pub(crate) leaderless: usize,
    /// The slots that this node leads: a majority of their replicas has confirmed that lately.
    pub(crate) led: Vec<RangeInclusive<u16>>,
    /// Why clients get nothing at this node, if they do not.
    pub(crate) refusal: Option<String>,
}

impl Service {
    pub(crate) fn of(topology: &Topology) -> Service {
        let slots = |is: &dyn Fn(&PartitionInfo) -> bool| -> usize {
            let partitions = topology.partitions.iter().filter(|partition| is(partition));
            partitions.map(|partition| partition.slots.len()).sum()
        };
        let leads = |partition: &&PartitionInfo| partition.leader == Some(topology.own);
        let led = topology.partitions.iter().filter(leads);
        Service {
            served: slots(&|partition| partition.is_served),
            silent: slots(&|partition| partition.leader.is_some() && !partition.is_served),
            leaderless: slots(&|partition| partition.leader.is_none()),
            led: merged(led.map(|partition| partition.slots.clone())),
            refusal: refusal(topology),
        }
    }

    /// [`led`](Self::led) as `CLUSTER NODES` writes slots: `0-5460 7000`.
    pub(crate) fn led_text(&self) -> String {
        let range = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        self.led.iter().map(range).collect::<Vec<_>>().join(" ")
    }
}

/// A node without any replica redirects clients; one with replicas serves if their partitions are
/// served.
fn refusal(topology: &Topology) -> Option<String> {
    if !topology.nodes.iter().any(|node| node.number == topology.own) {
        return Some("this node is not in the cluster yet".to_owned());
    }
    if topology.partitions.is_empty() {
        let nodes = topology.nodes.len();
        return Some(format!(
            "no partition is placed yet: {nodes} nodes have joined, and as many as replicas are needed"
        ));
    }
    let partitions = topology.partitions.iter();
    let has_replica = |partition: &&PartitionInfo| partition.replicas.contains(&topology.own);
    let own: Vec<_> = partitions.clone().filter(has_replica).collect();
    let of = match own.is_empty() {
        true => partitions.collect(),
        false => own,
    };
    if of.iter().any(|partition| partition.is_served) {
        return None;
    }
    let alive = topology.nodes.iter().filter(|node| node.is_alive).count();
    Some(format!(
        "no partition of this node has a leader that answers; {alive} of {} nodes answer this one",
        topology.nodes.len()
    ))
}

/// Ranges in their order, adjacent ones as one.
fn merged(ranges: impl Iterator<Item = RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    let mut all: Vec<RangeInclusive<u16>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(*range.start()) => {
                *last = *last.start()..=*range.end();
            }
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{NodeInfo, NodeRole};

    /// Three nodes, and partitions of ten slots: the leader of each, and whether that answers.
    fn topology(own: u64, partitions: &[(Option<u64>, bool, &[u64])]) -> Topology {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
        let node = |number| NodeInfo {
            number,
            name: number.to_string(),
            client: address.into(),
            peer: address,
            is_alive: number == 1,
            role: NodeRole::Serves,
            drained: Vec::new(),
        };
        let partition =
            |(at, (leader, is_served, replicas)): (u16, &(Option<u64>, bool, &[u64]))| PartitionInfo {
                group: at.into(),
                slots: at * 10..=at * 10 + 9,
                leader: *leader,
                is_served: *is_served,
                replicas: replicas.to_vec(),
                joining: Vec::new(),
                leaving: Vec::new(),
                split_at: None,
            };
        Topology {
            cluster: None,
            epoch: 1,
            level: 1,
            newest_level: 1,
            own,
            logs: crate::cluster::LogsInfo {
                layout: crate::cluster::LogLayout::PerDisk,
                to_move: 0,
            },
            drained_here: Vec::new(),
            reads: crate::cluster::Reads::Index,
            durability: crate::cluster::Durability::Disk,
            nodes: (1..=3).map(node).collect(),
            partitions: (0..).zip(partitions).map(partition).collect(),
        }
    }

    #[test]
    fn a_node_is_judged_by_the_partitions_that_it_has_replicas_of() {
        let all: &[u64] = &[1, 2, 3];
        let service =
            |own, partitions: &[(Option<u64>, bool, &[u64])]| Service::of(&topology(own, partitions));
        let well = service(
            1,
            &[(Some(1), true, all), (Some(1), true, all), (Some(2), true, all)],
        );
        assert_eq!((well.served, well.silent, well.leaderless), (30, 0, 0));
        assert_eq!((well.led_text(), well.refusal), ("0-19".to_owned(), None));
        let half = service(
            1,
            &[(Some(2), false, all), (None, false, all), (Some(1), true, all)],
        );
        assert_eq!((half.served, half.silent, half.leaderless), (10, 10, 10));
        assert_eq!((half.led_text(), half.refusal), ("20-29".to_owned(), None));
        let nothing = service(1, &[(Some(2), false, all), (None, false, all)]).refusal;
        assert!(nothing.is_some_and(|text| text.contains("1 of 3 nodes answer")));
        // What other nodes serve counts only for a node that redirects all clients.
        let elsewhere: &[(Option<u64>, bool, &[u64])] = &[(Some(2), true, &[2]), (None, false, &[1])];
        assert!(service(1, elsewhere).refusal.is_some());
        assert_eq!(service(3, elsewhere).refusal, None);
        assert!(
            service(4, elsewhere)
                .refusal
                .is_some_and(|text| text.contains("not in the cluster"))
        );
        assert!(
            service(1, &[])
                .refusal
                .is_some_and(|text| text.contains("placed"))
        );
    }
}
