//! The health of a cluster, by the views of its nodes.

use std::collections::{BTreeMap, BTreeSet};

use collie_cluster::{LEVEL_OF_LAYOUTS, LEVEL_OF_LEASES};
use collie_server::cluster::SLOTS;
use serde::{Serialize, Serializer};

use super::view::{Line, View};

/// How well a cluster serves, and the exit code for scripts. 2 is that of a wrong command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// All slots are served, and nothing is wrong.
    Well,
    /// All slots are served. A node is away, or something is wrong on one.
    Degraded,
    /// Some slots are served by no node, or all.
    Down,
}

/// No node could be asked.
pub(super) const NOT_ASKED: u8 = 4;

impl Health {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::Degraded => 1,
            Self::Down => 3,
        }
    }
}

impl Serialize for Health {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A node, by its own view and by those of the others.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Node {
    pub(super) address: String,
    peer_port: u16,
    /// Most of the nodes that could be asked hear it.
    pub(super) alive: bool,
    /// It answers this program.
    pub(super) answers: bool,
    /// Why not.
    pub(super) unanswered: Option<String>,
    /// How many slots it leads, by its own view, confirmed by a majority of their replicas.
    pub(super) slots: u64,
    /// How many keys are in them.
    pub(super) keys: Option<u64>,
    /// The problems that it reports of itself.
    pub(super) problems: Vec<String>,
    /// How many of its replicas have logs elsewhere than its layout has them.
    pub(super) logs_to_move: Option<u64>,
    /// Its disks that are drained, each with what is left on it.
    pub(super) drained_disks: Vec<(u32, String)>,
    /// Whether its leaders are to count on leases where they are read.
    pub(super) leases: Option<bool>,
    /// Whether its entries do not wait for the disk.
    pub(super) may_lose_entries: Option<bool>,
}

/// The cluster.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    pub(super) state: Health,
    /// Slots that are served.
    pub(super) served: u64,
    /// The others.
    pub(super) unserved: Vec<String>,
    /// The feature level of the cluster.
    pub(super) level: u64,
    /// The newest that all nodes speak which could be asked.
    pub(super) newest_level: u64,
    /// How many partitions there are.
    pub(super) partitions: u64,
    /// How many of them are being split.
    pub(super) splits: u64,
    /// The clusters that get no rows, by command: that is no problem.
    pub(super) paused: BTreeSet<String>,
    #[serde(skip)]
    pub(super) nodes: Vec<Node>,
}

impl Node {
    /// For the table.
    pub(super) fn state(&self) -> &'static str {
        match (self.answers, self.alive) {
            (true, true) => "alive",
            (true, false) => "cut off",
            (false, true) => "no answer",
            (false, false) => "silent",
        }
    }
}

impl Verdict {
    /// Which nodes have logs that are to move, a line each. Before all nodes of an upgrade run the new version that is
    /// no problem, and may last: it waits for the operator.
    pub(super) fn moves(&self) -> Vec<String> {
        let why = match self.level < u64::from(LEVEL_OF_LAYOUTS) {
            true => format!(
                ". They move from feature level {LEVEL_OF_LAYOUTS} on, and the cluster has level {}: `collie cluster \
                 finalize` once all nodes run this version to stay",
                self.level
            ),
            false => String::new(),
        };
        let nodes = self.nodes.iter();
        let to_move = nodes.filter_map(|node| Some((node, node.logs_to_move.filter(|logs| *logs > 0)?)));
        let line = |(node, logs): (&Node, u64)| {
            format!(
                "{}: the logs of {logs} replicas are to move to where the layout has them{why}",
                node.address
            )
        };
        to_move.map(line).collect()
    }

    /// What is left on disks that are drained, a line each. It is no problem: the operator has asked for it.
    pub(super) fn drained_disks(&self) -> Vec<String> {
        let disks = self.nodes.iter().flat_map(|node| {
            let disks = node.drained_disks.iter();
            disks.map(move |(disk, left)| (&node.address, disk, left.as_str()))
        });
        let line = |(address, disk, left): (&String, &u32, &str)| {
            let what = match left {
                "0" => "it is empty: the node can be started without its --data",
                "map" => {
                    "only the map is left on it: to go without the disk, stop the node, copy what is there to another \
                     one, and name that in its place"
                }
                "absent" => "the node was started without it",
                left => return format!("{address}: disk {disk} is drained: {left} replicas are on it"),
            };
            format!("{address}: disk {disk} is drained: {what}")
        };
        disks.map(line).collect()
    }

    /// The nodes whose leaders answer reads by leases, or will, if there are any.
    pub(super) fn leases(&self) -> Option<String> {
        let nodes = self.nodes.iter().filter(|node| node.leases == Some(true));
        let nodes: Vec<_> = nodes.map(|node| node.address.as_str()).collect();
        let yet = match self.level < u64::from(LEVEL_OF_LEASES) {
            true => format!(
                " from feature level {LEVEL_OF_LEASES} on: `collie cluster finalize` once all nodes run this version to stay"
            ),
            false => String::new(),
        };
        (!nodes.is_empty()).then(|| format!("reads by leases on {}{yet}", nodes.join(", ")))
    }

