//! Two clusters, each of which duplicates its rows to the other one.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use collie_cli::resp::Reply;
use collie_io::{Device, RealDevice};
use collie_sim::Rng;

use super::client::{Attempt, ClusterClient, Ports};
use super::links::{Flow, Flows};
use super::nodes::{Nodes, wait};
use super::plan::Plan;
use crate::client;

/// How long a change of the map may take, whatever is done to nodes.
const CHANGED: Duration = Duration::from_secs(60);
/// How long clusters may take until each has all that the other one has.
const DRAINED: Duration = Duration::from_secs(120);
/// How long a node may take for keys and values.
const READ: Duration = Duration::from_secs(10);
/// Values that are asked for together.
const READ_AT_ONCE: usize = 100;
/// Keys of each cluster that are there before any is duplicated; as many are in both, with other values.
const BEFORE: usize = 300;

/// How often two clusters that differ are looked at, and the time between: longer than a command is under way.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

/// What the other cluster is called by either.
const NAME: &str = "other";

/// All keys of a cluster, with their values.
pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Two clusters.
pub(crate) struct Pair {
    pub(crate) clusters: [Nodes; 2],
}

/// How far a cluster has sent its rows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    partitions: i64,
    following: i64,
    pub(crate) copying: i64,
    lag: i64,
}

impl Sent {
    fn is_all(&self) -> bool {
        self.partitions > 0 && self.following == self.partitions && self.lag == 0
    }
}

impl Pair {
    /// Starts both, with keys in each, and has each duplicate to the other.
    pub(crate) fn start(plan: &Plan, dir: &Path, rng: &mut Rng) -> anyhow::Result<Self> {
        let mut start = |name: &str| {
            let dir = dir.join(name);
            RealDevice::new().create_dir_all(&dir)?;
            Nodes::start(plan, &dir, rng).with_context(|| format!("the {name} cluster"))
        };
        let mut pair = Self {
            clusters: [start("first")?, start("second")?],
        };
        for (cluster, nodes) in pair.clusters.iter().enumerate() {
            for (key, value) in before(cluster) {
                set(&nodes.ports(), &key, &value)?;
            }
        }
        for cluster in 0..2 {
            let others = pair.clusters[1 - cluster].ports();
            let others = others.named.iter().map(|port| format!("127.0.0.1:{port}"));
            let others: Vec<String> = others.collect();
            let mut words = vec!["ADD", NAME];
            words.extend(others.iter().map(String::as_str));
            pair.change(cluster, &words, "")?;
        }
        pair.wait_until_drained()?;
        Ok(pair)
    }

    /// Has a cluster change what it duplicates, through any node that says it is done, or `already` in its refusal.
    pub(crate) fn change(&mut self, cluster: usize, words: &[&str], already: &str) -> anyhow::Result<()> {
        let nodes = &mut self.clusters[cluster];
        let words = [&["COLLIE.DUPLICATE"], words].concat();
        let mut said = String::new();
        let done = wait(CHANGED, || {
            nodes.look_for_ends()?;
            for node in 0..nodes.len() {
                match nodes.ask(node, &words) {
                    Ok(Reply::Text(_)) => return Ok(true),
                    Ok(Reply::Error(text)) if !already.is_empty() && text.contains(already) => {
                        return Ok(true);
                    }
                    other => said = format!("{other:?}"),
                }
            }
            Ok(false)
        })?;
        ensure!(
            done,
            "no node of cluster {cluster} does {words:?} within {CHANGED:?}: {said}"
        );
        Ok(())
    }

    /// Has a cluster send nothing for now, or go on.
    pub(crate) fn pause(&mut self, cluster: usize, pauses: bool) -> anyhow::Result<()> {
        match pauses {
            true => self.change(cluster, &["PAUSE", NAME], "is paused already"),
            false => self.change(cluster, &["RESUME", NAME], "is not paused"),
        }
    }

    /// What becomes of what goes from one cluster to the other.
    pub(crate) fn set_way(&self, from: usize, flow: Flow) {
        let nodes = &self.clusters[1 - from];
        let mut flows = Flows::new(nodes.len());
        (0..nodes.len()).for_each(|node| flows.set(node, node, flow));
        if let Some(doors) = &nodes.doors {
            doors.set(flows);
        }
    }

    /// How far a cluster is, by all of its nodes; none where one does not answer.
    pub(crate) fn sent(&self, cluster: usize) -> Option<Sent> {
        let nodes = &self.clusters[cluster];
        let mut sent = Sent::default();
        for node in 0..nodes.len() {
            let Ok(Reply::Array(targets)) = nodes.ask(node, &["COLLIE.DUPLICATE", "LIST"]) else {
                return None;
            };
            for target in &targets {
                sent.partitions = sent.partitions.max(number(target, "partitions")?);
                sent.following += number(target, "following")?;
                sent.copying += number(target, "copying")?;
                sent.lag += number(target, "lag_entries")?;
            }
        }
        Some(sent)
    }

