//! The verdict: after all faults everything goes on, the replicas agree, and what clients saw fits one
//! order.

use std::collections::BTreeSet;

use collie_check::objects::{Act, Answer, Judgement, Operation, Step, check};
use collie_server::cluster::Walked;

use crate::clients::{KEYS, OBJECTS, SLOTS, number, row};
use crate::town::{Ended, Plan, Town};

/// Configurations of a search for an order, at most.
const CONFIGURATIONS: usize = 400_000;
/// Writes of each group after the faults.
const WRITES: u64 = 3;
/// The client that reads at the end.
const READER: u32 = 999;

type Rows = Vec<(u16, Vec<u8>, Vec<u8>)>;

/// The rows of a replica, as they are applied.
fn rows(town: &Town<'_>, at: usize, group: u64) -> Option<Rows> {
    let replica = town.places[at].replica(group)?;
    let slots = replica.slots()?;
    let slots = *slots.start()..=*slots.end().min(SLOTS.end());
    let partition = replica.partition(slots);
    let rows = partition.rows_after(None).ok()?;
    let stored = rows.filter_map(|found| match found {
        Ok(Walked::Row(row)) => Some(Some((row.slot, row.row, row.value.to_vec()))),
        Ok(Walked::Removed { .. }) => None,
        Err(_) => Some(None),
    });
    stored.collect()
}

/// Whether all replicas of a group have applied all entries, the same ones.
fn are_level(town: &Town<'_>, group: u64) -> bool {
    let states: Option<Vec<_>> = town
        .places
        .iter()
        .map(|place| place.replica(group)?.state().ok())
        .collect();
    states.is_some_and(|states| {
        let applied: BTreeSet<_> = states.iter().map(|state| (state.applied, state.last)).collect();
        applied.len() == 1
            && states
                .iter()
                .all(|state| state.applied.map(|id| id.index) == state.last)
    })
}

pub(crate) fn judge(town: &mut Town<'_>, plan: &Plan) -> Ended {
    let before = town.world.lock().written.clone();
    town.until("all groups take writes", |town| {
        let now = &town.world.lock().written;
        let count = |of: &std::collections::BTreeMap<u64, u64>, group| of.get(group).copied().unwrap_or(0);
        plan.groups
            .iter()
            .all(|group| count(now, group) >= count(&before, group) + WRITES)
    });
    town.world.lock().stopped = true;
    town.world.happened("clients stop");
    let all = town.places[0].all_groups().into_iter();
    let are = |group: &u64| town.places.iter().any(|place| place.replica(*group).is_some());
    let groups: Vec<_> = all.filter(are).collect();
    town.until("all replicas are level", |town| {
        groups.iter().all(|&group| are_level(town, group))
    });
    for &group in &groups {
        let first = rows(town, 0, group).unwrap();
        for at in 1..town.places.len() {
            let other = rows(town, at, group).unwrap();
            assert_eq!(first, other, "group {group} differs on nodes 1 and {}", at + 1);
        }
        read_at_the_end(town, group, &first);
    }
    history(town)
}

/// What is in the tables is what a client would read.
fn read_at_the_end(town: &Town<'_>, group: u64, rows: &Rows) {
    let slots = town.places[0]
        .replica(group)
        .and_then(|replica| replica.slots())
        .unwrap();
    let has = |object: &usize| {
        let slot = *object as u16;
        slots.contains(&slot) && town.places[0].groups_of(slot).contains(&group)
    };
    let objects = (0..OBJECTS).filter(has);
    for object in objects {
        let steps: Vec<_> = (0..KEYS).map(|key| Step { key, act: Act::Get }).collect();
        let answer = |step: &Step| {
            let name = row(object, step.key);
            let found = rows.iter().find(|(_, row, _)| *row == name);
            Answer::Value(number(found.map(|(.., value)| value.as_slice().into()).as_ref()))
        };
        let answers = steps.iter().map(answer).collect();
        let number = town.world.called(READER, object, steps);
        town.world.returned(number, answers);
    }
}

fn history(town: &Town<'_>) -> Ended {
    let mut ended = Ended {
        simulated: town.world.now(),
        faults: town.faults.clone(),
        ..Ended::default()
    };
    let state = town.world.lock();
    ended.trace = state.trace.hash;
    for object in 0..OBJECTS {
        let operations: Vec<Operation> = state
            .operations
            .iter()
            .filter(|noted| noted.object == object && !noted.void)
            .map(|noted| noted.operation.clone())
            .collect();
        let answered = operations.iter().filter(|one| one.returned.is_some()).count();
        ended.answered += answered;
        ended.unknown += operations.len() - answered;
        match check(&operations, KEYS, CONFIGURATIONS) {
            Judgement::Fits => {}
            Judgement::Undecided => ended.undecided += 1,
            Judgement::Contradiction(words) => panic!("object {object}: {words}"),
        }
    }
    ended
}
