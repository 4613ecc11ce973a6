//! Commands on the keys of a [cluster](crate::cluster).

use std::sync::Arc;

use crate::cluster::Cluster;

pub(crate) mod due;
pub(crate) mod evaluate;
pub(crate) mod settle;
pub(crate) mod sweep;
mod tombstones;
pub(crate) mod transaction;
pub(crate) mod walk;

/// What a server in a cluster has beside its own store.
#[derive(Debug)]
pub(crate) struct Partitions {
    pub(crate) cluster: Arc<dyn Cluster>,
    pub(crate) due: due::DueHints,
}

impl Partitions {
    pub(crate) fn new(cluster: Arc<dyn Cluster>) -> Partitions {
        Partitions {
            cluster,
            due: due::DueHints::default(),
        }
    }
}
