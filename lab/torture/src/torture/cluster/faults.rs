//! What is done to nodes while clients work.

use collie_sim::Rng;
use rustix::process::Signal;

use super::disk_faults;
use super::links::{Flow, Flows};
use super::nodes::Nodes;
use super::plan::Fault;
use super::target::{DOWN_MS, Surroundings, Target, pause};
use super::upgrades::change_version;

/// How long a node is held, and how long a link is cut.
const HELD_MS: std::ops::Range<u64> = 500..6_000;
/// How long logs move before something else happens.
const MOVING_MS: std::ops::Range<u64> = 0..400;
/// How long a partition is being split before something else happens.
const SPLITTING_MS: std::ops::Range<u64> = 0..150;
/// How slow a link is.
const SLOW_MS: std::ops::Range<u64> = 10..200;

/// Does something of this kind, and ends it again: nodes run and links work afterwards, though the
/// cluster may not serve yet.
pub(crate) fn strike(
    kind: Fault,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    let target = Target::draw(around.round, nodes, rng);
    match kind {
        Fault::Kill => kill(&target, nodes, rng, around),
        Fault::Stop => {
            around.notes.struck("stop");
            around.watch("stop", &target, nodes.ports());
            nodes.signal(target.victim, Signal::STOP)?;
            let held = pause(HELD_MS, rng);
            std::thread::sleep(held);
            nodes.signal(target.victim, Signal::CONT)
        }
        Fault::Cut | Fault::CutOneWay => {
            let (name, flows) = cut(kind == Fault::CutOneWay, target.victim, nodes.len(), rng);
            around.notes.struck(name);
            around.watch(name, &target, nodes.ports());
            nodes.links.set(flows);
            std::thread::sleep(pause(HELD_MS, rng));
            nodes.links.set(Flows::new(nodes.len()));
            Ok(())
        }
        Fault::Power => disk_faults::power(false, &target, nodes, rng, around),
        Fault::PowerAll => disk_faults::power(true, &target, nodes, rng, around),
        Fault::SlowDisk => disk_faults::slow(&target, nodes, rng, around),
        Fault::Full => disk_faults::full(&target, nodes, rng, around),
        Fault::Move => move_away(&target, nodes, rng, around),
        Fault::Layout => move_logs(&target, nodes, rng, around),
        Fault::Split => split(&target, nodes, rng, around),
        Fault::Upgrade => change_version(&target, nodes, rng, around),
        Fault::Duplicate | Fault::None | Fault::Mixed => Ok(()),
    }
}

/// Has the logs of a node move to another layout, now and then back at once; as a rule the node is killed meanwhile.
fn move_logs(
    target: &Target,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    around.notes.struck("layout");
    around.watch("layout", target, nodes.ports());
    for _ in 0..=rng.below(2) {
        let layout = ["shared", "per-disk", "private"][rng.index(3)];
        nodes.change(target.victim, "LAYOUT", &[layout])?;
        std::thread::sleep(pause(MOVING_MS, rng));
    }
    if rng.one_in(3) {
        return Ok(());
    }
    nodes.kill(target.victim)?;
    around.notes.struck("kill in a layout");
    std::thread::sleep(pause(DOWN_MS, rng));
    nodes.restart(target.victim)
}

/// Has partitions split, at any slots; as a rule the leader of some keys, another node, or all are killed meanwhile.
fn split(
    target: &Target,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    around.notes.struck("split");
    around.watch("split", target, nodes.ports());
    for _ in 0..=rng.below(3) {
        let slot = 1 + rng.below(16_383);
        nodes.split(slot)?;
        std::thread::sleep(pause(SPLITTING_MS, rng));
    }
    match rng.below(4) {
        0 => return Ok(()),
        1 => {
            around.notes.struck("kill of all in a split");
            return kill_all(nodes);
        }
        _ => {}
    }
    let killed = match rng.coin() {
        true => target.victim,
        false => rng.index(nodes.len()),
    };
    nodes.kill(killed)?;
    around.notes.struck("kill in a split");
    std::thread::sleep(pause(DOWN_MS, rng));
    nodes.restart(killed)
}

/// Has the replicas of a node move, and the node serve again some time later, whether they have moved or not; as a
/// rule a node is killed meanwhile: that one or another.
fn move_away(
    target: &Target,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    around.notes.struck("move");
    around.watch("move", target, nodes.ports());
    nodes.change(target.victim, "DRAIN", &[])?;
    std::thread::sleep(pause(HELD_MS, rng));
    if rng.one_in(3) {
        return nodes.change(target.victim, "SERVE", &[]);
    }
    let killed = if rng.coin() {
        target.victim
    } else {
        rng.index(nodes.len())
    };
    nodes.kill(killed)?;
    around.notes.struck("kill in a move");
    std::thread::sleep(pause(DOWN_MS, rng));
    nodes.restart(killed)?;
    std::thread::sleep(pause(HELD_MS, rng));
    nodes.change(target.victim, "SERVE", &[])
}

fn kill(
    target: &Target,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    if rng.one_in(5) {
        around.notes.struck("kill all");
        return kill_all(nodes);
    }
    let victims = target.victims(nodes.len(), rng);
    victims.iter().try_for_each(|&node| nodes.kill(node))?;
    around.notes.struck("kill");
    around.watch("kill", target, nodes.ports());
    std::thread::sleep(pause(DOWN_MS, rng));
    victims.iter().try_for_each(|&node| nodes.restart(node))
}

/// Kills all nodes, one right after the other, and starts them again.
pub(crate) fn kill_all(nodes: &mut Nodes) -> anyhow::Result<()> {
    for node in 0..nodes.len() {
        nodes.kill(node)?;
    }
    for node in 0..nodes.len() {
        nodes.restart(node)?;
    }
    Ok(())
}

/// Which links carry nothing, or little. `victim`: the node that is cut off, if one is.
fn cut(one_way: bool, victim: usize, nodes: usize, rng: &mut Rng) -> (&'static str, Flows) {
    let flow = match rng.below(5) {
        0 => Flow::Stalls,
        1 if !one_way => Flow::Delays(pause(SLOW_MS, rng)),
        _ => Flow::Loses,
    };
    let mut flows = Flows::new(nodes);
    let others = (0..nodes).filter(|&node| node != victim);
    // From one other node, or from all of them.
    let only = rng
        .one_in(4)
        .then(|| (victim + 1 + rng.index(nodes.saturating_sub(1))) % nodes);
    let into = rng.coin();
    for other in others.filter(|&other| only.is_none_or(|only| only == other)) {
        if !one_way || into {
            flows.set(other, victim, flow);
        }
        if !one_way || !into {
            flows.set(victim, other, flow);
        }
    }
    let name = match (one_way, flow, into) {
        (_, Flow::Delays(_), _) => "slow link",
        (false, _, _) => "cut",
        (true, _, true) => "cut of what comes in",
        (true, _, false) => "cut of what goes out",
    };
    (name, flows)
}
