//! Creating directories durably, for all devices.

use std::io;
use std::path::{Path, PathBuf};

/// What [`create_dirs`] needs of a device.
pub trait DirSteps {
    /// Creates one directory. Where there is anything of that name it is
    /// [`io::ErrorKind::AlreadyExists`], and where its parent is missing
    /// [`io::ErrorKind::NotFound`].
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Whether `path` refers to a directory.
    fn is_dir(&self, path: &Path) -> io::Result<bool>;
    /// Makes the names in `dir` durable.
    fn sync_names(&self, dir: &Path) -> io::Result<()>;
    /// Removes one directory, which must be empty.
    fn remove_empty_dir(&self, dir: &Path) -> io::Result<()>;
}

/// Creates `dir` and the parents that it lacks, and makes each name on the way durable: any of them
/// may have been made by a process that died before it synced them.
///
/// Where that fails, what this call made is removed again. The next sync of a parent succeeds
/// although the one that failed left a name out, so a later call that found such a directory would
/// take its name for durable. What was there before stays, and for it that hazard remains.
///
/// # Errors
/// A step's error. It says so where the name of a directory that was there may not be durable, or
/// one that was made could not be removed.
pub fn create_dirs(steps: &impl DirSteps, dir: &Path) -> io::Result<()> {
    let mut made = Vec::new();
    let created = make(steps, dir, &mut made).and_then(|()| sync(steps, dir, &made));
    created.map_err(|error| take_back(steps, &made, error))
}

/// Creates `dir` and the parents that it lacks, and notes in `made` those that were not there,
/// deepest last.
fn make(steps: &impl DirSteps, dir: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    match make_last(steps, dir, made) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make(steps, parent_of(dir).ok_or(e)?, made)?;
            // Not found again: some file systems say so of every new name, as that of `/proc`.
            make_last(steps, dir, made)
        }
        made => made,
    }
}

fn make_last(steps: &impl DirSteps, dir: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    match steps.make_dir(dir) {
        Ok(()) => {
            made.push(dir.to_owned());
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && steps.is_dir(dir)? => Ok(()),
        Err(e) => Err(e),
    }
}

/// Syncs the names on the way to `dir`. A parent that this process may traverse but not open ends
/// the walk, because another user made it; but where this call created a name in it, that is an
/// error. So does one of a file system that keeps nothing, as that of `/proc`, by which a directory
/// is reached that some process has open.
fn sync(steps: &impl DirSteps, dir: &Path, made: &[PathBuf]) -> io::Result<()> {
    for (name, parent) in dir.ancestors().map_while(|name| Some((name, parent_of(name)?))) {
        match steps.sync_names(parent) {
            Ok(()) => {}
            Err(e) if made.iter().any(|new| new == name) => return Err(e),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
                ) =>
            {
                break;
            }
            Err(e) => return Err(not_durable(name, parent, &e)),
        }
    }
    Ok(())
}

fn not_durable(name: &Path, parent: &Path, error: &io::Error) -> io::Error {
    let message = format!(
        "cannot sync {}: {error}; if the process that created {} died before its own sync, the name may not survive \
         a power cut, and no later sync shows that: restart the machine, or rename the directory and back, before the \
         next try",
        parent.display(),
        name.display()
    );
    io::Error::new(error.kind(), message)
}

