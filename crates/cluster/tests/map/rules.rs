//! The rules of the map, without nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use collie_cluster::testing::map::{
    Founding, JoinRequest, LEVEL, Map, MapError, MapRow, Nodes, found, join, place, voters,
};
use proptest::prelude::*;

/// The rows of a map.
type Stored = BTreeMap<Vec<u8>, Vec<u8>>;

fn request(token: u8) -> JoinRequest {
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    JoinRequest {
        token: [token; 16],
        peer: at(1000 + u16::from(token)),
        client: at(2000 + u16::from(token)),
        disks: vec![[token; 16]; 1 + usize::from(token % 3)],
    }
}

pub(crate) fn founding(replicas: u8, partitions: u16, voters: u8) -> Founding {
    Founding {
        id: *b"cluster of tests",
        level: LEVEL,
        replicas,
        partitions,
        voters,
        first: request(1),
    }
}

/// The map of its rows alone.
fn read(rows: &Stored) -> Result<Option<Map>, MapError> {
    Map::read(|key| Ok(rows.get(&key).cloned()))
}

pub(crate) fn founded(founding: &Founding) -> (Map, Stored) {
    let mut rows = Stored::new();
    apply(&mut rows, Map::rows(&found(founding)).unwrap());
    (read(&rows).unwrap().unwrap(), rows)
}

fn apply(stored: &mut Stored, rows: Vec<MapRow>) {
    for (key, value) in rows {
        match value {
            Some(value) => drop(stored.insert(key, value)),
            None => drop(stored.remove(&key)),
        }
    }
}

pub(crate) fn joined(mut map: Map, tokens: std::ops::RangeInclusive<u8>) -> Map {
    for token in tokens {
        let (_, changes) = join(&map, &request(token)).unwrap();
        map = map.with(changes.unwrap());
    }
    map
}

/// With its partitions on all of its nodes.
pub(crate) fn placed(map: Map) -> Map {
    let changes = place(&map, &all(&map)).unwrap().unwrap();
    map.with(changes)
}

fn ready(nodes: impl IntoIterator<Item = u64>) -> Nodes {
    Nodes {
        ready: nodes.into_iter().collect(),
        ..Nodes::default()
    }
}

fn all(map: &Map) -> Nodes {
    ready(map.nodes.keys().copied())
}

#[test]
fn a_known_token_gets_the_same_number_and_changes_nothing() {
    let map = joined(founded(&founding(3, 8, 3)).0, 2..=2);
    let (node, changes) = join(&map, &request(2)).unwrap();
    assert_eq!((node.number, node.replica, changes), (2, 2, None));
    let moved = JoinRequest {
        peer: request(9).peer,
        ..request(2)
    };
    assert!(
        join(&map, &moved)
            .unwrap_err()
            .contains("copied from another node")
    );
}

#[test]
fn partitions_are_placed_once_and_only_on_nodes_that_are_ready() {
    let map = joined(founded(&founding(3, 32, 3)).0, 2..=3);
    let two = ready([1, 3]);
    assert_eq!(place(&map, &two), Ok(None));
    let map = joined(map, 4..=6);
    let four = ready([1, 3, 4, 6]);
    let placed = place(&map, &four).unwrap().unwrap();
    let map = map.with(placed);
    assert_eq!(place(&map, &all(&map)), Ok(None));
    let mut on_node = BTreeMap::<_, u32>::new();
    for partition in map.partitions.values() {
        for member in &partition.members {
            *on_node.entry(member.node).or_default() += 1;
        }
    }
    assert_eq!(on_node, BTreeMap::from([(1, 24), (3, 24), (4, 24), (6, 24)]));
}

#[test]
fn the_replicas_of_a_node_are_on_all_of_its_disks() {
    let map = joined(founded(&founding(2, 30, 3)).0, 2..=2);
    let map = map.clone().with(place(&map, &all(&map)).unwrap().unwrap());
    let mut on_disk = BTreeMap::<_, u32>::new();
    for member in map.partitions.values().flat_map(|partition| &partition.members) {
        *on_disk.entry((member.node, member.disk)).or_default() += 1;
    }
    let even = [
        ((1, 0), 15),
        ((1, 1), 15),
        ((2, 0), 10),
        ((2, 1), 10),
        ((2, 2), 10),
    ];
    assert_eq!(on_disk, BTreeMap::from(even));
}

#[test]
fn voters_are_an_odd_number_of_ready_members_and_stay() {
    let map = joined(founded(&founding(3, 8, 3)).0, 2..=5);
    let set = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<_>>();
    let next = |now: &[u64], able: &[u64]| voters(&map, &set(now), &ready(able.to_vec()));
    assert_eq!(next(&[1], &[1]), None);
    assert_eq!(next(&[1], &[1, 2]), None, "two are no better than one");
    assert_eq!(next(&[1], &[1, 2, 4]), Some(set(&[1, 2, 4])));
    assert_eq!(next(&[1, 2, 4], &[1, 2, 3, 4, 5]), None);
    assert_eq!(
        next(&[1, 2, 4], &[1]),
        None,
        "a voter that does not answer stays one"
    );
    let five = Map {
        cluster: collie_cluster::testing::map::ClusterRecord {
            voters: 5,
            ..map.cluster.clone()
        },
        ..map.clone()
    };
    assert_eq!(
        voters(&five, &set(&[1, 2, 4]), &ready([1, 2, 3, 4, 5])),
        Some(set(&[1, 2, 3, 4, 5]))
    );
}

