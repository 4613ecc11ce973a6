//! Replicas of a group that a split has made, of which some were made without its rows.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::Layout;
use collie_cluster::testing::proposals::Answer;
use collie_cluster::testing::transport::Call;
use collie_cluster::testing::wire::{Request, Response, TransferLeader};
use collie_cluster::testing::{Member, NewGroup, Replica, ReplicaState, Vote};

use crate::cluster::{CAP, Cluster, GROUP, Place, Simulated, ask, incr, replica_on, row};

const NEW_GROUP: u64 = GROUP + 1;
/// The slots of the rows: the first one stays.
const KEYS: usize = 3;
/// So often replicas that must not lead are asked to.
const ATTEMPTS: usize = 10;

fn new_on(node: u64) -> u64 {
    200 + node
}

fn new_group(cluster: &Cluster) -> NewGroup {
    let member = |place: &Place| {
        let member = Member {
            node: place.id,
            disk: 0,
            address: place.address.to_string(),
        };
        (new_on(place.id), member)
    };
    let pair = |place: &Place| (replica_on(place.id), new_on(place.id));
    NewGroup {
        group: NEW_GROUP,
        first: 1,
        members: cluster.places.iter().map(member).collect(),
        pairs: cluster.places.iter().map(pair).collect(),
    }
}

fn new_replica(place: &Place) -> Arc<Replica> {
    place
        .with(|node, _| node.replica(new_on(place.id)))
        .flatten()
        .unwrap()
}

fn state(place: &Place) -> Option<ReplicaState> {
    new_replica(place).state().ok()
}

/// Has a replica stand until it leads.
fn elect(cluster: &Cluster, replica: &Replica) {
    cluster.until("an election", || {
        // An error: it is being opened.
        _ = cluster.runtime.block_on(replica.elect());
        replica.state().ok()?.leads.then_some(())
    });
}

/// A leader that hands over, as the replica knows it, has it stand whatever it lacks. Says whether that was taken.
fn told_to_stand(place: &Place, by: &Place) -> bool {
    let vote = Vote {
        leader: state(place).unwrap().vote,
        committed: false,
    };
    let to = new_on(place.id);
    let call = Call {
        node: place.id,
        group: NEW_GROUP,
        from: vote.leader.replica,
        to,
        request: Request::Transfer(TransferLeader { vote, to, last: None }),
        within: CAP,
    };
    let asked = by.with(|node, runtime| runtime.block_on(node.peers().call(call)));
    matches!(asked.unwrap(), Ok(Response::Transferred))
}

/// Two of three replicas are empty, as where the others of their nodes got past the split by tables. Together they are
/// a majority; but they know of no members, so neither leads, and they vote for the one that has the rows.
#[test]
fn replicas_without_the_rows_of_a_split_elect_none_of_them() {
    let cluster = Cluster::adjusted(Simulated::Nothing, |options| {
        // None stands by itself.
        options.times.election_min = Duration::from_secs(3600);
        options.times.election_max = Duration::from_secs(7200);
    });
    elect(&cluster, &cluster.places[0].replica().unwrap());
    for key in 0..KEYS {
        let add = |replica: Arc<Replica>| async move { replica.execute(incr(row(key))).await };
        assert_eq!(cluster.runtime.block_on(ask(&cluster, add)), Answer::Reply(1));
    }
    let (has, lack) = cluster.places.split_first().unwrap();
    for place in lack {
        let made = place.with(|node, runtime| {
            runtime.block_on(async {
                let made = node.create(NEW_GROUP, new_on(place.id), 0).await.unwrap();
                made.opened().await.unwrap();
            });
        });
        made.unwrap();
    }
    let leader = has.replica().unwrap();
    let split = cluster.runtime.block_on(leader.split(&new_group(&cluster)));
    assert_eq!(split.unwrap(), Answer::Reply(()));
    assert!(state(has).is_none_or(|state| state.last.is_some() && !state.leads));
    drop(leader);
    has.kill();
    for _ in 0..ATTEMPTS {
        for (place, by) in lack.iter().zip(lack.iter().rev()) {
            cluster.runtime.block_on(new_replica(place).elect()).unwrap();
            cluster.until("its candidacy", || told_to_stand(place, by).then_some(()));
            let state = state(place).unwrap();
            assert!(
                !state.leads && state.leader.is_none() && state.last.is_none(),
                "{state:?}"
            );
        }
    }
    cluster.until("a vote", || (state(&lack[0])?.vote.term > 0).then_some(()));
    cluster.open(has);
    elect(&cluster, &new_replica(has));
    for key in 1..KEYS {
        let one = Some(1_u64.to_le_bytes().to_vec());
        for place in &cluster.places {
            cluster.until("the rows", || {
                let rows = new_replica(place).applied_rows().ok()?;
                // An error: it has taken tables over since.
                (rows.get(&row(key)).ok()? == one).then_some(())
            });
        }
    }
}

/// What notes it fails once. A replica that is there is noted no more, so one that was made before would stay unnoted: it
/// could be made again when its log is lost. Each has a log of its own.
#[test]
fn a_replica_is_noted_before_a_split_makes_it() {
    let noted = Arc::<Mutex<Vec<u64>>>::default();
    let notes = Arc::clone(&noted);
    let cluster = Cluster::adjusted(Simulated::Nothing, move |options| {
        options.store.layout = Layout::Private.into();
        let notes = Arc::clone(&notes);
        options.note_made = Some(Arc::new(move |replica| {
            let mut notes = notes.lock().unwrap();
            notes.push(replica);
            match notes.iter().filter(|noted| **noted == replica).count() {
                1 => Err("it cannot be noted now".to_owned()),
                _ => Ok(()),
            }
        }));
    });
    let leader = cluster.leader(|_| true).replica().unwrap();
    // An error: nothing was split, as it has just begun to lead. What becomes of it else is not known here: it fails, too.
    cluster.until("the split", || {
        let split = cluster.runtime.block_on(leader.split(&new_group(&cluster)));
        split.is_ok().then_some(())
    });
    drop(leader);
    let made = |place: &Place| place.with(|node, _| node.replica(new_on(place.id)).is_some());
    cluster.until("replicas of the new group", || {
        let mut all = cluster.places.iter();
        all.all(|place| made(place) == Some(true)).then_some(())
    });
    cluster.until("a leader of the new group", || {
        let mut all = cluster.places.iter();
        all.any(|place| state(place).is_some_and(|state| state.leads))
            .then_some(())
    });
    let mut noted = noted.lock().unwrap().clone();
    noted.sort_unstable();
    let twice = cluster.places.iter().flat_map(|place| [new_on(place.id); 2]);
    assert_eq!(noted, twice.collect::<Vec<_>>());
}
