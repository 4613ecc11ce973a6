//! What a fault hits, what goes on around it, and how long something lasts.

use std::sync::atomic::AtomicBool;
use std::thread::Scope;
use std::time::Duration;

use collie_sim::Rng;

use super::client::Ports;
use super::load::{Board, Object, Round, until_a_write};
use super::nodes::Nodes;
use super::notes::Notes;

/// How long a node is down.
pub(crate) const DOWN_MS: std::ops::Range<u64> = 0..2_000;
/// How long a write is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a fault hits.
pub(crate) struct Target {
    /// The object whose leader it may be.
    object: usize,
    /// That leader, if it is known.
    pub(crate) leader: Option<usize>,
    pub(crate) victim: usize,
}

impl Target {
    /// The leader of some object as a rule, else any node.
    pub(crate) fn draw(round: &Round, nodes: &Nodes, rng: &mut Rng) -> Self {
        let object = rng.index(round.objects.len());
        let leader = nodes.leader(round.objects[object].slot());
        let any = rng.index(nodes.len());
        Self {
            object,
            leader,
            victim: if rng.one_in(3) { any } else { leader.unwrap_or(any) },
        }
    }

    /// The victim; now and then another one, where the rest is a majority all the same.
    pub(crate) fn victims(&self, nodes: usize, rng: &mut Rng) -> Vec<usize> {
        let mut victims = vec![self.victim];
        if nodes >= 5 && rng.coin() {
            victims.push((self.victim + 1 + rng.index(nodes - 1)) % nodes);
        }
        victims
    }
}

/// What the threads of a round share with the faults.
pub(crate) struct Surroundings<'scope, 'env> {
    pub(crate) scope: &'scope Scope<'scope, 'env>,
    pub(crate) round: &'env Round,
    pub(crate) board: &'env Board,
    pub(crate) stop: &'env AtomicBool,
    pub(crate) notes: &'env Notes,
}

impl Surroundings<'_, '_> {
    /// Measures how long no write succeeds, if the fault hits the leader.
    pub(crate) fn watch(&self, name: &'static str, target: &Target, ports: Ports) {
        if target.leader != Some(target.victim) {
            return;
        }
        let (stop, notes) = (self.stop, self.notes);
        let Some(key) = self.round.objects.get(target.object).map(Object::probe) else {
            return;
        };
        self.scope.spawn(move || {
            let silence = until_a_write(&key, &ports, PATIENCE, stop);
            notes.silence(name, silence);
        });
    }
}

/// Some of this time.
pub(crate) fn pause(range_ms: std::ops::Range<u64>, rng: &mut Rng) -> Duration {
    Duration::from_millis(range_ms.start + rng.below(range_ms.end - range_ms.start))
}
