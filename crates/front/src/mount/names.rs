//! The files and directories that the kernel has references to, by number, and where they are.
//!
//! A node is what was returned to the kernel by a lookup or a creation, until the kernel forgets it as
//! often. Its number is the inode number of the file below. The file system below gives the number of
//! a removed file to a new one while the kernel may still refer to the old: the new one then has another
//! *generation*.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use collie_io::Stat;

/// A file's number towards the kernel.
pub(super) type NodeId = u64;

/// The root's number, by the protocol.
pub(super) const ROOT: NodeId = 1;

/// From here on: files of other devices that are mounted somewhere below the root.
const FOREIGN: NodeId = 1 << 62;
/// From here on: what this file system makes up.
pub(super) const OWN: NodeId = 1 << 63;

/// All nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    /// The root's device and number.
    root: (u64, u64),
    nodes: HashMap<NodeId, Node>,
    foreign: HashMap<(u64, u64), NodeId>,
    generations: u64,
    /// Files that were created and whose names no sync has made durable.
    unsynced: HashSet<NodeId>,
}

#[derive(Debug)]
struct Node {
    generation: u64,
    /// How often it was returned to the kernel.
    lookups: u64,
    life: Life,
}

#[derive(Debug)]
enum Life {
    /// It has these names, each in a directory. Those that the kernel asked for: there may be more.
    Named(Vec<(NodeId, OsString)>),
    /// Its last name was removed. What has its number next is another file.
    Removed,
}

impl Nodes {
    pub(super) fn new(root: &Stat) -> Nodes {
        Nodes {
            root: (root.dev, root.ino),
            nodes: HashMap::new(),
            foreign: HashMap::new(),
            generations: 0,
            unsynced: HashSet::new(),
        }
    }

    /// The number of a file.
    pub(super) fn id(&mut self, stat: &Stat) -> NodeId {
        let number = (stat.dev, stat.ino);
        if number == self.root {
            return ROOT;
        }
        if stat.dev == self.root.0 && (ROOT + 1..FOREIGN).contains(&stat.ino) {
            return stat.ino;
        }
        let next = FOREIGN + self.foreign.len() as u64;
        *self.foreign.entry(number).or_insert(next)
    }

    /// Counts a lookup of a file by this name. Returns its number and generation.
    pub(super) fn looked_up(&mut self, parent: NodeId, name: &OsStr, stat: &Stat) -> (NodeId, u64) {
        let id = self.id(stat);
        let node = self.nodes.entry(id).or_insert_with(|| Node {
            generation: self.generations,
            lookups: 0,
            life: Life::Named(Vec::new()),
        });
        if matches!(node.life, Life::Removed) {
            self.generations += 1;
            *node = Node {
                generation: self.generations,
                lookups: node.lookups,
                life: Life::Named(Vec::new()),
            };
        }
        node.lookups += 1;
        let generation = node.generation;
        self.add_name(id, parent, name);
        (id, generation)
    }

    /// As [`Nodes::looked_up`], of a file that was just made: what had its number before is gone, though
    /// the thread that removed it may not have said so yet.
    pub(super) fn created(&mut self, parent: NodeId, name: &OsStr, stat: &Stat) -> (NodeId, u64) {
        let id = self.id(stat);
        self.generations += 1;
        let before = self.nodes.get(&id);
        let new = Node {
            generation: self.generations,
            // Those of both: the kernel forgets a number.
            lookups: before.map_or(0, |before| before.lookups),
            life: Life::Named(Vec::new()),
        };
        self.nodes.insert(id, new);
        self.unsynced.insert(id);
        self.looked_up(parent, name, stat)
    }

    /// Which of the files that have had this number it is.
    pub(super) fn generation(&self, id: NodeId) -> Option<u64> {
        self.nodes.get(&id).map(|node| node.generation)
    }

    fn add_name(&mut self, id: NodeId, parent: NodeId, name: &OsStr) {
        if let Some(Life::Named(names)) = self.nodes.get_mut(&id).map(|node| &mut node.life) {
            let is_known = names.iter().any(|(dir, known)| *dir == parent && known == name);
            if !is_known {
                names.push((parent, name.to_owned()));
            }
        }
    }

