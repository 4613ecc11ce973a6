//! Volumes that earlier versions wrote, as files: what their maps say, and that they open. Killed,
//! with records of every kind behind the map. They are never written again.
//!
//! | fixture | written by |
//! |---|---|
//! | map-v1 | the commit before 8671e793: a map without an identity, which is refused |
//! | map-v2 | 8671e793 |

#![expect(clippy::disallowed_methods, reason = "copies and reads fixtures")]

use std::fs;
use std::path::Path;

use collie_log::LogId;

use super::*;
use crate::Existing;
use crate::disk::map::Map;
use crate::disk::record::Slot;

const PAGE: usize = 512;
/// CRC-32C of a page whose bytes are all 2.
const TWOS: u32 = 0xaa9e_23db;

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

fn open(dir: &Path) -> Result<Volume, FrontError> {
    let options = VolumeOptions {
        page_bytes: PAGE as u32,
        slots: 24,
        ring: RingMode::Private,
        ring_bytes: 8 << 10,
        segment_bytes: 32 << 10,
        threads: false,
        identity: NonZeroU64::new(5),
        ..VolumeOptions::default()
    };
    Volume::open(dir, options)
}

/// The byte of which each page of a file consists, and how many bytes lie behind the last whole page.
fn pages(volume: &Volume, name: &str) -> (Vec<u8>, usize) {
    let file = volume.file(Path::new(name)).unwrap();
    let mut bytes = vec![0; 100 * PAGE];
    let len = volume.read_at(&file, &mut bytes, 0).unwrap();
    assert_eq!(len as u64, file.len(), "{name}");
    let pages = bytes[..len].chunks_exact(PAGE);
    let rest = pages.remainder();
    let versions = pages.map(|page| {
        assert!(page.iter().all(|byte| *byte == page[0]), "{name}");
        page[0]
    });
    (versions.collect(), rest.len())
}

#[test]
fn a_map_of_version_2_says_what_was_written() {
    let file = |path: &str, pages: u64, first: u32| MappedFile {
        path: path.into(),
        end: pages * PAGE as u64,
        pages: [(0, (Slot(first), TWOS)), (1, (Slot(first + 1), TWOS))].into(),
    };
    let expected = Map {
        page_bytes: 512,
        slots: 24,
        log_id: LogId(0xbf2c_28fd_c160_523a_954e_8802_64f5_cb00_u128.to_be_bytes()),
        identity: NonZeroU64::new(5),
        replay_from: (1 << 32) + 472,
        next_id: 6,
        files: [
            (1, file("base/1/a", 4, 0)),
            (2, file("base/1/b", 6, 2)),
            (3, file("gone", 3, 4)),
            (4, file("renamed", 3, 6)),
            (5, file("cut", 6, 8)),
        ]
        .into(),
    };
    let dir = fixture("map-v2").join(OWN);
    let map = Map::read(&RealDevice::new(), &dir).unwrap().unwrap();
    assert_eq!(map, expected);
}

#[test]
fn a_volume_of_version_2_opens() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture("map-v2"), dir.path());
    let volume = open(dir.path()).unwrap();
    assert_eq!((volume.recovered().mapped, volume.recovered().displaced), (4, 8));
    let mut expected = vec![
        ("base/1/a", vec![2, 3, 3, 1], 0),
        ("base/1/b", vec![2, 2, 1, 1, 1, 1, 4, 4], 0),
        ("base/1/r", vec![2, 2, 1], 0),
        ("base/late", vec![2, 2], 0),
        ("cut", vec![2], 100),
    ];
    let check = |volume: &Volume, expected: &[(&str, Vec<u8>, usize)]| {
        for (name, versions, rest) in expected {
            assert_eq!(pages(volume, name), (versions.clone(), *rest), "{name}");
        }
        assert!(volume.file(Path::new("gone")).is_err());
        assert!(volume.file(Path::new("renamed")).is_err());
        assert!(volume.check().unwrap().is_empty());
    };
    check(&volume, &expected);
    let file = volume.file(Path::new("base/1/a")).unwrap();
    volume.write_at(&file, &[7; 2 * PAGE], 2 * PAGE as u64).unwrap();
    volume.sync(&file).unwrap();
    volume
        .rename(Path::new("cut"), Path::new("base/cut"), Existing::Replace)
        .unwrap();
    expected[0].1 = vec![2, 3, 7, 7];
    expected[4].0 = "base/cut";
    volume.release(file);
    volume.close().unwrap();

    let volume = open(dir.path()).unwrap();
    check(&volume, &expected);
    volume.drain().unwrap();
    check(&volume, &expected);
    volume.close().unwrap();
    for (name, versions, _) in &expected {
        let home = fs::read(dir.path().join(name)).unwrap();
        let home: Vec<_> = home.chunks_exact(PAGE).map(|page| page[0]).collect();
        assert_eq!(&home, versions, "{name}: all of it is at home");
    }
}

#[test]
fn a_volume_of_version_1_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture("map-v1"), dir.path());
    let refused = open(dir.path()).unwrap_err().to_string();
    assert!(
        refused.contains("format version 1; this program reads version 2"),
        "{refused}"
    );
    let map = |dir: &Path| fs::read(dir.join(OWN).join("MAP")).unwrap();
    assert_eq!(map(dir.path()), map(&fixture("map-v1")));
}
