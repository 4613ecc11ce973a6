//! What a disk holds, and what it would hold if the power went now.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::rng::Rng;

pub const ROOT: u64 = 1;
const PIECE: usize = 512;

/// How this file system treats names; chosen for a life.
#[derive(Clone, Debug)]
pub struct Manner {
    /// Names are journaled: what survives of the unsynced changes is a prefix of all of them. Otherwise each name is
    /// for itself.
    journaled: bool,
    /// With a journal: syncing a file commits the journal.
    file_sync_commits: bool,
    /// A rename from one directory to another is one change; otherwise two.
    atomic_moves: bool,
    /// Dirty pieces reach the device unasked, one of so many operations.
    writeback: u64,
}

impl Manner {
    pub fn random(rng: &mut Rng) -> Self {
        Self {
            journaled: rng.chance(40),
            file_sync_commits: rng.chance(50),
            atomic_moves: rng.chance(50),
            writeback: rng.pick(&[0, 3, 20]),
        }
    }
}

#[derive(Clone)]
pub enum Node {
    File(File),
    Dir(Dir),
}

#[derive(Clone, Default)]
pub struct File {
    durable: Vec<u8>,
    pub live: Vec<u8>,
    dirty: BTreeSet<usize>,
    /// Pieces whose sync failed: the kernel took them for clean, and no later sync writes them.
    lost: BTreeSet<usize>,
    len_changed: bool,
    len_lost: bool,
    /// The shortest that it was since the last sync.
    shortest: usize,
}

#[derive(Clone, Default)]
pub struct Dir {
    durable: BTreeMap<String, u64>,
    pub live: BTreeMap<String, u64>,
}

#[derive(Clone)]
pub struct Inode {
    pub node: Node,
    pub path: String,
    pub names: u32,
}

#[derive(Clone)]
struct Change {
    names: Vec<(u64, String, Option<u64>)>,
    /// A sync of its directory failed; only a sync that follows another change takes it along.
    lost: bool,
}

#[derive(Clone)]
pub struct Disk {
    pub inodes: BTreeMap<u64, Inode>,
    changes: Vec<Change>,
    next: u64,
    manner: Manner,
    rng: Rng,
}

impl File {
    fn mark(&mut self, from: usize, to: usize) {
        for piece in from / PIECE..to.div_ceil(PIECE) {
            self.dirty.insert(piece);
            self.lost.remove(&piece);
        }
    }

    pub fn write(&mut self, offset: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len();
        if self.live.len() < end {
            self.mark(self.live.len(), end);
            self.resize_live(end);
        }
        self.live[offset..end].copy_from_slice(data);
        self.mark(offset, end);
    }

    fn resize_live(&mut self, len: usize) {
        self.live.resize(len, 0);
        self.shortest = self.shortest.min(len);
        self.len_changed = true;
        self.len_lost = false;
    }

    pub fn set_len(&mut self, len: usize) {
        if len < self.live.len() && !len.is_multiple_of(PIECE) {
            self.mark(len, len + 1);
        }
        self.resize_live(len);
    }

    fn copy(&mut self, piece: usize) {
        let from = piece * PIECE;
        let to = (from + PIECE).min(self.live.len()).min(self.durable.len());
        if from < to {
            self.durable[from..to].copy_from_slice(&self.live[from..to]);
        }
    }

    fn take_len(&mut self) {
        self.durable.truncate(self.shortest);
        self.durable.resize(self.live.len(), 0);
        self.shortest = self.live.len();
    }

    fn sync(&mut self) {
        if self.len_changed || !self.dirty.is_empty() {
            self.take_len();
        }
        for piece in std::mem::take(&mut self.dirty) {
            self.copy(piece);
        }
        self.len_changed = false;
    }

    fn fail_sync(&mut self) {
        self.lost.append(&mut self.dirty);
        self.len_lost |= std::mem::take(&mut self.len_changed);
    }

