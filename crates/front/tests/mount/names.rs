//! Names: what is shown, what is hidden, what moves.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use collie_front::Afterwards;

use crate::{Mounted, PAGE, mount, options, pages, write_page};

fn listed(mounted: &Mounted, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(mounted.path(dir)).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_belongs_to_the_page_map_is_not_shown() {
    let Some(mut mounted) = mount() else { return };
    assert_eq!(listed(&mounted, ""), ["PG_VERSION", "base", "pg_tblspc"]);
    assert_eq!(fs::read_to_string(mounted.path("PG_VERSION")).unwrap(), "15\n");
    for hidden in ["PG_VERSION.collie", ".collie/MAP", ".collie/log"] {
        assert_eq!(
            fs::metadata(mounted.path(hidden)).unwrap_err().kind(),
            ErrorKind::NotFound,
            "{hidden}"
        );
    }
    assert!(fs::write(mounted.path(".collie/file"), "x").is_err());
    assert!(fs::create_dir(mounted.path("PG_VERSION.collie")).is_err());
    let file = mounted.relation("base/1/5", &[1]);
    write_page(&file, 0, 2);
    file.sync_all().unwrap();
    drop(file);
    mounted.unmount();
    assert!(
        !mounted.path("PG_VERSION").exists(),
        "a server without the mount refuses the directory"
    );
    mounted.mount_again();
    mounted.unmount_plain();
    assert_eq!(fs::read_to_string(mounted.path("PG_VERSION")).unwrap(), "15\n");
}

#[test]
fn the_daemon_answers_through_files_that_are_not_listed() {
    let Some(mounted) = mount() else { return };
    let file = mounted.relation("base/1/5", &[1]);
    write_page(&file, 0, 2);
    file.sync_all().unwrap();
    let status = fs::read_to_string(mounted.path(".collie/status")).unwrap();
    assert!(status.contains("\"displaced_pages\":1,"), "{status}");
    fs::write(mounted.path(".collie/command"), "drain\n").unwrap();
    let metrics = fs::read_to_string(mounted.path(".collie/metrics")).unwrap();
    assert!(
        metrics.contains("\ncollie_front_displaced_pages 0\n"),
        "{metrics}"
    );
    let refused = fs::write(mounted.path(".collie/command"), "dance").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    drop(file);
}

#[test]
fn relations_move_with_their_pages() {
    let Some(mut mounted) = mount() else { return };
    let file = mounted.relation("base/1/5", &[1, 2]);
    write_page(&file, 1, 3);
    file.sync_all().unwrap();
    fs::rename(mounted.path("base/1/5"), mounted.path("base/1/6")).unwrap();
    write_page(&file, 0, 4);
    file.sync_all().unwrap();
    fs::rename(mounted.path("base/1"), mounted.path("base/2")).unwrap();
    write_page(&file, 1, 5);
    file.sync_all().unwrap();
    drop(file);
    File::open(mounted.path("base")).unwrap().sync_all().unwrap();
    assert_eq!(pages(&mounted.path("base/2/6")), [4, 5]);
    assert_eq!(
        fs::metadata(mounted.path("base/1")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    mounted.unmount();
    mounted.mount_again();
    assert_eq!(pages(&mounted.path("base/2/6")), [4, 5]);
}

#[test]
fn a_relation_that_takes_anothers_place_is_the_only_one() {
    let Some(mounted) = mount() else { return };
    let old = mounted.relation("base/1/5", &[1, 1]);
    write_page(&old, 0, 2);
    old.sync_all().unwrap();
    let new = mounted.relation("base/1/6", &[7]);
    write_page(&new, 0, 8);
    new.sync_all().unwrap();
    fs::rename(mounted.path("base/1/6"), mounted.path("base/1/5")).unwrap();
    assert_eq!(pages(&mounted.path("base/1/5")), [8]);
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    assert_eq!(listed(&mounted, "base/1"), ["5"]);
}

#[test]
fn all_kinds_of_names_are_made_and_told_apart() {
    let Some(mounted) = mount() else { return };
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2750)).unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o2750);
    let odd = dir.join(OsStr::from_bytes(b"\xff\xfe"));
    fs::write(&odd, "odd").unwrap();
    assert_eq!(fs::read(&odd).unwrap(), b"odd");
    let found: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(found, std::slice::from_ref(&odd));
    fs::hard_link(&odd, dir.join("second")).unwrap();
    assert_eq!(fs::metadata(&odd).unwrap().nlink(), 2);
    fs::remove_file(&odd).unwrap();
    assert_eq!(fs::metadata(dir.join("second")).unwrap().nlink(), 1);
    symlink("second", dir.join("link")).unwrap();
    assert_eq!(fs::read_link(dir.join("link")).unwrap(), OsStr::new("second"));
    assert_eq!(fs::read(dir.join("link")).unwrap(), b"odd");
    fs::remove_file(dir.join("link")).unwrap();
    assert_eq!(fs::read(dir.join("second")).unwrap(), b"odd");
    let _listener = UnixListener::bind(dir.join("socket")).unwrap();
    assert!(
        fs::symlink_metadata(dir.join("socket"))
            .unwrap()
            .file_type()
            .is_socket()
    );
    std::os::unix::net::UnixStream::connect(dir.join("socket")).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(!dir.exists());
}

