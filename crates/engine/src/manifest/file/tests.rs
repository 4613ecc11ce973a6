//! What the manifest's file keeps, and what of damage it tells.

use collie_io::RealDevice;

use super::*;
use crate::FamilyOptions;
use crate::manifest::{FamilyRecord, LogState, Marks};

fn record(id: u32, name: &str) -> FamilyRecord {
    FamilyRecord {
        id,
        name: name.into(),
        flushed: 8 * u64::from(id) + (1 << 32),
        options: FamilyOptions::default(),
        later: Vec::new(),
    }
}

fn example() -> Manifest {
    Manifest {
        next_family: 9,
        log_id: [0xa5; 16],
        log: LogState::On,
        floor: (1 << 32) + 800,
        families: vec![record(0, "default"), record(7, "orders")],
    }
}

/// Edits of every kind, one of them longer than a sector.
fn edits() -> Vec<Edit> {
    let long = "n".repeat(600);
    vec![
        Edit {
            next_family: 10,
            floor: (1 << 32) + 900,
            created: Some(record(9, &long)),
            ..Edit::default()
        },
        Edit {
            flushed: Marks::made_up(vec![(0, 1 << 33), (9, 1 << 34)]),
            ..Edit::default()
        },
        Edit {
            dropped: Some(7),
            ..Edit::default()
        },
    ]
}

/// A base and the edits behind it, as bytes, with what the manifest was after each.
fn written() -> (Vec<u8>, Vec<Manifest>) {
    let path = Path::new("MANIFEST");
    let mut bytes = encode_base(&example(), 3, path).unwrap();
    let mut states = vec![example()];
    for (number, edit) in edits().iter().enumerate() {
        bytes.extend(encode_edit(edit, 3, number as u32, path).unwrap());
        let mut next = states[number].clone();
        next.apply(edit);
        states.push(next);
    }
    (bytes, states)
}

fn decode(bytes: &[u8]) -> Result<Manifest> {
    ManifestFile::decode(bytes, Path::new("MANIFEST")).map(|file| file.manifest)
}

#[test]
fn what_is_committed_is_read_and_a_base_is_replaced_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let device = RealDevice::new();
    assert!(ManifestFile::read(&device, dir.path()).unwrap().is_none());
    let mut file = ManifestFile::new(example());
    file.write(&device, dir.path()).unwrap();
    for (n, edit) in edits().iter().enumerate() {
        file.commit(&device, dir.path(), edit).unwrap();
        let mut read = ManifestFile::read(&device, dir.path()).unwrap().unwrap();
        assert_eq!(read.manifest, file.manifest, "after edit {n}");
        // After reading, the next change is written with a new base.
        read.commit(&device, dir.path(), &Edit::default()).unwrap();
        assert_eq!(read.tail.as_ref().unwrap().number, 0);
        file = ManifestFile::read(&device, dir.path()).unwrap().unwrap();
        file.write(&device, dir.path()).unwrap();
    }
    assert_eq!(device.list(dir.path()).unwrap().len(), 1);
}

/// A file on a device that has room for one copy of a change and not for two.
#[derive(Debug)]
struct Full(Arc<dyn File>, u64);

impl File for Full {
    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize> {
        let room = self.1.saturating_sub(offset) as usize;
        if room == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0.write_at(&buf[..buf.len().min(room)], offset)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }
    fn allocate(&self, len: u64) -> std::io::Result<()> {
        self.0.allocate(len)
    }
    fn stat(&self) -> std::io::Result<collie_io::Stat> {
        self.0.stat()
    }
    fn try_lock(&self) -> std::io::Result<bool> {
        self.0.try_lock()
    }
    fn map(&self, len: usize) -> std::io::Result<collie_io::Mapping> {
        self.0.map(len)
    }
}

/// The caller goes on as if the change had not been made, so it must not be found after a
/// crash.
#[test]
fn a_change_that_a_full_device_refused_is_gone_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let device = RealDevice::new();
    let mut file = ManifestFile::new(example());
    file.write(&device, dir.path()).unwrap();
    let tail = file.tail.as_mut().unwrap();
    tail.file = Arc::new(Full(Arc::clone(&tail.file), tail.end + SECTOR as u64));
    let refused = file.commit(&device, dir.path(), &edits()[2]);
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, ManifestError::NotWritten(Error::StorageFull { .. })),
        "{refused:?}"
    );
    let crashed = ManifestFile::read(&device, dir.path()).unwrap().unwrap();
    assert_eq!((&crashed.manifest, &file.manifest), (&example(), &example()));
    file.commit(&device, dir.path(), &edits()[2]).unwrap();
    let read = ManifestFile::read(&device, dir.path()).unwrap().unwrap();
    assert_eq!(read.manifest, file.manifest);
}

