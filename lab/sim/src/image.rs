//! Crash images: what a dead process or a power cut leaves behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{BLOCK, Nanos};

use crate::clock::SimClock;
use crate::content::{Content, FileData, SECTOR, Sector, Version, sector};
use crate::device::SimDevice;
use crate::names::NameEffect;
use crate::rng::Rng;
use crate::trace::Op;
use crate::world::{Body, Inode, New, VOLATILE_DIR, What, World};

/// Where [`SimDevice::record`] takes snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Points {
    /// Nowhere.
    Never,
    /// After every operation that changes anything, and in the middle of direct writes; before it
    /// as well where memory is mapped, which changes without an operation.
    Changes,
    /// Before and after every sync, and in the middle of direct writes.
    Syncs,
}

/// What becomes of data that was written and not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Data {
    /// None of it is there.
    Lost,
    /// All of it is there.
    Kept,
    /// Each sector of 512 B has any of its states since its sync, whatever the others have.
    AnySectors,
    /// The same by blocks of 4 KiB: the sectors of one block are of one moment.
    AnyBlocks,
    /// All is there, save that the last write of each file is cut off at a sector of 512 B.
    TornSectors,
    /// The same, cut off at a block of 4 KiB.
    TornBlocks,
    /// As [`Data::AnySectors`], and some of the sectors that were being written for the first time
    /// since they were zero hold garbage. A sector of zeros that the program wrote looks like one
    /// that was never written: programs under test should not rely on the former.
    FreshGarbage,
    /// The same, save that written zeros stay what they are: while they are not synced, as on a file
    /// system that never shows what a file's blocks held before, and once they are, as those that
    /// end a record may be.
    FreshContentGarbage,
    /// As [`Data::AnySectors`], and some of the sectors that were being written hold garbage,
    /// whatever they held before: a device that does not even write sectors whole.
    Garbage,
    /// As [`Data::AnyBlocks`], and some of the blocks of 4 KiB that were being written hold garbage
    /// as a whole, whatever they held before: a device that destroys what it is about to replace.
    GarbageBlocks,
}

/// What becomes of changes whose durability is open and that are not file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// None is there.
    Lost,
    /// All are there.
    Kept,
    /// The first ones are there, up to a random one: a journal.
    Prefix,
    /// Any may be there or not; of a renaming to another directory, the new name alone.
    Any,
}

/// How the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerCut {
    /// Data in files.
    pub data: Data,
    /// Lengths of files.
    pub lengths: Keep,
    /// Names: creations, renamings, removals.
    pub names: Keep,
}

impl PowerCut {
    /// Every way that the crash tests try, with its name.
    pub const WAYS: [(&'static str, Self); 11] = [
        ("lost", Self::of(Data::Lost, Keep::Lost, Keep::Lost)),
        ("kept", Self::of(Data::Kept, Keep::Kept, Keep::Kept)),
        ("any sectors", Self::of(Data::AnySectors, Keep::Any, Keep::Any)),
        ("any blocks", Self::of(Data::AnyBlocks, Keep::Any, Keep::Prefix)),
        (
            "torn sectors",
            Self::of(Data::TornSectors, Keep::Kept, Keep::Kept),
        ),
        ("torn blocks", Self::of(Data::TornBlocks, Keep::Kept, Keep::Kept)),
        (
            "fresh garbage",
            Self::of(Data::FreshGarbage, Keep::Any, Keep::Prefix),
        ),
        ("length only", Self::of(Data::Lost, Keep::Kept, Keep::Kept)),
        (
            "data without length",
            Self::of(Data::Kept, Keep::Lost, Keep::Kept),
        ),
        ("names lost", Self::of(Data::Kept, Keep::Kept, Keep::Lost)),
        ("names only", Self::of(Data::Lost, Keep::Lost, Keep::Kept)),
    ];

    const fn of(data: Data, lengths: Keep, names: Keep) -> Self {
        Self { data, lengths, names }
    }
}

/// What a power cut did with what was not durable: sectors, lengths and names together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects {
    /// Changes that are there in their last state.
    pub kept: u64,
    /// Changes that are not, or in an earlier state.
    pub lost: u64,
    /// Sectors that hold garbage.
    pub garbage: u64,
    /// Of those lost, creations, renamings and removals.
    pub names_lost: u64,
    /// Of those lost, lengths of files.
    pub lengths_lost: u64,
    /// Files that were renamed to another directory and have their old name as well.
    pub in_both_places: u64,
}

