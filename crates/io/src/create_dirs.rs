//! Creating directories durably: the rule, which every device that creates some shares.

use std::io;
use std::path::{Path, PathBuf};

/// What [`create_dirs`] needs of a device.
pub trait DirSteps {
    /// Creates one directory. Where there is anything of that name it is [`io::ErrorKind::AlreadyExists`], and where its
    /// parent is missing [`io::ErrorKind::NotFound`].
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Whether `path` refers to a directory.
    fn is_dir(&self, path: &Path) -> io::Result<bool>;
    /// Makes the names in `dir` durable.
    fn sync_names(&self, dir: &Path) -> io::Result<()>;
    /// Removes one directory, which must be empty.
    fn remove_empty_dir(&self, dir: &Path) -> io::Result<()>;
}

/// Creates `dir` and the parents that it lacks, and makes each name on the way durable: any of them may have been made
/// by a process that died before it synced them.
///
/// Where that fails, what this call made is removed again. The next sync of a parent succeeds although the one that failed
/// left a name out, so whoever found such a directory later would take its name for durable.
///
/// # Errors
/// A step's error. It says so where a directory that was made could not be removed.
pub fn create_dirs(steps: &impl DirSteps, dir: &Path) -> io::Result<()> {
    let mut made = Vec::new();
    let created = make(steps, dir, &mut made).and_then(|()| sync(steps, dir));
    created.map_err(|error| take_back(steps, &made, error))
}

/// Creates `dir` and the parents that it lacks, and notes in `made` those that were not there, deepest last.
fn make(steps: &impl DirSteps, dir: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    match steps.make_dir(dir) {
        Ok(()) => {
            made.push(dir.to_owned());
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && steps.is_dir(dir)? => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make(steps, parent_of(dir).ok_or(e)?, made)?;
            make(steps, dir, made)
        }
        Err(e) => Err(e),
    }
}

fn sync(steps: &impl DirSteps, dir: &Path) -> io::Result<()> {
    for parent in dir.ancestors().map_while(parent_of) {
        match steps.sync_names(parent) {
            Ok(()) => {}
            // A directory that may be passed through and not opened was not made by the likes of us.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes what was made, deepest first, and returns the error to tell. What somebody else has put something into stays.
fn take_back(steps: &impl DirSteps, made: &[PathBuf], error: io::Error) -> io::Error {
    for dir in made.iter().rev() {
        if let Err(kept) = steps.remove_empty_dir(dir) {
            let message = format!(
                "{error}; {} was created, its name may not survive a power cut, and it could not be removed ({kept}): \
                 remove it before the next try",
                dir.display()
            );
            return io::Error::new(error.kind(), message);
        }
    }
    error
}

/// The directory that holds `path`, where it has a name; the current one for a bare name.
fn parent_of(path: &Path) -> Option<&Path> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() && !path.as_os_str().is_empty() => Some(Path::new(".")),
        parent => parent,
    }
}