/// Removes what was made, deepest first, and returns the error to report. A directory that another
/// process has put a file into stays.
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    /// Directories in memory. Those in `closed` can be passed through and not opened.
    struct Steps {
        dirs: RefCell<BTreeSet<PathBuf>>,
        closed: &'static str,
        why: io::ErrorKind,
    }

    impl Steps {
        fn new(dirs: &[&str], closed: &'static str) -> Self {
            let dirs = RefCell::new(dirs.iter().map(PathBuf::from).collect());
            let why = io::ErrorKind::PermissionDenied;
            Self { dirs, closed, why }
        }
    }

    impl DirSteps for Steps {
        fn make_dir(&self, dir: &Path) -> io::Result<()> {
            if !parent_of(dir).is_some_and(|parent| self.dirs.borrow().contains(parent)) {
                return Err(io::ErrorKind::NotFound.into());
            }
            match self.dirs.borrow_mut().insert(dir.to_owned()) {
                true => Ok(()),
                false => Err(io::ErrorKind::AlreadyExists.into()),
            }
        }

        fn is_dir(&self, path: &Path) -> io::Result<bool> {
            Ok(self.dirs.borrow().contains(path))
        }

        fn sync_names(&self, dir: &Path) -> io::Result<()> {
            match dir == Path::new(self.closed) {
                true => Err(self.why.into()),
                false => Ok(()),
            }
        }

        fn remove_empty_dir(&self, dir: &Path) -> io::Result<()> {
            self.dirs.borrow_mut().remove(dir);
            Ok(())
        }
    }

    /// Where no name below `/proc` can be made.
    struct Refusing(Steps);

    impl DirSteps for Refusing {
        fn make_dir(&self, dir: &Path) -> io::Result<()> {
            match dir.starts_with("/proc") && dir != Path::new("/proc") {
                true => Err(io::ErrorKind::NotFound.into()),
                false => self.0.make_dir(dir),
            }
        }

        fn is_dir(&self, path: &Path) -> io::Result<bool> {
            self.0.is_dir(path)
        }

        fn sync_names(&self, dir: &Path) -> io::Result<()> {
            self.0.sync_names(dir)
        }

        fn remove_empty_dir(&self, dir: &Path) -> io::Result<()> {
            self.0.remove_empty_dir(dir)
        }
    }

    #[test]
    fn a_directory_of_another_user_on_the_way_is_passed_over() {
        let mut steps = Steps::new(&["/", "/srv", "/srv/mine"], "/srv");
        create_dirs(&steps, Path::new("/srv/mine/a/b")).unwrap();
        assert!(steps.dirs.borrow().contains(Path::new("/srv/mine/a/b")));
        // What cannot be synced at all.
        steps.why = io::ErrorKind::InvalidInput;
        create_dirs(&steps, Path::new("/srv/mine/c")).unwrap();
    }

    #[test]
    fn a_name_that_is_never_found_is_an_error() {
        let steps = Steps::new(&["/"], "/");
        // A directory in which nothing can be made.
        steps.dirs.borrow_mut().insert(PathBuf::from("/proc"));
        let steps = Refusing(steps);
        for dir in ["/proc/a", "/proc/a/b"] {
            let refused = create_dirs(&steps, Path::new(dir)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::NotFound, "{dir}");
        }
    }

    /// Its maker may have been killed before it synced the name, and the next sync succeeds.
    #[test]
    fn a_failed_sync_of_an_existing_name_is_reported() {
        let mut steps = Steps::new(&["/", "/srv", "/srv/mine"], "/srv");
        steps.why = io::ErrorKind::StorageFull;
        let refused = create_dirs(&steps, Path::new("/srv/mine/a")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        let text = refused.to_string();
        assert!(
            text.contains("cannot sync /srv: ") && text.contains("created /srv/mine died"),
            "{text}"
        );
        assert!(!steps.dirs.borrow().contains(Path::new("/srv/mine/a")));
    }

    /// A store could not be opened after a power cut: the sync of its family's name had been
    /// skipped.
    #[test]
    fn a_new_name_that_cannot_be_synced_is_removed() {
        for dir in ["/srv/a", "/srv/a/b"] {
            let steps = Steps::new(&["/", "/srv"], "/srv");
            let refused = create_dirs(&steps, Path::new(dir)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            let left: Vec<_> = steps.dirs.borrow().iter().cloned().collect();
            assert_eq!(left, [Path::new("/"), Path::new("/srv")], "{dir}");
        }
    }
}
