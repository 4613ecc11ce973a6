//! How the clusters change that this one duplicates its rows to.

use collie_server::cluster::id_text;

use crate::map::records::LEVEL_OF_DUPLICATION;
use crate::map::targets::{Duplications, TargetRecord, origin_of};
use crate::map::whole::{Changes, Map};
use crate::transport::wire::{ADDRESSES_MAX, ClusterId, Target};

/// A cluster has at most so many targets.
const TARGETS_MAX: usize = 8;
/// An address has at most so many bytes.
const ADDRESS_MAX: usize = 255;
/// A name has at most so many bytes.
const NAME_MAX: usize = 64;
/// The rows go to a cluster, too. Asked for again, it changes nothing but the addresses.
///
/// # Errors
/// Why they cannot.
pub fn duplicate(map: &Map, target: &Target) -> Result<Option<Changes>, String> {
    has_level(map)?;
    check(target)?;
    is_another(map, &target.cluster)?;
    let mut new = map.duplications.clone();
    new.stamps = true;
    let Target {
        name,
        cluster,
        addresses,
    } = target;
    let same = |one: &&TargetRecord| one.name == *name || one.cluster == *cluster;
    let is_other = |one: &&TargetRecord| one.name != *name || one.cluster != *cluster;
    if let Some(other) = new.targets.iter().filter(same).find(is_other) {
        let to_do = match other.cluster == *cluster {
            true => "a target has one name",
            false => "end that before, or take another name",
        };
        return Err(format!(
            "the cluster is duplicated to {} as {} already: {to_do}",
            id_text(&other.cluster),
            other.name
        ));
    }
    if let Some(there) = new.targets.iter_mut().find(|one| one.name == *name) {
        there.addresses.clone_from(addresses);
        return Ok(with(map, new));
    }
    if new.targets.len() >= TARGETS_MAX {
        return Err(format!(
            "the cluster is duplicated to {TARGETS_MAX} others, and can be to no more"
        ));
    }
    new.last += 1;
    new.targets.push(TargetRecord {
        number: new.last,
        name: name.clone(),
        cluster: *cluster,
        addresses: addresses.clone(),
    });
    Ok(with(map, new))
}

/// The rows go to a cluster no more.
///
/// # Errors
/// There is none of that name.
pub fn end_duplication(map: &Map, name: &str) -> Result<Option<Changes>, String> {
    let number = number_of(map, name)?;
    let mut new = map.duplications.clone();
    new.targets.retain(|target| target.number != number);
    new.paused.remove(&number);
    Ok(with(map, new))
}

/// A target gets nothing for now.
///
/// # Errors
/// There is none of that name, or it is so already.
pub fn pause_duplication(map: &Map, name: &str) -> Result<Option<Changes>, String> {
    let number = number_of(map, name)?;
    let mut new = map.duplications.clone();
    match new.paused.insert(number) {
        true => Ok(with(map, new)),
        false => Err(format!(
            "the duplication to {name} is paused already: `collie cluster duplicate resume {name}` ends that"
        )),
    }
}

/// A target gets again what it lacks.
///
/// # Errors
/// There is none of that name, or it is not paused.
pub fn resume_duplication(map: &Map, name: &str) -> Result<Option<Changes>, String> {
    let number = number_of(map, name)?;
    let mut new = map.duplications.clone();
    match new.paused.remove(&number) {
        true => Ok(with(map, new)),
        false => Err(format!("the duplication to {name} is not paused")),
    }
}

fn number_of(map: &Map, name: &str) -> Result<u64, String> {
    let targets = &map.duplications.targets;
    if let Some(target) = targets.iter().find(|target| target.name == name) {
        return Ok(target.number);
    }
    let names: Vec<_> = targets.iter().map(|target| &*target.name).collect();
    Err(match names.is_empty() {
        true => "the cluster is duplicated to no other one".to_owned(),
        false => format!(
            "the cluster is not duplicated to {name}, but to {}",
            names.join(", ")
        ),
    })
}

/// This cluster gets rows of another one.
///
/// # Errors
/// Why it cannot.
pub fn receive(map: &Map, from: &ClusterId) -> Result<Option<Changes>, String> {
    has_level(map)?;
    is_another(map, from)?;
    let mut new = map.duplications.clone();
    new.stamps = true;
    Ok(with(map, new))
}

fn with(map: &Map, new: Duplications) -> Option<Changes> {
    (new != map.duplications).then(|| Changes {
        duplications: Some(new),
        ..Changes::of(map)
    })
}

fn has_level(map: &Map) -> Result<(), String> {
    match map.cluster.level < LEVEL_OF_DUPLICATION {
        true => Err(duplication_from(map.cluster.level)),
        false => Ok(()),
    }
}

/// Why nothing is duplicated at a feature level.
#[must_use]
pub fn duplication_from(level: u32) -> String {
    format!(
        "the cluster has feature level {level}, and duplication is from level {LEVEL_OF_DUPLICATION} on: run `collie cluster \
         finalize` once all nodes have this version"
    )
}

fn is_another(map: &Map, other: &ClusterId) -> Result<(), String> {
    let own = &map.cluster.id;
    if own == other {
        return Err(format!(
            "cluster {} would be duplicated to itself: name a node of another cluster",
            id_text(own)
        ));
    }
    // Stamps have a part of the ids.
    let mut others = map.duplications.targets.iter().map(|target| &target.cluster);
    let same = |one: &ClusterId| one != other && origin_of(one) == origin_of(other);
    match same(own) || others.any(same) {
        true => Err(format!(
            "the ids of cluster {} and of another one begin alike: make a new cluster instead",
            id_text(other)
        )),
        false => Ok(()),
    }
}

fn check(target: &Target) -> Result<(), String> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let name = target.name.as_bytes();
    if name.is_empty() || name.len() > NAME_MAX || !name.iter().copied().all(is_fit) {
        return Err(format!(
            "a name of a target has 1 to {NAME_MAX} letters, digits, - and _"
        ));
    }
    if !(1..=ADDRESSES_MAX).contains(&target.addresses.len()) {
        return Err(format!("a target has 1 to {ADDRESSES_MAX} addresses"));
    }
    let is_address = |address: &String| {
        let parts = address.rsplit_once(':');
        let port = parts.and_then(|(_, port)| port.parse::<u16>().ok());
        address.len() <= ADDRESS_MAX && port.is_some_and(|port| port > 0)
    };
    match target.addresses.iter().find(|address| !is_address(address)) {
        Some(address) => Err(format!("expected HOST:PORT, found {address:?}")),
        None => Ok(()),
    }
}