    fn cut(&self, rng: &mut Rng, pieces: Pieces) -> Self {
        let mut file = self.clone();
        let open: Vec<usize> = self.dirty.union(&self.lost).copied().collect();
        let pieces = match pieces {
            Pieces::Mixed => rng.pick(&[Pieces::None, Pieces::All, Pieces::Small, Pieces::Large]),
            all => all,
        };
        if (self.len_changed || self.len_lost)
            && pieces != Pieces::None
            && (pieces == Pieces::All || rng.chance(50))
        {
            file.take_len();
        }
        let mut decided = BTreeMap::new();
        for piece in open {
            let keep = match pieces {
                Pieces::None => false,
                Pieces::Small => rng.chance(50),
                Pieces::Large => *decided.entry(piece / 8).or_insert_with(|| rng.chance(50)),
                Pieces::All | Pieces::Mixed => true,
            };
            if keep {
                file.copy(piece);
            }
        }
        let len = file.durable.len();
        Self {
            live: file.durable.clone(),
            durable: file.durable,
            shortest: len,
            ..Self::default()
        }
    }
}

/// What a cut leaves of data that was not synced.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Pieces {
    None,
    All,
    /// Of 512 bytes.
    Small,
    /// Of 4,096 bytes.
    Large,
    /// Each file as it comes.
    Mixed,
}

impl Disk {
    pub fn new(seed: u64) -> Self {
        let root = Inode {
            node: Node::Dir(Dir::default()),
            path: String::new(),
            names: 1,
        };
        let mut rng = Rng::new(seed);
        Self {
            inodes: BTreeMap::from([(ROOT, root)]),
            changes: Vec::new(),
            next: ROOT + 1,
            manner: Manner::random(&mut rng),
            rng,
        }
    }

    /// Renames across directories are one change, whatever the manner.
    pub fn with_atomic_moves(mut self) -> Self {
        self.manner.atomic_moves = true;
        self
    }

    pub fn file(&mut self, ino: u64) -> Option<&mut File> {
        match &mut self.inodes.get_mut(&ino)?.node {
            Node::File(file) => Some(file),
            Node::Dir(_) => None,
        }
    }

    pub fn dir(&mut self, ino: u64) -> Option<&mut Dir> {
        match &mut self.inodes.get_mut(&ino)?.node {
            Node::Dir(dir) => Some(dir),
            Node::File(_) => None,
        }
    }

    pub fn child(&mut self, dir: u64, name: &str) -> Option<u64> {
        self.dir(dir)?.live.get(name).copied()
    }

    pub fn path(&self, ino: u64) -> &str {
        self.inodes.get(&ino).map_or("", |inode| &inode.path)
    }

    /// Now and then something reaches the device unasked.
    pub fn breathe(&mut self) {
        if self.manner.writeback == 0 || self.rng.below(self.manner.writeback) != 0 {
            return;
        }
        let inos: Vec<u64> = self.inodes.keys().copied().collect();
        let ino = self.rng.pick(&inos);
        let mut rng = self.rng.clone();
        if let Some(file) = self.file(ino) {
            let pieces: Vec<usize> = file.dirty.iter().copied().collect();
            for piece in pieces {
                if rng.chance(50) {
                    file.copy(piece);
                }
            }
        }
        self.rng = rng;
    }

    fn change(&mut self, names: Vec<(u64, String, Option<u64>)>) {
        for (dir, name, ino) in &names {
            if let Some(dir) = self.dir(*dir) {
                match ino {
                    Some(ino) => dir.live.insert(name.clone(), *ino),
                    None => dir.live.remove(name),
                };
            }
        }
        self.changes.push(Change { names, lost: false });
    }

    pub fn create(&mut self, dir: u64, name: &str, node: Node) -> u64 {
        let ino = self.next;
        self.next += 1;
        let path = format!("{}/{name}", self.path(dir));
        self.inodes.insert(ino, Inode { node, path, names: 1 });
        self.change(vec![(dir, name.into(), Some(ino))]);
        ino
    }

    pub fn remove(&mut self, dir: u64, name: &str) {
        if let Some(ino) = self.child(dir, name)
            && let Some(inode) = self.inodes.get_mut(&ino)
        {
            inode.names = inode.names.saturating_sub(1);
        }
        self.change(vec![(dir, name.into(), None)]);
    }

