//! The file `current` of a tree's directory, and the version that it names.

use std::path::{Path, PathBuf};

use collie_io::{Device, OpenMode, read_exact_at, write_all_at};

use crate::{Error, Result};

/// The version of a tree that its manifest describes.
pub(super) struct Version {
    pub(super) number: u64,
    /// The tables' numbers, and the checksums of their files.
    pub(super) tables: Vec<(u64, u128)>,
}

/// Reads the version that is in force, compares its file with the checksum that `current` has for it,
/// and makes sure that `current` is durable. `None`: the tree is not on this device.
pub(super) fn verify(path: &Path, device: &dyn Device) -> Result<Option<Version>> {
    let current = path.join("current");
    match device.stat(&current) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return refuse_missing(path, &current).map(|()| None);
        }
        Err(e) => return Err(Error::io("look at", current, e)),
        Ok(_) => {}
    }
    let bytes = read_file(device, &current)?;
    let (number, sum) = named_version(path, &bytes)?;
    let name = version_file(number);
    let manifest = path.join(&name);
    let described = read_file(device, &manifest)?;
    let found = xxhash_rust::xxh3::xxh3_128(&described);
    if found.to_le_bytes() != sum {
        let expected = sum.iter().rev().map(|byte| format!("{byte:02x}")).collect();
        return corrupt(manifest, expected, format!("{found:032x}"));
    }
    let Some(tables) = tables_of(&described) else {
        return corrupt(manifest, "a list of tables".into(), "something else".into());
    };
    rewrite_current(path, &name, &bytes, device)?;
    Ok(Some(Version { number, tables }))
}

/// The tables that a version's file names, level by level and run by run, with the checksums of their
/// files. The file is an archive of sections, whose contents are listed at its end.
fn tables_of(version: &[u8]) -> Option<Vec<(u64, u128)>> {
    // "SFA!", version, kind of checksum, checksum of the contents; then where these are.
    const TRAILER: usize = 4 + 1 + 1 + 16 + 8 + 8;
    let trailer = version.get(version.len().checked_sub(TRAILER)?..)?;
    let contents = word(&mut trailer.get(22..)?)?;
    let mut contents = version.get(usize::try_from(contents).ok()?..)?;
    let bytes = &mut contents;
    let (b"TOC!", sections) = (&take(bytes)?, u32::from_le_bytes(take(bytes)?)) else {
        return None;
    };
    for _ in 0..sections {
        let (at, len) = (
            usize::try_from(word(bytes)?).ok()?,
            usize::try_from(word(bytes)?).ok()?,
        );
        let name_len = u16::from_le_bytes(take(bytes)?);
        let (name, rest) = bytes.split_at_checked(usize::from(name_len))?;
        *bytes = rest;
        if name == b"tables" {
            return listed(version.get(at..at.checked_add(len)?)?);
        }
    }
    None
}

/// The section of the tables.
fn listed(mut section: &[u8]) -> Option<Vec<(u64, u128)>> {
    let bytes = &mut section;
    let mut tables = Vec::new();
    let [levels] = take(bytes)?;
    for _ in 0..levels {
        let [runs] = take(bytes)?;
        for _ in 0..runs {
            for _ in 0..u32::from_le_bytes(take(bytes)?) {
                let id = word(bytes)?;
                // There is one kind of checksum.
                let [0] = take(bytes)? else { return None };
                tables.push((id, u128::from_le_bytes(take(bytes)?)));
                let _added_to_sequence_numbers = word(bytes)?;
            }
        }
    }
    Some(tables)
}

/// Takes the first bytes.
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

pub(super) fn word(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

/// The name of a version's file.
pub(super) fn version_file(number: u64) -> String {
    format!("v{number}")
}

/// The number of the version that `current`, with these bytes, names, and the checksum of its file.
pub(super) fn named_version<'a>(path: &Path, current: &'a [u8]) -> Result<(u64, &'a [u8])> {
    const CURRENT_BYTES: usize = 25;
    match (current.first_chunk::<8>(), current.get(8..24), current.len()) {
        (Some(number), Some(sum), CURRENT_BYTES) => Ok((u64::from_le_bytes(*number), sum)),
        _ => corrupt(
            path.join("current"),
            format!("{CURRENT_BYTES} bytes"),
            format!("{} bytes", current.len()),
        ),
    }
}

fn corrupt<T>(path: PathBuf, expected: String, found: String) -> Result<T> {
    Err(Error::Corrupt {
        path,
        offset: 0,
        expected,
        found,
    })
}

/// Opening the tree removes every version but the one that `current` names. Where there are others,
/// the sync of the directory after the last replacement of `current` may have failed. Then no later
/// sync is certain to bring that rename to the disk, where `current` may still name a version that
/// is about to be removed. So it is replaced once more, by a copy of itself, before the tree is
/// opened.
fn rewrite_current(path: &Path, version: &str, bytes: &[u8], device: &dyn Device) -> Result<()> {
    let entries = device.list(path).map_err(|e| Error::io("list", path, e))?;
    let is_other = |name: &str| {
        let number = name
            .strip_prefix('v')
            .and_then(|number| number.parse::<u64>().ok());
        number.is_some() && name != version
    };
    if !entries.iter().any(|entry| is_other(&entry.name)) {
        return Ok(());
    }
    let (current, temporary) = (path.join("current"), path.join("current.tmp"));
    match device.remove_file(&temporary) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io("remove", temporary, e)),
        _ => {}
    }
    device
        .open(&temporary, OpenMode::CreateNew)
        .and_then(|file| {
            write_all_at(&*file, bytes, 0)?;
            file.sync_data()
        })
        .map_err(|e| Error::io("write", &temporary, e))?;
    device
        .rename(&temporary, &current)
        .map_err(|e| Error::io("rename to", current, e))?;
    device.sync_dir(path).map_err(|e| Error::io("sync", path, e))
}

