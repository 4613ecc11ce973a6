//! The mark of a disk: a small file that says whose it is, for programs and for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_server::cluster::{id_of, id_text};

use crate::identity::error::IdentityError;
use crate::identity::store::NodeIdentity;
use crate::transport::wire::{ClusterId, NodeId};

/// The name of the file, in the disk's directory.
pub const MARK: &str = "collie-disk";
/// What it is called until all of it is durable.
const PART: &str = "collie-disk.part";
/// In the node's directory: what is in the places of disks that the node is started without.
const ABSENT: &str = "absent-disks";
/// No mark is longer.
const BYTES_MAX: u64 = 1024;

/// Whose disk it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The cluster.
    pub(super) cluster: ClusterId,
    /// The node.
    pub(super) node: NodeId,
    /// Which of the node's disks, counted from 0.
    pub(super) disk: u32,
    /// The disk's identity.
    pub(super) id: [u8; 16],
}

impl Mark {
    fn text(&self) -> String {
        let Self {
            cluster,
            node,
            disk,
            id,
        } = self;
        let (cluster, id) = (id_text(cluster), id_text(id));
        format!("collie disk 1\ncluster {cluster}\nnode {node}\ndisk {disk}\nid {id}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        (field("collie disk")? == "1").then_some(())?;
        let mark = Self {
            cluster: id_of(field("cluster")?.as_bytes())?,
            node: field("node")?.parse().ok()?,
            disk: field("disk")?.parse().ok()?,
            id: id_of(field("id")?.as_bytes())?,
        };
        // Whatever reads differently is none: signs, zeros in front, more lines.
        (mark.text() == text).then_some(mark)
    }

    fn describe(&self) -> String {
        format!(
            "disk {} of node {} of cluster {} ({})",
            self.disk,
            self.node,
            id_text(&self.cluster),
            id_text(&self.id)
        )
    }
}

fn io(op: &'static str, path: &Path, error: std::io::Error) -> IdentityError {
    IdentityError::Io {
        op,
        path: path.to_owned(),
        error: Arc::new(error),
    }
}

fn marks_of(identity: &NodeIdentity) -> impl Iterator<Item = Mark> {
    let (cluster, node) = (identity.cluster, identity.node);
    (0..).zip(&identity.asked.disks).map(move |(disk, id)| Mark {
        cluster,
        node,
        disk,
        id: *id,
    })
}

/// Marks the disks of a node that has just got its number. Disks that have the mark keep it; all are
/// durable when this returns. Blocks.
///
/// # Errors
/// [`IdentityError::Foreign`] where a disk has another mark, and the file system's.
pub(crate) fn mark_disks(
    device: &dyn Device,
    disks: &[PathBuf],
    identity: &NodeIdentity,
) -> Result<(), IdentityError> {
    for (dir, mark) in disks.iter().zip(marks_of(identity)) {
        match read(device, dir)? {
            Some(found) if found == mark => {}
            Some(found) => return Err(foreign(dir, "an unmarked disk".to_owned(), &found, NEW)),
            None => write(device, dir, &mark)?,
        }
    }
    Ok(())
}

const NEW: &str = "give a node that joins an empty directory on each disk";
const FIRST: &str = "it has the node's replica of the map, so name it; or stop the node, copy what is there to another disk, and name \
                     that in its place";
const NEEDED: &str = "it may have replicas, so name it; to go without it, have it drained first (`collie cluster drain NODE --disk \
                      N`), until `collie cluster status` says that it is empty";
const OWN: &str = "mount each disk at its place; if the directory was copied from another node, take it away";

/// Whether the disks are free: none has a mark, but for the one that it got when a join was
/// interrupted, with the identity that was drawn for it. Blocks.
///
/// # Errors
/// [`IdentityError::Foreign`], [`IdentityError::Mark`], and the file system's.
pub(crate) fn check_free(
    device: &dyn Device,
    disks: &[PathBuf],
    ids: &[[u8; 16]],
) -> Result<(), IdentityError> {
    for (dir, id) in disks.iter().zip(ids) {
        if let Some(found) = read(device, dir)?.filter(|found| found.id != *id) {
            return Err(foreign(dir, "an unmarked disk".to_owned(), &found, NEW));
        }
    }
    Ok(())
}

/// The disks of a node, each at its place, and those that it is started without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeDisks {
    pub(crate) dirs: Vec<PathBuf>,
    /// In their places is a directory of the node's own, that has the mark alone.
    pub(crate) absent: BTreeSet<u32>,
}