#[test]
fn changes_that_outweigh_the_base_become_part_of_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let device = RealDevice::new();
    let mut file = ManifestFile::new(example());
    file.write(&device, dir.path()).unwrap();
    let (mut most, mut bases) = (0, 0);
    for n in 0..200 {
        let edit = Edit {
            floor: (1 << 33) + 8 * n,
            ..Edit::default()
        };
        file.commit(&device, dir.path(), &edit).unwrap();
        most = most.max(device.stat(&dir.path().join(FILE)).unwrap().len);
        bases = file.generation;
    }
    assert!(most <= EDITS_LEAST + (4 << 10), "{most} bytes");
    assert!((3..6).contains(&bases), "{bases} bases for 200 KiB of changes");
    let read = ManifestFile::read(&device, dir.path()).unwrap().unwrap();
    assert_eq!(read.floor, (1 << 33) + 8 * 199);
}

/// Every bit is flipped, one after the other. In the base it is reported; a change has another
/// copy.
#[test]
fn no_flipped_bit_takes_anything_away() {
    let (bytes, states) = written();
    let base = encode_base(&example(), 3, Path::new("M")).unwrap().len();
    let whole = states.last().unwrap();
    assert_eq!(&decode(&bytes).unwrap(), whole);
    for bit in 0..bytes.len() * 8 {
        let mut rotten = bytes.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        match decode(&rotten) {
            Ok(manifest) => assert_eq!(&manifest, whole, "bit {bit}"),
            Err(Error::Corrupt { .. }) => assert!(bit / 8 < base, "bit {bit}"),
            Err(Error::Version { .. }) => assert!((64..96).contains(&bit), "bit {bit}"),
            other => panic!("bit {bit}: {other:?}"),
        }
    }
}

/// Every pair of sectors of the changes is lost, as zeros: an acknowledged change is never
/// passed over.
#[test]
fn two_lost_sectors_are_told_unless_they_are_the_last_change() {
    let (bytes, states) = written();
    let base = encode_base(&example(), 3, Path::new("M")).unwrap().len();
    let sectors: Vec<usize> = (base..bytes.len()).step_by(SECTOR).collect();
    for &a in &sectors {
        for &b in &sectors {
            let mut rotten = bytes.clone();
            rotten[a..a + SECTOR].fill(0);
            rotten[b..b + SECTOR].fill(0);
            match decode(&rotten) {
                Ok(manifest) if manifest == states[3] => {}
                Ok(manifest) => {
                    assert_eq!(manifest, states[2], "sectors at {a} and {b}");
                    assert!(a.min(b) >= bytes.len() - 2 * SECTOR, "sectors at {a} and {b}");
                }
                Err(Error::Corrupt { .. }) => {}
                other => panic!("sectors at {a} and {b}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_cut_leaves_a_prefix_of_the_changes() {
    let (bytes, states) = written();
    let base = encode_base(&example(), 3, Path::new("M")).unwrap().len();
    for cut in 0..bytes.len() {
        match decode(&bytes[..cut]) {
            Ok(manifest) => assert!(states.contains(&manifest), "cut at {cut}"),
            Err(Error::Corrupt { .. }) => assert!(cut < base, "cut at {cut}"),
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
}

#[test]
fn changes_of_an_earlier_base_do_not_count() {
    let path = Path::new("MANIFEST");
    let mut bytes = encode_base(&example(), 4, path).unwrap();
    bytes.extend(encode_edit(&edits()[2], 3, 0, path).unwrap());
    assert_eq!(decode(&bytes).unwrap(), example());
}

#[test]
fn another_version_is_refused_by_both_numbers() {
    let (mut bytes, _) = written();
    bytes[8] = 7;
    let Err(Error::Version { found, supported, .. }) = decode(&bytes) else {
        panic!("a manifest of version 7 was read");
    };
    assert_eq!((found, supported), (7, VERSION));
}
