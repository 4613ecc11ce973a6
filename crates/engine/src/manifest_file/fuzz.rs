//! Mutated manifests.

use collie_sim::Rng;
use collie_sim::fuzz::mutations;

use super::*;
use crate::FamilyOptions;
use crate::manifest::{FamilyRecord, LogState};

const PATH: &str = "MANIFEST";

fn record(id: u32, name: &str) -> FamilyRecord {
    FamilyRecord {
        id,
        name: name.into(),
        flushed: 8 * u64::from(id) + (1 << 32),
        options: FamilyOptions::default(),
    }
}

fn edit(n: u32) -> Edit {
    Edit {
        next_family: 10 + n,
        floor: (1 << 32) + 100 * u64::from(n),
        created: n
            .is_multiple_of(3)
            .then(|| record(10 + n, &"n".repeat(300 * n as usize + 1))),
        dropped: (n % 3 == 1).then_some(1),
        flushed: (0..n % 4).map(|id| (id, 1 << 33)).collect(),
    }
}

/// A manifest of so many families with so many changes behind it, as bytes, and what it was after each.
fn written(families: u32, changes: u32) -> (Vec<u8>, Vec<Manifest>) {
    let base = Manifest {
        next_family: families,
        log_id: [0xa5; 16],
        log: LogState::On,
        floor: (1 << 32) + 800,
        families: (0..families)
            .map(|id| record(id, &format!("family {id}")))
            .collect(),
    };
    // No two of the corpus have the same generation, so that no change of one counts in the other.
    let generation = u64::from(families) << 32 | u64::from(changes);
    let path = Path::new(PATH);
    let mut bytes = encode_base(&base, generation, path).unwrap();
    let mut states = vec![base];
    for number in 0..changes {
        bytes.extend(encode_edit(&edit(number), generation, number, path).unwrap());
        let mut next = states[number as usize].clone();
        next.apply(&edit(number));
        states.push(next);
    }
    (bytes, states)
}

fn corpus() -> (Vec<Vec<u8>>, Vec<Manifest>) {
    let made = [written(0, 0), written(1, 1), written(2, 7), written(40, 3)];
    let (bytes, states): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    (bytes, states.concat())
}

/// What it says about damage has the place, what was expected and what was found.
fn check_refusal(error: &Error, len: usize) {
    match error {
        Error::Corrupt {
            offset,
            expected,
            found,
            ..
        } => {
            assert!(*offset <= len.next_multiple_of(SECTOR) as u64, "{error}");
            assert!(!expected.is_empty() && !found.is_empty(), "{error}");
        }
        Error::Version { found, .. } => assert!(!(OLDEST..=VERSION).contains(found), "{error}"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_mutated_manifest_is_what_it_was_after_some_change_or_refused_with_the_place() {
    let (bytes, states) = corpus();
    mutations("manifest", &bytes, 4_000, |_, bytes| {
        match ManifestFile::decode(bytes, Path::new(PATH)) {
            Ok(file) => assert!(states.contains(&file.manifest), "{:?}", file.manifest),
            Err(error) => check_refusal(&error, bytes.len()),
        }
    });
}

/// Makes the checksums of the base and of the changes good.
fn seal(rng: &mut Rng, bytes: &mut [u8]) {
    if bytes.len() < HEADER {
        return;
    }
    let room = bytes.len() - HEADER;
    let len = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
    let len = if len <= room { len } else { rng.index(room + 1) };
    bytes[12..16].copy_from_slice(&(len as u32).to_le_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[8..16]), &bytes[HEADER..HEADER + len]);
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    for at in ((HEADER + len).next_multiple_of(SECTOR)..bytes.len()).step_by(SECTOR) {
        let change = &mut bytes[at..];
        let Some(len) = change
            .get(4..8)
            .map(|len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]))
        else {
            continue;
        };
        if let Some(whole) = change.get_mut(..EDIT_HEADER + len as usize) {
            let sum = crc32c::crc32c(&whole[4..]);
            whole[..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

#[test]
fn a_mutated_manifest_with_good_checksums_is_read_as_it_stands_or_refused_with_the_place() {
    let (bytes, _) = corpus();
    mutations("manifest-sealed", &bytes, 4_000, |rng, bytes| {
        let mut bytes = bytes.to_vec();
        seal(rng, &mut bytes);
        match ManifestFile::decode(&bytes, Path::new(PATH)) {
            Ok(file) => {
                let again = encode_base(&file.manifest, file.generation, Path::new(PATH)).unwrap();
                let again = ManifestFile::decode(&again, Path::new(PATH)).unwrap();
                assert_eq!(again.manifest, file.manifest);
            }
            Err(error) => check_refusal(&error, bytes.len()),
        }
    });
}
