//! Names: opening, creating, finding, removing, renaming and linking files.
//!
//! Records hold paths. So the log has nothing of a file whose name changes, nor of one that had
//! the name which another is given: the first is drained, the second forgotten.

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use collie_io::{File, FileKind, OpenMode, Stat};

use super::{OWN, Volume};
use crate::FrontError;
use crate::file::{Mapping, Name, PageFile};

/// What becomes of something that has the name which [`Volume::rename`] gives away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced, if it is a file, or an empty directory and the other one is a directory.
    Replace,
    /// It keeps the name, and the renaming fails.
    Keep,
}

impl Volume {
    pub(super) fn path(&self, path: &Path) -> PathBuf {
        self.shared.root.join(path)
    }

    /// Refuses what is not the one spelling of a path below the root, and what is not a file of the
    /// user: records hold paths.
    pub(super) fn check_path(&self, path: &Path) -> Result<(), FrontError> {
        let mut parts = path.components().peekable();
        let is_own = parts.peek() == Some(&Component::Normal(OWN.as_ref()));
        if !is_own && parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_))) {
            return Ok(());
        }
        Err(FrontError::Mismatch {
            path: self.path(path),
            problem: format!("the path of a file has no `.` or `..`, begins below the root and not in {OWN}"),
        })
    }

    /// What has a name; a symbolic link is not followed.
    fn look(&self, path: &Path) -> Result<Stat, FrontError> {
        let path = self.path(path);
        let found = self.shared.device.lstat(&path);
        found.map_err(FrontError::io("stat", &path))
    }

    pub(super) fn look_if_any(&self, path: &Path) -> Result<Option<Stat>, FrontError> {
        let path = self.path(path);
        match self.shared.device.lstat(&path) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(FrontError::io("stat", &path)(e)),
        }
    }

    /// The file with this number on its device, if it is open here or has displaced pages.
    #[must_use]
    pub fn open_file(&self, stat: &Stat) -> Option<Arc<PageFile>> {
        let files = self.files.lock();
        files.open.get(&(stat.dev, stat.ino)).map(Arc::clone)
    }

    /// A file that exists.
    ///
    /// # Errors
    /// [`FrontError::Io`] where it does not exist or cannot be opened; [`FrontError::Mismatch`] for a
    /// symbolic link.
    pub fn file(&self, path: &Path) -> Result<Arc<PageFile>, FrontError> {
        self.check_path(path)?;
        self.with_descriptors(FrontError::is_out_of_descriptors, || self.file_now(path))
    }

    fn file_now(&self, path: &Path) -> Result<Arc<PageFile>, FrontError> {
        let _claim = self.names.claim(&[path]);
        let stat = self.look(path)?;
        let full = self.path(path);
        if stat.kind == FileKind::Symlink {
            return Err(FrontError::Mismatch {
                path: full,
                problem: "this is a symbolic link, and records hold paths; open what it leads to".to_owned(),
            });
        }
        // Not two of one file, by two of its names.
        let mut files = self.files.lock();
        if let Some(file) = files.open.get(&(stat.dev, stat.ino)) {
            file.opened_as(path);
            return Ok(Arc::clone(file));
        }
        let home = self.shared.device.open_for_user(&full, OpenMode::ReadWrite);
        let home = home.map_err(FrontError::io("open", &full))?;
        // Once more: what had it open until now may have written to it since.
        let stat = home.stat().map_err(FrontError::io("stat", &full))?;
        let file = self.opened(path, home, &stat, false);
        files.open.insert((stat.dev, stat.ino), Arc::clone(&file));
        Ok(file)
    }

    fn opened(&self, path: &Path, home: Arc<dyn File>, stat: &Stat, is_new: bool) -> Arc<PageFile> {
        let shared = Arc::clone(&self.shared);
        // The process that made it may not have synced its directory.
        let name = Name::new(path);
        let file = PageFile::open(shared, home, Mapping::Plain, name, stat.len, [], is_new);
        Arc::new(file)
    }

    /// A new file without bytes. Its name is durable after its first [`Volume::sync`]. Waits, where
    /// a file of that name was removed, until that is durable.
    ///
    /// # Errors
    /// [`FrontError::Io`] where the name is taken or the file cannot be made.
    pub fn create(&self, path: &Path) -> Result<Arc<PageFile>, FrontError> {
        self.check_path(path)?;
        self.with_descriptors(FrontError::is_out_of_descriptors, || self.create_now(path))
    }

    fn create_now(&self, path: &Path) -> Result<Arc<PageFile>, FrontError> {
        let _claim = self.names.claim(&[path]);
        // After a failure it is unknown what the log has of a file that had this name.
        self.shared.check()?;
        self.forget(path)?;
        let full = self.path(path);
        let home = self.shared.device.open_for_user(&full, OpenMode::CreateNew);
        let home = home.map_err(FrontError::io("create", &full))?;
        let stat = home.stat().map_err(FrontError::io("stat", &full))?;
        let file = self.opened(path, home, &stat, true);
        let mut files = self.files.lock();
        files.open.insert((stat.dev, stat.ino), Arc::clone(&file));
        Ok(file)
    }

    /// Removes a name. Not durable before the directory is synced; the pages of a file whose last
    /// name it was are given back by [`Volume::forget_removed`], or when the name is used again.
    ///
    /// # Errors
    /// [`FrontError::Io`] where it does not exist or cannot be removed.
    pub fn unlink(&self, path: &Path) -> Result<(), FrontError> {
        self.check_path(path)?;
        let _claim = self.names.claim(&[path]);
        let stat = self.look(path)?;
        let full = self.path(path);
        let remove = || {
            let removed = self.shared.device.remove_file(&full);
            removed.map_err(FrontError::io("remove", &full))
        };
        let Some(file) = self.open_file(&stat) else {
            remove()?;
            if stat.links > 1 {
                self.shared
                    .unsettle_names(full.parent().unwrap_or(&self.shared.root));
            }
            return Ok(());
        };
        self.with_log(|| {
            let mut committer = file.committer();
            // No name of it comes or goes meanwhile.
            if file.links()? > 1 {
                // The record's path may be this one.
                file.unmap(&mut committer)?;
                remove()?;
                self.shared
                    .unsettle_names(full.parent().unwrap_or(&self.shared.root));
                file.lost_name(&committer, path);
                return Ok(());
            }
            remove()?;
            file.unlinked(&committer, path);
            self.removed(&file, &committer.mapping, path, (stat.dev, stat.ino));
            Ok(())
        })
    }

    /// A file's last name was removed.
    fn removed(&self, file: &Arc<PageFile>, mapping: &Mapping, path: &Path, number: super::FileNumber) {
        let mut files = self.files.lock();
        files.open.remove(&number);
        if *mapping != Mapping::Plain {
            files.removed.insert(path.to_owned(), Arc::clone(file));
        } else if Arc::strong_count(file) > 1 {
            files.orphans.push(Arc::clone(file));
        }
    }

    /// Gives a file, a directory or a symbolic link another name. Files that were open or had
    /// displaced pages, and whose path changes, or whose name is taken, are drained before; of a
    /// directory all that lie below it. Durable where a directory is renamed, or something moves
    /// from one directory to another; otherwise the new name is with the file's next
    /// [`Volume::sync`].
    ///
    /// # Errors
    /// [`FrontError::Io`] where `from` does not exist or cannot be renamed, or something has the
    /// name `to` that is not to be replaced.
    pub fn rename(&self, from: &Path, to: &Path, existing: Existing) -> Result<(), FrontError> {
        self.check_path(from)?;
        self.check_path(to)?;
        let _moves = self.moves.lock();
        let _claim = self.names.claim(&[from, to]);
        self.shared.check()?;
        let stat = self.look(from)?;
        let there = self.look_if_any(to)?;
        let is_same = there.is_some_and(|there| (there.dev, there.ino) == (stat.dev, stat.ino));
        if is_same || (there.is_some() && existing == Existing::Keep) {
            // Nothing changes, or it fails.
            return self.rename_now(from, to, existing);
        }
        self.forget_below(from)?;
        self.forget_below(to)?;
        let moved: Vec<_> = match stat.is_dir() {
            true => self.files_below(from, to),
            false => self
                .open_file(&stat)
                .map(|file| (file, to.to_owned()))
                .into_iter()
                .collect(),
        };
        let replaced = there.and_then(|there| self.open_file(&there));
        // A record with the new path relies on what is durable of these, and the file's sync is
        // of its own directory alone. Open before anything changes: it is not done by halves where no
        // descriptor is left.
        let (old, new) = (self.path(from), self.path(to));
        let dirs = match (old.parent(), new.parent()) {
            (Some(old), Some(new)) if old != new => vec![new, old],
            (_, Some(new)) if stat.is_dir() => vec![new],
            _ => Vec::new(),
        };
        let dirs = dirs.into_iter().map(|dir| self.shared.open_names(dir));
        let dirs = dirs.collect::<Result<Vec<_>, _>>()?;
        self.with_log(|| {
            let mut held = Vec::new();
            for file in moved.iter().map(|(file, _)| file).chain(&replaced) {
                let mut committer = file.committer();
                file.unmap(&mut committer)?;
                held.push(committer);
            }
            let links = replaced.as_ref().map_or(Ok(0), |file| file.links())?;
            self.rename_now(from, to, existing)?;
            // Of a directory what lies below it.
            self.shared.unsettle_names(match stat.is_dir() {
                true => &new,
                false => old.parent().unwrap_or(&self.shared.root),
            });
            if let (Some(file), Some(stat), Some(committer)) =
                (&replaced, there, held.pop_if(|_| replaced.is_some()))
            {
                if links > 1 {
                    file.lost_name(&committer, to);
                } else {
                    file.unlinked(&committer, to);
                    self.removed(file, &committer.mapping, to, (stat.dev, stat.ino));
                }
            }
            for ((file, path), committer) in moved.iter().zip(&held) {
                file.renamed(committer, path);
            }
            dirs.iter().try_for_each(|dir| self.shared.sync_opened(dir))
        })
    }

    fn rename_now(&self, from: &Path, to: &Path, existing: Existing) -> Result<(), FrontError> {
        let (old, new) = (self.path(from), self.path(to));
        let renamed = match existing {
            Existing::Replace => self.shared.device.rename(&old, &new),
            Existing::Keep => self.shared.device.rename_new(&old, &new),
        };
        renamed.map_err(FrontError::io("rename", &old))
    }

    /// The open and the mapped files below a directory, each with its path once `from` is `to`.
    fn files_below(&self, from: &Path, to: &Path) -> Vec<(Arc<PageFile>, PathBuf)> {
        let files = self.files.lock();
        let below = files.open.values().filter_map(|file| match file.name() {
            Name::Known { path, .. } => {
                let rest = path.strip_prefix(from).ok()?;
                Some((Arc::clone(file), to.join(rest)))
            }
            Name::Lost(_) | Name::Unlinked(_) => None,
        });
        below.collect()
    }

    /// Gives a file the name `to` besides. The name is durable after a sync of its directory. Waits,
    /// where a file of that name was removed, until that is durable.
    ///
    /// # Errors
    /// [`FrontError::Io`] where `from` does not exist or is a directory, or `to` is taken.
    pub fn link(&self, from: &Path, to: &Path) -> Result<(), FrontError> {
        self.check_path(from)?;
        self.check_path(to)?;
        let _claim = self.names.claim(&[from, to]);
        self.shared.check()?;
        self.forget(to)?;
        let file = self.open_file(&self.look(from)?);
        // A removal of another of its names counts them.
        let committer = file.as_ref().map(|file| file.committer());
        if let (Some(file), Some(committer)) = (&file, &committer) {
            file.keep_name(committer)?;
        }
        let (old, new) = (self.path(from), self.path(to));
        let linked = self.shared.device.hard_link(&old, &new);
        linked.map_err(FrontError::io("link", &new))
    }

    /// Records that the file which had this name is gone. The name is claimed.
    fn forget(&self, path: &Path) -> Result<(), FrontError> {
        let file = self.files.lock().removed.get(path).map(Arc::clone);
        let Some(file) = file else {
            return Ok(());
        };
        self.with_log(|| file.forget(&mut file.committer()))?;
        let mut files = self.files.lock();
        files.removed.remove(path);
        // Only those that have it open hold it now.
        if Arc::strong_count(&file) > 1 {
            files.orphans.push(file);
        }
        Ok(())
    }

    /// The same of all files whose name was this one, or below it.
    pub(super) fn forget_below(&self, path: &Path) -> Result<(), FrontError> {
        let below: Vec<PathBuf> = {
            let files = self.files.lock();
            let below = files.removed.keys().filter(|removed| removed.starts_with(path));
            below.cloned().collect()
        };
        below.iter().try_for_each(|path| self.forget(path))
    }

    /// Makes the removal of names durable and gives back the slots of their pages; files that are
    /// still open are written in place from then on. Called in the background; blocks on the device,
    /// and with it what uses these names.
    ///
    /// # Errors
    /// What a sync or the log fails with: [`FrontError::Io`], [`FrontError::Log`].
    pub fn forget_removed(&self) -> Result<(), FrontError> {
        loop {
            let next = self.files.lock().removed.keys().next().cloned();
            let Some(path) = next else { break };
            let _claim = self.names.claim(&[&path]);
            self.forget(&path)?;
        }
        let orphans = std::mem::take(&mut self.files.lock().orphans);
        let mut orphans = orphans.into_iter();
        let settled = orphans.try_for_each(|file| self.settle(&file));
        // After a failure the next time it is their turn.
        self.files.lock().orphans.extend(orphans);
        settled
    }

    /// Lets a removed file that is still open do without slots, once its removal is durable.
    pub(super) fn settle(&self, file: &Arc<PageFile>) -> Result<(), FrontError> {
        if Arc::strong_count(file) == 1 {
            return Ok(());
        }
        let committer = file.committer();
        let settled = self.shared.sync_removal(file.name().path()).map(|()| {
            file.give_up_slots(&committer).inspect_err(|error| {
                // Its user gets an error when it writes.
                tracing::warn!(%error, "a removed file that is open keeps its slots");
            })
        });
        if !matches!(settled, Ok(Ok(()))) {
            // The next time it is tried again.
            self.files.lock().orphans.push(Arc::clone(file));
        }
        settled.map(drop)
    }

    /// Waits, where files of this name or below it were removed, until that is durable: before
    /// something that is no file of the volume gets the name, for at a recovery their paths must not
    /// lead to it. Does nothing else.
    ///
    /// # Errors
    /// What a sync or the log fails with: [`FrontError::Io`], [`FrontError::Log`].
    pub fn free_name(&self, path: &Path) -> Result<(), FrontError> {
        self.check_path(path)?;
        let _claim = self.names.claim(&[path]);
        self.forget_below(path)
    }

    /// Removes an empty directory, once the removal of the files that were in it is recorded: one with
    /// mapped files that is missing is none that was removed.
    ///
    /// # Errors
    /// What a sync or the log fails with: [`FrontError::Io`], [`FrontError::Log`]; and
    /// [`FrontError::Io`] where it cannot be removed.
    pub fn remove_dir(&self, path: &Path) -> Result<(), FrontError> {
        self.check_path(path)?;
        let _claim = self.names.claim(&[path]);
        self.forget_below(path)?;
        let full = self.path(path);
        let removed = self.shared.device.remove_dir(&full);
        removed.map_err(FrontError::io("remove", &full))
    }

    /// Finds another name of a file that has lost its known one, by a walk over the whole volume; no
    /// other name is used meanwhile. One that has none, though it may have some outside of the volume,
    /// is a removed file from then on. Does nothing where the name is known.
    pub(super) fn find_name(&self, file: &PageFile) -> Result<(), FrontError> {
        let stat = file.stat()?;
        let (moves, claim) = (self.moves.lock(), self.names.claim(&[Path::new("")]));
        let Name::Lost(lost) = file.name() else {
            return Ok(());
        };
        if let Some(path) = self.search(&stat)? {
            file.opened_as(&path);
            return Ok(());
        }
        file.unlinked(&file.committer(), &lost);
        let known = self.files.lock().open.remove(&(stat.dev, stat.ino));
        drop((moves, claim));
        known.map_or(Ok(()), |file| self.settle(&file))
    }

    /// A name of a file. Not through symbolic links, nor in the volume's own directory.
    fn search(&self, wanted: &Stat) -> Result<Option<PathBuf>, FrontError> {
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            let (mut found, full) = (Vec::new(), self.path(&dir));
            let mut each = |name: &OsStr, kind: FileKind, ino: u64| {
                let path = dir.join(name);
                if kind == FileKind::Directory && path != Path::new(OWN) {
                    dirs.push(path);
                } else if kind == FileKind::File && ino == wanted.ino {
                    found.push(path);
                }
            };
            match self.shared.device.read_dir(&full, &mut each) {
                // It was removed meanwhile; or no file is opened in it.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                    ) => {}
                read => read.map_err(FrontError::io("list", &full))?,
            }
            for path in found {
                let stat = self.look_if_any(&path)?;
                if stat.is_some_and(|stat| (stat.dev, stat.ino) == (wanted.dev, wanted.ino)) {
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }
}
