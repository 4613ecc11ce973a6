//! A key that expires, under leaders whose clocks differ by what they may, and who hand over again and
//! again: once a reply has said that the key is gone, no later one shows it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::Replica;
use collie_db::Value;
use collie_server::cluster::{Refused, Settled, Settling};
use collie_sim::Rng;
use tokio::time::sleep;

use crate::clients::{SLOTS, number};
use crate::host::{Place, replica_on};
use crate::town::Town;

/// How far the clocks of the nodes are off, in milliseconds: no node is told to be.
const CLOCKS_MS: [i64; 3] = [400, -400, 0];
/// The leaders that a run has, one after the other.
const HAND_OVERS: usize = 12;
/// How long a key lives, and for how long it is left alone after that.
const LIFE_MS: u64 = 200;
const LEFT_ALONE_MS: u64 = 2000;
const SLOT: u16 = 90;
const ROW: &[u8] = b"a key that expires";

/// What replies have said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The latest expiry that a reply has called over.
    over_ms: Option<u64>,
    /// Replies that called a key over, and those that showed one.
    over: usize,
    shown: usize,
}

/// What a reply is to say.
enum Reply {
    Over(u64),
    Shown(u64),
    Written,
}

/// Runs the simulation's rounds on a group that has begun.
pub(crate) fn run(town: &mut Town<'_>, group: u64) {
    for (place, clock_ms) in town.places.iter().zip(CLOCKS_MS) {
        place.clock_offset_ms.store(clock_ms, Ordering::SeqCst);
    }
    let said = Arc::<Mutex<Said>>::default();
    for place in &town.places {
        let rng = Rng::new(place.world.seed ^ place.id);
        place.spawn(client(Arc::clone(place), group, Arc::clone(&said), rng));
    }
    let leads = |place: &Place| {
        let replica = place.replica(group);
        replica.filter(|replica| replica.leader() == Some(replica.id()))
    };
    for _ in 0..HAND_OVERS {
        let over = said.lock().unwrap().over;
        town.until("a key that is over", |_| said.lock().unwrap().over > over);
        let at = town.places.iter().position(|place| leads(place).is_some());
        let Some((at, leader)) = at.and_then(|at| Some((at, leads(&town.places[at])?))) else {
            continue;
        };
        let to = (at + 1 + town.rng.index(town.places.len() - 1)) % town.places.len();
        let to = replica_on(group, town.places[to].id);
        town.places[at].spawn(async move { drop(leader.transfer_to(to).await) });
        town.go_on(Duration::from_millis(150));
    }
    let said = said.lock().unwrap();
    assert!(said.over >= HAND_OVERS && said.shown > 0, "{said:?}");
}

/// Reads the key where its node leads, and writes it anew where it has been over for long.
async fn client(place: Arc<Place>, group: u64, said: Arc<Mutex<Said>>, mut rng: Rng) {
    while !place.world.lock().stopped {
        sleep(Duration::from_millis(5 + rng.below(20))).await;
        let replica = place.replica(group);
        let Some(replica) = replica.filter(|replica| replica.leader() == Some(replica.id())) else {
            continue;
        };
        // What was said by then is true for this reply.
        let over_ms = said.lock().unwrap().over_ms;
        let Ok((settling, reply)) = command(&replica) else {
            continue;
        };
        if settling.await != Settled::Holds {
            continue;
        }
        let mut said = said.lock().unwrap();
        match reply {
            Reply::Written => {}
            Reply::Over(expiry_ms) => {
                said.over += 1;
                said.over_ms = said.over_ms.max(Some(expiry_ms));
            }
            Reply::Shown(expiry_ms) => {
                said.shown += 1;
                assert!(
                    over_ms.is_none_or(|over_ms| expiry_ms > over_ms),
                    "node {} shows a key that expires at {expiry_ms}, and a reply has said that it is over",
                    place.id
                );
            }
        }
    }
}

fn command(replica: &Arc<Replica>) -> Result<(Settling, Reply), Refused> {
    let partition = replica.partition(SLOTS);
    let mut evaluation = partition.begin(SLOT, &[ROW], Duration::ZERO)?;
    let (now_ms, stored) = (evaluation.now_ms(), evaluation.get(ROW)?);
    let expiry_ms = number(stored.as_ref()).map_or(0, i64::unsigned_abs);
    if now_ms <= expiry_ms {
        return Ok((evaluation.finish(Vec::new(), 0)?, Reply::Shown(expiry_ms)));
    }
    if stored.is_some() && now_ms <= expiry_ms + LEFT_ALONE_MS {
        evaluation.expired(expiry_ms);
        return Ok((evaluation.finish(Vec::new(), 0)?, Reply::Over(expiry_ms)));
    }
    let next = Value::from(&(now_ms + LIFE_MS).to_le_bytes()[..]);
    let keys = i64::from(stored.is_none());
    Ok((
        evaluation.finish(vec![(ROW.to_vec(), Some(next))], keys)?,
        Reply::Written,
    ))
}
