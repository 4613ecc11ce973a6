//! Descriptors run out. Alone in its process, whose limit it lowers.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::io;
use std::path::Path;

use collie_io::{Device, OpenMode, RealDevice, is_out_of_descriptors};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn users_leave_descriptors_to_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let device = RealDevice::new();
    let limit = Rlimit {
        current: Some(100),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let path = |n: usize| dir.path().join(n.to_string());
    let mut files = Vec::new();
    let refused = loop {
        match device.open_for_user(&path(files.len()), OpenMode::CreateNew) {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
    };
    assert!(is_out_of_descriptors(&refused), "{refused}");
    assert!((50..=75).contains(&files.len()), "{}", files.len());
    let missing = device.stat(&path(files.len())).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound, "nothing was created");
    let existing = device.open_for_user(&path(0), OpenMode::ReadWrite).unwrap_err();
    assert!(is_out_of_descriptors(&existing), "{existing}");
    // Those of the process itself.
    let own: Vec<_> = (0..20).map(|_| device.open_dir(dir.path()).unwrap()).collect();
    own.iter().for_each(|dir| dir.sync().unwrap());
    // Holes below them are users' again, and what is opened is what was asked for.
    drop(files.swap_remove(0));
    let again = device.open_for_user(&path(1), OpenMode::ReadWrite).unwrap();
    assert_eq!(again.stat().unwrap(), device.stat(&path(1)).unwrap());
    assert!(device.open_for_user(Path::new("/"), OpenMode::Read).is_err());
}
