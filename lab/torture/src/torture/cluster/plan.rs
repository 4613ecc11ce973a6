//! What is to be tortured, and how.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;

/// Faults of a round, at most.
pub(crate) const FAULTS_MAX: u64 = 3;
/// How long the operations of a round may take besides its faults.
pub(crate) const ROUND: Duration = Duration::from_secs(180);

/// What is done to nodes while clients work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// SIGKILL for the leader of some keys, any node, or all of them.
    Kill,
    /// SIGSTOP for half a second to six seconds.
    Stop,
    /// Links between nodes carry nothing in both directions, or are slow.
    Cut,
    /// Links between nodes carry nothing in one direction.
    CutOneWay,
    /// A node loses its power, in recovery too: what its disks were not asked to sync is lost or torn.
    Power,
    /// All nodes lose their power at once.
    PowerAll,
    /// Syncs on the disks of a node take more than a second.
    SlowDisk,
    /// A disk of a node has no room left for a while.
    Full,
    /// The replicas of a node move to others, while a node is killed or not. On five nodes.
    Move,
    /// The logs of a node move to another layout, while it is killed or not.
    Layout,
    /// Partitions are split at any slot, while nodes are killed or not.
    Split,
    /// Nodes go from the version before to this one, and back; half way through the rounds all stay with this
    /// one.
    Upgrade,
    /// Two clusters, each of which duplicates its rows to the other one: nodes of either are killed and held, and
    /// what goes from one to the other is cut, paused, or kept away until all rows have to be copied.
    Duplicate,
    /// All of these but upgrades and duplication.
    Mixed,
}

impl Fault {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Cut => "cut",
            Self::CutOneWay => "cut-one-way",
            Self::Power => "power",
            Self::PowerAll => "power-all",
            Self::SlowDisk => "slow-disk",
            Self::Full => "full",
            Self::Move => "move",
            Self::Layout => "layout",
            Self::Split => "split",
            Self::Upgrade => "upgrade",
            Self::Duplicate => "duplicate",
            Self::Mixed => "mixed",
        }
    }

    /// Whether it needs disks that forget.
    fn needs_disks(self) -> bool {
        matches!(self, Self::Power | Self::PowerAll | Self::SlowDisk | Self::Full)
    }
}

/// The product under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Product {
    /// `collie node`, of this binary.
    Collie,
    /// `redis-server` found along the path: a cluster without replicas, whose nodes keep nothing on
    /// disk. It shows that what is lost is found.
    Redis,
}

impl Product {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Collie => "collie",
            Self::Redis => "redis",
        }
    }
}

/// How leaders make sure that reads are of the newest state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Reads {
    /// They ask a majority.
    Index,
    /// They count on leases.
    Lease,
}

impl Reads {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Lease => "lease",
        }
    }
}

/// What entries of Collie wait for before they are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Entries {
    /// The disks of most replicas.
    Disk,
    /// The memory of most replicas: a power cut of most may lose them.
    Process,
}

impl Entries {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Process => "process",
        }
    }
}

/// What a run does.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) product: Product,
    pub(crate) program: Option<PathBuf>,
    /// That of the version before.
    pub(crate) before: Option<PathBuf>,
    pub(crate) fault: Fault,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    /// How nodes of Collie make sure of reads.
    pub(crate) reads: Reads,
    /// What entries of Collie wait for.
    pub(crate) entries: Entries,
    pub(crate) rounds: u64,
    /// Operations of each round whose outcome was acknowledged or is unknown, at least.
    pub(crate) operations: u64,
    pub(crate) seed: u64,
}

impl Plan {
    /// The faults of it. A mixture has all that the product can be under.
    pub(crate) fn kinds(&self) -> Vec<Fault> {
        let all = [
            Fault::Kill,
            Fault::Stop,
            Fault::Cut,
            Fault::CutOneWay,
            Fault::Power,
            Fault::PowerAll,
            Fault::SlowDisk,
            Fault::Full,
            Fault::Move,
            Fault::Layout,
            Fault::Split,
            Fault::Upgrade,
            Fault::Duplicate,
        ];
        let is_in = |kind: &Fault| match self.fault {
            Fault::Mixed if *kind == Fault::Move => self.replicas() < self.nodes,
            Fault::Mixed if matches!(kind, Fault::Upgrade | Fault::Duplicate) => false,
            Fault::Mixed if *kind == Fault::PowerAll && self.entries == Entries::Process => false,
            Fault::Mixed if matches!(kind, Fault::Layout | Fault::Split) => self.product == Product::Collie,
            Fault::Mixed => self.product == Product::Collie || !kind.needs_disks(),
            fault => *kind == fault,
        };
        all.into_iter().filter(is_in).collect()
    }

