//! Partitions that are split, of clusters that serve meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_cluster::Begin;
use collie_cluster::testing::map::{LEVEL_OF_SPLITS, PartitionRecord};
use collie_server::cluster::{NodeRequest, Refused, Route, Settled, Walked};

use super::moves::ask;
use super::sites::{Site, bootstrap, cluster, map_leader, settled, sites, until};

const ROW: &[u8] = b"counter";
const SLOTS: [u16; 6] = [0, 4000, 8191, 8192, 12_000, 16_383];

/// Adds 1 to the counter of a slot where it is led. None: it is not, or was not done.
pub(super) fn increment(sites: &[Site], slot: u16) -> Option<Settled> {
    let alive = sites.iter().filter(|site| site.is_alive());
    for site in alive {
        let (partition, handle) = site.with(|node, runtime| match node.cluster().route(slot) {
            Route::Here(partition) => (Some(partition), runtime.handle().clone()),
            _ => (None, runtime.handle().clone()),
        });
        let Some(partition) = partition else { continue };
        let _inside = handle.enter();
        let mut command = partition.begin(slot, &[ROW], Duration::ZERO).ok()?;
        let value = command.get(ROW).ok()?;
        let before = value
            .as_ref()
            .map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
        let new = (before + 1).to_le_bytes();
        let settling = command.finish(vec![(ROW.to_vec(), Some(new[..].into()))], i64::from(before == 0));
        return Some(handle.block_on(settling.ok()?));
    }
    None
}

/// What the counter of a slot is, where that is led, confirmed.
pub(super) fn read(sites: &[Site], slot: u16) -> u64 {
    until(sites, "a read", || {
        let mut alive = sites.iter().filter(|site| site.is_alive());
        alive.find_map(|site| {
            site.with(|node, runtime| {
                let Route::Here(partition) = node.cluster().route(slot) else {
                    return None;
                };
                let leadership = partition.leadership()?;
                let value = partition.applied().ok()?.get(slot, ROW).ok()?;
                let count = value.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
                let confirmed = partition.confirm(leadership, slot..=slot, None);
                (runtime.block_on(confirmed) == Settled::Holds).then_some(count)
            })
        })
    })
}

/// The partitions of the map that all nodes have, once nothing is being split.
fn split(sites: &[Site], partitions: usize) -> Vec<PartitionRecord> {
    until(sites, "the end of the splits", || {
        let alive = sites.iter().filter(|site| site.is_alive());
        let maps: Option<Vec<_>> = alive.map(Site::map).collect();
        let maps = maps?;
        let map = maps.first()?;
        let mut all: Vec<_> = map.partitions.values().cloned().collect();
        all.sort_by_key(|partition| partition.first);
        let is_done = all.len() == partitions && all.iter().all(|partition| partition.split.is_none());
        (is_done && maps.iter().all(|other| other == map)).then_some(all)
    })
}

/// Ends what runs beside a test, also where that fails.
pub(super) struct StopsAtTheEnd<'a>(pub(super) &'a AtomicBool);

impl Drop for StopsAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Rows in the tables of a node's replicas that are of other groups.
fn hidden(site: &Site) -> usize {
    let map = site.map().unwrap();
    let (replicas, own) = site.with(|node, _| (node.node().replicas(), node.identity().node));
    let rows = map.partitions.values().map(|partition| {
        let member = partition.member_on(own).unwrap();
        let replica = replicas
            .iter()
            .find(|replica| replica.id() == member.replica)
            .unwrap();
        let all = std::sync::Arc::clone(replica).partition(0..=16_383);
        let all = all.rows_after(None).unwrap();
        let others =
            all.filter(|row| matches!(row, Ok(Walked::Row(row)) if !partition.slots().contains(&row.slot)));
        others.count()
    });
    rows.sum()
}

