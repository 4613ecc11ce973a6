//! Opening, closing, locking, and what becomes of directories that are not as they should be.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests damage files behind the store's back"
)]

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};

use collie_db::{Batch, Db, Error, FamilyOptions, Options, WriteOptions};

/// All files below `dir` with their content.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            files.push((path, bytes));
        }
    }
    files.sort();
    files
}

/// The test runs itself in a second process, which tries to open the store.
#[test]
fn a_second_process_is_told_who_has_the_store() {
    if let Ok(path) = std::env::var("COLLIE_SECOND_PROCESS") {
        let refused = Db::open(path, common::small());
        let Err(Error::Locked { pid: Some(pid), .. }) = refused else {
            panic!("{refused:?}");
        };
        println!("locked by {pid}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    let second = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "lifecycle::a_second_process_is_told_who_has_the_store",
            "--nocapture",
        ])
        .env("COLLIE_SECOND_PROCESS", dir.path())
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&second.stdout).into_owned();
    assert!(
        reported.contains(&format!("locked by {}", std::process::id())),
        "{reported}"
    );
    // In the same process too, and not once it is closed.
    assert!(matches!(
        Db::open(dir.path(), common::small()),
        Err(Error::Locked { .. })
    ));
    db.put("k", "v").unwrap();
    db.close().unwrap();
    assert_eq!(
        common::open(dir.path(), &common::small())
            .get("k")
            .unwrap()
            .unwrap(),
        "v"
    );
}

#[test]
fn a_directory_that_is_no_store_is_left_untouched() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("holiday.jpg"), b"not ours").unwrap();
    fs::create_dir(dir.path().join("log")).unwrap();
    let before = contents(dir.path());
    let refused = Db::open(dir.path(), common::small());
    assert!(
        matches!(refused, Err(Error::WrongDirectory { .. })),
        "{refused:?}"
    );
    assert_eq!(contents(dir.path()), before);
    let file = dir.path().join("holiday.jpg");
    assert!(matches!(
        Db::open(&file, common::small()),
        Err(Error::WrongDirectory { .. })
    ));
}

#[test]
fn a_store_that_lost_its_manifest_is_not_taken_for_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    db.put("k", "v").unwrap();
    db.close().unwrap();
    fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    let before = contents(dir.path());
    assert!(matches!(
        Db::open(dir.path(), common::small()),
        Err(Error::WrongDirectory { .. })
    ));
    assert_eq!(contents(dir.path()), before);
}

#[test]
fn nothing_is_created_unless_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        create_if_missing: false,
        ..common::small()
    };
    let missing = dir.path().join("missing");
    assert!(matches!(
        Db::open(&missing, options.clone()),
        Err(Error::NotFound { .. })
    ));
    assert!(!missing.exists());
    common::open(&missing, &common::small()).close().unwrap();
    common::open(&missing, &options).close().unwrap();
}

/// What is known of the tables outlives openings that write none: without it the next one reads them whole, and
/// does not notice tables of an earlier time.
#[test]
fn an_opening_without_writes_keeps_what_is_known_of_tables() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    // The flush asks for a compaction, which moves the table down at some time: another version of the tables.
    db.compact().unwrap();
    db.close().unwrap();
    let verified = dir.path().join("families/0/verified");
    let written = fs::read(&verified).unwrap();
    for _ in 0..2 {
        common::open(dir.path(), &common::small()).close().unwrap();
        assert_eq!(fs::read(&verified).unwrap(), written);
    }
}

#[test]
fn a_manifest_of_another_version_is_refused_by_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    common::open(dir.path(), &common::small()).close().unwrap();
    let path = dir.path().join("MANIFEST");
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    fs::write(&path, bytes).unwrap();
    let refused = Db::open(dir.path(), common::small());
    assert!(
        matches!(
            refused,
            Err(Error::Version {
                found: 9,
                supported: 5,
                ..
            })
        ),
        "{refused:?}"
    );
}