/// The file system below gives the number of a removed file to the next one.
#[test]
fn a_new_file_has_nothing_of_a_removed_one() {
    let Some(mounted) = mount() else { return };
    for round in 0..50 {
        let path = mounted.path("base/1/5");
        let length = 1 + round % 3;
        let file = mounted.relation("base/1/5", &vec![round as u8; length]);
        assert_eq!(pages(&path), vec![round as u8; length], "round {round}");
        if round % 2 == 0 {
            drop(file);
        }
        fs::remove_file(&path).unwrap();
    }
}

/// A root's daemon creates files as root's, then gives them away. One that was killed in between left
/// a file that its server cannot open.
#[test]
fn files_of_a_killed_daemon_get_their_owner_at_the_next_mount() {
    let Some(mut mounted) = mount() else { return };
    mounted.unmount();
    let owner = |name: &str| fs::symlink_metadata(mounted.path(name)).unwrap().uid();
    if owner("base") != 0 {
        println!("skipped: only root's files are meant");
        return;
    }
    for name in ["base/1/5", "base/1/6", "server.key"] {
        fs::write(mounted.path(name), [1; PAGE]).unwrap();
    }
    symlink("nowhere", mounted.path("base/1/link")).unwrap();
    // As a server's user would have it, to be given what is root's elsewhere.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("roots"), "").unwrap();
    symlink(elsewhere.path(), mounted.path("base/1/dir")).unwrap();
    fs::write(mounted.path("own"), "").unwrap();
    fs::hard_link(mounted.path("own"), mounted.path("base/1/linked")).unwrap();
    fs::create_dir(mounted.path("roots")).unwrap();
    fs::write(mounted.path("roots/file"), "").unwrap();
    let own = |name: &str| std::os::unix::fs::chown(mounted.path(name), Some(12345), Some(12345)).unwrap();
    ["", "base", "base/1", "base/1/6"].into_iter().for_each(own);
    mounted.mount_again();
    let owner = |name: &str| fs::symlink_metadata(mounted.path(name)).unwrap().uid();
    for name in ["base/1/5", "base/1/6", "base/1/link"] {
        assert_eq!(owner(name), 12345, "{name}");
    }
    for name in ["server.key", "roots", "roots/file", "base/1/linked"] {
        assert_eq!(owner(name), 0, "{name}");
    }
    assert_eq!(fs::metadata(elsewhere.path().join("roots")).unwrap().uid(), 0);
    assert!(fs::symlink_metadata(mounted.path("nowhere")).is_err());
    mounted.unmount();
    // So that the server's user may be the next to mount it, or to drain it.
    for name in [
        ".collie",
        ".collie/MAP",
        ".collie/shadow",
        ".collie/LOCK",
        ".collie/log",
    ] {
        assert_eq!(fs::metadata(mounted.path(name)).unwrap().uid(), 12345, "{name}");
    }
    let volume = collie_front::open_unmounted(mounted.dir.path(), &options()).unwrap();
    collie_front::close_unmounted(mounted.dir.path(), volume, Afterwards::OfMount).unwrap();
    assert_eq!(fs::metadata(mounted.path(".collie/MAP")).unwrap().uid(), 12345);
}

#[test]
fn an_open_relation_that_loses_a_name_keeps_the_other() {
    let Some(mut mounted) = mount() else { return };
    fs::create_dir(mounted.path("base/2")).unwrap();
    let (kept, taken) = (mounted.path("base/2/50"), mounted.path("base/1/7"));
    let file = mounted.relation("base/1/5", &[1, 1]);
    let other = mounted.relation("base/1/6", &[1, 1]);
    fs::hard_link(mounted.path("base/1/5"), &kept).unwrap();
    fs::remove_file(mounted.path("base/1/5")).unwrap();
    fs::hard_link(mounted.path("base/1/6"), &taken).unwrap();
    fs::rename(mounted.path("base/1/7"), mounted.path("base/1/8")).unwrap();
    drop(mounted.relation("base/1/9", &[3]));
    fs::rename(mounted.path("base/1/9"), mounted.path("base/1/6")).unwrap();
    for file in [&file, &other] {
        write_page(file, 0, 2);
        file.sync_all().unwrap();
    }
    drop((file, other));
    fs::write(mounted.path(".collie/command"), "drain\n").unwrap();
    mounted.unmount();
    for (name, found) in [
        ("base/2/50", &[2, 1][..]),
        ("base/1/8", &[2, 1]),
        ("base/1/6", &[3]),
    ] {
        assert_eq!(pages(&mounted.path(name)), found, "{name}");
    }
}