    pub fn rename(&mut self, from: (u64, &str), to: (u64, &str)) {
        let Some(ino) = self.child(from.0, from.1) else {
            return;
        };
        if let Some(old) = self.child(to.0, to.1)
            && let Some(old) = self.inodes.get_mut(&old)
        {
            old.names = old.names.saturating_sub(1);
        }
        let path = format!("{}/{}", self.path(to.0), to.1);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.path = path;
        }
        let put = (to.0, to.1.to_owned(), Some(ino));
        let take = (from.0, from.1.to_owned(), None);
        if from.0 == to.0 || self.manner.atomic_moves {
            self.change(vec![put, take]);
        } else {
            self.change(vec![put]);
            self.change(vec![take]);
        }
    }

    fn settle(&mut self, chosen: &[bool]) {
        let changes = std::mem::take(&mut self.changes);
        for (change, chosen) in changes.into_iter().zip(chosen) {
            if !chosen {
                self.changes.push(change);
                continue;
            }
            for (dir, name, ino) in change.names {
                if let Some(dir) = self.dir(dir) {
                    match ino {
                        Some(ino) => dir.durable.insert(name, ino),
                        None => dir.durable.remove(&name),
                    };
                }
            }
        }
    }

    pub fn sync_dir(&mut self, dir: u64) {
        let touches = |change: &Change| change.names.iter().any(|(d, _, _)| *d == dir);
        if !self.changes.iter().any(|change| touches(change) && !change.lost) {
            return;
        }
        let mut chosen = vec![self.manner.journaled; self.changes.len()];
        if !self.manner.journaled {
            let mut needed = HashSet::new();
            for (change, chosen) in self.changes.iter().zip(&mut chosen).rev() {
                let keys = || change.names.iter().map(|(d, name, _)| (*d, name.clone()));
                if touches(change) || keys().any(|key| needed.contains(&key)) {
                    *chosen = true;
                    needed.extend(keys());
                }
            }
        }
        self.settle(&chosen);
    }

    pub fn fail_sync_dir(&mut self, dir: u64) {
        for change in &mut self.changes {
            change.lost |= change.names.iter().any(|(d, _, _)| *d == dir);
        }
    }

    pub fn sync_file(&mut self, ino: u64) {
        if let Some(file) = self.file(ino) {
            file.sync();
        }
        if self.manner.journaled && self.manner.file_sync_commits && self.changes.iter().all(|c| !c.lost) {
            self.settle(&vec![true; self.changes.len()]);
        }
    }

    pub fn fail_sync_file(&mut self, ino: u64) {
        if let Some(file) = self.file(ino) {
            file.fail_sync();
        }
    }

    /// The disk as the next start finds it.
    pub fn cut(&self, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut disk = self.clone();
        let mut chosen = vec![false; disk.changes.len()];
        if disk.manner.journaled {
            let kept = match rng.below(3) {
                0 => 0,
                1 => chosen.len(),
                _ => rng.below(chosen.len() as u64 + 1) as usize,
            };
            chosen[..kept].fill(true);
        } else {
            let percent = rng.pick(&[0, 50, 50, 90, 100]);
            let mut broken = HashSet::new();
            for (change, chosen) in disk.changes.iter().zip(&mut chosen) {
                let keys: Vec<_> = change
                    .names
                    .iter()
                    .map(|(d, name, _)| (*d, name.clone()))
                    .collect();
                *chosen = rng.chance(percent) && !keys.iter().any(|key| broken.contains(key));
                if !*chosen {
                    broken.extend(keys);
                }
            }
        }
        disk.settle(&chosen);
        let pieces = rng.pick(&[
            Pieces::None,
            Pieces::All,
            Pieces::Small,
            Pieces::Large,
            Pieces::Mixed,
            Pieces::Mixed,
        ]);
        let mut after = Self::new(rng.next());
        after.next = disk.next;
        let mut todo = vec![ROOT];
        while let Some(ino) = todo.pop() {
            let Some(inode) = disk.inodes.get(&ino) else {
                continue;
            };
            let node = match &inode.node {
                Node::File(file) => Node::File(file.cut(&mut rng, pieces)),
                Node::Dir(dir) => {
                    todo.extend(dir.durable.values());
                    Node::Dir(Dir {
                        durable: dir.durable.clone(),
                        live: dir.durable.clone(),
                    })
                }
            };
            let Inode { path, .. } = inode.clone();
            after.inodes.insert(ino, Inode { node, path, names: 0 });
        }
        let mut paths = vec![(ROOT, String::new())];
        while let Some((ino, path)) = paths.pop() {
            if let Some(dir) = after.dir(ino) {
                for (name, child) in &dir.live {
                    paths.push((*child, format!("{path}/{name}")));
                }
            }
            if let Some(inode) = after.inodes.get_mut(&ino) {
                inode.path = path;
                inode.names += 1;
            }
        }
        after
    }

    /// Everything that is there, for the search for the cause of a violation.
    pub fn tree(&self) -> String {
        let line = |inode: &Inode| match &inode.node {
            Node::File(file) if inode.names > 0 => Some(format!("  {} {}\n", inode.path, file.live.len())),
            _ => None,
        };
        self.inodes.values().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(seed: u64) -> (Disk, u64, u64) {
        let mut disk = Disk::new(seed);
        disk.manner.writeback = 0;
        let dir = disk.create(ROOT, "d", Node::Dir(Dir::default()));
        disk.sync_dir(ROOT);
        let ino = disk.create(dir, "f", Node::File(File::default()));
        (disk, dir, ino)
    }

    fn read(disk: &mut Disk, dir: u64, name: &str) -> Option<Vec<u8>> {
        let ino = disk.child(dir, name)?;
        Some(disk.file(ino)?.live.clone())
    }

    fn after_cuts(disk: &Disk, dir: u64, name: &str) -> HashSet<Option<Vec<u8>>> {
        (0..200)
            .map(|seed| read(&mut disk.cut(seed), dir, name))
            .collect()
    }

    #[test]
    fn what_is_synced_survives_every_cut_and_what_is_not_may_go() {
        for seed in 0..20 {
            let (mut disk, dir, ino) = with_file(seed);
            disk.file(ino).unwrap().write(0, &[1; 1024]);
            disk.sync_file(ino);
            disk.sync_dir(dir);
            disk.file(ino).unwrap().write(512, &[2; 512]);
            let old = [1; 1024].to_vec();
            let new = [[1; 512], [2; 512]].concat();
            let found = after_cuts(&disk, dir, "f");
            assert_eq!(found, HashSet::from([Some(old), Some(new.clone())]));
            disk.sync_file(ino);
            assert_eq!(after_cuts(&disk, dir, "f"), HashSet::from([Some(new)]));
        }
    }

    #[test]
    fn a_sync_that_follows_a_failed_one_saves_nothing_of_it() {
        let (mut disk, dir, ino) = with_file(1);
        disk.file(ino).unwrap().write(0, &[1; 512]);
        disk.sync_file(ino);
        disk.sync_dir(dir);
        disk.file(ino).unwrap().write(0, &[2; 512]);
        disk.fail_sync_file(ino);
        disk.sync_file(ino);
        assert_eq!(after_cuts(&disk, dir, "f").len(), 2);
        disk.file(ino).unwrap().write(0, &[3; 512]);
        disk.sync_file(ino);
        assert_eq!(after_cuts(&disk, dir, "f"), HashSet::from([Some(vec![3; 512])]));
    }

    #[test]
    fn a_name_is_there_for_good_once_its_directory_is_synced() {
        for seed in 0..20 {
            let (mut disk, dir, ino) = with_file(seed);
            disk.manner.file_sync_commits = false;
            disk.file(ino).unwrap().write(0, b"x");
            disk.sync_file(ino);
            assert!(after_cuts(&disk, dir, "f").contains(&None));
            disk.sync_dir(dir);
            disk.rename((dir, "f"), (dir, "g"));
            for seed in 0..100 {
                let mut after = disk.cut(seed);
                let names = [after.child(dir, "f"), after.child(dir, "g")];
                assert_eq!(
                    names.iter().flatten().count(),
                    1,
                    "a rename in a directory is one change"
                );
            }
            disk.sync_dir(dir);
            assert_eq!(after_cuts(&disk, dir, "g"), HashSet::from([Some(b"x".to_vec())]));
            assert_eq!(after_cuts(&disk, dir, "f"), HashSet::from([None]));
        }
    }
}