#[test]
fn a_rotten_manifest_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    let ours = dir.path().join("MANIFEST");
    let tables = dir.path().join("families/0");
    let current = fs::read(tables.join("current")).unwrap();
    let id = u64::from_le_bytes(current[..8].try_into().unwrap());
    let theirs = tables.join(format!("v{id}"));
    let len = fs::read(&theirs).unwrap().len();
    // Of ours the base's payload; each change behind it has another copy.
    for (path, places) in [(ours, [20, 30, 40]), (theirs, [len / 3, len / 2, len - 1])] {
        let whole = fs::read(&path).unwrap();
        for at in places {
            let mut rotten = whole.clone();
            rotten[at] ^= 0x10;
            fs::write(&path, rotten).unwrap();
            let refused = Db::open(dir.path(), common::small());
            let Err(Error::Corrupt { path: reported, .. }) = &refused else {
                panic!("{}, byte {at}: {refused:?}", path.display());
            };
            assert_eq!(*reported, path);
        }
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(
        common::open(dir.path(), &common::small())
            .get("k")
            .unwrap()
            .unwrap(),
        "v"
    );
}

#[test]
fn a_store_goes_from_log_to_no_log_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for round in 0..6 {
        let options = if round % 2 == 0 {
            common::small()
        } else {
            common::unlogged()
        };
        let db = common::open(dir.path(), &options);
        let seen: Vec<_> = db.iter().unwrap().map(|e| e.unwrap().0.to_vec()).collect();
        assert_eq!(seen, expected, "round {round}");
        let key = format!("k{round}");
        db.put(&key, "v").unwrap();
        // Overwritten in each round: the newest must win whatever counter its LSN came from.
        db.put("round", round.to_string()).unwrap();
        expected.push(key.into_bytes());
        if round == 0 {
            expected.push(b"round".to_vec());
        }
        expected.sort();
        assert_eq!(db.get("round").unwrap().unwrap(), round.to_string().as_bytes());
        if round == 2 {
            drop(db);
        } else {
            db.close().unwrap();
        }
    }
    let db = common::open(dir.path(), &common::small());
    assert_eq!(db.get("round").unwrap().unwrap(), "5");
}

#[test]
fn ids_of_families_are_never_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let db = common::open(dir.path(), &common::small());
        let family = db.create_family("f", FamilyOptions::default()).unwrap();
        ids.push(family.id());
        family.put("k", "v").unwrap();
        assert!(matches!(
            db.create_family("f", FamilyOptions::default()),
            Err(Error::FamilyExists { .. })
        ));
        db.drop_family(&family).unwrap();
        assert!(db.family("f").is_none());
        assert!(matches!(
            db.drop_family(&family),
            Err(Error::FamilyDropped { .. })
        ));
    }
    assert_eq!(ids, [1, 2, 3]);
    let db = common::open(dir.path(), &common::small());
    assert!(matches!(
        db.drop_family(&db.default_family()),
        Err(Error::FamilyName { .. })
    ));
    assert!(matches!(
        db.create_family("", FamilyOptions::default()),
        Err(Error::FamilyName { .. })
    ));
}

#[test]
fn a_family_is_opened_or_created_and_mistakes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for run in 0..2 {
        let db = common::open(dir.path(), &common::small());
        assert_eq!(db.family("f").is_some(), run == 1);
        let family = db.open_family("f", common::small_family()).unwrap();
        assert_eq!(
            db.open_family("f", common::small_family()).unwrap().id(),
            family.id()
        );
        assert_eq!(family.get("k").unwrap().is_some(), run == 1);
        family.put("k", "v").unwrap();
        assert!(matches!(
            db.create_family("f", common::small_family()),
            Err(Error::FamilyExists { .. })
        ));
        let bad = FamilyOptions {
            write_buffer_bytes: 0,
            ..FamilyOptions::default()
        };
        for name in ["f", "g"] {
            assert!(matches!(
                db.open_family(name, bad.clone()),
                Err(Error::InvalidOption { .. })
            ));
        }
        assert!(matches!(
            db.open_family("", FamilyOptions::default()),
            Err(Error::FamilyName { .. })
        ));
        assert_eq!(
            db.open_family("default", common::small_family()).unwrap().id(),
            db.default_family().id()
        );
        assert_eq!(db.families(), ["default", "f"]);
        db.close().unwrap();
    }
}

