//! Commands that change more than one entry of the log has room for.

use std::sync::Arc;
use std::time::Duration;

use collie_cluster::testing::GroupLimits;
use collie_db::Value;
use collie_server::cluster::{Evaluation, Refused, Settled};

use crate::cluster::{Cluster, Simulated};
use crate::seam::{Changed, evaluate, get, incr};

const SLOT: u16 = 5;
const LARGE: &[u8] = b"large";
/// Ten frames of the log of these tests.
const BYTES: usize = 5 << 20;

fn put(fill: u8, bytes: usize) -> impl Fn(&mut dyn Evaluation) -> Changed<()> {
    let value = Value::from(&vec![fill; bytes][..]);
    move |rows| {
        let keys = i64::from(rows.get(LARGE)?.is_none());
        Ok((vec![(LARGE.to_vec(), Some(value.clone()))], keys, ()))
    }
}

/// What the value is filled with; 0: there is none.
fn read(rows: &mut dyn Evaluation) -> Changed<u8> {
    let Some(value) = rows.get(LARGE)? else {
        return Ok((Vec::new(), 0, 0));
    };
    assert!(
        value.len() == BYTES && value.iter().all(|byte| *byte == value[0]),
        "parts of several values, or not all: {} bytes",
        value.len()
    );
    Ok((Vec::new(), 0, value[0]))
}

#[test]
fn large_values_are_written_beside_small_ones_and_read_at_once() {
    let cluster = Arc::new(Cluster::new(GroupLimits::default()));
    let small = {
        let cluster = Arc::clone(&cluster);
        std::thread::spawn(move || {
            for expected in 1..=200 {
                let counted = cluster.run(SLOT, b"key", incr(b"key"));
                assert_eq!(counted, (Settled::Holds, expected));
            }
        })
    };
    for fill in 1..=8 {
        assert_eq!(cluster.run(SLOT, LARGE, put(fill, BYTES)).0, Settled::Holds);
        assert_eq!(cluster.run(SLOT, LARGE, read), (Settled::Holds, fill));
    }
    small.join().unwrap();
    let keys = |place: &crate::cluster::Place| place.partition().unwrap().key_count(0..=99);
    assert_eq!(keys(cluster.leader(|_| true)), Ok(2));
    // It is read before it is applied, too.
    let (partition, _) = cluster.until("a leader", || cluster.led());
    let (written, ()) = evaluate(&*partition, SLOT, &[LARGE], Duration::ZERO, put(9, BYTES)).unwrap();
    let (seen, fill) = evaluate(&*partition, SLOT, &[LARGE], Duration::ZERO, read).unwrap();
    assert_eq!(fill, 9);
    // Behind them comes an entry without effects, for the time that a read needs.
    let mut evaluation = partition.begin(SLOT, &[b"key"], Duration::ZERO).unwrap();
    let expired = evaluation.now_ms() + 5;
    evaluation.expired(expired);
    let raised = evaluation.finish(Vec::new(), 0).unwrap();
    assert_eq!(cluster.runtime.block_on(written), Settled::Holds);
    assert_eq!(cluster.runtime.block_on(seen), Settled::Holds);
    assert_eq!(cluster.runtime.block_on(raised), Settled::Holds);
    // It holds what is to die.
    drop(partition);
    for place in &cluster.places {
        place.kill();
    }
    for place in &cluster.places {
        cluster.open(place);
    }
    assert_eq!(cluster.run(SLOT, LARGE, read), (Settled::Holds, 9));
}

