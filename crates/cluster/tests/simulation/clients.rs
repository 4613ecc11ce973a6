//! Clients at a node: they run commands where the node leads, as its server does.

use std::sync::Arc;
use std::time::Duration;

use collie_check::objects::{Act, Answer, Step};
use collie_cluster::testing::Node;
use collie_db::Value;
use collie_server::cluster::{Evaluation, Partition, Refused, Settled, Settling};
use collie_sim::Rng;
use tokio::time::{sleep, timeout};

use crate::host::{Place, replica_on};

/// Objects, each in a slot of its own; one after the other they are in the groups.
pub(crate) const OBJECTS: usize = 4;
/// Keys of an object.
pub(crate) const KEYS: usize = 2;
/// Bytes that a large value has beside its number.
const LARGE: usize = 9_000;
/// The slots of each partition.
pub(crate) const SLOTS: std::ops::RangeInclusive<u16> = 0..=99;

/// What a command changes, and its answers.
type Changed = (Vec<(Vec<u8>, Option<Value>)>, i64, Vec<Answer>);

pub(crate) fn row(object: usize, key: usize) -> Vec<u8> {
    format!("object {object} key {key}").into_bytes()
}

pub(crate) fn number(value: Option<&Value>) -> Option<i64> {
    value.map(|value| {
        let (number, rest) = value.split_first_chunk().unwrap();
        assert!(
            rest.iter().all(|byte| byte == &number[0]),
            "parts of several values"
        );
        i64::from_le_bytes(*number)
    })
}

/// A number of an object, as a row has it. Those of the last object are larger than some logs' frames.
fn stored(object: usize, number: i64) -> Value {
    let bytes = number.to_le_bytes();
    let rest = if object == OBJECTS - 1 { LARGE } else { 0 };
    Value::from(&[&bytes[..], &vec![bytes[0]; rest]].concat()[..])
}

/// Does steps to the keys of an object.
fn evaluate(rows: &mut dyn Evaluation, object: usize, steps: &[Step]) -> Result<Changed, Refused> {
    let mut keys = Vec::new();
    for key in 0..KEYS {
        keys.push(match steps.iter().any(|step| step.key == key) {
            true => number(rows.get(&row(object, key))?.as_ref()),
            false => None,
        });
    }
    let before = keys.clone();
    let answers = steps
        .iter()
        .map(|step| step.act.apply(&mut keys[step.key]))
        .collect();
    let count = |keys: &[Option<i64>]| keys.iter().flatten().count() as i64;
    let changed = (0..KEYS).filter(|&key| keys[key] != before[key]);
    let changes = changed.map(|key| {
        let value = keys[key].map(|value| stored(object, value));
        (row(object, key), value)
    });
    Ok((changes.collect(), count(&keys) - count(&before), answers))
}

/// Runs a command, once; what settles it, and what it answers then.
fn command(
    partition: &dyn Partition,
    object: usize,
    steps: &[Step],
) -> Result<(Settling, Vec<Answer>, bool), Refused> {
    let rows: Vec<_> = (0..KEYS)
        .filter(|&key| steps.iter().any(|step| step.key == key))
        .map(|key| row(object, key))
        .collect();
    let rows: Vec<&[u8]> = rows.iter().map(|row| &**row).collect();
    let mut evaluation = partition.begin(object as u16, &rows, Duration::ZERO)?;
    let (changes, keys, answers) = evaluate(&mut *evaluation, object, steps)?;
    let writes = !changes.is_empty();
    Ok((evaluation.finish(changes, keys)?, answers, writes))
}

/// Reads the applied rows, and has it confirmed that this replica led.
fn scan(
    partition: &dyn Partition,
    object: usize,
    steps: &[Step],
) -> Result<(Settling, Vec<Answer>, bool), Refused> {
    let leadership = partition.leadership().ok_or(Refused::NotHere)?;
    let applied = partition.applied()?;
    let mut answers = Vec::new();
    for step in steps {
        let value = applied.get(object as u16, &row(object, step.key))?;
        answers.push(Answer::Value(number(value.as_ref())));
    }
    Ok((
        partition.confirm(leadership, object as u16..=object as u16, None),
        answers,
        false,
    ))
}

fn steps(rng: &mut Rng, next: &mut i64) -> Vec<Step> {
    let count = if rng.one_in(4) { 2 } else { 1 };
    (0..count)
        .map(|n| {
            *next += 1;
            let act = match rng.below(10) {
                0 | 1 => Act::Get,
                2 => Act::Set(*next),
                3 | 4 => Act::SetIfAbsent(*next),
                5 => Act::Take,
                _ => Act::Add(1),
            };
            // A counter that is set is one all the same; the numbers that are set are unlike.
            let key = if count == 2 { n } else { rng.index(KEYS) };
            Step { key, act }
        })
        .collect()
}

/// The life of a client, as long as its node lives.
pub(crate) async fn run(place: Arc<Place>, node: Arc<Node>, client: u32, mut rng: Rng) {
    let world = Arc::clone(&place.world);
    let mut changes = node.changes();
    let mut next = (1 + rng.below(1 << 20) as i64) << 20;
    let mut hurries = 0u64;
    while !world.lock().stopped {
        if hurries > 0 {
            hurries -= 1;
        } else {
            sleep(Duration::from_millis(30 + rng.below(300))).await;
            if rng.one_in(8) {
                hurries = rng.below(4);
            }
        }
        let object = rng.index(OBJECTS);
        let group = {
            // That which the slot began with, or any that it may have come to since.
            let groups = place.groups_of(object as u16);
            let has = |group: &&u64| {
                let slots = node
                    .replica(replica_on(**group, place.id))
                    .and_then(|replica| replica.slots());
                slots.is_some_and(|slots| slots.contains(&(object as u16)))
            };
            let any = groups[rng.index(groups.len())];
            let right = groups.iter().rev().find(has).copied();
            right.filter(|_| !rng.one_in(20)).unwrap_or(any)
        };
        let Some(replica) = node.replica(replica_on(group, place.id)) else {
            let _changed = timeout(Duration::from_millis(100), changes.changed()).await;
            continue;
        };
        let leads = replica.leader() == Some(replica.id());
        // Now and then it asks where it should not.
        if !leads && !rng.one_in(10) {
            let _changed = timeout(Duration::from_millis(100), changes.changed()).await;
            continue;
        }
        let partition = replica.partition(SLOTS);
        let scans = leads && rng.one_in(6);
        let what = match scans {
            true => (0..KEYS).map(|key| Step { key, act: Act::Get }).collect(),
            false => steps(&mut rng, &mut next),
        };
        let number = world.called(place.id as u32 * 10 + client, object, what.clone());
        let asked = match scans {
            true => scan(&*partition, object, &what),
            false => command(&*partition, object, &what),
        };
        match asked {
            Ok((settling, answers, writes)) => match settling.await {
                Settled::Holds => {
                    world.returned(number, answers);
                    if writes {
                        *world.lock().written.entry(group).or_default() += 1;
                    }
                }
                Settled::TryAgain => world.refused(number),
                Settled::Unknown => world.unknown(number),
            },
            Err(refused) => {
                world.refused(number);
                assert!(
                    !matches!(refused, Refused::Text(_)) || place.disk.is_failing(),
                    "node {}: {refused}",
                    place.id
                );
            }
        }
    }
}