#[test]
fn options_of_families_are_kept_and_can_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mine = FamilyOptions {
        write_buffer_bytes: 8192,
        ..FamilyOptions::default()
    };
    let db = common::open(dir.path(), &common::small());
    db.create_family("f", mine.clone()).unwrap();
    db.close().unwrap();
    let fill = |options: Options| {
        let db = common::open(dir.path(), &options);
        // It is there, so that these options do not count.
        let family = db.open_family("f", FamilyOptions::default()).unwrap();
        for i in 0..500 {
            family
                .put_with(format!("{i:05}"), [1; 100], &WriteOptions::buffered())
                .unwrap();
        }
        let flushes: u64 = db.stats().families["f"].flushes.iter().map(|(_, n)| n).sum();
        db.close().unwrap();
        flushes
    };
    assert!(fill(common::small()) > 2);
    let larger = ("f".to_owned(), FamilyOptions::default());
    assert_eq!(
        fill(Options {
            family_options: vec![larger],
            ..common::small()
        }),
        0
    );
}

#[test]
fn a_closed_store_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    let other = db.clone();
    let family = db.default_family();
    let snapshot = db.snapshot();
    db.close().unwrap();
    assert!(matches!(family.put("k", "v"), Err(Error::Closed)));
    assert!(matches!(family.get("k"), Err(Error::Closed)));
    assert!(matches!(snapshot.get(&family, "k"), Err(Error::Closed)));
    assert!(matches!(other.flush(), Err(Error::Closed)));
    assert!(matches!(other.close(), Err(Error::Closed)));
    drop((snapshot, family));
    common::open(dir.path(), &common::small()).close().unwrap();
}

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    for options in [common::small(), common::unlogged()] {
        let path = dir.path().join(if options.disable_wal { "off" } else { "on" });
        // More than a frame of the log.
        let limit = options.ring_bytes * 3;
        let options = Options {
            max_commit_bytes: limit as u64,
            ..options
        };
        let db = common::open(&path, &options);
        let family = db.default_family();
        assert!(matches!(db.put("", "v"), Err(Error::EmptyKey)));
        let long = vec![b'k'; 65_536];
        assert!(matches!(
            db.put(&long, "v"),
            Err(Error::KeyTooLong {
                len: 65_536,
                limit: 65_535
            })
        ));
        db.put(&long[1..], "v").unwrap();
        let Err(Error::BatchTooLarge {
            size,
            limit: reported,
        }) = db.put("k", vec![0; limit])
        else {
            panic!("a commit larger than max_commit_bytes was taken");
        };
        assert!(
            size > limit as u64 && reported == limit as u64,
            "{size} {reported}"
        );
        let mut batch = Batch::new();
        for i in 0..20_u8 {
            batch.put(&family, [i], vec![i; limit / 16]).unwrap();
        }
        let refused = db.write(batch, &WriteOptions::buffered());
        assert!(matches!(refused, Err(Error::BatchTooLarge { .. })), "{refused:?}");
        let other = common::open(&elsewhere.path().join(path.file_name().unwrap()), &options);
        let mut batch = Batch::new();
        batch.put(&family, "k", "v").unwrap();
        assert!(matches!(
            batch.put(&other.default_family(), "k", "v"),
            Err(Error::ForeignFamily { .. })
        ));
        assert!(matches!(
            other.write(batch, &WriteOptions::buffered()),
            Err(Error::ForeignFamily { .. })
        ));
        assert!(matches!(
            other.snapshot().get(&family, "k"),
            Err(Error::ForeignFamily { .. })
        ));
        assert_eq!(db.iter().unwrap().count(), 1);
        assert_eq!(other.iter().unwrap().count(), 0);
    }
    for segment_bytes in [common::small().segment_bytes, u64::MAX] {
        let too_small = Options {
            segment_bytes,
            max_total_wal_size: Some(1000),
            ..common::small()
        };
        let refused = Db::open(dir.path().join("on2"), too_small);
        assert!(matches!(
            refused,
            Err(Error::InvalidOption {
                option: "max_total_wal_size",
                ..
            })
        ));
    }
    let with_a_hole = Options {
        wal_recovery_mode: collie_db::WalRecoveryMode::SkipDamaged,
        ..common::small()
    };
    let refused = Db::open(dir.path().join("on2"), with_a_hole);
    assert!(matches!(
        refused,
        Err(Error::InvalidOption {
            option: "wal_recovery_mode",
            ..
        })
    ));
    assert!(!dir.path().join("on2").exists());
}