/// The log has some of its parts then, and the others none or some.
#[test]
fn a_leader_that_dies_among_the_parts_leaves_all_or_nothing() {
    let cluster = Arc::new(Cluster::new(GroupLimits::default()));
    assert_eq!(cluster.run(SLOT, LARGE, put(1, BYTES)).0, Settled::Holds);
    let (mut before, mut kept) = (1, 0);
    for round in 2..10 {
        let leader = cluster.leader(|_| true);
        let last = || leader.state().and_then(|state| state.last).unwrap();
        let began = last();
        let partition = leader.partition().unwrap();
        // Another leader may have been elected.
        let begun = evaluate(&*partition, SLOT, &[LARGE], Duration::ZERO, put(round, BYTES));
        let Ok((settling, ())) = begun else { continue };
        // One part more each time.
        cluster.until("some of the parts", || {
            (last() >= began + u64::from(round - 1)).then_some(())
        });
        leader.kill();
        drop((settling, partition));
        let (settled, found) = cluster.run(SLOT, LARGE, read);
        assert_eq!(settled, Settled::Holds);
        assert!(
            [before, round].contains(&found),
            "{found} after {before} and {round}"
        );
        kept += u32::from(found == before);
        before = found;
        let counted = cluster.run(SLOT, b"key", get(b"key"));
        assert_eq!(counted, (Settled::Holds, 0));
        cluster.open(leader);
    }
    assert!(kept > 0, "no leader died before all was committed");
    let settled = cluster.run(SLOT, b"key", incr(b"key"));
    assert_eq!(settled, (Settled::Holds, 1));
}

/// Why the value is refused.
fn refused(cluster: &Cluster) -> String {
    let (partition, _) = cluster.until("a leader", || cluster.led());
    match evaluate(&*partition, SLOT, &[LARGE], Duration::ZERO, put(2, BYTES)).map(drop) {
        Err(Refused::Text(text)) => text,
        other => panic!("it is not refused: {other:?}"),
    }
}

#[test]
fn what_a_log_does_not_take_is_refused_and_changes_nothing() {
    let cluster = Arc::new(Cluster::adjusted(Simulated::Nothing, |options| {
        options.store.shared.log_limit = Some(12 << 20);
    }));
    assert_eq!(cluster.run(SLOT, LARGE, put(1, 3 << 20)).0, Settled::Holds);
    let text = refused(&cluster);
    assert!(
        text.starts_with("ERR the changes of this command have 52428")
            && text.contains("; 4194304 are taken"),
        "{text}"
    );
    assert_eq!(cluster.run(SLOT, b"key", incr(b"key")), (Settled::Holds, 1));
}

/// Each has less than a third of the log's limit, and both together have more.
#[test]
fn of_two_commands_in_parts_one_waits_for_the_other() {
    let cluster = Arc::new(Cluster::adjusted(Simulated::Nothing, |options| {
        options.store.shared.log_limit = Some(24 << 20);
    }));
    let (partition, _) = cluster.until("a leader", || cluster.led());
    let leader = cluster.leader(|_| true).id;
    let others = || cluster.places.iter().filter(|place| place.id != leader);
    others().for_each(|place| cluster.cut_off(place));
    let begin = |fill| evaluate(&*partition, SLOT, &[LARGE], Duration::ZERO, put(fill, BYTES));
    let (first, ()) = begin(1).unwrap();
    assert_eq!(begin(2).map(drop), Err(Refused::NotNow));
    others().for_each(|place| cluster.heal(place));
    // Another leader may have been elected.
    let _settled = cluster.runtime.block_on(first);
    drop(partition);
    assert_eq!(cluster.run(SLOT, LARGE, put(3, BYTES)).0, Settled::Holds);
    assert_eq!(cluster.run(SLOT, LARGE, read), (Settled::Holds, 3));
}

#[test]
fn older_nodes_get_no_parts() {
    let cluster = Arc::new(Cluster::adjusted(Simulated::Nothing, |options| {
        options.peers.identity.level = 4;
    }));
    assert_eq!(cluster.run(SLOT, LARGE, put(1, 400 << 10)).0, Settled::Holds);
    let text = refused(&cluster);
    assert!(
        text.contains("at feature level 4") && text.contains("`collie cluster finalize`"),
        "{text}"
    );
}
