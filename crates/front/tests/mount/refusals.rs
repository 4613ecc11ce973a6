//! Mounts that are refused, and the messages of the refusals.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use collie_front::{Mount, MountError};

use crate::{mount, options};

fn refusal(dir: &Path) -> String {
    match Mount::new(dir, &options()) {
        Err(error) => error.to_string(),
        Ok(mount) => {
            mount.unmount().unwrap();
            panic!("{} was mounted", dir.display());
        }
    }
}

/// Bytes as those of `pg_control`, for clusters of this page size.
fn control(page_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    bytes[200..208].copy_from_slice(&1_234_567.0_f64.to_le_bytes());
    bytes[208..212].copy_from_slice(&page_bytes.to_le_bytes());
    bytes
}

#[test]
fn directories_that_cannot_be_mounted_are_left_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(dir.path().join(name), text).unwrap();
    fs::create_dir(dir.path().join("global")).unwrap();
    fs::create_dir(dir.path().join("pg_tblspc")).unwrap();
    write("PG_VERSION", b"15\n");

    write(
        "postmaster.pid",
        format!("{}\n/elsewhere\n", std::process::id()).as_bytes(),
    );
    let here = std::env::current_dir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    let said = refusal(dir.path());
    std::env::set_current_dir(here).unwrap();
    assert!(
        said.contains("PostgreSQL runs in it") && said.contains("stop the server"),
        "{said}"
    );
    fs::remove_file(dir.path().join("postmaster.pid")).unwrap();

    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), dir.path().join("pg_tblspc/16400")).unwrap();
    let said = refusal(dir.path());
    assert!(said.contains("outside of the mount"), "{said}");
    fs::remove_file(dir.path().join("pg_tblspc/16400")).unwrap();

    write("postgresql.conf", b"recovery_init_sync_method = syncfs\n");
    let said = refusal(dir.path());
    assert!(said.contains("set it to fsync"), "{said}");
    fs::remove_file(dir.path().join("postgresql.conf")).unwrap();

    write("global/pg_control", &[0; 8192]);
    let said = refusal(dir.path());
    assert!(said.contains("global/pg_control"), "{said}");
    assert!(!dir.path().join(".collie").exists(), "nothing was made");
    assert!(dir.path().join("PG_VERSION").exists());

    assert!(refusal(&dir.path().join("PG_VERSION")).contains("PG_VERSION"));
    assert!(refusal(&dir.path().join("missing")).contains("missing"));
}

#[test]
fn the_page_size_is_the_clusters_own() {
    let Some(mut mounted) = mount() else { return };
    fs::create_dir(mounted.path("global")).unwrap();
    fs::write(mounted.path("global/pg_control"), control(16_384)).unwrap();
    mounted.unmount();
    let said = refusal(mounted.dir.path());
    assert!(said.contains("8192") && said.contains("16384"), "{said}");
    fs::write(mounted.path("global/pg_control"), control(8192)).unwrap();
    mounted.mount_again();
    assert_eq!(mounted.daemon().volume().page_bytes(), 8192);
}

#[test]
fn a_directory_is_not_mounted_twice_or_while_it_is_used() {
    let Some(mounted) = mount() else { return };
    let said = refusal(mounted.dir.path());
    assert!(said.contains("mounted already"), "{said}");
    let file = mounted.relation("base/1/5", &[1]);
    match mounted.daemon().unmount() {
        Err(MountError::Io { source, .. }) => assert_eq!(source.kind(), ErrorKind::ResourceBusy),
        other => panic!("{other:?}"),
    }
    drop(file);
}

#[test]
fn tablespaces_stay_inside() {
    let Some(mounted) = mount() else { return };
    let outside = tempfile::tempdir().unwrap();
    let refused = symlink(outside.path(), mounted.path("pg_tblspc/16400")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    symlink(mounted.path("space"), mounted.path("pg_tblspc/16400")).unwrap();
    symlink(outside.path(), mounted.path("pg_wal")).unwrap();
    symlink(outside.path(), mounted.path("away")).unwrap();
    let refused = symlink(mounted.path("away/space"), mounted.path("pg_tblspc/16401")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_cluster_is_mounted_and_no_directory_above_or_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for made in ["main/global", "main/base/1"] {
        fs::create_dir_all(at(made)).unwrap();
    }
    fs::write(at("main/global/pg_control"), control(8192)).unwrap();
    for name in ["main/PG_VERSION", "main/base/1/PG_VERSION"] {
        fs::write(at(name), "15\n").unwrap();
    }
    for part in ["main/base", "main/base/1"] {
        let said = refusal(&at(part));
        assert!(
            said.contains("part of the cluster in") && said.contains("/main"),
            "{said}"
        );
    }
    let said = refusal(dir.path());
    assert!(said.contains("no cluster") && said.ends_with("main"), "{said}");
    fs::rename(at("main/base/1"), at("elsewhere")).unwrap();
    symlink(at("elsewhere"), at("main/base/1")).unwrap();
    let said = refusal(&at("main"));
    assert!(said.contains("base/1: it is a symbolic link"), "{said}");
}