#[test]
fn partitions_are_split_while_their_rows_change() {
    let sites = cluster(3, 3, 1);
    let stop = AtomicBool::new(false);
    let counted = std::thread::scope(|scope| {
        let all: Vec<_> = SLOTS
            .map(|slot| {
                let (sites, stop) = (&sites, &stop);
                scope.spawn(move || {
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        match increment(sites, slot) {
                            Some(Settled::Holds) => done += 1,
                            Some(Settled::Unknown) => panic!("no node has failed"),
                            Some(Settled::TryAgain) | None => std::thread::sleep(Duration::from_millis(1)),
                        }
                    }
                    done
                })
            })
            .into();
        let stopping = StopsAtTheEnd(&stop);
        for (first, partitions) in [(8192, 2), (4096, 3), (12_288, 4)] {
            ask(&sites[1], NodeRequest::Split(first)).unwrap();
            // Asked for again, it changes nothing.
            if let Err(problem) = ask(&sites[0], NodeRequest::Split(first)) {
                assert!(problem.contains("begins with slot"), "{problem}");
            }
            let map = split(&sites, partitions);
            assert!(map.iter().any(|partition| partition.first == first), "{map:?}");
        }
        drop(stopping);
        let counted = all.into_iter().map(|thread| thread.join().unwrap());
        counted.collect::<Vec<u64>>()
    });
    assert!(counted.iter().all(|count| *count > 0), "{counted:?}");
    let found = SLOTS.map(|slot| read(&sites, slot));
    assert_eq!(found, *counted);
    settled(&sites, 3, 4);
    until(&sites, "the removal of what went to other groups", || {
        sites.iter().all(|site| hidden(site) == 0).then_some(())
    });
    // All replicas of all partitions have them, from their own disks.
    sites.iter().for_each(Site::kill);
    sites.iter().for_each(|site| site.start(Begin::Start));
    assert_eq!(SLOTS.map(|slot| read(&sites, slot)), *counted);
    let groups: Vec<_> = settled(&sites, 3, 4).partitions.values().cloned().collect();
    for node in 1..=3 {
        assert!(groups.iter().all(|partition| partition.member_on(node).is_some()));
    }
    for slot in SLOTS {
        until(&sites, "a write", || {
            (increment(&sites, slot) == Some(Settled::Holds)).then_some(())
        });
    }
    let more: Vec<_> = counted.iter().map(|count| count + 1).collect();
    assert_eq!(SLOTS.map(|slot| read(&sites, slot)), *more);
}

#[test]
fn a_split_goes_on_when_nodes_die_in_the_middle() {
    let sites = cluster(3, 3, 1);
    let mut counted = [0; SLOTS.len()];
    for (round, first) in [8192, 4096, 12_288, 2048].into_iter().enumerate() {
        for (count, slot) in counted.iter_mut().zip(SLOTS) {
            until(&sites, "a write", || {
                (increment(&sites, slot) == Some(Settled::Holds)).then_some(())
            });
            *count += 1;
        }
        until(&sites, "the split in the map", || {
            ask(&sites[0], NodeRequest::Split(first)).ok()
        });
        // The leader's node, another one, or all, wherever they are with it.
        let dies: &[usize] = [&[0][..], &[1], &[2], &[0, 1, 2]][round];
        std::thread::sleep(Duration::from_millis(13 * round as u64));
        dies.iter().for_each(|at| sites[*at].kill());
        dies.iter().for_each(|at| sites[*at].start(Begin::Start));
        split(&sites, round + 2);
        settled(&sites, 3, round as u16 + 2);
        assert_eq!(SLOTS.map(|slot| read(&sites, slot)), counted, "round {round}");
    }
}

#[test]
fn what_was_read_before_a_split_holds_for_the_slots_that_stay() {
    let sites = cluster(1, 1, 1);
    let partition = until(&sites, "a leader", || {
        match sites[0].with(|node, _| node.cluster().route(7)) {
            Route::Here(partition) => Some(partition),
            _ => None,
        }
    });
    let since = partition.leadership().unwrap();
    ask(&sites[0], NodeRequest::Split(12_000)).unwrap();
    split(&sites, 2);
    let confirm = |slots| sites[0].with(|_, runtime| runtime.block_on(partition.confirm(since, slots, None)));
    assert_eq!(confirm(7..=7), Settled::Holds);
    assert_eq!(confirm(11_999..=11_999), Settled::Holds);
    assert_eq!(
        confirm(12_000..=12_000),
        Settled::TryAgain,
        "another group may have changed them"
    );
    assert_eq!(confirm(partition.slots()), Settled::TryAgain);
    let applied = partition.applied().unwrap();
    assert_eq!(applied.get(11_999, ROW).unwrap(), None);
    assert_eq!(
        applied.get(12_000, ROW),
        Err(Refused::NotNow),
        "it may be gone from these tables"
    );
    let begun = partition.begin(12_000, &[ROW], Duration::ZERO);
    assert!(
        matches!(begun, Err(Refused::NotNow)),
        "by who has not heard of it"
    );
}