/// Whether the disks are those of a node, each at its place. Of those that are `emptied` some may be missing, and the
/// others are known by their marks then; or new ones be in their places, which are marked. Blocks.
///
/// # Errors
/// [`IdentityError::Disks`], [`IdentityError::Absent`], [`IdentityError::Unmarked`], [`IdentityError::Foreign`],
/// [`IdentityError::Mark`], and the file system's.
pub(crate) fn check_disks(
    device: &dyn Device,
    (node_dir, disks): (&Path, &[PathBuf]),
    identity: &NodeIdentity,
    emptied: &BTreeSet<u32>,
) -> Result<NodeDisks, IdentityError> {
    let node = identity.node;
    let (expected, found) = (identity.asked.disks.len(), disks.len());
    if found > expected {
        return Err(IdentityError::Disks {
            node,
            expected,
            found,
        });
    }
    if found < expected {
        return without_some(device, (node_dir, disks), identity, emptied);
    }
    for ((disk, dir), mark) in disks.iter().enumerate().zip(marks_of(identity)) {
        match read(device, dir)? {
            Some(found) if found == mark => {}
            Some(found) => return Err(foreign(dir, mark.describe(), &found, OWN)),
            None if emptied.contains(&mark.disk) => write(device, dir, &mark)?,
            None => {
                return Err(IdentityError::Unmarked {
                    disk,
                    node,
                    dir: dir.clone(),
                });
            }
        }
    }
    Ok(NodeDisks {
        dirs: disks.to_vec(),
        absent: BTreeSet::new(),
    })
}

/// The same where fewer disks are named than the node has.
fn without_some(
    device: &dyn Device,
    (node_dir, disks): (&Path, &[PathBuf]),
    identity: &NodeIdentity,
    emptied: &BTreeSet<u32>,
) -> Result<NodeDisks, IdentityError> {
    let node = identity.node;
    let mut named = BTreeMap::new();
    for (disk, dir) in disks.iter().enumerate() {
        let Some(mark) = read(device, dir)? else {
            let dir = dir.clone();
            return Err(IdentityError::Unmarked { disk, node, dir });
        };
        let is_own = marks_of(identity).any(|own| own == mark);
        if !is_own || named.insert(mark.disk, dir.clone()).is_some() {
            let expected = format!("another disk of node {node}");
            return Err(foreign(dir, expected, &mark, OWN));
        }
    }
    let mut absent = BTreeSet::new();
    for mark in marks_of(identity) {
        let disk = mark.disk;
        if named.contains_key(&disk) {
            continue;
        }
        if !emptied.contains(&disk) {
            let advice = if disk == 0 { FIRST } else { NEEDED };
            return Err(IdentityError::Absent { node, disk, advice });
        }
        // Numbers of disks stay what they are.
        let dir = node_dir.join(ABSENT).join(disk.to_string());
        if read(device, &dir)?.is_none() {
            write(device, &dir, &mark)?;
        }
        named.insert(disk, dir);
        absent.insert(disk);
    }
    Ok(NodeDisks {
        dirs: named.into_values().collect(),
        absent,
    })
}

fn foreign(dir: &Path, expected: String, found: &Mark, advice: &'static str) -> IdentityError {
    IdentityError::Foreign {
        dir: dir.to_owned(),
        expected,
        found: found.describe(),
        advice,
    }
}

/// The mark of a disk, if it has one.
fn read(device: &dyn Device, dir: &Path) -> Result<Option<Mark>, IdentityError> {
    let path = dir.join(MARK);
    let file = match device.open(&path, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io("open", &path, error)),
    };
    let len = file.stat().map_err(|error| io("read", &path, error))?.len;
    let mut bytes = vec![0; len.min(BYTES_MAX) as usize];
    read_exact_at(&*file, &mut bytes, 0).map_err(|error| io("read", &path, error))?;
    match std::str::from_utf8(&bytes).ok().and_then(Mark::parse) {
        Some(mark) => Ok(Some(mark)),
        None => Err(IdentityError::Mark {
            problem: format!(
                "expected the mark of a disk, found {len} bytes: {:?}",
                String::from_utf8_lossy(&bytes)
            ),
            path,
        }),
    }
}

fn write(device: &dyn Device, dir: &Path, mark: &Mark) -> Result<(), IdentityError> {
    let (part, path) = (dir.join(PART), dir.join(MARK));
    device
        .create_dir_all(dir)
        .map_err(|error| io("create", dir, error))?;
    match device.remove_file(&part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io("remove", &part, error)),
        _ => {}
    }
    let written = device.open(&part, OpenMode::CreateNew).and_then(|file| {
        write_all_at(&*file, mark.text().as_bytes(), 0)?;
        file.sync_all()
    });
    written.map_err(|error| io("write", &part, error))?;
    let renamed = device.rename(&part, &path).and_then(|()| device.sync_dir(dir));
    renamed.map_err(|error| io("rename", &part, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::fixture;

    #[test]
    fn a_mark_of_version_1_says_what_was_written() {
        let mark = Mark {
            cluster: *b"cluster of tests",
            node: 300,
            disk: 2,
            id: *b"the third disk..",
        };
        let bytes = fixture("identity-v1/mark.txt", mark.text().as_bytes());
        assert_eq!(Mark::parse(std::str::from_utf8(&bytes).unwrap()), Some(mark));
    }

    #[test]
    fn a_mark_reads_as_it_was_written_and_in_no_other_way() {
        let mark = Mark {
            cluster: *b"cluster of tests",
            node: 7,
            disk: 1,
            id: [0xab; 16],
        };
        let text = mark.text();
        assert_eq!(Mark::parse(&text), Some(mark));
        for wrong in [
            text.replace("disk 1\nc", "disk 2\nc"),
            text.replace("node 7", "node 07"),
            text.replace("abab", "ABAB"),
            format!("{text}\n"),
            text[..text.len() - 1].to_owned(),
            String::new(),
        ] {
            assert_eq!(Mark::parse(&wrong), None, "{wrong}");
        }
    }
}
