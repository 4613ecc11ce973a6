//! Nodes of two versions: each changes its version under load, forth and back, until the cluster uses what the newer
//! one knows.

use collie_sim::Rng;

use super::nodes::Nodes;
use super::target::{DOWN_MS, Surroundings, Target, pause};

/// Changes the version of a node; one of a cluster that has left the older version behind is started again.
pub(crate) fn change_version(
    target: &Target,
    nodes: &mut Nodes,
    rng: &mut Rng,
    around: &Surroundings<'_, '_>,
) -> anyhow::Result<()> {
    let node = target.victim;
    let is_killed = rng.one_in(3);
    around
        .notes
        .struck(match (nodes.changes_version(node), is_killed) {
            (true, false) => "change of version",
            (true, true) => "kill, and change of version",
            (false, _) => "restart of the newer version",
        });
    around.watch("change of version", target, nodes.ports());
    match is_killed {
        true => nodes.kill(node)?,
        false => nodes.end_one(node)?,
    }
    std::thread::sleep(pause(DOWN_MS, rng));
    nodes.restart(node)
}

/// Brings all nodes to the newer version, one by one, and has the cluster use it.
pub(crate) fn finalize(nodes: &mut Nodes, around: &Surroundings<'_, '_>) -> anyhow::Result<()> {
    for node in 0..nodes.len() {
        if nodes.is_older(node) {
            nodes.changes_version(node);
            nodes.end_one(node)?;
            nodes.restart(node)?;
            nodes.wait_until_served()?;
        }
    }
    around.notes.struck("finalize");
    nodes.finalize()
}
