//! Descriptors run out: what cannot be opened is refused and may be tried again, and files that no
//! user has open make way.

use std::path::Path;
use std::sync::Arc;

use collie_front::{Existing, FrontError, PageFile, Scope, Volume};
use collie_io::{Device, is_out_of_descriptors};
use collie_log::LogError;
use collie_sim::{Fault, FaultKind, SimDevice};

use crate::small::{PAGE, cuts, device, mapped, open, version, write};

const DIRS: [&str; 2] = ["d", "e"];

fn with_dirs() -> SimDevice {
    let device = device();
    for dir in DIRS {
        let dir = Path::new("/volume").join(dir);
        device.create_dir_all(&dir).unwrap();
    }
    device
}

type Step = (
    &'static str,
    fn(&Volume, &mut Vec<Arc<PageFile>>) -> Result<(), FrontError>,
);

/// Each opens something, and leaves everything as it was where it fails.
const STEPS: [Step; 14] = [
    ("create", |volume, files| {
        files.push(volume.create(Path::new("d/a"))?);
        Ok(())
    }),
    ("grow", |volume, files| {
        volume.write_at(&files[0], &[1; 4 * PAGE], 0)
    }),
    ("sync", |volume, files| volume.sync(&files[0])),
    ("displace", |volume, files| {
        (0..2).for_each(|page| write(volume, &files[0], page, 2));
        volume.sync(&files[0])
    }),
    ("rename to another directory", |volume, _| {
        volume.rename(Path::new("d/a"), Path::new("e/b"), Existing::Replace)
    }),
    ("sync by the new name", |volume, files| {
        (0..2).for_each(|page| write(volume, &files[0], page, 3));
        volume.sync(&files[0])
    }),
    ("rename the directory", |volume, _| {
        volume.rename(Path::new("e"), Path::new("n"), Existing::Replace)
    }),
    ("create another", |volume, files| {
        files.push(volume.create(Path::new("d/gone"))?);
        Ok(())
    }),
    ("let another grow", |volume, files| {
        volume.write_at(&files[1], &[1; 4 * PAGE], 0)
    }),
    ("displace its pages", |volume, files| {
        volume.sync(&files[1])?;
        (0..4).for_each(|page| write(volume, &files[1], page, 2));
        volume.sync(&files[1])
    }),
    ("forget", |volume, _| {
        let path = Path::new("d/gone");
        if volume.file(path).is_ok() {
            volume.unlink(path)?;
        }
        volume.forget_removed()
    }),
    ("commit", |volume, files| {
        (0..2).for_each(|page| write(volume, &files[0], page, 4));
        volume.commit_all(Scope::Steady)
    }),
    ("checkpoint", |volume, _| volume.checkpoint()),
    ("commit all", |volume, _| volume.commit_all(Scope::All)),
];

/// What opens something fails once, whichever it is; then it is tried again.
#[test]
fn what_cannot_be_opened_is_refused_and_done_the_next_time() {
    let mut refused = Vec::new();
    for after in 0.. {
        let device = with_dirs();
        let volume = open(&device);
        device.inject(Fault::new(FaultKind::OpenFails).after(after).once());
        let mut files = Vec::new();
        for (what, step) in STEPS {
            if let Err(error) = step(&volume, &mut files) {
                let is_said = match &error {
                    FrontError::Io { source, .. } => is_out_of_descriptors(source),
                    FrontError::Log(error) => matches!(error, LogError::Unprepared { .. }),
                    _ => false,
                };
                assert!(is_said, "{what}, after {after}: {error}");
                refused.push(what);
                step(&volume, &mut files).unwrap_or_else(|e| panic!("{what} again, after {after}: {e}"));
            }
            assert_eq!(volume.status().poisoned, None, "{what}, after {after}");
        }
        assert_eq!(
            volume.free_slots(),
            14,
            "the removed file has given its slots back"
        );
        for (way, device) in cuts(&device) {
            let volume = open(&device);
            assert_eq!(version(&volume, "n/b", 0), 4, "{way}");
            for gone in ["d/a", "e/b", "d/gone"] {
                assert!(volume.file(Path::new(gone)).is_err(), "{way}: {gone}");
            }
        }
        let is_met = device.fired(FaultKind::OpenFails) > 0;
        device.heal();
        volume.close().unwrap();
        if !is_met {
            break;
        }
    }
    refused.dedup();
    println!("figures: refused and done again: {refused:?}");
    for what in [
        "sync",
        "rename to another directory",
        "rename the directory",
        "forget",
        "checkpoint",
    ] {
        assert!(refused.contains(&what), "{what} opens nothing");
    }
}

