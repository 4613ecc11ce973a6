//! What is done to the files.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{self, Rng};

/// Where the store's files are kept as they were earlier.
pub(crate) const OLDER: &str = "older";
/// And its trees before the last flush.
pub(crate) const EARLIER: &str = "earlier";
/// Where these are in the store.
pub(crate) const TREES: &str = "families";
/// All as the process left it.
const IMAGE: &str = "image";
const BLOCK: usize = 4096;
/// Bytes at a file's ends that are damaged bit by bit, or in part.
const ENDS: usize = 48;

/// One damage.
#[derive(Clone)]
pub(crate) struct Case {
    file: PathBuf,
    damage: Damage,
    /// The tree's `verified` is missing, too.
    unverified: bool,
}

#[derive(Clone)]
enum Damage {
    Bit(usize),
    Zeroed(usize),
    Cut(usize),
    Missing,
    /// Replaced by another file, which is what.
    Replaced(&'static str, Vec<u8>),
    /// As is the version of the tables that it named then.
    Earlier(Vec<u8>, PathBuf, Vec<u8>),
    /// Beside it, in the tables' directory, is one of this name.
    Beside(&'static str),
}

/// Such a directory.
const FOREIGN: &str = "foreign";

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.damage {
            Damage::Bit(bit) => write!(f, "bit {} of byte {} of {file}", bit % 8, bit / 8),
            Damage::Zeroed(at) => write!(f, "a block of {file} zeroed at {at}"),
            Damage::Cut(len) => write!(f, "{file} cut to {len} bytes"),
            Damage::Missing => write!(f, "{file} removed"),
            Damage::Replaced(by, _) => write!(f, "{file} replaced by {by}"),
            Damage::Earlier(..) => write!(f, "{file} and its version replaced by earlier ones"),
            Damage::Beside(name) => write!(f, "a directory {name} in the tables beside {file}"),
        }?;
        match self.unverified {
            true => f.write_str(", and `verified` missing"),
            false => Ok(()),
        }
    }
}

/// The files below `root`, by their names in it.
fn files(root: &Path, below: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    let Ok(entries) = std::fs::read_dir(root.join(below)) else {
        return;
    };
    for entry in entries {
        let entry = entry.unwrap();
        let name = below.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => files(root, &name, found),
            false => drop(found.insert(name, std::fs::read(entry.path()).unwrap())),
        }
    }
}

/// The files of the store and its ring.
pub(crate) struct Image {
    files: BTreeMap<PathBuf, Vec<u8>>,
    older: BTreeMap<PathBuf, Vec<u8>>,
    earlier: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    /// Keeps the files as they are.
    pub(crate) fn take(dir: &Path) {
        for part in ["store", "ring"] {
            common::copy_dir(&dir.join(part), &dir.join(IMAGE).join(part));
        }
    }

    pub(crate) fn load(dir: &Path) -> Self {
        let read = |from: &str, below: &str| {
            let mut found = BTreeMap::new();
            files(&dir.join(from), Path::new(""), &mut found);
            let found = found.into_iter();
            found
                .map(|(name, bytes)| (Path::new(below).join(name), bytes))
                .collect()
        };
        Self {
            files: read(IMAGE, ""),
            older: read(OLDER, "store"),
            earlier: read(EARLIER, "store/families"),
        }
    }

