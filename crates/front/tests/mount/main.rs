//! The mount, used as any program uses a directory. It needs `/dev/fuse` and the right to mount;
//! where they are missing the tests say so and pass, unless `COLLIE_REQUIRE_TOOLS` is set.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test ends where its assumptions do, says what it skips, and uses files as any program does"
)]

mod files;
mod names;
mod refusals;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use collie_front::{Left, Mount, MountError, MountOptions};
use tempfile::TempDir;

const PAGE: usize = 8192;

/// A directory that looks like a cluster's, mounted.
struct Mounted {
    /// Goes before the directory.
    mount: Option<Mount>,
    dir: TempDir,
}

/// Small: the tests displace a few pages.
fn options() -> MountOptions {
    let mut options = MountOptions::default();
    options.shadow_bytes = 4 << 20;
    options
}

fn mount() -> Option<Mounted> {
    if let Err(missing) = collie_sim::faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("PG_VERSION"), "15\n").unwrap();
    fs::create_dir_all(dir.path().join("base/1")).unwrap();
    fs::create_dir(dir.path().join("pg_tblspc")).unwrap();
    let mount = Mount::new(dir.path(), &options()).unwrap();
    Some(Mounted {
        mount: Some(mount),
        dir,
    })
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn daemon(&self) -> &Mount {
        self.mount.as_ref().unwrap()
    }

    /// A relation with these pages, each of one byte all over, synced.
    fn relation(&self, name: &str, pages: &[u8]) -> File {
        let file = create(&self.path(name));
        for (number, byte) in pages.iter().enumerate() {
            write_page(&file, number, *byte);
        }
        file.sync_all().unwrap();
        file
    }

    /// Unmounts; what the directory is then.
    fn unmount(&mut self) -> Left {
        self.unmounted_by(Mount::unmount)
    }

    /// As `unmount`, with every page brought home.
    fn unmount_plain(&mut self) -> Left {
        self.unmounted_by(Mount::unmount_plain)
    }

    fn unmounted_by(&mut self, unmount: fn(&Mount) -> Result<(), MountError>) -> Left {
        let mount = self.mount.take().unwrap();
        unmount(&mount).unwrap();
        mount.wait();
        mount.close().unwrap()
    }

    fn mount_again(&mut self) {
        self.mount_with(|_| ());
    }

    fn mount_with(&mut self, set: impl FnOnce(&mut MountOptions)) {
        let mut options = options();
        set(&mut options);
        self.mount = Some(Mount::new(self.dir.path(), &options).unwrap());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            // After a failure files may be open.
            let _ = collie_front::detach_dir(mount.dir());
        }
    }
}

fn create(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap()
}

fn write_page(file: &File, number: usize, byte: u8) {
    use std::os::unix::fs::FileExt;
    file.write_all_at(&[byte; PAGE], (number * PAGE) as u64).unwrap();
}

/// The first byte of each page, all of which are of one byte.
fn pages(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let pages = bytes.chunks(PAGE);
    pages
        .map(|page| {
            assert!(
                page.len() == PAGE && page.iter().all(|byte| *byte == page[0]),
                "a whole page"
            );
            page[0]
        })
        .collect()
}
