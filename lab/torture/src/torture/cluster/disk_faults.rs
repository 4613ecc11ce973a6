//! What is done to nodes through their disks: power cuts, slow syncs, no room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_io::{Clock, RealClock};
use collie_sim::Rng;

use super::disks::DISKS;
use super::links::{Flow, Flows};
use super::nodes::Nodes;
use super::plan::Entries;
use super::target::{DOWN_MS, Surroundings, Target, pause};

/// How long an operation is waited for at which the power is cut, while nodes serve and while they open
/// their stores, in milliseconds: afterwards it is cut wherever they are.
const SERVING_MS: std::ops::Range<u64> = 0..3_000;
/// How long two of three nodes have for an election.
const ELECTING_MS: std::ops::Range<u64> = 2_000..5_000;
/// How long an acknowledgement is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long syncs take on all disks meanwhile: some are under way when the power goes.
const SYNCING_MS: std::ops::Range<u64> = 0..300;
const OPENING_MS: std::ops::Range<u64> = 0..2_000;
/// Cuts in a row, at most.
const CUTS_MAX: u64 = 4;
/// How much longer a sync takes on a slow disk, and how long it is slow.
const SYNC_MS: std::ops::Range<u64> = 1_000..3_000;
const SLOW_MS: std::ops::Range<u64> = 6_000..10_000;
/// Room that is left on a disk that becomes full; how long it may take to, and how long it stays so.
const ROOM_BYTES: u64 = 1 << 20;
const FILLING: Duration = Duration::from_secs(10);
const FULL_MS: std::ops::Range<u64> = 500..8_000;

/// Cuts the power of one node, or of all of them; now and then again while they recover.
pub(crate) fn power(
    all: bool,
    target: &Target,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    let mut victims = target.victims(nodes.len(), rng);
    if nodes.entries == Entries::Process {
        // Until then a power cut of another one is one of most that had its entries.
        nodes.wait_until_regained()?;
        if nodes.replicas < nodes.len() {
            victims.truncate(1);
        }
        if let Some(leader) = target.leader.filter(|_| nodes.len() == 3 && rng.coin()) {
            return power_of_the_other_copy(leader, nodes, rng, around);
        }
    }
    if all {
        victims = (0..nodes.len())
            .map(|n| (target.victim + n) % nodes.len())
            .collect();
    }
    let delay = pause(SYNCING_MS, rng);
    (0..nodes.len()).try_for_each(|node| nodes.disks()?.delay_syncs(node, delay))?;
    let life = pause(SERVING_MS, rng);
    if rng.coin() {
        nodes.disks()?.set_trap(&victims, rng)?;
        nodes.disks()?.wait_for_stop(target.victim, life)?;
    } else {
        // What was acknowledged this moment is at stake.
        std::thread::sleep(life);
        around.board.wait_for_a_write(PATIENCE);
    }
    around.notes.cut(nodes.cut_power(&victims, rng)?);
    (0..nodes.len()).try_for_each(|node| nodes.disks()?.delay_syncs(node, Duration::ZERO))?;
    let name = if all { "power all" } else { "power" };
    around.notes.struck(name);
    around.watch(name, target, nodes.ports());
    std::thread::sleep(pause(DOWN_MS, rng));
    for _ in 1..CUTS_MAX {
        if !rng.one_in(3) {
            break;
        }
        let first = rng.index(victims.len());
        victims.rotate_left(first);
        nodes.disks()?.set_trap(&victims, rng)?;
        victims.iter().try_for_each(|&node| nodes.restart(node))?;
        nodes.disks()?.wait_for_stop(victims[0], pause(OPENING_MS, rng))?;
        around.notes.cut(nodes.cut_power(&victims, rng)?);
        around.notes.struck("power, soon after a start");
    }
    victims.iter().try_for_each(|&node| nodes.restart(node))
}

/// Cuts the power of the only node beside the leader that has the newest entries, which are in its memory; the leader
/// is killed then, and comes back after the others had the time to elect another, which would lack these entries.
fn power_of_the_other_copy(
    leader: usize,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    let first = usize::from(rng.coin());
    let [lacks, has] = [first, 1 - first].map(|n| (leader + 1 + n) % nodes.len());
    nodes.disks()?.delay_syncs(has, pause(SYNC_MS, rng))?;
    // What is sent to a node that is only held waits in its sockets.
    let mut flows = Flows::new(nodes.len());
    for other in [leader, has] {
        flows.set(other, lacks, Flow::Loses);
        flows.set(lacks, other, Flow::Loses);
    }
    nodes.links.set(flows);
    std::thread::sleep(pause(SERVING_MS, rng));
    around.board.wait_for_a_write(PATIENCE);
    around.notes.cut(nodes.cut_power(&[has], rng)?);
    nodes.disks()?.delay_syncs(has, Duration::ZERO)?;
    nodes.kill(leader)?;
    around.notes.struck("power of the only other copy");
    nodes.links.set(Flows::new(nodes.len()));
    nodes.restart(has)?;
    std::thread::sleep(pause(ELECTING_MS, rng));
    nodes.restart(leader)
}

/// Has the syncs of a node take longer than others wait for a node that is silent.
pub(crate) fn slow(
    target: &Target,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    nodes.disks()?.delay_syncs(target.victim, pause(SYNC_MS, rng))?;
    around.notes.struck("slow disk");
    around.watch("slow disk", target, nodes.ports());
    let before = around.board.writes();
    let span = pause(SLOW_MS, rng);
    std::thread::sleep(span);
    around
        .notes
        .went_on("slow disk", around.board.writes() - before, span);
    nodes.disks()?.delay_syncs(target.victim, Duration::ZERO)
}

/// Has a disk of a node refuse what needs room, while clients write large values; then there is room
/// again. The node may need one start for that, if it ends or says so.
pub(crate) fn full(
    target: &Target,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    let (victim, disk) = (target.victim, rng.index(DISKS));
    nodes.excuse(victim)?;
    let refusals = nodes.disks()?.refusals(victim);
    nodes.disks()?.limit(victim, disk, Some(rng.below(ROOM_BYTES)))?;
    let (over, ports, round) = (Arc::new(AtomicBool::new(false)), nodes.ports(), around.round);
    let filling = Arc::clone(&over);
    let filler = around.scope.spawn(move || round.fill(&ports, &filling));
    let clock = RealClock;
    let began = clock.monotonic();
    let since = || Duration::from_nanos(clock.monotonic().saturating_sub(began));
    while nodes.disks()?.refusals(victim) == refusals && since() < FILLING {
        std::thread::sleep(Duration::from_millis(10));
    }
    let name = if nodes.disks()?.refusals(victim) == refusals {
        "full disk, not noticed"
    } else {
        "full disk"
    };
    around.notes.struck(name);
    around.watch(name, target, nodes.ports());
    let before = around.board.writes();
    let span = pause(FULL_MS, rng);
    std::thread::sleep(span);
    around.notes.went_on(name, around.board.writes() - before, span);
    // Relaxed: it orders nothing.
    over.store(true, Ordering::Relaxed);
    nodes.disks()?.limit(victim, disk, None)?;
    // It has nothing to say.
    let _ = filler.join();
    Ok(())
}
