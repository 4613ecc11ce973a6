//! The manifests of stores with an external journal.

use collie_io::RealDevice;

use crate::FamilyOptions;
use crate::manifest::file::*;
use crate::manifest::{FamilyRecord, LogState};

fn record(id: u32) -> FamilyRecord {
    FamilyRecord {
        id,
        name: "default".into(),
        flushed: (1 << 32) + u64::from(id),
        options: FamilyOptions::default(),
        later: Vec::new(),
    }
}

fn manifest(log: LogState) -> Manifest {
    Manifest {
        next_family: 1,
        log,
        families: vec![record(0)],
        ..Manifest::new([7; 16])
    }
}

#[test]
fn one_change_replaces_a_family_by_another_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let device = RealDevice::new();
    let mut file = ManifestFile::new(manifest(LogState::External));
    file.write(&device, dir.path()).unwrap();
    let replaced = Edit {
        next_family: 5,
        created: Some(record(4)),
        dropped: Some(0),
        ..Edit::default()
    };
    file.commit(&device, dir.path(), &replaced).unwrap();
    let read = ManifestFile::read(&device, dir.path()).unwrap().unwrap();
    assert_eq!(
        (read.families.as_slice(), read.next_family),
        (&[record(4)][..], 5)
    );
    // Without the drop the name is another's.
    let twice = Edit {
        next_family: 6,
        created: Some(record(5)),
        ..Edit::default()
    };
    file.commit(&device, dir.path(), &twice).unwrap();
    let refused = ManifestFile::read(&device, dir.path()).err();
    assert!(matches!(refused, Some(Error::Corrupt { .. })), "{refused:?}");
}