    /// The nodes whose entries do not wait for the disk, if there are any.
    pub(super) fn entries_in_memory(&self) -> Option<String> {
        let nodes = self
            .nodes
            .iter()
            .filter(|node| node.may_lose_entries == Some(true));
        let nodes: Vec<_> = nodes.map(|node| node.address.as_str()).collect();
        (!nodes.is_empty()).then(|| format!("writes do not wait for the disks of {}", nodes.join(", ")))
    }

    /// By the views of all nodes that answered, and why others did not.
    pub(super) fn of(asked: &BTreeMap<String, Result<View, String>>) -> Self {
        let views: Vec<&View> = asked.values().filter_map(|asked| asked.as_ref().ok()).collect();
        let mut lines: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
        for line in views.iter().flat_map(|view| &view.lines) {
            lines.entry(&line.address).or_default().push(line);
        }
        let mut by_slot = vec![false; usize::from(SLOTS)];
        let mut nodes = Vec::new();
        for (address, seen) in lines {
            let hear = seen.iter().filter(|line| line.alive).count();
            let own = asked.get(address);
            let view = own.and_then(|own| own.as_ref().ok());
            for (first, last) in view.iter().flat_map(|view| &view.led) {
                let slots = by_slot.get_mut(usize::from(*first)..=usize::from(*last));
                slots.unwrap_or_default().fill(true);
            }
            let led = view.iter().flat_map(|view| &view.led);
            nodes.push(Node {
                address: address.to_owned(),
                peer_port: seen.first().map_or(0, |line| line.peer_port),
                alive: 2 * hear > views.len(),
                answers: view.is_some(),
                unanswered: own.and_then(|own| own.as_ref().err().cloned()),
                slots: led.map(|(first, last)| u64::from(last - first) + 1).sum(),
                keys: view.and_then(|view| view.keys),
                problems: view.map(|view| view.info.problems()).unwrap_or_default(),
                logs_to_move: view.map(|view| view.info.number("collie_logs_to_move")),
                drained_disks: view.map(|view| view.info.drained_disks()).unwrap_or_default(),
                leases: view.map(|view| view.info.has_leases()),
                may_lose_entries: view.map(|view| view.info.may_lose_entries()),
            });
        }
        let served = by_slot.iter().filter(|is_served| **is_served).count() as u64;
        let is_well = |node: &Node| node.alive && node.answers && node.problems.is_empty();
        let state = match (served == u64::from(SLOTS), nodes.iter().all(is_well)) {
            (true, true) => Health::Well,
            (true, false) => Health::Degraded,
            (false, _) => Health::Down,
        };
        let numbers = |name| views.iter().map(move |view| view.info.number(name));
        Self {
            state,
            served,
            unserved: ranges_without(&by_slot),
            level: numbers("collie_level").max().unwrap_or(0),
            partitions: numbers("collie_partitions").max().unwrap_or(0),
            splits: numbers("collie_splits").max().unwrap_or(0),
            paused: views
                .iter()
                .flat_map(|view| view.info.paused())
                .map(str::to_owned)
                .collect(),
            newest_level: numbers("collie_newest_level").min().unwrap_or(0),
            nodes,
        }
    }
}

