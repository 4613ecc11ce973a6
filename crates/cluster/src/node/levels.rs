//! Feature levels: what the nodes of a cluster send each other, and write, is what all of their versions know.
//!
//! A cluster goes to a newer level when its operator says so: until then the version before can come back on any node.
//! First each node says that it speaks the level; then each notes it on disk, and no version that does not speak it
//! starts there any more; then the map has it, and from then on it is used.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use crate::blocking::blocking;
use crate::map::{self, Map};
use crate::node::changing::{change, decided};
use crate::node::shared::ClusterInner;
use crate::raft::Replica;
use crate::transport::wire::{MapRequest, NodeId};

/// Takes the cluster to a level, on the node that leads the map by `replica`.
///
/// # Errors
/// The nodes that do not speak it, or do not answer, with what to do.
pub(super) async fn finalize(inner: &ClusterInner, replica: &Replica, level: u32) -> Result<(), String> {
    let map = inner.map().ok_or("this node has no map yet: ask again")?;
    if map.cluster.level >= level {
        return Ok(());
    }
    all_agree(inner, &map, &MapRequest::Speaks(level))
        .await
        .map_err(|problems| {
            format!(
                "feature level {level} is not used before all nodes speak it: {problems}. Run this version on each node, or \
                 remove those that are gone, and ask again"
            )
        })?;
    all_agree(inner, &map, &MapRequest::Note(level))
        .await
        .map_err(|problems| {
            format!(
                "feature level {level} is noted by some nodes, and not used before all have: {problems}. Run no older \
                 version any more, and ask again"
            )
        })?;
    let asked: BTreeSet<NodeId> = map.nodes.keys().copied().collect();
    let rule = move |map: Option<&Map>| match map {
        Some(map) => Ok(((), map::raise(map, level, &asked)?)),
        None => Err("the cluster has no map yet: ask again".to_owned()),
    };
    decided(change(replica, rule).await)
}

/// Asks all nodes of the map.
async fn all_agree(inner: &ClusterInner, map: &Map, request: &MapRequest) -> Result<(), String> {
    let asked = map.nodes.values().map(async |node| {
        let agrees = match node.number == inner.number() {
            true => answer(inner, request).await,
            false => {
                let asked = inner.ask_node(node, request.clone()).await;
                asked.unwrap_or_else(|_| Err("it does not answer, or is of an older version".to_owned()))
            }
        };
        agrees.map_err(|problem| format!("node {}: {problem}", node.number))
    });
    let answers = join_all(asked).await;
    let problems: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.join("; ")),
    }
}

/// Says whether this node speaks a level, and notes it if that is asked for.
pub(super) async fn answer(inner: &ClusterInner, request: &MapRequest) -> Result<(), String> {
    let (MapRequest::Speaks(level) | MapRequest::Note(level)) = *request else {
        return Err("this is no question about levels".to_owned());
    };
    let spoken = &inner.options.spoken;
    if !spoken.contains(&level) {
        return Err(format!("it speaks levels {} to {}", spoken.start(), spoken.end()));
    }
    if let MapRequest::Note(_) = request {
        let store = inner.store.clone();
        let noted =
            blocking(move || store.change_identity(|identity| identity.level = level.max(identity.level)));
        noted.await.map_err(|error| error.to_string())?;
        // Relaxed: what is shown.
        inner.noted.fetch_max(level, Ordering::Relaxed);
    }
    Ok(())
}

impl ClusterInner {
    /// That a level was noted and is not used: this node has lost the way back for nothing.
    pub(super) fn level_problem(&self) -> Option<String> {
        let noted = self.noted.load(Ordering::Relaxed);
        let level = self.map()?.cluster.level;
        (noted > level).then(|| {
            format!(
                "feature level {noted} is noted here, where no older version starts any more, and the cluster uses level \
                 {level}: ask for `collie cluster finalize` again"
            )
        })
    }
}