/// A world as it was at one moment. Cheap to clone; any number of images can be made of it.
#[derive(Debug, Clone)]
pub struct Snapshot {
    world: World,
    op: u64,
    tag: u64,
    at: Option<Op>,
    now: Nanos,
}

impl Snapshot {
    pub(crate) fn new(world: World, op: u64, tag: u64, at: Option<Op>, now: Nanos) -> Self {
        Self {
            world,
            op,
            tag,
            at,
            now,
        }
    }

    /// The number of the last operation that had begun.
    #[must_use]
    pub fn op(&self) -> u64 {
        self.op
    }

    /// What [`SimDevice::tag_snapshots`]' source gave.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The operation at which it was recorded.
    #[must_use]
    pub fn at(&self) -> Option<&Op> {
        self.at.as_ref()
    }

    /// The process died: the page cache and all shared memory are as they were, open files are
    /// closed and locks are gone. What was not synced can still be lost in a power cut later.
    #[must_use]
    pub fn process_death(&self) -> Image {
        let mut world = self.world.clone();
        world.collect(|_| false);
        Image {
            world,
            op: self.op,
            now: self.now,
            effects: Effects::default(),
        }
    }

    /// The power went: what was synced is there, of the rest what `cut` and chance (from `seed`)
    /// say; memory-only files are gone, and the boot id is new.
    #[must_use]
    pub fn power_cut(&self, cut: PowerCut, seed: u64) -> Image {
        let mut rng = Rng::new(seed);
        let mut effects = Effects::default();
        let mut world = self.world.clone();
        settle_names(&mut world, cut.names, &mut rng, &mut effects);
        // Only what can be reached still exists, and only that counts.
        world.collect(|_| false);
        for inode in world.inodes.values_mut() {
            let inode = Arc::make_mut(inode);
            if let Body::File(file) = &mut inode.body {
                settle_file(file, cut, &mut rng, &mut effects);
            }
        }
        rng.fill(&mut world.boot_id);
        world.rng = rng;
        Image {
            world,
            op: self.op,
            now: self.now,
            effects,
        }
    }
}

/// Decides which names are there, and takes the memory-only files away.
fn settle_names(world: &mut World, keep: Keep, rng: &mut Rng, effects: &mut Effects) {
    let open: Vec<NameEffect> = std::mem::take(&mut world.effects);
    let first = rng.index(open.len() + 1);
    for (i, effect) in open.iter().enumerate() {
        let kept = match keep {
            Keep::Lost => false,
            Keep::Kept => true,
            Keep::Prefix => i < first,
            Keep::Any => rng.coin(),
        };
        effects.note(kept);
        effects.names_lost += u64::from(!kept);
        // From one directory to another the new name may come first, and the old one go later;
        // never the other way round.
        let both = kept && keep == Keep::Any && effect.is_between_directories() && rng.coin();
        effects.in_both_places += u64::from(both);
        if both {
            world.make_durable(&effect.additions());
        } else if kept {
            world.make_durable(effect);
        }
    }
    for inode in world.inodes.values_mut() {
        let inode = Arc::make_mut(inode);
        if let Body::Dir(dir) = &mut inode.body {
            if inode.volatile {
                dir.durable.clear();
            }
            dir.cached = dir.durable.clone();
        }
    }
    world.recount_names();
}

