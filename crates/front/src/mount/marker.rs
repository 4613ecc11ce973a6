//! The name of `PG_VERSION` below a mount, by which PostgreSQL decides whether it starts there, and a
//! later mount whether pages are in `.collie`.
//!
//! Each step is durable before the next one: a map, the marker is hidden, pages are displaced; no
//! file is mapped, a map without files, the marker is shown. So beside a hidden marker there is a map,
//! and beside one that is shown a map without files, wherever a crash falls.

use std::io;
use std::num::NonZeroU64;
use std::path::Path;

use collie_io::{Device, FileKind, OpenMode, read_exact_at};

use super::adopt::Cluster;
use crate::Scope;
use crate::error::MountError;
use crate::volume::{OWN, Volume, VolumeOptions};

/// The file by which PostgreSQL recognizes the directory of a cluster.
pub(super) const MARKER: &str = "PG_VERSION";
/// Its name below the mount: a server that is started without the mount refuses the directory.
pub(super) const HIDDEN_MARKER: &str = "PG_VERSION.collie";

/// What a directory is to be when its page map is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Afterwards {
    /// One that PostgreSQL starts in on the mount only: `full_page_writes` may be off in it.
    #[default]
    OfMount,
    /// A plain one, if every page is at home.
    Plain,
}

/// What a directory is whose page map was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// A plain one: PostgreSQL starts in it.
    Plain,
    /// Every page is at home, and PostgreSQL starts in it on the mount only.
    AtHome,
    /// Pages are in `.collie`.
    Displaced,
}

/// The reason given to refuse a map with displaced pages beside it.
const SHOWN: &str = "PG_VERSION has its own name";

/// Below a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// There is no cluster yet, or none at all.
    Missing,
    /// PostgreSQL starts: no file is mapped.
    Shown,
    /// PostgreSQL refuses: there is a map.
    Hidden,
}

/// The system identifier of the cluster in a directory, which its copies have too, if it can be read.
pub(super) fn identity(device: &dyn Device, root: &Path) -> Option<NonZeroU64> {
    let control = device.open(&root.join("global/pg_control"), OpenMode::Read);
    let mut number = [0; 8];
    read_exact_at(&*control.ok()?, &mut number, 0).ok()?;
    NonZeroU64::new(u64::from_le_bytes(number))
}

