//! Where paths lead, through directories and symbolic links.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::world::{Body, ROOT, World, errno};

/// Symbolic links that a path may lead through, as in Linux.
const LINKS_MAX: usize = 40;

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Place {
    /// The directory of the last name; where there is none, the one that the path leads to.
    pub(crate) dir: u64,
    /// The last name; none where the path ends with the root, or one step up.
    pub(crate) name: Option<String>,
    /// What is there.
    pub(crate) ino: Option<u64>,
}

impl Place {
    /// The directory and the name, which a change of names needs.
    pub(crate) fn named(self) -> io::Result<(u64, String)> {
        let name = self.name.ok_or_else(|| errno(libc::EISDIR))?;
        Ok((self.dir, name))
    }

    /// As [`Place::named`], where nothing must be there.
    pub(crate) fn free(self) -> io::Result<(u64, String)> {
        match (self.name, self.ino) {
            (Some(name), None) => Ok((self.dir, name)),
            _ => Err(errno(libc::EEXIST)),
        }
    }

    /// What is there, which must be something.
    pub(crate) fn taken(&self) -> io::Result<u64> {
        self.ino.ok_or_else(|| errno(libc::ENOENT))
    }
}

impl World {
    /// Goes along a path from the root, where relative ones start, too. Whether a symbolic link at
    /// its end is gone through is up to `follow`; those on the way are.
    pub(crate) fn walk(&self, path: &Path, follow: bool) -> io::Result<Place> {
        let mut todo = steps(path);
        let (mut above, mut dir, mut links) = (Vec::new(), ROOT, 0);
        while let Some(step) = todo.pop() {
            if step == ".." {
                dir = above.pop().unwrap_or(ROOT);
                continue;
            }
            let name = step.into_string().map_err(|_| errno(libc::EINVAL))?;
            let ino = self.dir(dir)?.cached.get(&name).copied();
            let is_last = todo.is_empty();
            match ino.and_then(|ino| self.inodes.get(&ino)).map(|inode| &inode.body) {
                Some(Body::Link(target)) if follow || !is_last => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(errno(libc::ELOOP));
                    }
                    if target.is_absolute() {
                        (above, dir) = (Vec::new(), ROOT);
                    }
                    todo.extend(steps(target));
                }
                _ if is_last => {
                    let name = Some(name);
                    return Ok(Place { dir, name, ino });
                }
                _ => {
                    let below = ino.ok_or_else(|| errno(libc::ENOENT))?;
                    self.dir(below)?;
                    above.push(std::mem::replace(&mut dir, below));
                }
            }
        }
        Ok(Place {
            dir,
            name: None,
            ino: Some(dir),
        })
    }

    /// The inode at `path`, through symbolic links.
    pub(crate) fn resolve(&self, path: &Path) -> io::Result<u64> {
        self.walk(path, true)?.taken()
    }

    /// The directory that holds `path`, and the last name, whatever has it.
    pub(crate) fn resolve_parent(&self, path: &Path) -> io::Result<(u64, String)> {
        self.walk(path, false)?.named()
    }

    /// A path of an inode, as programs see it; empty where it has none any more.
    pub(crate) fn path_of(&self, ino: u64) -> PathBuf {
        let mut names = Vec::new();
        let mut below = ino;
        while below != ROOT {
            let Some((dir, name)) = self.inodes.get(&below).and_then(|inode| inode.names.first()) else {
                return PathBuf::new();
            };
            names.push(name);
            below = *dir;
        }
        let root = PathBuf::from("/");
        names.iter().rev().fold(root, |path, name| path.join(name))
    }
}

/// The steps along a path, first one last.
fn steps(path: &Path) -> Vec<OsString> {
    let steps = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut steps: Vec<OsString> = steps.collect();
    steps.reverse();
    steps
}