    /// Waits until each says that the other one has all.
    pub(crate) fn wait_until_drained(&mut self) -> anyhow::Result<()> {
        let mut last = [None, None];
        let drained = wait(DRAINED, || {
            self.clusters.iter_mut().try_for_each(Nodes::look_for_ends)?;
            // What has come from the other one is entries, too.
            for _ in 0..2 {
                last = [0, 1].map(|cluster| self.sent(cluster));
                if !last.iter().flatten().all(Sent::is_all) || last.contains(&None) {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        ensure!(
            drained,
            "after {DRAINED:?} a cluster lacks something of the other one: {last:?}"
        );
        Ok(())
    }

    /// All keys of both, once they say that both have the same; and what they have not.
    pub(crate) fn compared(&mut self) -> anyhow::Result<(Content, Vec<String>)> {
        self.wait_until_drained()?;
        let mut both = self.contents()?;
        for _ in 1..LOOKS {
            if both[0] == both[1] {
                break;
            }
            // A command whose client has given up may have been executed meanwhile, or a leader have moved to a node
            // that was read already.
            std::thread::sleep(BETWEEN_LOOKS);
            self.wait_until_drained()?;
            both = self.contents()?;
        }
        let [first, second] = &both;
        let keys = first
            .keys()
            .chain(second.keys().filter(|key| !first.contains_key(*key)));
        let mut wrong = Vec::new();
        for key in keys {
            let (one, other) = (first.get(key), second.get(key));
            if one != other {
                wrong.push(format!(
                    "{} is {} in the first cluster and {} in the second, after all was sent",
                    String::from_utf8_lossy(key),
                    shown(one),
                    shown(other)
                ));
            }
        }
        for cluster in 0..2 {
            for (key, value) in before(cluster) {
                let found = first.get(&key);
                let key = String::from_utf8_lossy(&key).into_owned();
                // Of those that both had the clusters' ids decide.
                if !key.starts_with("both") && found != Some(&value) {
                    wrong.push(format!("{key} is {}, and was never changed", shown(found)));
                }
            }
        }
        let [first, _] = both;
        Ok((first, wrong))
    }

    fn contents(&mut self) -> anyhow::Result<[Content; 2]> {
        let mut both = [Content::new(), Content::new()];
        for (nodes, content) in self.clusters.iter_mut().zip(&mut both) {
            let (mut found, mut said) = (None, String::new());
            wait(DRAINED, || {
                nodes.look_for_ends()?;
                match content_of(&nodes.ports()) {
                    Ok(all) => found = Some(all),
                    Err(error) => said = format!("{error:#}"),
                }
                Ok(found.is_some())
            })?;
            let unread = || format!("a cluster cannot be read for {DRAINED:?}: {said}");
            *content = found.with_context(unread)?;
        }
        Ok(both)
    }
}

fn shown(value: Option<&Vec<u8>>) -> String {
    match value {
        None => "absent".to_owned(),
        Some(value) if value.len() > 64 => format!("{} bytes", value.len()),
        Some(value) => format!("{:?}", String::from_utf8_lossy(value)),
    }
}

/// What a cluster has before anything is duplicated.
fn before(cluster: usize) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let value = format!("of cluster {cluster}").into_bytes();
    let names = [format!("before:{cluster}"), "both".to_owned()];
    let keys = names
        .into_iter()
        .flat_map(|name| (0..BEFORE).map(move |number| format!("{name}:{number}").into_bytes()));
    keys.map(move |key| (key, value.clone()))
}

/// Sets a key, whichever node has it.
fn set(ports: &Ports, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
    let mut client = ClusterClient::new(ports, 1, 0);
    let command = vec![vec![b"SET".to_vec(), key.to_vec(), value.to_vec()]];
    let mut last = None;
    let done = wait(CHANGED, || {
        // Where it is elsewhere, that is known now.
        for _ in 0..2 {
            last = Some(client.attempt(0, &command));
            if matches!(last, Some(Attempt::Executed(_))) {
                return Ok(true);
            }
        }
        Ok(false)
    })?;
    ensure!(done, "a key cannot be set for {CHANGED:?}: {last:?}");
    Ok(())
}

/// All keys that the nodes of a cluster lead, with their values.
fn content_of(ports: &Ports) -> anyhow::Result<Content> {
    let mut content = Content::new();
    for port in &ports.own {
        let mut client = client::connect_for(*port, READ)?;
        let (mut cursor, mut keys) = (b"0".to_vec(), Vec::new());
        loop {
            let reply = client.call(&[b"SCAN", &cursor, b"COUNT", b"500"])?.good()?;
            let Reply::Array(parts) = reply else {
                bail!("a SCAN was answered by {reply:?}")
            };
            let [Reply::Bulk(next), Reply::Array(found)] = parts.as_slice() else {
                bail!("a SCAN was answered by {parts:?}");
            };
            for key in found {
                let Reply::Bulk(key) = key else {
                    bail!("a key is {key:?}")
                };
                keys.push(key.clone());
            }
            cursor = next.clone();
            if cursor == b"0" {
                break;
            }
        }
        for keys in keys.chunks(READ_AT_ONCE) {
            keys.iter().for_each(|key| client.push(&[b"GET", key]));
            client.send()?;
            for key in keys {
                match client.reply()?.good()? {
                    Reply::Bulk(value) => drop(content.insert(key.clone(), value)),
                    // It has just expired.
                    Reply::Nothing => {}
                    other => bail!("a GET was answered by {other:?}"),
                }
            }
        }
    }
    Ok(content)
}

/// A number of the answer to `COLLIE.DUPLICATE LIST`.
fn number(target: &Reply, name: &str) -> Option<i64> {
    let Reply::Array(fields) = target else { return None };
    let mut pairs = fields.chunks_exact(2);
    pairs.find_map(|pair| match pair {
        [Reply::Bulk(found), Reply::Number(value)] if found == name.as_bytes() => Some(*value),
        _ => None,
    })
}
