//! Archived segments that are damaged, or that are another log's.

use std::path::Path;

use collie_io::RealDevice;
use collie_log::{Log, LogError};

use super::{append, archived, check, first_lsn, follow, options, read, refusals, release};

#[test]
fn a_damaged_archived_segment_is_named_with_its_place() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let spans = append(&log, 0..200);
    release(&log);
    let there = archived(dir.path());
    let flip = |path: &Path, at: u64| {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    let (begins, ends) = (first_lsn(&there[2]), first_lsn(&there[3]));
    let hit = spans
        .iter()
        .find(|span| span.start > begins + 4096 && span.end < ends)
        .unwrap();
    let at = 8192 + hit.start - begins;
    flip(&there[2], at + 34);
    for error in refusals(&log, dir.path()) {
        match error {
            LogError::Corrupt {
                path, offset, lsn, ..
            } => {
                assert_eq!((&path, offset, lsn), (&there[2], at, hit.start));
            }
            other => panic!("{other}"),
        }
    }
    // What lies behind the damage can be read, and what lies before damaged headers cannot.
    let n = spans.iter().position(|span| span == hit).unwrap() as u64;
    check(&read(&log, hit.end).unwrap(), n + 1..200);
    flip(&there[4], 48);
    flip(&there[4], 4096 + 48);
    for error in [
        read(&log, hit.end).unwrap_err(),
        follow(RealDevice::new(), dir.path(), Some(hit.end)).unwrap_err(),
    ] {
        assert!(
            matches!(&error, LogError::Corrupt { path, offset: 0, .. } if *path == there[4]),
            "{error}"
        );
    }
    assert!(log.poisoned().is_none());
}

#[test]
fn an_archived_segment_of_another_log_is_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let logs = [&dir, &other].map(|dir| {
        let log = Log::open(dir.path(), options()).unwrap();
        append(&log, 0..100);
        release(&log);
        log
    });
    let (ours, foreign) = (archived(dir.path()), archived(other.path()));
    std::fs::copy(&foreign[2], &ours[2]).unwrap();
    for error in refusals(&logs[0], dir.path()) {
        assert!(
            matches!(&error, LogError::LogIdMismatch { path, .. } if *path == ours[2]),
            "{error}"
        );
    }
    // Nor is another one of this log taken for it.
    std::fs::copy(&ours[1], &ours[2]).unwrap();
    for error in refusals(&logs[0], dir.path()) {
        assert!(
            matches!(&error, LogError::Corrupt { path, .. } if *path == ours[2]),
            "{error}"
        );
    }
}
