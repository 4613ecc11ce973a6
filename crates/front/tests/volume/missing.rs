//! Files with displaced pages that are missing: removed right before a crash, or not there yet.

use std::path::Path;

use collie_front::{FrontError, Missing, Scope, Volume, VolumeOptions};
use collie_io::Device;
use collie_sim::{Points, PowerCut, SimDevice};

use crate::small::{cuts, mapped, open, options, version};

const AT: &str = "/volume/base/a";

/// Pages of `base/a` and `base/b` are displaced, and the process has died.
fn left() -> SimDevice {
    let device = crate::small::device();
    device.create_dir_all(Path::new("/volume/base")).unwrap();
    let volume = open(&device);
    for name in ["base/a", "base/b"] {
        mapped(&volume, name);
    }
    device.snapshot().process_death().device()
}

fn looked_at(device: &SimDevice) -> Volume {
    let options = VolumeOptions {
        missing: Missing::Keep,
        ..options(device, 16, 1 << 15)
    };
    Volume::open(Path::new("/volume"), options).unwrap()
}

/// Say that its file system is not mounted, or that a copy is not complete.
#[test]
fn a_missing_directory_is_asked_for_and_nothing_is_done_before() {
    let device = left();
    let away = Path::new("/elsewhere");
    device.rename(Path::new("/volume/base"), away).unwrap();
    for _ in 0..2 {
        let refused = Volume::open(Path::new("/volume"), options(&device, 16, 1 << 15)).unwrap_err();
        assert!(matches!(refused, FrontError::Mismatch { .. }), "{refused}");
        let said = refused.to_string();
        assert!(
            said.starts_with("/volume/base: it is missing") && said.contains("base/a"),
            "{said}"
        );
    }
    drop(looked_at(&device));
    device.rename(away, Path::new("/volume/base")).unwrap();
    let volume = open(&device);
    assert_eq!(volume.recovered().gone, [""; 0].map(Path::new));
    for name in ["base/a", "base/b"] {
        assert_eq!(version(&volume, name, 0), 2, "{name}");
    }
}

#[test]
fn pages_are_given_up_where_only_the_file_is_missing() {
    let device = left();
    device.remove_file(Path::new(AT)).unwrap();
    let volume = open(&device);
    assert_eq!(volume.recovered().gone, [Path::new("base/a")]);
    assert_eq!((volume.free_slots(), volume.status().missing), (14, 0));
    assert_eq!(version(&volume, "base/b", 0), 2);
}

/// A look, and what a look may do besides, takes nothing from a file that comes back.
#[test]
fn one_who_looks_keeps_pages_of_a_missing_file() {
    let device = left();
    let away = Path::new("/elsewhere");
    device.rename(Path::new(AT), away).unwrap();
    for _ in 0..2 {
        let volume = looked_at(&device);
        assert_eq!(volume.recovered().gone, [Path::new("base/a")]);
        assert_eq!((volume.free_slots(), volume.status().missing), (12, 1));
        assert_eq!(volume.check().unwrap().len(), 0);
        volume.checkpoint().unwrap();
        volume.close().unwrap();
    }
    let volume = looked_at(&device);
    volume.commit_all(Scope::All).unwrap();
    volume.drain().unwrap();
    assert_eq!(volume.free_slots(), 14, "those of the other one are free");
    volume.close().unwrap();
    device.rename(away, Path::new(AT)).unwrap();
    let volume = open(&device);
    assert_eq!(version(&volume, "base/a", 0), 2);
    assert_eq!(version(&volume, "base/b", 0), 2);
}

/// Wherever a power cut or the death of the process falls: a directory that was removed is not asked
/// for.
#[test]
fn a_directory_is_removed_after_its_files_removal_is_recorded() {
    let device = left();
    let volume = open(&device);
    device.record(Points::Changes, usize::MAX);
    for name in ["base/a", "base/b"] {
        volume.unlink(Path::new(name)).unwrap();
    }
    assert!(volume.remove_dir(Path::new("base/none")).is_err());
    volume.remove_dir(Path::new("base")).unwrap();
    let mut images = 0;
    for snapshot in device.take_snapshots() {
        for (way, cut) in PowerCut::WAYS {
            for seed in 0..8 {
                let mut image = snapshot.power_cut(cut, seed);
                image.clear_volatile();
                let opened = Volume::open(Path::new("/volume"), options(&image.device(), 16, 1 << 15));
                drop(opened.unwrap_or_else(|e| panic!("{way} at {:?}: {e}", snapshot.at())));
                images += 1;
            }
        }
        drop(open(&snapshot.process_death().device()));
    }
    for (_, device) in cuts(&device) {
        assert_eq!(open(&device).free_slots(), 16);
    }
    assert!(images > 100, "{images}");
}