    /// Makes the files what they were. Directories stay: the ring belongs to the log's.
    pub(crate) fn restore(&self, dir: &Path) {
        let mut found = BTreeMap::new();
        for part in ["store", "ring"] {
            files(dir, Path::new(part), &mut found);
        }
        for name in found.keys().filter(|name| !self.files.contains_key(*name)) {
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        for tree in ["0", "1", "2"] {
            let foreign = dir.join("store/families").join(tree).join("tables").join(FOREIGN);
            drop(std::fs::remove_dir(foreign));
        }
        for (name, bytes) in &self.files {
            if found.get(name) != Some(bytes) {
                let path = dir.join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, bytes).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
    }

    /// All cases, the same in each process. `COLLIE_THOROUGH` has many times as many.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let thorough = std::env::var_os("COLLIE_THOROUGH").is_some();
        let mut cases = Vec::new();
        for (number, (file, bytes)) in self.files.iter().enumerate() {
            let is_table = file.parent().is_some_and(|parent| parent.ends_with("tables"));
            let mut add = |damage: Damage| {
                let all = matches!(damage, Damage::Replaced(..) | Damage::Cut(_));
                for unverified in [false, true] {
                    if !unverified || is_table && all {
                        cases.push(Case {
                            file: file.clone(),
                            damage: damage.clone(),
                            unverified,
                        });
                    }
                }
            };
            let rng = &mut Rng::new(number as u64);
            let mut bits: Vec<usize> = Vec::new();
            let mut sample = |rng: &mut Rng, bytes: std::ops::Range<usize>, count: usize| {
                let all = bytes.start * 8..bytes.end * 8;
                let count = if thorough { 10 * count } else { count };
                match all.len() <= count {
                    true => bits.extend(all),
                    false => {
                        bits.extend((0..count).map(|_| all.start + rng.below(all.len() as u64) as usize))
                    }
                }
            };
            let len = bytes.len();
            sample(rng, 0..len.min(ENDS), 10);
            sample(rng, len.saturating_sub(ENDS)..len, 10);
            if let Some(contents) = contents_of_archive(bytes) {
                // How many sections there are: what it made the table library allocate.
                sample(rng, contents + 4..contents + 8, 32);
                sample(rng, contents.saturating_sub(900)..len, 30);
            }
            let anywhere = if thorough { 400 } else { 8 };
            bits.extend((0..anywhere.min(len)).map(|_| rng.below(len as u64 * 8) as usize));
            bits.sort_unstable();
            bits.dedup();
            bits.into_iter().for_each(|bit| add(Damage::Bit(bit)));
            let mut cuts = vec![0, 1, len / 2, len.saturating_sub(1), len.saturating_sub(512)];
            cuts.retain(|cut| *cut < len);
            cuts.dedup();
            cuts.into_iter().for_each(|cut| add(Damage::Cut(cut)));
            // A part of the ring, which is memory, that holds nothing is what a process leaves that
            // dies before it has copied its frame there.
            let blocks = if file.starts_with("ring") {
                0
            } else {
                len.div_ceil(BLOCK)
            };
            let step = if thorough { 1 } else { blocks.div_ceil(4).max(1) };
            for block in (0..blocks).step_by(step).chain(blocks.checked_sub(1)) {
                let zeros = bytes[block * BLOCK..].iter().take(BLOCK).all(|byte| *byte == 0);
                if !zeros {
                    add(Damage::Zeroed(block * BLOCK));
                }
            }
            add(Damage::Missing);
            if let Some(older) = self.older.get(file).filter(|older| *older != bytes) {
                add(Damage::Replaced("what it was earlier", older.clone()));
            }
            if file.ends_with("current") {
                add(Damage::Beside(FOREIGN));
                let earlier = self.earlier.get(file).filter(|earlier| *earlier != bytes);
                let version = earlier.and_then(|earlier| {
                    let number = u64::from_le_bytes(earlier[..8].try_into().ok()?);
                    let version = file.with_file_name(format!("v{number}"));
                    let described = self.earlier.get(&version)?;
                    Some(Damage::Earlier(earlier.clone(), version, described.clone()))
                });
                version.into_iter().for_each(&mut add);
            }
            for other in ["0", "1", "2"] {
                let swapped = swapped(file, other);
                if let Some(others) = swapped.and_then(|other| self.files.get(&other))
                    && others != bytes
                {
                    add(Damage::Replaced("another family's", others.clone()));
                }
            }
        }
        cases
    }
}

/// The same file of another family.
fn swapped(file: &Path, other: &str) -> Option<PathBuf> {
    let rest = file.strip_prefix("store/families").ok()?;
    let mut parts = rest.components();
    let own = parts.next()?;
    (own.as_os_str() != other).then(|| Path::new("store/families").join(other).join(parts.as_path()))
}

/// Where an archive of the table library says where its sections are.
fn contents_of_archive(bytes: &[u8]) -> Option<usize> {
    let trailer = bytes.get(bytes.len().checked_sub(38)?..)?;
    let at = u64::from_le_bytes(trailer.get(22..30)?.try_into().ok()?);
    let at = usize::try_from(at).ok()?;
    (trailer.starts_with(b"SFA!") && bytes.get(at..at + 4)? == b"TOC!").then_some(at)
}

impl Case {
    /// In one word, for figures.
    pub(crate) fn kind(&self) -> &'static str {
        let name = self
            .file
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        match name {
            "MANIFEST" | "LOCK" | "RESERVE" => "the store's",
            "current" | "verified" => "a tree's",
            _ if name.starts_with('v') => "a tree's",
            _ if self.is_of_log() => "the log's",
            _ if self.is_of_ring() => "the ring's",
            _ => "a table's",
        }
    }

    pub(crate) fn is_of_an_earlier_tree(&self) -> bool {
        matches!(self.damage, Damage::Earlier(..))
    }

    pub(crate) fn is_of_log(&self) -> bool {
        self.file.starts_with("store/log")
    }

    pub(crate) fn is_of_ring(&self) -> bool {
        self.file.starts_with("ring")
    }

    pub(crate) fn damage(&self, dir: &Path) {
        let path = dir.join(&self.file);
        let mut bytes = std::fs::read(&path).unwrap();
        if self.unverified {
            let tree = path.parent().and_then(Path::parent).unwrap();
            std::fs::remove_file(tree.join("verified")).unwrap();
        }
        match &self.damage {
            Damage::Bit(bit) => bytes[bit / 8] ^= 1 << (bit % 8),
            Damage::Zeroed(at) => bytes[*at..].iter_mut().take(BLOCK).for_each(|byte| *byte = 0),
            Damage::Cut(len) => bytes.truncate(*len),
            Damage::Missing => return std::fs::remove_file(&path).unwrap(),
            Damage::Replaced(_, by) => bytes.clone_from(by),
            Damage::Earlier(by, version, described) => {
                bytes.clone_from(by);
                std::fs::write(dir.join(version), described).unwrap();
            }
            Damage::Beside(name) => {
                return std::fs::create_dir(path.with_file_name("tables").join(name)).unwrap();
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }

    /// Whether an error says which file it is about. Of a segment that is missing or whose header is
    /// gone, and of the ring, the log's directory is enough; of a tree's small files the tree's.
    pub(crate) fn is_named_in(&self, dir: &Path, error: &str) -> bool {
        let names = |path: PathBuf| error.contains(&*path.to_string_lossy());
        let tree = self
            .file
            .parent()
            .filter(|parent| parent.starts_with("store/families"));
        names(dir.join(&self.file))
            || (self.is_of_log() || self.is_of_ring()) && names(dir.join("store/log"))
            || tree.is_some_and(|tree| !tree.ends_with("tables") && names(dir.join(tree)))
            || self.file.ends_with("MANIFEST") && names(dir.join("store"))
    }
}
