//! Replicas whose entries do not wait for the disk, and that lose them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::EntryDurability;
use collie_cluster::testing::{LossOptions, LossRecord, NodeOptions};
use collie_log::RingMode;
use tempfile::TempDir;

use crate::cluster::{Cluster, Place, Simulated, Tally};

/// What each node has stored, by its disk.
type Stored = Arc<Mutex<HashMap<PathBuf, LossRecord>>>;

/// A cluster whose entries are in rings, in a directory that ends with it.
struct InRings {
    cluster: Arc<Cluster>,
    stored: Stored,
    _rings: TempDir,
}

impl InRings {
    fn new() -> Self {
        let (rings, stored) = (tempfile::tempdir().unwrap(), Stored::default());
        let (dir, of) = (rings.path().to_owned(), Arc::clone(&stored));
        let adjust = move |options: &mut NodeOptions| {
            options.store.shared.log.ring = RingMode::Shared { dir: dir.clone() };
            options.store.shared.entries = EntryDurability::Process;
            let (of, disk) = (Arc::clone(&of), options.store.disks[0].clone());
            let record = of.lock().unwrap().get(&disk).cloned();
            options.losses = LossOptions {
                record: record.unwrap_or_default(),
                note: Some(Arc::new(move |record| {
                    of.lock().unwrap().insert(disk.clone(), record.clone());
                    Ok(())
                })),
            };
        };
        Self {
            cluster: Arc::new(Cluster::adjusted(Simulated::Nothing, adjust)),
            stored,
            _rings: rings,
        }
    }

    fn record(&self, place: &Place) -> LossRecord {
        self.stored.lock().unwrap()[place.dir.path()].clone()
    }

    fn count(&self, tally: &Arc<Tally>) {
        self.cluster.count(tally, 2, 10, || {});
    }

    fn problem(&self, place: &Place) -> Option<String> {
        place.replica().and_then(|replica| replica.problem())
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// What the disk of a node has now.
fn disk_of(place: &Place) -> TempDir {
    let kept = tempfile::tempdir().unwrap();
    copy(&place.dir.path().join("."), kept.path());
    kept
}

/// The machine of a node that is not running loses power: its disk has this, and its ring is gone.
fn lose_power(place: &Place, disk: &TempDir) {
    std::fs::remove_dir_all(place.dir.path()).unwrap();
    copy(disk.path(), place.dir.path());
}

/// Entries that count are on the leader, and were on a follower that has lost them. The third has never had them: with
/// the follower's vote it would lead.
#[test]
fn one_that_lost_entries_votes_when_it_has_them_again() {
    let town = InRings::new();
    let cluster = &town.cluster;
    let tally = Tally::new(2);
    town.count(&tally);
    let leader = cluster.leader(|_| true);
    let mut others = cluster.places.iter().filter(|place| place.id != leader.id);
    let (follower, third) = (others.next().unwrap(), others.next().unwrap());
    cluster.check(&tally);
    let before = disk_of(follower);
    third.kill();
    town.count(&tally);
    follower.kill();
    leader.kill();
    lose_power(follower, &before);
    cluster.open(follower);
    cluster.open(third);
    cluster.until("a follower that says what is wrong", || {
        let problem = town.problem(follower)?;
        assert!(problem.contains("collie cluster accept-loss"), "{problem}");
        Some(())
    });
    assert_eq!(town.record(follower).replicas.len(), 1);
    std::thread::sleep(Duration::from_secs(3));
    for place in [follower, third] {
        assert!(place.state().is_none_or(|state| !state.leads), "{}", place.id);
    }
    cluster.open(leader);
    cluster.leader(|_| true);
    cluster.until("a follower that has all again", || {
        town.record(follower).replicas.is_empty().then_some(())
    });
    cluster.check(&tally);
    // It votes, and may lead.
    leader.kill();
    let next = cluster.leader(|place| place.id != leader.id);
    assert!(next.id == follower.id || next.id == third.id);
    cluster.open(leader);
    town.count(&tally);
    cluster.check(&tally);
}

/// The replica that has most of what is left leads.
#[test]
fn where_all_have_lost_entries_an_operator_accepts_it() {
    let town = InRings::new();
    let cluster = &town.cluster;
    let tally = Tally::new(2);
    town.count(&tally);
    cluster.check(&tally);
    let mut disks: Vec<_> = cluster.places.iter().map(disk_of).collect();
    town.count(&tally);
    cluster.check(&tally);
    // One has lost less than the others.
    for replica in cluster.replicas() {
        cluster.runtime.block_on(replica.flush()).unwrap();
    }
    let last = cluster.places.last().unwrap();
    *disks.last_mut().unwrap() = disk_of(last);
    town.count(&tally);
    cluster.places.iter().for_each(Place::kill);
    for (place, disk) in cluster.places.iter().zip(&disks) {
        lose_power(place, disk);
        cluster.open(place);
    }
    std::thread::sleep(Duration::from_secs(3));
    for place in &cluster.places {
        let state = cluster.until("its state", || place.state());
        assert!(!state.leads, "{}", place.id);
        assert!(
            town.problem(place)
                .is_some_and(|problem| problem.contains("accept-loss"))
        );
    }
    for place in &cluster.places {
        place.with(|node, _| node.accept_losses()).unwrap();
    }
    assert_eq!(cluster.leader(|_| true).id, last.id);
    cluster.until("replicas that are well", || {
        let mut places = cluster.places.iter();
        places
            .all(|place| town.problem(place).is_none() && town.record(place).replicas.is_empty())
            .then_some(())
    });
    let later = Tally::new(1);
    cluster.count(&later, 1, 1, || {});
}

/// A stop between the opening of a log, whose new ring the next opening finds, and the note of what was in it.
#[test]
fn a_lost_ring_is_remembered_from_before_the_log_is_opened() {
    let town = InRings::new();
    let cluster = &town.cluster;
    town.count(&Tally::new(2));
    let place = &cluster.places[0];
    place.kill();
    let disk = place.dir.path().to_owned();
    town.stored
        .lock()
        .unwrap()
        .get_mut(&disk)
        .unwrap()
        .logs
        .insert((0, None));
    cluster.open(place);
    cluster.until("all its entries", || {
        let record = town.record(place);
        (record.logs.is_empty() && record.replicas.is_empty()).then_some(())
    });
    let seen = town.record(place);
    assert_eq!(seen.entries, EntryDurability::Process);
}