    /// The kernel forgets a node: as often as it was returned, in all.
    pub(super) fn forget(&mut self, id: NodeId, lookups: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                self.nodes.remove(&id);
            }
        }
    }

    /// Where a node is, from the root. `None` if it has no name any more.
    pub(super) fn path(&self, id: NodeId) -> Option<PathBuf> {
        // Deeper than any path may be long; a loop would be a fault of the file system below.
        const DEEPEST: usize = 4096;
        let mut parts = Vec::new();
        let mut at = id;
        while at != ROOT {
            let Life::Named(names) = &self.nodes.get(&at)?.life else {
                return None;
            };
            // Of several names one may be in a directory that the kernel has forgotten.
            let is_reachable = |dir: NodeId| dir == ROOT || self.nodes.contains_key(&dir);
            let (parent, name) = names.iter().find(|(dir, _)| is_reachable(*dir))?;
            parts.push(name);
            at = *parent;
            if parts.len() > DEEPEST {
                return None;
            }
        }
        Some(parts.into_iter().rev().collect())
    }

    pub(super) fn is_name_new(&self, id: NodeId) -> bool {
        self.unsynced.contains(&id)
    }

    pub(super) fn name_synced(&mut self, id: NodeId) {
        self.unsynced.remove(&id);
    }

    /// A name was removed; with `is_last` the file has no other. `generation` is the file's, from
    /// before the removal: a new file may have its number by now.
    pub(super) fn removed(
        &mut self,
        (id, generation): (NodeId, Option<u64>),
        parent: NodeId,
        name: &OsStr,
        is_last: bool,
    ) {
        if self.generation(id) != generation {
            return;
        }
        if is_last {
            self.unsynced.remove(&id);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            match &mut node.life {
                Life::Named(names) if !is_last => {
                    names.retain(|(dir, known)| *dir != parent || known != name);
                }
                life => *life = Life::Removed,
            }
        }
    }

    /// A file has another name in place of this one.
    pub(super) fn renamed(&mut self, id: NodeId, from: (NodeId, &OsStr), to: (NodeId, &OsStr)) {
        if let Some(Life::Named(names)) = self.nodes.get_mut(&id).map(|node| &mut node.life) {
            names.retain(|(dir, known)| (*dir, known.as_os_str()) != from);
        }
        self.add_name(id, to.0, to.1);
    }
}

/// Whether a file at this path, from the root of a PostgreSQL cluster, is a relation's: pages that
/// are written whole. Anything else is written in place.
pub(super) fn is_page_file(path: &std::path::Path) -> bool {
    let mut parts = path.components().map(|part| part.as_os_str().as_encoded_bytes());
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let parts = [
        parts.next(),
        parts.next(),
        parts.next(),
        parts.next(),
        parts.next(),
    ];
    let name = match parts {
        [Some(b"global"), Some(name), None, ..] => name,
        [Some(b"base"), Some(database), Some(name), None, _] if is_number(database) => name,
        // A tablespace inside of the directory, at some depth: …/PG_15_202209061/5/16384.
        _ => match in_tablespace(path) {
            Some(name) => name,
            None => return false,
        },
    };
    is_relation(name)
}

/// The name of a file in a database of a tablespace's directory.
fn in_tablespace(path: &std::path::Path) -> Option<&[u8]> {
    let mut parts = path
        .components()
        .rev()
        .map(|part| part.as_os_str().as_encoded_bytes());
    let (name, database, version) = (parts.next()?, parts.next()?, parts.next()?);
    let is_database = !database.is_empty() && database.iter().all(u8::is_ascii_digit);
    (is_database && version.starts_with(b"PG_")).then_some(name)
}