/// The failed sync itself is final all the same.
#[test]
fn a_failed_sync_of_names_ends_all_writes() {
    let device = with_dirs();
    let volume = open(&device);
    let file = volume.create(Path::new("d/a")).unwrap();
    write(&volume, &file, 0, 1);
    device.inject(Fault::new(FaultKind::SyncFails).on("/volume/d").after(1).once());
    assert!(volume.sync(&file).is_err());
    let other = volume.create(Path::new("e/b"));
    assert!(matches!(other, Err(FrontError::Poisoned { .. })), "{other:?}");
}

/// A removed file that is open keeps its slots no longer than its directory cannot be opened.
#[test]
fn a_removed_file_frees_its_slots_once_its_directory_opens() {
    let device = with_dirs();
    let volume = open(&device);
    let files = ["d/a", "d/b"].map(|name| {
        let file = mapped(&volume, name);
        volume.drain().unwrap();
        volume.unlink(Path::new(name)).unwrap();
        (0..4).for_each(|page| write(&volume, &file, page, 5));
        file
    });
    assert_eq!((volume.free_slots(), volume.status().removed), (8, 2));
    device.inject(Fault::new(FaultKind::OpenFails).on("/volume/d"));
    for _ in 0..3 {
        assert!(volume.forget_removed().is_err());
        assert_eq!(volume.status().removed, 2);
    }
    device.heal();
    volume.forget_removed().unwrap();
    assert_eq!((volume.free_slots(), volume.status().removed), (16, 0));
    drop(files);
}

/// Makes a file of this name that no user has open then.
type Make = fn(&Volume, &str);
type Open = fn(&Volume) -> Result<Arc<PageFile>, FrontError>;

#[test]
fn files_that_no_user_has_open_make_way_for_one_that_is_opened() {
    let unused: [(_, Make); 4] = [
        ("clean", |volume, name| {
            let file = volume.create(Path::new(name)).unwrap();
            volume.sync(&file).unwrap();
        }),
        ("not synced", |volume, name| {
            let file = volume.create(Path::new(name)).unwrap();
            write(volume, &file, 0, 1);
        }),
        ("displaced", |volume, name| drop(mapped(volume, name))),
        ("removed", |volume, name| {
            mapped(volume, name);
            volume.unlink(Path::new(name)).unwrap();
        }),
    ];
    for (what, make) in unused {
        let opens: [Open; 2] = [
            |volume| volume.create(Path::new("new")),
            |volume| volume.file(Path::new("old")),
        ];
        for opened in opens {
            let device = with_dirs();
            let volume = open(&device);
            drop(volume.create(Path::new("old")).unwrap());
            volume.commit_all(Scope::All).unwrap();
            volume.close_idle();
            let used = mapped(&volume, "d/used");
            let before = device.open_files();
            make(&volume, "d/a");
            assert!(device.open_files() > before || what == "clean");
            for name in ["/volume/new", "/volume/old"] {
                device.inject(Fault::new(FaultKind::OpenFails).on(name).once());
            }
            let file = opened(&volume).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(device.open_files(), before + 1, "{what}");
            assert_eq!(device.fired(FaultKind::OpenFails), 1);
            drop((file, used));
            assert_eq!(version(&volume, "d/used", 0), 2);
        }
    }
}

/// Where none can make way the call is refused, and nothing else.
#[test]
fn an_opening_is_refused_where_all_files_are_in_use() {
    let device = with_dirs();
    let volume = open(&device);
    let used = mapped(&volume, "a");
    device.inject(Fault::new(FaultKind::OpenFails).on("/volume/b"));
    let refused = volume.create(Path::new("b")).unwrap_err();
    assert!(
        matches!(&refused, FrontError::Io { source, .. } if is_out_of_descriptors(source)),
        "{refused}"
    );
    write(&volume, &used, 0, 3);
    volume.sync(&used).unwrap();
    device.heal();
    volume.create(Path::new("b")).unwrap();
    volume.close().unwrap();
}