/// The ranges of the slots that are not served.
fn ranges_without(by_slot: &[bool]) -> Vec<String> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (slot, _) in by_slot.iter().enumerate().filter(|(_, is_served)| !**is_served) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => ranges.push((slot, slot)),
        }
    }
    let range = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::view::Info;

    /// What a node at port 1, 2 or 3 says: whom it hears, and which slots it leads.
    fn view(hears: [bool; 3], led: &[(u16, u16)]) -> Result<View, String> {
        let line = |(at, alive): (u16, bool)| Line {
            address: at.to_string(),
            peer_port: at,
            alive,
            ranges: Vec::new(),
        };
        Ok(View {
            lines: (1..).zip(hears).map(line).collect(),
            info: Default::default(),
            led: led.to_vec(),
            keys: Some(0),
        })
    }

    fn verdict(asked: [Result<View, String>; 3]) -> Verdict {
        Verdict::of(&(1..).map(|at: u16| at.to_string()).zip(asked).collect())
    }

    fn silent() -> Result<View, String> {
        Err("it does not answer".to_owned())
    }

    const ALL: [bool; 3] = [true; 3];

    /// What a node says that hears all and leads all.
    fn says(lines: &[(&str, &str)]) -> Result<View, String> {
        let mut view = view(ALL, &[(0, 16_383)])?;
        let lines = lines
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        view.info = Info::of(lines);
        Ok(view)
    }

    #[test]
    fn nodes_that_read_by_leases_are_named_and_what_they_wait_for() {
        let at = |level, reads| says(&[("collie_level", level), ("collie_reads", reads)]);
        let all = |level| verdict([at(level, "lease"), at(level, "index"), at(level, "lease")]);
        assert_eq!(all("5").leases().as_deref(), Some("reads by leases on 1, 3"));
        let waits = all("4").leases().unwrap();
        assert!(
            waits.contains("from feature level 5 on: `collie cluster finalize`"),
            "{waits}"
        );
        assert_eq!(verdict([at("5", "index"), silent(), silent()]).leases(), None);
    }

    #[test]
    fn nodes_whose_entries_are_in_memory_are_named() {
        let of = |entries| says(&[("collie_durability", entries)]);
        let shown = verdict([of("process"), of("disk"), silent()]).entries_in_memory();
        assert_eq!(shown.as_deref(), Some("writes do not wait for the disks of 1"));
        assert_eq!(verdict([of("disk"), of(""), silent()]).entries_in_memory(), None);
    }

    /// An upgrade of which the first node has got another layout too. Node by node goes on where all is well.
    #[test]
    fn logs_that_wait_for_a_level_are_said_to_and_no_problem() {
        let at_level = |level: u64, to_move: u64| {
            says(&[
                ("collie_level", &level.to_string()),
                ("collie_logs_to_move", &to_move.to_string()),
            ])
        };
        let waits = verdict([at_level(2, 5), at_level(2, 0), at_level(2, 0)]);
        assert_eq!(waits.state, Health::Well);
        let [line] = &waits.moves()[..] else {
            panic!("{:?}", waits.moves());
        };
        assert!(
            line.starts_with("1: the logs of 5 replicas are to move"),
            "{line}"
        );
        assert!(
            line.contains("from feature level 3 on, and the cluster has level 2"),
            "{line}"
        );
        let moves = verdict([at_level(3, 5), at_level(3, 1), at_level(3, 0)]).moves();
        assert_eq!(moves.len(), 2);
        assert!(moves.iter().all(|line| line.ends_with("the layout has them")));
    }

    #[test]
    fn a_drained_disk_is_shown_with_what_is_left_and_no_problem() {
        let on = |disks: &str| says(&[("collie_drained_disks", disks)]);
        let shown = verdict([on(""), on("0=map 1=0"), on("2=12 3=absent")]);
        assert_eq!(shown.state, Health::Well);
        let lines = shown.drained_disks();
        let starts = [
            "2: disk 0 is drained: only the map",
            "2: disk 1 is drained: it is empty",
            "3: disk 2 is drained: 12 replicas",
            "3: disk 3 is drained: the node was started without it",
        ];
        assert_eq!(lines.len(), starts.len());
        assert!(
            lines
                .iter()
                .zip(starts)
                .all(|(line, start)| line.starts_with(start)),
            "{lines:?}"
        );
    }

    #[test]
    fn a_duplication_that_is_paused_is_named_and_no_problem() {
        let of = |names| says(&[("collie_duplications_paused", names)]);
        let paused = verdict([of("b,a"), of("b"), of("")]);
        assert_eq!(paused.state, Health::Well);
        assert_eq!(paused.paused.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn of_a_node_that_does_not_answer_nothing_is_known() {
        let two = [true, true, false];
        let away = verdict([view(two, &[(0, 99)]), view(two, &[(100, 16_383)]), silent()]);
        let known = away.nodes.iter().map(|node| (node.keys, node.logs_to_move));
        let known: Vec<_> = known.collect();
        assert_eq!(known, [(Some(0), Some(0)), (Some(0), Some(0)), (None, None)]);
    }

    #[test]
    fn all_is_well_where_all_answer_and_all_slots_are_led() {
        let all = verdict([
            view(ALL, &[(0, 99)]),
            view(ALL, &[(100, 16_000)]),
            view(ALL, &[(16_001, 16_383)]),
        ]);
        assert_eq!((all.state, all.served), (Health::Well, 16_384));
        assert!(all.nodes.iter().all(|node| node.state() == "alive"));
    }

    #[test]
    fn a_node_that_is_away_degrades_what_serves_all() {
        let two = [true, true, false];
        let away = verdict([view(two, &[(0, 99)]), view(two, &[(100, 16_383)]), silent()]);
        assert_eq!((away.state, away.nodes[2].state()), (Health::Degraded, "silent"));
        // It may answer other nodes, and clients elsewhere.
        let here = verdict([view(ALL, &[(0, 99)]), view(ALL, &[(100, 16_383)]), silent()]);
        assert_eq!(
            (here.state, here.nodes[2].state()),
            (Health::Degraded, "no answer")
        );
        let cut_off = verdict([
            view(two, &[(0, 99)]),
            view(two, &[(100, 16_383)]),
            view([false, false, true], &[]),
        ]);
        assert_eq!(
            (cut_off.state, cut_off.nodes[2].state()),
            (Health::Degraded, "cut off")
        );
    }

    #[test]
    fn slots_that_no_node_leads_by_its_own_word_are_not_served() {
        // One is dead, one is stopped: the last one hears no other.
        let outage = verdict([view([true, false, false], &[]), silent(), silent()]);
        assert_eq!((outage.state, outage.served), (Health::Down, 0));
        assert_eq!(outage.unserved, ["0-16383"]);
        let part = verdict([view(ALL, &[(0, 99)]), view(ALL, &[(200, 16_382)]), silent()]);
        assert_eq!(part.state, Health::Down);
        assert_eq!(part.unserved, ["100-199", "16383"]);
    }
}