/// Refuses files in a new family's directory: those of an earlier creation may not be durable, even
/// if a sync succeeds now.
pub(super) fn refuse_leftovers(path: &Path, device: &dyn Device) -> Result<()> {
    let entries = device.list(path).map_err(|e| Error::io("list", path, e))?;
    match entries.first() {
        None => Ok(()),
        Some(entry) => Err(Error::Corrupt {
            path: path.into(),
            offset: 0,
            expected: "an empty directory for a new family".into(),
            found: format!("{:?} in it", entry.name),
        }),
    }
}

/// The tables of a family that the manifest names are missing. (A simulated device does not have
/// the directory, for the tables are not on it; there the table library checks by itself.)
fn refuse_missing(path: &Path, current: &Path) -> Result<()> {
    if current.exists() {
        return Ok(());
    }
    Err(Error::Corrupt {
        path: path.into(),
        offset: 0,
        expected: "the tables of a family that the manifest names".into(),
        found: "none".into(),
    })
}

pub(super) fn read_file(device: &dyn Device, path: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::io("read", path, e);
    let file = device.open(path, OpenMode::Read).map_err(failed)?;
    let len = file.stat().map_err(failed)?.len;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    read_exact_at(&*file, &mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use collie_sim::{Fault, FaultKind, PowerCut, SimDevice};

    use super::*;

    fn write(device: &SimDevice, path: &Path, bytes: &[u8]) {
        let file = device.open(path, OpenMode::CreateNew).unwrap();
        write_all_at(&*file, bytes, 0).unwrap();
        file.sync_data().unwrap();
    }

    /// A version's file, as the table library writes it, with this section of tables behind another.
    fn archive(tables: &[u8]) -> Vec<u8> {
        let mut bytes = b"tree".to_vec();
        bytes.extend_from_slice(tables);
        let contents = bytes.len() as u64;
        bytes.extend_from_slice(b"TOC!");
        bytes.extend_from_slice(&2_u32.to_le_bytes());
        for (at, len, name) in [(0, 4, "tree_type"), (4, tables.len() as u64, "tables")] {
            bytes.extend_from_slice(&u64::to_le_bytes(at));
            bytes.extend_from_slice(&u64::to_le_bytes(len));
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes.extend_from_slice(b"SFA!\x01\x00");
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(&contents.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes
    }

    #[test]
    fn a_versions_tables_are_read_and_a_part_of_one_is_none() {
        let mut section = vec![2, 0, 1];
        section.extend_from_slice(&2_u32.to_le_bytes());
        for id in [7_u64, 9] {
            section.extend_from_slice(&id.to_le_bytes());
            section.push(0);
            section.extend_from_slice(&u128::from(id * 3).to_le_bytes());
            section.extend_from_slice(&[0; 8]);
        }
        assert_eq!(tables_of(&archive(&section)), Some(vec![(7, 21), (9, 27)]));
        for cut in 0..section.len() {
            assert_eq!(tables_of(&archive(&section[..cut])), None, "cut at {cut}");
        }
        let whole = archive(&section);
        for cut in 0..whole.len() {
            assert_eq!(tables_of(&whole[..cut]), None, "cut at {cut}");
        }
    }

    /// Replaces the manifest as the table library does. Returns whether the directory's last sync
    /// succeeded.
    fn persist(device: &SimDevice, dir: &Path, version: u64) -> bool {
        // One level without a run; the rest of the section makes the versions differ.
        let bytes = archive(&[&[1, 0][..], version.to_string().as_bytes()].concat());
        write(device, &dir.join(format!("v{version}")), &bytes);
        device.sync_dir(dir).unwrap();
        let sum = xxhash_rust::xxh3::xxh3_128(&bytes);
        let current = [&version.to_le_bytes()[..], &sum.to_le_bytes()[..], &[0]].concat();
        write(device, &dir.join("new"), &current);
        device.rename(&dir.join("new"), &dir.join("current")).unwrap();
        device.sync_dir(dir).is_ok()
    }

    /// Such a store could not be opened: the version that the disk still named had been removed.
    #[test]
    fn a_renaming_that_may_be_lost_is_repeated_before_others_go() {
        let dir = Path::new("/tables");
        let mut cut_off = 0;
        for seed in 0..16 {
            let device = SimDevice::new(seed);
            device.create_dir_all(dir).unwrap();
            device.sync_dir(Path::new("/")).unwrap();
            assert!(persist(&device, dir, 1));
            // The syncs of the version's file, of the directory, and of the file that `current`
            // becomes succeed.
            device.inject(Fault::new(FaultKind::SyncFails).after(3).once());
            assert!(!persist(&device, dir, 2));
            cut_off += u32::from(device.fired(FaultKind::SyncFails) > 0);
            verify(dir, &device).unwrap();
            // The table library opens the version that `current` names, and removes the others.
            device.remove_file(&dir.join("v1")).unwrap();
            device.sync_dir(dir).unwrap();
            for (how, way) in PowerCut::WAYS {
                let left = device.snapshot().power_cut(way, seed).device();
                verify(dir, &left).unwrap_or_else(|e| panic!("seed {seed}, {how}: {e}"));
            }
        }
        assert_eq!(cut_off, 16);
    }
}