#[test]
fn rows_of_a_later_version_or_that_disagree_are_refused() {
    let (map, mut rows) = founded(&founding(1, 4, 1));
    apply(
        &mut rows,
        Map::rows(&place(&map, &all(&map)).unwrap().unwrap()).unwrap(),
    );
    assert_eq!(read(&rows).unwrap().unwrap().partitions.len(), 4);
    let wrong = |change: &dyn Fn(&mut Stored)| {
        let mut rows = rows.clone();
        change(&mut rows);
        read(&rows).unwrap_err().to_string()
    };
    let says = |said: String, part: &str| assert!(said.contains(part), "{said}");
    let key = |name: &[u8], number: u64| [name, &number.to_be_bytes()].concat();
    says(
        wrong(&|rows| rows.get_mut(&b"cluster"[..]).unwrap()[0] = 6),
        "expected version 1 to 5, found 6: run the version",
    );
    says(
        wrong(&|rows| rows.get_mut(&key(b"node/", 1)).unwrap().clear()),
        "found nothing",
    );
    says(
        wrong(&|rows| rows.get_mut(&key(b"node/", 1)).unwrap().push(0)),
        "found 1 bytes more",
    );
    says(
        wrong(&|rows| _ = rows.get_mut(&key(b"node/", 1)).unwrap().pop()),
        "cannot be read",
    );
    let twice = |from: u64, to: u64| {
        move |rows: &mut Stored| {
            let row = rows[&key(b"partition/", from)].clone();
            rows.insert(key(b"partition/", to), row);
        }
    };
    says(wrong(&twice(1, 2)), "expected group 2, found group 1");
    // Without its node, a partition is nowhere.
    says(
        wrong(&|rows| _ = rows.remove(&key(b"node/", 1))),
        "expected a disk of a node",
    );
    // A partition that is missing is none: slots may be.
    let mut fewer = rows.clone();
    fewer.remove(&key(b"partition/", 2));
    let fewer = read(&fewer).unwrap().unwrap();
    assert_eq!(fewer.by_slot()[5000], collie_cluster::testing::map::NOWHERE);
    assert_eq!(fewer.by_slot()[16_383], 2);
}

/// What may happen to a map. Answers are lost where a token asks again.
#[derive(Debug, Clone)]
enum Step {
    Join(u8),
    Place(Vec<bool>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..12_u8).prop_map(Step::Join),
        1 => proptest::collection::vec(any::<bool>(), 12).prop_map(Step::Place),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn ids_are_unique_and_each_slot_is_in_one_partition(
        replicas in 1..5_u8,
        partitions in 1..80_u16,
        steps in steps(),
    ) {
        let (mut map, mut rows) = founded(&founding(replicas, partitions, 3));
        let mut numbers = BTreeMap::from([(1, 1)]);
        for step in steps {
            let changes = match step {
                Step::Join(token) => {
                    let (node, changes) = join(&map, &request(token)).unwrap();
                    let number = *numbers.entry(token).or_insert(node.number);
                    prop_assert_eq!(number, node.number, "one node for each token");
                    changes
                }
                Step::Place(able) => {
                    let numbers = map.nodes.keys().copied();
                    let able = numbers.zip(able).filter_map(|(number, able)| able.then_some(number));
                    let placement = ready(able);
                    let changes = place(&map, &placement).unwrap();
                    if let Some(changes) = &changes {
                        prop_assert!(placement.ready.len() >= usize::from(replicas));
                        let members = changes.partitions.iter().flat_map(|partition| &partition.members);
                        let mut nodes = members.map(|member| member.node);
                        prop_assert!(nodes.all(|node| placement.ready.contains(&node)));
                    }
                    changes
                }
            };
            if let Some(changes) = changes {
                let epoch = map.cluster.epoch;
                prop_assert_eq!(changes.cluster.epoch, epoch + 1);
                apply(&mut rows, Map::rows(&changes).unwrap());
                map = map.with(changes);
            }
            // The rows are checked as they are read: ids, members, slots.
            let stored = read(&rows).unwrap();
            prop_assert_eq!(stored.as_ref(), Some(&map));
        }
        prop_assert_eq!(map.nodes.len(), numbers.len());
        let ids: Vec<_> = map.nodes.values().map(|node| node.replica).chain(
            map.partitions.values().flat_map(|partition| &partition.members).map(|member| member.replica)
        ).collect();
        prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        if !map.partitions.is_empty() {
            prop_assert_eq!(map.partitions.len(), usize::from(partitions));
            prop_assert!(map.by_slot().iter().all(|place| *place < partitions));
            let mut firsts = BTreeMap::<_, usize>::new();
            for partition in map.partitions.values() {
                prop_assert_eq!(partition.members.len(), usize::from(replicas));
                let lowest = partition.members.iter().min_by_key(|member| member.replica).unwrap();
                *firsts.entry(lowest.node).or_default() += 1;
            }
            let (least, most) = (firsts.values().min().unwrap(), firsts.values().max().unwrap());
            prop_assert!(most - least <= 1, "the first to lead are on the nodes in turn");
        }
    }
}