impl Cluster<'_> {
    /// Opens the page map below the mount. Refused before anything is changed where the marker says
    /// that it cannot be that of the files.
    pub(super) fn open(&self, options: VolumeOptions) -> Result<Volume, MountError> {
        let marker = self.check_map()?;
        let options = VolumeOptions {
            shown_as: Some(self.shown.to_owned()),
            identity: identity(self.device, self.root),
            plain_by: (marker == Marker::Shown).then_some(SHOWN),
            ..options
        };
        Ok(Volume::open(self.root, options)?)
    }

    /// Opens the page map and hides the marker: from then on pages may be displaced. Returns as well
    /// what the directory was: it is to be that again where nothing comes of the mount.
    pub(super) fn adopt(&self, options: VolumeOptions) -> Result<(Volume, Afterwards), MountError> {
        let before = match self.check_map()? {
            Marker::Shown => Afterwards::Plain,
            Marker::Hidden | Marker::Missing => Afterwards::OfMount,
        };
        let volume = self.open(options)?;
        self.hide_marker()?;
        // The first opening takes its time. A server that was started meanwhile is seen here, and
        // none is started from here on.
        if let Err(used) = self.check_unused() {
            self.leave(volume, before)?;
            return Err(used);
        }
        Ok((volume, before))
    }

    /// Commits everything and writes the map; shows the marker where the directory is to be plain and
    /// no page is displaced. No one else has the volume.
    pub(super) fn leave(&self, volume: Volume, afterwards: Afterwards) -> Result<Left, MountError> {
        volume.commit_all(Scope::All)?;
        let status = volume.status();
        let is_home = status.mapped == 0 && status.missing == 0;
        let left = match (is_home, afterwards) {
            (false, _) => Left::Displaced,
            (true, Afterwards::OfMount) => Left::AtHome,
            (true, Afterwards::Plain) => Left::Plain,
        };
        volume.identify(identity(self.device, self.root));
        // A waiter for the lock finds the marker shown.
        let lock = volume.lock();
        volume.close()?;
        if left == Left::Plain {
            self.show_marker()?;
        }
        drop(lock);
        Ok(left)
    }

    /// Whether there is something by the name below the mount.
    fn has(&self, name: &str) -> Result<bool, MountError> {
        match self.device.lstat(&self.root.join(name)) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound) => Ok(false),
            Err(e) => Err(MountError::io("stat", &self.shown.join(name))(e)),
        }
    }

    /// The marker's state. Refuses a directory in a state that no mount leaves, as far as names show it.
    pub(super) fn check_map(&self) -> Result<Marker, MountError> {
        let own = self.device.stat(&self.root.join(OWN));
        if own.is_ok_and(|own| own.kind != FileKind::Directory) {
            return Err(MountError::Refused {
                path: self.shown.join(OWN),
                problem: "it is not a directory, in which a page map could be; move it away".to_owned(),
            });
        }
        let marker = match (self.has(MARKER)?, self.has(HIDDEN_MARKER)?) {
            (true, true) => return Err(self.both_markers()),
            (true, false) => Marker::Shown,
            (false, true) => Marker::Hidden,
            (false, false) => Marker::Missing,
        };
        if marker == Marker::Hidden && !self.has_map()? {
            return Err(self.refuse(format!(
                "PostgreSQL's pages of this directory were left in {OWN} ({MARKER} is called {HIDDEN_MARKER}), \
                 and there is no {OWN} with a MAP; bring back the one that belongs to these files; if it \
                 is lost for good, restore a backup"
            )));
        }
        Ok(marker)
    }

    /// Whether there is anything of a map. One of which parts are missing is refused when it is opened.
    pub(super) fn has_map(&self) -> Result<bool, MountError> {
        for part in ["MAP", "log", "shadow"] {
            if self.has(&format!("{OWN}/{part}"))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn both_markers(&self) -> MountError {
        self.refuse(format!(
            "it has both {MARKER} and {HIDDEN_MARKER}: was something written to it below a mount? Remove \
             the one that does not belong there"
        ))
    }

    /// Gives `PG_VERSION` its name below the mount, so that a server that is started without the
    /// mount refuses the directory; durable when it returns.
    fn hide_marker(&self) -> Result<(), MountError> {
        self.rename_marker(MARKER, HIDDEN_MARKER)
    }

    /// Undoes [`Cluster::hide_marker`]: for a directory without mapped files.
    fn show_marker(&self) -> Result<(), MountError> {
        self.rename_marker(HIDDEN_MARKER, MARKER)
    }

    fn rename_marker(&self, from: &str, to: &str) -> Result<(), MountError> {
        match self.device.rename_new(&self.root.join(from), &self.root.join(to)) {
            Ok(()) => self
                .device
                .sync_dir(&self.root.join(""))
                .map_err(MountError::io("sync", self.shown)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(self.both_markers()),
            Err(e) => Err(MountError::io("rename", &self.shown.join(from))(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use collie_io::write_all_at;
    use collie_log::RingMode;
    use collie_sim::{Image, Points, PowerCut, SimDevice, VOLATILE_DIR};

    use super::*;

    const PAGE: usize = 1024;
    const ROOT: &str = "/volume";
    const FILE: &str = "base/1/5";

    /// A directory with this system identifier.
    fn device(identity: u64) -> SimDevice {
        let device = SimDevice::new(9);
        for dir in ["base/1", "global"] {
            device.create_dir_all(&Path::new(ROOT).join(dir)).unwrap();
        }
        put(&device, MARKER, b"15\n");
        put(&device, "global/pg_control", &identity.to_le_bytes());
        device
    }

    fn put(device: &SimDevice, name: &str, bytes: &[u8]) {
        let path = Path::new(ROOT).join(name);
        let file = device.open(&path, OpenMode::OpenOrCreate).unwrap();
        write_all_at(&*file, bytes, 0).unwrap();
        file.sync_data().unwrap();
        device.sync_dir(path.parent().unwrap()).unwrap();
    }

    fn options(device: &SimDevice) -> VolumeOptions {
        VolumeOptions {
            device: Arc::new(device.clone()),
            page_bytes: PAGE as u32,
            slots: 8,
            ring: RingMode::Shared {
                dir: VOLATILE_DIR.into(),
            },
            ring_bytes: 1 << 15,
            segment_bytes: 1 << 15,
            threads: false,
            ..VolumeOptions::default()
        }
    }

    fn cluster(device: &SimDevice) -> Cluster<'_> {
        Cluster {
            device,
            root: Path::new(ROOT),
            shown: Path::new(ROOT),
        }
    }

    fn mount(device: &SimDevice) -> Result<Volume, MountError> {
        cluster(device).adopt(options(device)).map(|(volume, _)| volume)
    }

    fn leave(device: &SimDevice, volume: Volume) -> Left {
        cluster(device).leave(volume, Afterwards::Plain).unwrap()
    }

    /// Writes these versions of a page, each synced, and sets `acknowledged` to the last one.
    fn write(volume: &Volume, versions: std::ops::Range<u8>, acknowledged: &AtomicU64) {
        let path = Path::new(FILE);
        let file = volume.file(path).or_else(|_| volume.create(path)).unwrap();
        for version in versions {
            volume.write_at(&file, &[version; PAGE], 0).unwrap();
            volume.sync(&file).unwrap();
            acknowledged.store(version.into(), Ordering::Relaxed);
        }
    }

    fn version(volume: &Volume) -> u8 {
        let mut found = [0; PAGE];
        let file = volume.file(Path::new(FILE)).unwrap();
        assert_eq!(volume.read_at(&file, &mut found, 0).unwrap(), PAGE);
        assert!(found.iter().all(|byte| *byte == found[0]));
        found[0]
    }

    /// What a server without the mount reads.
    fn at_home(device: &SimDevice) -> u8 {
        let home = device.open(&Path::new(ROOT).join(FILE), OpenMode::Read).unwrap();
        let mut found = [0; PAGE];
        read_exact_at(&*home, &mut found, 0).unwrap();
        found[0]
    }

    /// A directory whose first mount left a page displaced, and the versions that it has.
    fn left_with_pages(identity: u64) -> SimDevice {
        let device = device(identity);
        let volume = mount(&device).unwrap();
        write(&volume, 1..3, &AtomicU64::new(0));
        assert_eq!(leave(&device, volume), Left::Displaced);
        device
    }

    /// Puts the page map of another directory, or of another time, in the place of its own.
    fn exchange_map(device: &SimDevice, from: &SimDevice) {
        device.remove_dir_all(&Path::new(ROOT).join(OWN)).unwrap();
        let own = Path::new(ROOT).join(OWN);
        for dir in [own.clone(), own.join("log")] {
            device.create_dir_all(&dir).unwrap();
            for entry in from.list(&dir).unwrap() {
                if entry.kind != FileKind::Directory {
                    let path = dir.join(&entry.name);
                    let source = from.open(&path, OpenMode::Read).unwrap();
                    let mut bytes = vec![0; source.stat().unwrap().len as usize];
                    read_exact_at(&*source, &mut bytes, 0).unwrap();
                    put(device, path.strip_prefix(ROOT).unwrap().to_str().unwrap(), &bytes);
                }
            }
        }
    }

    fn refusal(device: &SimDevice) -> String {
        let before = device.list(Path::new(ROOT)).unwrap();
        let said = mount(device).unwrap_err().to_string();
        assert_eq!(device.list(Path::new(ROOT)).unwrap(), before, "names are left");
        said
    }

    #[test]
    fn a_crash_between_any_two_steps_leaves_what_can_be_mounted() {
        let device = device(7);
        let acknowledged = Arc::new(AtomicU64::new(0));
        let tag = Arc::clone(&acknowledged);
        device.tag_snapshots(move || tag.load(Ordering::Relaxed));
        device.record(Points::Changes, usize::MAX);
        // The first leaves a page displaced, the second one none; the third begins as the first.
        for (versions, drains, left) in [
            (1..3, false, Left::Displaced),
            (3..5, true, Left::Plain),
            (5..6, false, Left::Displaced),
        ] {
            let volume = mount(&device).unwrap();
            write(&volume, versions, &acknowledged);
            if drains {
                volume.drain().unwrap();
            }
            assert_eq!(leave(&device, volume), left);
        }
        let (mut images, mut shown) = (0, 0);
        let mut check = |image: &Image, acknowledged: u8, what: &str| {
            let device = image.device();
            let is_shown = device.stat(&Path::new(ROOT).join(MARKER)).is_ok();
            if is_shown && acknowledged > 0 {
                assert!(
                    at_home(&device) >= acknowledged,
                    "{what}: PostgreSQL starts without its pages"
                );
                shown += 1;
            }
            let volume = mount(&device).unwrap_or_else(|e| panic!("{what}: {e}"));
            if acknowledged > 0 {
                assert!(version(&volume) >= acknowledged, "{what}");
            }
            images += 1;
        };
        for (number, snapshot) in device.take_snapshots().into_iter().enumerate() {
            let acknowledged = snapshot.tag() as u8;
            let at = format!("{:?}", snapshot.at());
            for (way, cut) in PowerCut::WAYS {
                let mut image = snapshot.power_cut(cut, number as u64);
                image.clear_volatile();
                check(&image, acknowledged, &format!("{way} at {at}"));
            }
            check(&snapshot.process_death(), acknowledged, &format!("death at {at}"));
        }
        assert!(
            images > 500 && shown > 10,
            "{images} images, {shown} with the marker"
        );
    }

    #[test]
    fn pages_that_were_left_elsewhere_are_asked_for() {
        let device = left_with_pages(7);
        let kept = left_with_pages(7);
        exchange_map(&device, &kept);
        assert_eq!(version(&mount(&device).unwrap()), 2, "a copy is as good");
        for part in ["", "MAP"] {
            let device = left_with_pages(7);
            device.remove_dir_all(&Path::new(ROOT).join(OWN)).unwrap();
            if part == "MAP" {
                // What is left of it by a copy of its names.
                device.create_dir_all(&Path::new(ROOT).join(OWN)).unwrap();
            }
            let said = refusal(&device);
            assert!(
                said.contains("/volume: ") && said.contains("left in .collie") && said.contains("bring back"),
                "{said}"
            );
        }
        let device = self::device(7);
        put(&device, OWN, b"");
        assert!(refusal(&device).contains("/volume/.collie: it is not a directory"));
    }

    #[test]
    fn a_map_that_is_older_than_its_files_is_refused() {
        let device = left_with_pages(7);
        let older = device.snapshot().process_death().device();
        let volume = mount(&device).unwrap();
        write(&volume, 3..4, &AtomicU64::new(0));
        volume.drain().unwrap();
        assert_eq!(leave(&device, volume), Left::Plain);
        exchange_map(&device, &older);
        let said = refusal(&device);
        assert!(
            said.contains(FILE)
                && said.contains("PG_VERSION has its own name")
                && said.contains("Remove .collie"),
            "{said}"
        );
        device.remove_dir_all(&Path::new(ROOT).join(OWN)).unwrap();
        assert_eq!(version(&mount(&device).unwrap()), 3);
    }

    #[test]
    fn pages_of_another_cluster_are_refused() {
        let (ours, others) = (left_with_pages(7), left_with_pages(8));
        let kept = ours.snapshot().process_death().device();
        exchange_map(&ours, &others);
        let said = refusal(&ours);
        assert!(said.contains("identity 8; these files have 7"), "{said}");
        exchange_map(&ours, &kept);
        assert_eq!(
            version(&mount(&ours).unwrap()),
            2,
            "nothing was done to the files"
        );
        // One without pages serves all, such as a cluster that was made anew.
        let volume = mount(&others).unwrap();
        volume.drain().unwrap();
        assert_eq!(leave(&others, volume), Left::Plain);
        put(&others, "global/pg_control", &9_u64.to_le_bytes());
        let volume = mount(&others).unwrap();
        write(&volume, 4..7, &AtomicU64::new(0));
        put(&others, "global/pg_control", &10_u64.to_le_bytes());
        leave(&others, volume);
        assert_eq!(version(&mount(&others).unwrap()), 6, "made anew on the mount");
    }

    /// The second of three versions is displaced, and the third one at home again.
    #[test]
    fn what_is_written_without_a_mount_is_not_cut_by_the_next_one() {
        let device = device(7);
        let volume = mount(&device).unwrap();
        write(&volume, 1..4, &AtomicU64::new(0));
        assert_eq!(leave(&device, volume), Left::Plain);
        let home = Path::new(ROOT).join(FILE);
        let file = device.open(&home, OpenMode::ReadWrite).unwrap();
        write_all_at(&*file, &[4; PAGE], PAGE as u64).unwrap();
        let volume = mount(&device).unwrap();
        assert_eq!(file.stat().unwrap().len, 2 * PAGE as u64);
        drop(volume);
    }

    /// Full pages may be off in a directory without displaced pages: only a drain to leave the mount
    /// makes it a plain one.
    #[test]
    fn postgresql_starts_without_the_mount_only_after_leaving_it() {
        let device = device(7);
        let is_shown = || device.stat(&Path::new(ROOT).join(MARKER)).is_ok();
        for _ in 0..2 {
            let volume = mount(&device).unwrap();
            write(&volume, 1..3, &AtomicU64::new(0));
            volume.drain().unwrap();
            let left = cluster(&device).leave(volume, Afterwards::OfMount).unwrap();
            assert_eq!((left, is_shown()), (Left::AtHome, false));
        }
        let volume = cluster(&device).open(options(&device)).unwrap();
        assert_eq!((leave(&device, volume), is_shown()), (Left::Plain, true));
    }

    /// A server has found the marker before it was hidden.
    #[test]
    fn a_server_that_starts_while_the_page_map_is_made_is_seen() {
        let device = device(7);
        put(
            &device,
            "postmaster.pid",
            std::process::id().to_string().as_bytes(),
        );
        let said = mount(&device).unwrap_err().to_string();
        assert!(said.contains("PostgreSQL runs in it"), "{said}");
        assert!(
            device.stat(&Path::new(ROOT).join(MARKER)).is_ok(),
            "it is plain again"
        );
        device
            .remove_file(&Path::new(ROOT).join("postmaster.pid"))
            .unwrap();
        mount(&device).unwrap();
    }
}
