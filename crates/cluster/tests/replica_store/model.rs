//! Random lives of two replicas of a group, one of which learns from the other now and then.
//! `COLLIE_RUNS` sets the number of programs, `COLLIE_SEED` the first.

use collie_cluster::testing::replica_store::{MachineError, Transfer};
use collie_sim::Rng;

use crate::from_env;
use crate::plain::{Group, assert_holds};
use crate::replica::Replica;

const STEPS: u64 = 250;

/// One step of a replica. Fails where its device has died.
fn step(replica: &Replica, group: &mut Group, rng: &mut Rng) -> Result<(), MachineError> {
    match rng.below(24) {
        0 => replica.machine().flush()?,
        1 => replica.purge(),
        2 => replica.sync_log(),
        3 => drop(replica.drive(replica.log().rewrite(true)).unwrap()),
        4 => replica.machine().db().compact()?,
        5..10 => (0..rng.below(5)).for_each(|_| group.propose(rng)),
        10..15 => replica.append(group, rng.below(6) as usize),
        _ => replica.apply(group, rng.below(9))?,
    }
    Ok(())
}

/// The second learns from the first, dying now and then; what is right by then is not fetched again.
fn learn(from: &Replica, mut to: Replica, group: &Group, rng: &mut Rng, context: &str) -> Replica {
    let transfer = from.machine().transfer().unwrap();
    let description = transfer.description();
    assert_eq!(
        Some(&description.position),
        group
            .at(Some(description.position.applied.index))
            .position
            .as_ref()
    );
    let mut fetched = 0;
    for attempt in 0.. {
        if to.machine().applied().map(|id| id.index) >= Some(description.position.applied.index) {
            break;
        }
        if attempt < 4 {
            to.device.die_after(rng.below(60));
        }
        match install(&transfer, &to, rng, &mut fetched) {
            Ok(()) => break,
            Err(_) if to.device.is_dead() => {
                to = to.crash(rng, group, &format!("{context}, attempt {attempt}"));
            }
            // A byte of it was changed on the way.
            Err(MachineError::Checksum { .. }) => {}
            Err(error) => panic!("{context}, attempt {attempt}: {error}"),
        }
    }
    assert_holds(to.machine(), group, context);
    let applied = to.machine().applied().map(|id| id.index);
    assert!(applied >= Some(description.position.applied.index), "{context}");
    // A power cut right now finds all of it.
    if rng.coin() {
        to.crash(rng, group, context)
    } else {
        to.device.die_after(1 << 60);
        to
    }
}

fn install(transfer: &Transfer, to: &Replica, rng: &mut Rng, fetched: &mut u64) -> Result<(), MachineError> {
    let mut staging = to.machine().stage(transfer.description().clone())?;
    while let Some(missing) = staging.missing() {
        let mut piece = transfer.read(missing.file, missing.offset)?;
        piece.truncate(1 + rng.below(9_000) as usize);
        if rng.one_in(60) && !piece.is_empty() {
            piece[0] ^= 1;
        }
        *fetched += piece.len() as u64;
        staging.write(missing, &piece)?;
    }
    let staged = staging.finish()?;
    let adopted = to.machine().adopt(&staged)?;
    assert!(adopted.is_behind());
    if rng.one_in(3) {
        // The stop between the two.
        to.device.kill();
        return Err(MachineError::Empty { replica: to.id });
    }
    to.drive(adopted.settle())?;
    Ok(())
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut group = Group::new();
    let mut replicas = [
        Some(Replica::new(1, seed)),
        Some(Replica::new(2, seed + 1_000_000)),
    ];
    for operation in 0..STEPS {
        let at = usize::from(rng.one_in(3));
        let context = format!("seed {seed}, operation {operation}, replica {}", at + 1);
        let replica = replicas[at].take().unwrap();
        if rng.one_in(30) {
            replica.device.die_after(rng.below(40));
        }
        let replica = match step(&replica, &mut group, &mut rng) {
            Ok(()) => replica,
            Err(_) if replica.device.is_dead() => replica.crash(&mut rng, &group, &context),
            Err(error) => panic!("{context}: {error}"),
        };
        if !replica.device.is_dead() {
            assert_holds(replica.machine(), &group, &context);
        }
        replicas[at] = Some(match rng.below(40) {
            0 | 1 => replica.crash(&mut rng, &group, &context),
            2 if !replica.device.is_dead() => replica.reopen(&group, &context),
            _ => replica,
        });
        if rng.one_in(40) {
            let [from, to] = [0, 1].map(|at: usize| replicas[at].take().unwrap());
            let from = match from.device.is_dead() || from.machine().applied().is_none() {
                true => from.crash(&mut rng, &group, &context),
                false => {
                    from.device.die_after(1 << 60);
                    from
                }
            };
            let to = if to.device.is_dead() {
                to.crash(&mut rng, &group, &context)
            } else {
                to
            };
            let learns = from.machine().applied() > to.machine().applied();
            replicas = match learns {
                true => {
                    let to = learn(&from, to, &group, &mut rng, &context);
                    [Some(from), Some(to)]
                }
                false => [Some(from), Some(to)],
            };
        }
    }
    for replica in replicas.into_iter().flatten() {
        let replica = replica.crash(&mut rng, &group, &format!("seed {seed}, at the end"));
        replica.append(&group, usize::MAX >> 1);
        replica.apply(&group, u64::MAX >> 1).unwrap();
        assert_holds(replica.machine(), &group, &format!("seed {seed}, at the end"));
        replica.reopen(&group, &format!("seed {seed}, closed"));
    }
}

#[test]
fn applied_and_data_agree_through_crashes_purges_and_transfers() {
    let first = from_env("COLLIE_SEED", 1);
    for seed in first..first + from_env("COLLIE_RUNS", 8) {
        println!("COLLIE_SEED={seed} COLLIE_RUNS=1 replays this program");
        run(seed);
    }
}
