//! What is to be tortured, and how.

use std::path::PathBuf;

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
    /// All of these.
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
            Self::Mixed => "mixed",
        }
    }

    /// The faults that it is made of.
    pub(crate) fn kinds(self) -> &'static [Self] {
        match self {
            Self::None => &[],
            Self::Kill => &[Self::Kill],
            Self::Stop => &[Self::Stop],
            Self::Cut => &[Self::Cut],
            Self::CutOneWay => &[Self::CutOneWay],
            Self::Mixed => &[Self::Kill, Self::Stop, Self::Cut, Self::CutOneWay],
        }
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

/// What a run does.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) product: Product,
    pub(crate) program: Option<PathBuf>,
    pub(crate) fault: Fault,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    pub(crate) rounds: u64,
    /// Operations of each round whose outcome was acknowledged or is unknown, at least.
    pub(crate) operations: u64,
    pub(crate) seed: u64,
}

impl Plan {
    /// Whether all nodes are killed before the last look: of nodes that keep nothing, only where kills
    /// are asked for.
    pub(crate) fn kills_at_the_end(&self) -> bool {
        match self.product {
            Product::Collie => self.fault != Fault::None,
            Product::Redis => self.fault.kinds().contains(&Fault::Kill),
        }
    }

    /// The command that draws the same faults and operations; what threads do in between is theirs.
    pub(crate) fn replay(&self) -> String {
        format!(
            "collie torture cluster --system {} --fault {} --nodes {} --clients {} --rounds {} --operations {} \
             --seed {}",
            self.product.name(),
            self.fault.name(),
            self.nodes,
            self.clients,
            self.rounds,
            self.operations,
            self.seed
        )
    }
}
