//! An archive that lacks something is reported as incomplete, and not as damaged.

use std::path::Path;
use std::sync::Arc;

use collie_io::{Device, RealDevice};
use collie_log::inspect::inspect;
use collie_log::{Log, LogError, Lsn};

use super::watched::Watched;
use super::{append, archived, first_lsn, options, release};

#[test]
fn an_archive_without_an_epochs_end_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive");
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..60);
    log.close().unwrap();
    // All of the first epoch is archived by the second, whose own segments are live: its end, too,
    // is the archive's.
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 60..61);
    release(&log);
    let first_epoch = archived(dir.path());
    assert!(first_epoch.len() > 2);
    inspect(&device, &archive, |_| {}).unwrap();
    append(&log, 61..120);
    release(&log);
    inspect(&device, &archive, |_| {}).unwrap();
    let last = first_epoch.last().unwrap();
    let begins = first_lsn(last);
    std::fs::remove_file(last).unwrap();
    let mut seen = 0;
    let missing = inspect(&device, &archive, |frame| seen = frame.end).unwrap_err();
    assert!(
        seen <= begins && begins - seen < 4096,
        "all that is there is shown"
    );
    match missing {
        LogError::Missing {
            path, wanted, oldest, ..
        } => {
            assert_eq!((&path, wanted), (&archive, begins));
            assert!(oldest > begins);
        }
        other => panic!("{other}"),
    }
    // Damage before that is damage all the same.
    let mut bytes = std::fs::read(&first_epoch[0]).unwrap();
    bytes[8_192 + 34] ^= 1;
    std::fs::write(&first_epoch[0], bytes).unwrap();
    let damaged = inspect(&device, &archive, |_| {}).unwrap_err();
    assert!(
        matches!(&damaged, LogError::Corrupt { path, .. } if *path == first_epoch[0]),
        "{damaged}"
    );
}

/// Where the archive is reported to end: of what follows, only the log knows.
fn missing_from(device: &Arc<dyn Device>, archive: &Path) -> Option<Lsn> {
    match inspect(device, archive, |_| {}) {
        Ok(_) => None,
        Err(LogError::Missing { path, wanted, .. }) if path == archive => Some(wanted),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn an_archive_that_ends_before_its_log_lacks_its_end() {
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    // The log's oldest segment is of the archive's last epoch, or begins the next one.
    for reopened in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("archive");
        let mut log = Log::open(dir.path(), options()).unwrap();
        append(&log, 0..100);
        if reopened {
            log.close().unwrap();
            log = Log::open(dir.path(), options()).unwrap();
            append(&log, 100..101);
        }
        release(&log);
        let there = archived(dir.path());
        assert!(there.len() > 3);
        assert_eq!(missing_from(&device, &archive), None);
        // A copy of it says nothing of its end, nor does the log of what was copied into its
        // directory.
        let elsewhere = tempfile::tempdir().unwrap();
        let copies = [elsewhere.path().join("archive"), dir.path().join("copy")];
        for last in there.iter().rev().take(there.len() - 1) {
            let ends = first_lsn(last);
            std::fs::remove_file(last).unwrap();
            let mut seen = 0;
            assert!(inspect(&device, &archive, |frame| seen = frame.end).is_err());
            assert!(seen <= ends && ends - seen < 4096, "all that is there is shown");
            assert_eq!(
                missing_from(&device, &archive),
                Some(ends),
                "reopened: {reopened}"
            );
            for copy in &copies {
                std::fs::create_dir_all(copy).unwrap();
                for path in archived(dir.path()) {
                    std::fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
                }
                assert_eq!(missing_from(&device, copy), None);
                std::fs::remove_dir_all(copy).unwrap();
            }
        }
        // Of another log's segment nothing follows.
        log.close().unwrap();
        let other = tempfile::tempdir().unwrap();
        drop(Log::open(other.path(), options()).unwrap());
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "seg") {
                std::fs::remove_file(path).unwrap();
            }
        }
        let name = "0000000000000001.seg";
        std::fs::copy(other.path().join(name), dir.path().join(name)).unwrap();
        assert_eq!(missing_from(&device, &archive), None);
    }
}

/// From outside the log and its archive are not seen at once.
#[test]
fn an_archive_that_grows_while_inspected_lacks_nothing() {
    for moment in ["before list", "after list", "before open", "after open"] {
        for count in 1..8 {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(dir.path(), options()).unwrap();
            append(&log, 0..60);
            release(&log);
            append(&log, 60..120);
            let watched = Watched::new();
            let (mut calls, moving) = (0, log.clone());
            watched.call(move |now, _| {
                calls += u64::from(now == moment);
                if now == moment && calls == count {
                    release(&moving);
                }
            });
            let device: Arc<dyn Device> = Arc::new(watched);
            let missing = missing_from(&device, &dir.path().join("archive"));
            assert_eq!(missing, None, "{moment} {count}");
        }
    }
}