/// Decides what a file holds. A truncation happens as a whole: where the file has the length that it
/// had before, it also has what was there, and nothing that was written later behind the cut; where
/// it has a later length, nothing that was cut off. No
/// file system that logs its metadata leaves zeros there, and PostgreSQL, which truncates the files
/// that it removes, may read them once more.
fn settle_file(file: &mut FileData, cut: PowerCut, rng: &mut Rng, effects: &mut Effects) {
    let pending = std::mem::take(&mut file.pending);
    let lengths = std::mem::take(&mut file.lengths);
    let mut content = file.durable.clone();
    let chosen_data = settle_data(&mut content, &pending, cut.data, rng, effects);
    let (mut len, mut since) = (content.len(), 0);
    if let Some(&(_, last)) = lengths.last() {
        let any = rng.index(lengths.len() + 1);
        let chosen = match cut.lengths {
            Keep::Lost => None,
            Keep::Kept => lengths.last(),
            Keep::Prefix | Keep::Any => lengths.get(any),
        };
        let is_last = chosen.is_some_and(|&(_, len)| len == last);
        effects.note(is_last);
        effects.lengths_lost += u64::from(!is_last);
        (since, len) = chosen.copied().unwrap_or((0, len));
    }
    let mut before = file.durable.len();
    let truncations: Vec<(u64, u64)> = lengths
        .into_iter()
        .filter(|&(_, len)| std::mem::replace(&mut before, len) > len)
        .collect();
    for (index, chosen) in chosen_data {
        let end = (index as u64 + 1) * SECTOR as u64;
        let Some(versions) = pending.get(&index) else {
            continue;
        };
        let until = |op: u64| versions.partition_point(|v| v.op <= op);
        let mut cuts = truncations.iter().filter(|&&(_, len)| len < end);
        let least = cuts.clone().rfind(|&&(op, _)| op <= since);
        let least = least.map_or(0, |&(op, _)| until(op));
        let most = cuts.find(|&&(op, _)| op > since);
        let most = most.map_or(versions.len(), |&(op, _)| until(op - 1));
        let kept = chosen.min(most).max(least);
        if kept != chosen {
            let last = kept.checked_sub(1).and_then(|i| versions.get(i));
            let data = last.map_or(file.durable.get(index).cloned(), |v| v.data.clone());
            content.put(index, data);
        }
    }
    content.set_len(len);
    file.cached = content.clone();
    file.durable = content;
}

/// Decides the state of every sector that was written and not synced. Returns how many of its
/// versions each has behind it, of those that hold no garbage.
fn settle_data(
    content: &mut Content,
    pending: &BTreeMap<usize, Vec<Version>>,
    how: Data,
    rng: &mut Rng,
    effects: &mut Effects,
) -> Vec<(usize, usize)> {
    // The last write, and the place where it was cut off.
    let last_op = pending.values().flatten().map(|v| v.op).max().unwrap_or(0);
    let in_last = |versions: &[Version]| versions.last().is_some_and(|v| v.op == last_op);
    let last: Vec<usize> = pending
        .iter()
        .filter(|(_, v)| in_last(v))
        .map(|(&i, _)| i)
        .collect();
    let torn_at = last.get(rng.index(last.len())).copied().unwrap_or(0);
    let torn_at = match how {
        Data::TornBlocks => torn_at / SECTORS_IN_BLOCK * SECTORS_IN_BLOCK,
        _ => torn_at,
    };
    let seed = rng.next_u64();
    let mut settled = Vec::new();
    for (&index, versions) in pending {
        let before = |op: u64| versions.partition_point(|v| v.op <= op);
        let all = versions.len();
        let chosen = match how {
            Data::Lost => 0,
            Data::Kept => all,
            Data::AnySectors | Data::FreshGarbage | Data::FreshContentGarbage | Data::Garbage => {
                rng.index(all + 1)
            }
            Data::AnyBlocks | Data::GarbageBlocks => before(moment_of_block(pending, index, seed)),
            Data::TornSectors | Data::TornBlocks if in_last(versions) && index >= torn_at => all - 1,
            Data::TornSectors | Data::TornBlocks => all,
        };
        let fresh = content.get(index).is_none_or(is_zero)
            && versions
                .iter()
                .rev()
                .skip(1)
                .all(|v| v.data.as_ref().is_none_or(is_zero));
        let garbage = match how {
            Data::FreshGarbage => fresh && rng.one_in(4),
            Data::FreshContentGarbage => {
                let is_written = content.get(index).is_some();
                fresh && !is_written && is_content(versions) && rng.one_in(4)
            }
            Data::Garbage => rng.one_in(4),
            Data::GarbageBlocks => Rng::new(!seed ^ (index / SECTORS_IN_BLOCK) as u64).one_in(4),
            _ => false,
        };
        if garbage {
            let mut bytes = [0; SECTOR];
            rng.fill(&mut bytes);
            content.put(index, Some(sector(bytes)));
            effects.garbage += 1;
            continue;
        }
        effects.note(chosen == all);
        if let Some(version) = chosen.checked_sub(1).and_then(|i| versions.get(i)) {
            content.put(index, version.data.clone());
        }
        settled.push((index, chosen));
    }
    settled
}