#[test]
fn splits_that_cannot_be_are_refused() {
    let sites = sites(1);
    let mut options = sites[0].options();
    options.spoken = 1..=LEVEL_OF_SPLITS - 1;
    sites[0].try_start(options, bootstrap(1, 2)).unwrap();
    settled(&sites, 1, 2);
    let refused = |slot: u16, text: &str| {
        let problem = ask(&sites[0], NodeRequest::Split(slot)).unwrap_err();
        assert!(problem.contains(text), "{problem}");
    };
    refused(100, "from level 4 on");
    sites[0].close();
    sites[0].start(Begin::Start);
    settled(&sites, 1, 2);
    until(&sites, "the newest level", || {
        ask(&sites[0], NodeRequest::Finalize).ok()?;
        (sites[0].map()?.cluster.level >= LEVEL_OF_SPLITS).then_some(())
    });
    refused(0, "begins with slot 0 already");
    refused(8192, "begins with slot 8192 already");
    refused(16_384, "no partition has slot 16384");
    ask(&sites[0], NodeRequest::Split(1)).unwrap();
    split(&sites, 3);
    ask(&sites[0], NodeRequest::Split(8191)).unwrap();
    let all = split(&sites, 4);
    let slots: Vec<_> = all.iter().map(PartitionRecord::slots).collect();
    assert_eq!(slots, [0..=0, 1..=8190, 8191..=8191, 8192..=16_383]);
}

/// The partitions, once all replicas of all are said to have their rows.
fn whole(sites: &[Site], partitions: usize) -> Vec<PartitionRecord> {
    until(sites, "rows at all replicas", || {
        let all = split(sites, partitions);
        all.iter().all(|partition| partition.from == 0).then_some(all)
    })
}

fn write(sites: &[Site]) {
    for slot in SLOTS {
        until(sites, "a write", || {
            (increment(sites, slot) == Some(Settled::Holds)).then_some(())
        });
    }
}

/// With two of three nodes down it waits, with one it does not wait for ever. That one makes its replicas itself when it
/// is back, the one beside the other one too: no tables are sent to it.
#[test]
fn a_split_needs_most_nodes_and_the_last_one_makes_its_own() {
    let sites = cluster(3, 3, 1);
    write(&sites);
    let leads = map_leader(&sites).peer;
    let first = sites.iter().position(|site| site.peer == leads).unwrap();
    let (second, last) = ((first + 1) % 3, (first + 2) % 3);
    sites[last].kill();
    ask(&sites[first], NodeRequest::Split(8192)).unwrap();
    sites[second].kill();
    sites[second].start(Begin::Start);
    let all = split(&sites, 2);
    assert!(
        all.iter().any(|partition| partition.from != 0),
        "one replica lacks its rows: {all:?}"
    );
    until(&sites, "the split of the new partition", || {
        ask(&sites[first], NodeRequest::Split(12_000)).ok()
    });
    split(&sites, 3);
    write(&sites);
    sites[last].start(Begin::Start);
    whole(&sites, 3);
    let sent = |site: &Site| site.with(|node, _| node.node().transfers().sent());
    assert_eq!(sites.iter().map(sent).collect::<Vec<_>>(), [0; 3]);
    assert_eq!(SLOTS.map(|slot| read(&sites, slot)), [2; SLOTS.len()]);
    settled(&sites, 3, 3);
    // It has the rows: what it has of them counts.
    sites[second].kill();
    write(&sites);
    assert_eq!(SLOTS.map(|slot| read(&sites, slot)), [3; SLOTS.len()]);
}

/// Another partition, which is not split, shows that replicas move.
#[test]
fn replicas_of_a_split_move_when_all_of_it_have_their_rows() {
    let sites = sites(4);
    sites[0].start(bootstrap(3, 2));
    for site in &sites[1..3] {
        site.start(Begin::Join(vec![sites[0].peer]));
    }
    settled(&sites[..3], 3, 2);
    sites[3].start(Begin::Join(vec![sites[0].peer]));
    settled(&sites, 4, 2);
    write(&sites);
    sites[2].kill();
    until(&sites, "the request", || {
        ask(&sites[0], NodeRequest::Split(4096)).ok()
    });
    let all = split(&sites, 3);
    let of_split: Vec<_> = all
        .iter()
        .filter(|one| one.last < 8192)
        .map(|one| one.group)
        .collect();
    until(&sites, "the request", || {
        ask(&sites[0], NodeRequest::Drain(3)).ok()
    });
    let map = until(&sites, "a move of the other partition", || {
        let map = sites[0].map()?;
        let other = map.partitions.values().find(|one| one.first == 8192)?;
        other.wanted.is_empty().then_some(())?;
        other.member_on(3).is_none().then_some(map)
    });
    for group in &of_split {
        let partition = &map.partitions[group];
        assert!(
            partition.wanted.is_empty() && partition.member_on(3).is_some(),
            "{partition:?}"
        );
    }
    sites[2].start(Begin::Start);
    until(&sites, "moves of the others", || {
        let map = sites[0].map()?;
        let mut members = map.partitions.values().flat_map(PartitionRecord::all);
        (!members.any(|member| member.node == 3)).then_some(())
    });
    whole(&sites, 3);
    assert_eq!(SLOTS.map(|slot| read(&sites, slot)), [1; SLOTS.len()]);
}