    /// Replicas of each partition: one on each node, or three where they are to move.
    pub(crate) fn replicas(&self) -> usize {
        let may_move = matches!(self.fault, Fault::Move | Fault::Mixed) && self.product == Product::Collie;
        match may_move && self.nodes > 3 {
            true => 3,
            false => self.nodes,
        }
    }

    /// Whether nodes are on disks that forget, which have to be mounted.
    ///
    /// # Errors
    /// The product keeps nothing on disks, or there are too few nodes for the fault.
    pub(crate) fn needs_disks(&self) -> anyhow::Result<bool> {
        ensure!(
            self.fault != Fault::Move || self.replicas() < self.nodes,
            "replicas move where there are more nodes than replicas: --fault move takes --nodes 5, of collie"
        );
        ensure!(
            (self.fault == Fault::Upgrade) == self.before.is_some(),
            "--fault upgrade is from the version before: name its program by --before, and for no other fault"
        );
        ensure!(
            self.fault != Fault::Duplicate || self.product == Product::Collie,
            "only clusters of collie are duplicated: --fault duplicate is for --system collie"
        );
        ensure!(
            self.entries == Entries::Disk || !matches!(self.fault, Fault::PowerAll | Fault::Upgrade),
            "--durability process may lose entries where most nodes lose power, and the version before does not have \
             it: --fault {} is for --durability disk",
            self.fault.name()
        );
        let needed = self.kinds().into_iter().any(Fault::needs_disks);
        ensure!(
            !needed || self.product == Product::Collie,
            "nodes of {} keep nothing on disks: --fault {} is for --system collie",
            self.product.name(),
            self.fault.name()
        );
        Ok(needed)
    }

    /// Whether all nodes are killed before the last look: of nodes that keep nothing, only where kills
    /// are asked for.
    pub(crate) fn kills_at_the_end(&self) -> bool {
        match self.product {
            Product::Collie => self.fault != Fault::None,
            Product::Redis => self.kinds().contains(&Fault::Kill),
        }
    }

    /// The command that draws the same faults and operations; what threads do in between is theirs.
    pub(crate) fn replay(&self) -> String {
        let before = self.before.as_ref();
        let before = before.map_or(String::new(), |program| {
            format!(" --before {}", program.display())
        });
        format!(
            "collie-lab torture cluster --system {} --fault {} --nodes {} --clients {} --rounds {} --operations {} \
             --reads {} --durability {} --seed {}{before}",
            self.product.name(),
            self.fault.name(),
            self.nodes,
            self.clients,
            self.rounds,
            self.operations,
            self.reads.name(),
            self.entries.name(),
            self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(product: Product, fault: Fault) -> Plan {
        Plan {
            product,
            program: None,
            before: None,
            fault,
            nodes: 3,
            clients: 1,
            reads: Reads::Index,
            entries: Entries::Disk,
            rounds: 1,
            operations: 1,
            seed: 1,
        }
    }

    #[test]
    fn a_mixture_has_all_faults_that_a_product_can_be_under() {
        let of = |product| plan(product, Fault::Mixed).kinds();
        assert_eq!(of(Product::Collie).len(), 10);
        let five = Plan {
            nodes: 5,
            ..plan(Product::Collie, Fault::Mixed)
        };
        assert_eq!((five.kinds().len(), five.replicas()), (11, 3));
        let in_memory = Plan {
            entries: Entries::Process,
            ..plan(Product::Collie, Fault::Mixed)
        };
        assert_eq!(in_memory.kinds().len(), 9);
        assert!(!in_memory.kinds().contains(&Fault::PowerAll));
        assert_eq!(
            of(Product::Redis),
            [Fault::Kill, Fault::Stop, Fault::Cut, Fault::CutOneWay]
        );
        assert_eq!(plan(Product::Collie, Fault::None).kinds(), []);
        assert_eq!(plan(Product::Collie, Fault::Full).kinds(), [Fault::Full]);
    }

    #[test]
    fn disks_are_mounted_for_what_needs_them_alone() {
        for (fault, needed) in [
            (Fault::Kill, false),
            (Fault::Power, true),
            (Fault::SlowDisk, true),
            (Fault::Mixed, true),
        ] {
            assert_eq!(plan(Product::Collie, fault).needs_disks().unwrap(), needed);
        }
        assert!(!plan(Product::Redis, Fault::Mixed).needs_disks().unwrap());
        assert!(plan(Product::Redis, Fault::Power).needs_disks().is_err());
        assert!(plan(Product::Collie, Fault::Move).needs_disks().is_err());
        let in_memory = |fault| Plan {
            entries: Entries::Process,
            ..plan(Product::Collie, fault)
        };
        assert!(in_memory(Fault::Power).needs_disks().unwrap());
        assert!(in_memory(Fault::PowerAll).needs_disks().is_err());
    }
}