const SECTORS_IN_BLOCK: usize = BLOCK / SECTOR;

/// The operation up to which the block around sector `index` was written: any of those that wrote
/// to it, or none, by chance but the same for all sectors of the block.
fn moment_of_block(pending: &BTreeMap<usize, Vec<Version>>, index: usize, seed: u64) -> u64 {
    let block = index / SECTORS_IN_BLOCK;
    let sectors = block * SECTORS_IN_BLOCK..(block + 1) * SECTORS_IN_BLOCK;
    let mut ops: Vec<u64> = pending
        .range(sectors)
        .flat_map(|(_, v)| v.iter().map(|v| v.op))
        .collect();
    ops.sort_unstable();
    ops.dedup();
    let mut rng = Rng::new(seed ^ block as u64);
    let chosen = rng.index(ops.len() + 1);
    chosen
        .checked_sub(1)
        .and_then(|i| ops.get(i).copied())
        .unwrap_or(0)
}

/// Whether anything but zeros was written.
fn is_content(versions: &[Version]) -> bool {
    let mut data = versions.iter().filter_map(|v| v.data.as_ref());
    data.any(|sector| !is_zero(sector))
}

fn is_zero(sector: &Sector) -> bool {
    sector.iter().all(|&b| b == 0)
}

impl Effects {
    fn note(&mut self, kept: bool) {
        if kept {
            self.kept += 1;
        } else {
            self.lost += 1;
        }
    }
}

/// What a crash left, before anything uses it: the place to damage it further.
#[derive(Debug, Clone)]
pub struct Image {
    world: World,
    /// Operations are counted on, since what is not synced is ordered by their numbers.
    op: u64,
    now: Nanos,
    effects: Effects,
}

impl Image {
    /// What the power cut did.
    #[must_use]
    pub fn effects(&self) -> Effects {
        self.effects
    }

    /// A device with this content, for the process that comes after the crash.
    #[must_use]
    pub fn device(&self) -> SimDevice {
        let clock = SimClock::new();
        clock.advance(self.now);
        SimDevice::from_world(self.world.clone(), self.op, clock)
    }

    /// Turns one bit of a file, on the device as well as in the cache. `false` where the file is
    /// shorter.
    pub fn flip_bit(&mut self, path: &Path, bit: u64) -> bool {
        let at = bit / 8;
        let Ok(file) = self.world.resolve(path).and_then(|ino| self.world.file_mut(ino)) else {
            return false;
        };
        if at >= file.cached.len() {
            return false;
        }
        let index = crate::content::to_usize(at) / SECTOR;
        let mut bytes = file.cached.bytes(index);
        if let Some(byte) = bytes.get_mut(crate::content::to_usize(at) % SECTOR) {
            *byte ^= 1 << (bit % 8);
        }
        let data = Some(sector(bytes));
        file.cached.put(index, data.clone());
        file.durable.put(index, data);
        file.pending.remove(&index);
        true
    }