/// `16384`, `16384_fsm`, `16384_vm`, `16384_init`, each with a segment's number or without.
fn is_relation(name: &[u8]) -> bool {
    let digits = name.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, rest) = name.split_at(digits);
    let forks: [&[u8]; 3] = [b"_fsm", b"_vm", b"_init"];
    let rest = forks
        .iter()
        .find_map(|fork| rest.strip_prefix(*fork))
        .unwrap_or(rest);
    let is_segment = |rest: &[u8]| match rest.split_first() {
        None => true,
        Some((b'.', segment)) => !segment.is_empty() && segment.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    };
    !number.is_empty() && is_segment(rest)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use collie_io::FileKind;

    use super::*;

    fn stat(dev: u64, ino: u64) -> Stat {
        Stat {
            dev,
            ino,
            kind: FileKind::File,
            len: 0,
            blocks: 0,
            mode: 0o600,
            uid: 0,
            gid: 0,
            links: 1,
            atime: 0,
            mtime: 0,
            ctime: 0,
        }
    }

    #[test]
    fn relations_are_page_files_and_nothing_else_is() {
        let page_files = [
            "global/1262",
            "global/1262_vm",
            "base/1/16384",
            "base/5/16384.1",
            "base/5/16384_fsm.12",
            "base/5/16384_init",
            "space/PG_15_202209061/5/16384",
        ];
        let others = [
            "global/pg_control",
            "global/pg_filenode.map",
            "base/1/PG_VERSION",
            "base/1/t3_16384",
            "base/1/16384.",
            "base/1/16384_fsmx",
            "base/x/16384",
            "base/16384",
            "base/1/2/16384",
            "base/pgsql_tmp/16384",
            "pg_wal/000000010000000000000001",
            "pg_xact/0000",
            "16384",
            "PG_15_202209061/16384",
        ];
        for path in page_files {
            assert!(is_page_file(Path::new(path)), "{path}");
        }
        for path in others {
            assert!(!is_page_file(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_number_that_is_used_again_has_another_generation() {
        let mut nodes = Nodes::new(&stat(1, 100));
        let name = OsStr::new("a");
        let (id, first) = nodes.looked_up(ROOT, name, &stat(1, 7));
        let node = (id, nodes.generation(id));
        nodes.removed(node, ROOT, name, true);
        assert_eq!(nodes.path(id), None);
        let (again, second) = nodes.looked_up(ROOT, OsStr::new("b"), &stat(1, 7));
        assert_eq!(again, id);
        assert_ne!(first, second);
        // The kernel forgets the old file, and not the new one.
        nodes.forget(id, 1);
        assert_eq!(nodes.path(id), Some(PathBuf::from("b")));
        nodes.forget(id, 1);
        assert_eq!(nodes.path(id), None);
    }

    #[test]
    fn a_path_follows_renamed_directories_and_remaining_names() {
        let mut nodes = Nodes::new(&stat(1, 100));
        let (dir, _) = nodes.looked_up(ROOT, OsStr::new("d"), &stat(1, 8));
        let (file, _) = nodes.looked_up(dir, OsStr::new("f"), &stat(1, 9));
        nodes.looked_up(ROOT, OsStr::new("g"), &stat(1, 9));
        nodes.renamed(dir, (ROOT, OsStr::new("d")), (ROOT, OsStr::new("e")));
        assert_eq!(nodes.path(file), Some(PathBuf::from("e/f")));
        nodes.forget(dir, 1);
        assert_eq!(nodes.path(file), Some(PathBuf::from("g")));
        let node = (file, nodes.generation(file));
        nodes.removed(node, dir, OsStr::new("f"), false);
        assert_eq!(nodes.path(file), Some(PathBuf::from("g")));
    }

    #[test]
    fn files_of_other_devices_have_numbers_of_their_own() {
        let mut nodes = Nodes::new(&stat(1, 100));
        assert_eq!(nodes.id(&stat(1, 100)), ROOT);
        assert_eq!(nodes.id(&stat(1, 7)), 7);
        let foreign = nodes.id(&stat(2, 7));
        assert!((FOREIGN..OWN).contains(&foreign));
        assert_eq!(nodes.id(&stat(2, 7)), foreign);
        assert_ne!(nodes.id(&stat(3, 7)), foreign);
        assert_ne!(
            nodes.id(&stat(1, 1)),
            ROOT,
            "the number 1 is the root's towards the kernel"
        );
    }

    /// The file system below gives a number away as soon as it is free; the thread that removed the
    /// old file says so later.
    #[test]
    fn a_new_file_outlives_the_one_whose_number_it_has() {
        let mut nodes = Nodes::new(&stat(1, 2));
        let (old, new) = (OsStr::new("old"), OsStr::new("new"));
        let (id, first) = nodes.looked_up(ROOT, old, &stat(1, 7));
        let gone = (id, nodes.generation(id));
        let (same, second) = nodes.created(ROOT, new, &stat(1, 7));
        assert_eq!(same, id);
        assert_ne!(second, first);
        nodes.removed(gone, ROOT, old, true);
        assert_eq!(nodes.path(id), Some(PathBuf::from("new")));
        assert!(nodes.is_name_new(id), "a sync makes it durable");
        // It was returned to the kernel twice.
        nodes.forget(id, 1);
        assert_eq!(nodes.path(id), Some(PathBuf::from("new")));
        nodes.forget(id, 1);
        assert_eq!(nodes.path(id), None);
    }
}
