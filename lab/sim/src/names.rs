//! Names, and what makes their changes durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use crate::world::{Body, World};

/// One name's change within a [`NameEffect`].
#[derive(Debug, Clone)]
pub(crate) struct NameChange {
    pub(crate) dir: u64,
    pub(crate) name: String,
    /// The inode that had the name before.
    pub(crate) old: Option<u64>,
    /// The inode that has it now.
    pub(crate) new: Option<u64>,
}

/// A creation, renaming or removal whose durability is open: it is kept or lost as a whole.
#[derive(Debug, Clone)]
pub(crate) struct NameEffect {
    pub(crate) changes: Vec<NameChange>,
    /// The directories that must be synced before it is durable for certain.
    unsynced: BTreeSet<u64>,
    /// A sync of its directory failed: no later one makes it durable for certain.
    stuck: bool,
}

impl NameEffect {
    /// Whether it is a renaming from one directory to another.
    pub(crate) fn is_between_directories(&self) -> bool {
        let mut dirs = self.changes.iter().map(|change| change.dir);
        let first = dirs.next();
        dirs.any(|dir| Some(dir) != first)
    }

    /// The names that it adds, without those that it takes away.
    pub(crate) fn additions(&self) -> Self {
        let mut additions = self.clone();
        additions.changes.retain(|change| change.new.is_some());
        additions
    }
}

impl World {
    /// Changes names as programs see them and notes what is to become durable.
    pub(crate) fn change(&mut self, changes: Vec<(u64, String, Option<u64>)>) -> io::Result<()> {
        let mut effect = NameEffect {
            changes: Vec::with_capacity(changes.len()),
            unsynced: BTreeSet::new(),
            stuck: false,
        };
        for (dir, name, new) in changes {
            let volatile = self.inode(dir)?.volatile;
            let old = self.give_name(dir, &name, new)?;
            if !volatile {
                effect.unsynced.insert(dir);
                effect.changes.push(NameChange { dir, name, old, new });
            }
        }
        if !effect.changes.is_empty() {
            self.effects.push(effect);
        }
        Ok(())
    }

    /// Gives a name in `dir` to `new`, or to nothing, as programs see it. Returns what had it.
    fn give_name(&mut self, dir: u64, name: &str, new: Option<u64>) -> io::Result<Option<u64>> {
        let now = self.now;
        let names = &mut self.dir_mut(dir)?.cached;
        let old = match new {
            Some(ino) => names.insert(name.to_owned(), ino),
            None => names.remove(name),
        };
        self.inode_mut(dir)?.times.changed(now);
        if let Some(old) = old.and_then(|ino| self.inode_mut(ino).ok()) {
            old.names.retain(|(d, n)| *d != dir || n != name);
            old.times.status = now;
        }
        if let Some(new) = new.and_then(|ino| self.inode_mut(ino).ok()) {
            new.names.push((dir, name.to_owned()));
            new.times.status = now;
        }
        Ok(old)
    }

    /// Takes down anew which names each inode has, after directories were changed as a whole.
    pub(crate) fn recount_names(&mut self) {
        let mut found: BTreeMap<u64, Vec<(u64, String)>> = BTreeMap::new();
        for (&dir, inode) in &self.inodes {
            if let Body::Dir(names) = &inode.body {
                for (name, &ino) in &names.cached {
                    found.entry(ino).or_default().push((dir, name.clone()));
                }
            }
        }
        for (ino, inode) in &mut self.inodes {
            let names = found.remove(ino).unwrap_or_default();
            if inode.names != names {
                Arc::make_mut(inode).names = names;
            }
        }
    }

    /// Makes the names in `dir` durable, save those that are stuck.
    pub(crate) fn sync_dir(&mut self, dir: u64) -> io::Result<()> {
        self.dir(dir)?;
        let mut open = Vec::new();
        for mut effect in std::mem::take(&mut self.effects) {
            effect.unsynced.remove(&dir);
            if effect.unsynced.is_empty() && !effect.stuck {
                self.make_durable(&effect);
                outdate(&mut open, &effect);
            } else {
                open.push(effect);
            }
        }
        self.effects = open;
        Ok(())
    }

    /// The last change, a renaming, is durable as a whole when `dir` is synced, and needs no other
    /// directory.
    pub(crate) fn durable_with(&mut self, dir: u64) {
        if let Some(effect) = self.effects.last_mut() {
            effect.unsynced.retain(|&unsynced| unsynced == dir);
        }
    }

    /// Makes every name durable, save those that are stuck: what a journal does that commits as a
    /// whole.
    pub(crate) fn commit_names(&mut self) {
        let (stuck, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|e| e.stuck);
        self.effects = stuck;
        for effect in open {
            self.make_durable(&effect);
            outdate(&mut self.effects, &effect);
        }
    }

    /// A directory sync that fails: each change in `dir` becomes durable or stays open for ever.
    pub(crate) fn fail_sync_dir(&mut self, dir: u64, mut kept: impl FnMut() -> bool) {
        let mut open = Vec::new();
        for mut effect in std::mem::take(&mut self.effects) {
            if !effect.unsynced.contains(&dir) {
                open.push(effect);
            } else if kept() {
                self.make_durable(&effect);
                outdate(&mut open, &effect);
            } else {
                effect.stuck = true;
                open.push(effect);
            }
        }
        self.effects = open;
    }

    /// Applies an effect to the durable names.
    pub(crate) fn make_durable(&mut self, effect: &NameEffect) {
        for change in &effect.changes {
            let Ok(dir) = self.dir_mut(change.dir) else {
                continue;
            };
            match change.new {
                Some(ino) => {
                    dir.durable.insert(change.name.clone(), ino);
                }
                // An effect that became durable late must not take a name that a later one gave
                // away.
                None if dir.durable.get(&change.name).copied() == change.old => {
                    dir.durable.remove(&change.name);
                }
                None => {}
            }
        }
    }

    /// Forgets the open changes of names that lead to `ino`.
    pub(crate) fn forget_effects_on(&mut self, ino: u64) {
        self.effects
            .retain(|effect| effect.changes.iter().all(|change| change.new != Some(ino)));
    }
}

/// Earlier changes that are still open can no longer touch the names that a later one has settled.
fn outdate(open: &mut Vec<NameEffect>, settled: &NameEffect) {
    let is_settled = |c: &NameChange| settled.changes.iter().any(|s| s.dir == c.dir && s.name == c.name);
    for effect in open.iter_mut() {
        effect.changes.retain(|change| !is_settled(change));
    }
    open.retain(|effect| !effect.changes.is_empty());
}