    /// Turns a random bit of a random file below `dir`, of those sectors that hold anything.
    /// Returns the file and the byte.
    pub fn rot(&mut self, dir: &Path, seed: u64) -> Option<(PathBuf, u64)> {
        let mut rng = Rng::new(seed);
        let mut places = Vec::new();
        for path in self.files(dir) {
            let file = self
                .world
                .resolve(&path)
                .and_then(|ino| self.world.file(ino))
                .ok()?;
            let filled = file.cached.filled().into_iter();
            let used = filled.filter(|&i| file.cached.get(i).is_some_and(|s| !is_zero(s)));
            places.extend(used.map(|i| (path.clone(), i)));
        }
        let (path, index) = places.get(rng.index(places.len()))?.clone();
        let bit = (index * SECTOR * 8) as u64 + rng.below((SECTOR * 8) as u64);
        self.flip_bit(&path, bit).then_some((path, bit / 8))
    }

    /// The paths of all files below `dir`, sorted.
    #[must_use]
    pub fn files(&self, dir: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        if let Ok(names) = self.world.resolve(dir).and_then(|ino| self.world.dir(ino)) {
            for (name, &ino) in &names.cached {
                let path = dir.join(name);
                match self.world.inode(ino).map(|i| &i.body) {
                    Ok(Body::Dir(_)) => found.extend(self.files(&path)),
                    Ok(Body::File(_)) => found.push(path),
                    Ok(Body::Link(_)) | Err(_) => {}
                }
            }
        }
        found
    }

    /// Removes every memory-only file, as a container restart does; the boot id stays.
    pub fn clear_volatile(&mut self) {
        if let Ok(dir) = self
            .world
            .resolve(Path::new(VOLATILE_DIR))
            .and_then(|ino| self.world.dir_mut(ino))
        {
            dir.cached.clear();
        }
        self.world.recount_names();
        self.world.collect(|_| false);
    }

    /// Replaces the memory-only files by those of another image, such as an earlier or later one of
    /// the same world.
    pub fn take_volatile_from(&mut self, other: &Self) {
        self.clear_volatile();
        let path = Path::new(VOLATILE_DIR);
        for from in other.files(path) {
            let Ok(inode) = other
                .world
                .resolve(&from)
                .and_then(|ino| other.world.inode(ino).cloned())
            else {
                continue;
            };
            self.adopt(&from, inode);
        }
    }

    fn adopt(&mut self, path: &Path, mut inode: Inode) {
        let Ok((dir, name)) = self.world.resolve_parent(path) else {
            return;
        };
        inode.names = vec![(dir, name.clone())];
        if let Ok(ino) = self.world.create(dir, name, New::private(What::File)) {
            self.world.inodes.insert(ino, Arc::new(inode));
        }
    }

    /// Gives `dir` and everything below it new inode numbers, as copying it and putting the copy in
    /// its place does.
    pub fn copy_dir(&mut self, dir: &Path) {
        let Ok((parent, name)) = self.world.resolve_parent(dir) else {
            return;
        };
        let Ok(old) = self.world.resolve(dir) else {
            return;
        };
        let new = self.copy_inode(old);
        if let Ok(parent) = self.world.dir_mut(parent) {
            parent.cached.insert(name.clone(), new);
            parent.durable.insert(name, new);
        }
        // The copy is synced: what is still open of the original's names does not concern it.
        self.world.forget_effects_on(old);
        self.world.recount_names();
        self.world.collect(|_| false);
    }

    /// A synced copy of an inode and of all that is below it.
    fn copy_inode(&mut self, old: u64) -> u64 {
        let Ok(mut inode) = self.world.inode(old).cloned() else {
            return old;
        };
        match &mut inode.body {
            Body::File(file) => {
                file.durable = file.cached.clone();
                file.pending.clear();
                file.lengths.clear();
            }
            Body::Dir(dir) => {
                for ino in dir.cached.values_mut() {
                    *ino = self.copy_inode(*ino);
                }
                dir.durable = dir.cached.clone();
            }
            Body::Link(_) => {}
        }
        let new = self.world.next_ino;
        self.world.next_ino += 1;
        self.world.inodes.insert(new, Arc::new(inode));
        new
    }

    /// Changes the boot id and nothing else.
    pub fn change_boot_id(&mut self) {
        self.world.rng.fill(&mut self.world.boot_id);
    }
}
