//! What a cluster's files lie on: a directory, or a file system of its own in an image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::commands::Interrupt;
use crate::error::{At, BenchError};

/// A file that stands for a disk. It is written once from end to end, so that no write to it finds
/// a hole; file systems are told not to discard what they do not use.
#[derive(Debug)]
pub(crate) struct Image {
    path: PathBuf,
}

impl Image {
    pub(crate) fn new(path: PathBuf, bytes: u64, interrupt: &Interrupt) -> Result<Self, BenchError> {
        let image = Self { path };
        let mut dd = Command::new("dd");
        dd.arg("if=/dev/zero").arg(format!("of={}", image.path.display()));
        dd.args(["bs=1M", "oflag=direct", "conv=fsync"]);
        interrupt.run(dd.arg(format!("count={}", bytes.div_ceil(1 << 20))))?;
        Ok(image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Its directory goes as well, with it.
        let _ = fs::remove_file(&self.path);
    }
}

/// A file system that is made for a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Ext4,
    Btrfs,
}

impl FileSystem {
    fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
        }
    }

    fn make(self, device: &str) -> Command {
        let mut make = Command::new(format!("mkfs.{}", self.name()));
        match self {
            Self::Ext4 => make.args([
                "-q",
                "-F",
                "-E",
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
            ]),
            Self::Btrfs => make.args(["-q", "-f", "-K"]),
        };
        make.arg(device);
        make
    }
}

/// A place for a cluster, taken away when it is dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    at: PathBuf,
    mounted: Option<Mounted>,
}

#[derive(Debug)]
struct Mounted {
    device: String,
    /// Its numbers, as control groups name it.
    numbers: String,
    what: &'static str,
    is_mounted: bool,
}

impl Disk {
    /// A directory.
    pub(crate) fn directory(at: PathBuf) -> Result<Self, BenchError> {
        fs::create_dir(&at).at("make", &at)?;
        open_to_all(&at)?;
        Ok(Self { at, mounted: None })
    }

    /// A new file system in an image.
    pub(crate) fn image(
        at: PathBuf,
        image: &Image,
        what: FileSystem,
        interrupt: &Interrupt,
    ) -> Result<Self, BenchError> {
        let mut disk = Self::directory(at)?;
        let mut attach = Command::new("losetup");
        attach
            .args(["--direct-io=on", "--find", "--show"])
            .arg(&image.path);
        let device = interrupt.run(&mut attach)?.trim().to_owned();
        let name = device.rsplit('/').next().unwrap_or_default();
        let numbers = super::read(&Path::new("/sys/block").join(name).join("dev"));
        let mounted = disk.mounted.insert(Mounted {
            numbers: numbers.trim().to_owned(),
            device,
            what: what.name(),
            is_mounted: false,
        });
        interrupt.run(&mut what.make(&mounted.device))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", what.name(), "-o", "nodiscard", &mounted.device]);
        interrupt.run(mount.arg(&disk.at))?;
        mounted.is_mounted = true;
        open_to_all(&disk.at)?;
        Ok(disk)
    }

    pub(crate) fn at(&self) -> &Path {
        &self.at
    }

    /// The numbers of the device that only this is on, if there is one.
    pub(crate) fn device(&self) -> Option<&str> {
        self.mounted.as_ref().map(|mounted| mounted.numbers.as_str())
    }

    pub(crate) fn describe(&self) -> String {
        match &self.mounted {
            Some(mounted) => format!("{} on a loop device", mounted.what),
            None => "a directory".to_owned(),
        }
    }

    /// Takes it away, and reports what fails.
    pub(crate) fn remove(&mut self) -> Result<(), BenchError> {
        // Not to be interrupted: it is what comes of an interrupt.
        let run = |command: &mut Command| Interrupt::default().run(command);
        if let Some(mounted) = &mut self.mounted {
            if mounted.is_mounted {
                run(Command::new("umount").arg(&self.at))?;
                mounted.is_mounted = false;
            }
            run(Command::new("losetup").args(["--detach", &mounted.device]))?;
            self.mounted = None;
        }
        match self.at.exists() {
            true => fs::remove_dir_all(&self.at).at("remove", &self.at),
            false => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Where it has failed before this is a second try; what is left then is below the directory
        // that the measurement was given.
        let _ = self.remove();
    }
}

/// Lets the server's user pass.
pub(crate) fn open_to_all(dir: &Path) -> Result<(), BenchError> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).at("open to all users", dir)
}
