//! Mutated manifests.

use collie_sim::Rng;
use collie_sim::fuzz::mutations;

use crate::FamilyOptions;
use crate::manifest::file::*;
use crate::manifest::{FamilyRecord, LogState, Marks};

const PATH: &str = "MANIFEST";

fn record(id: u32, name: &str) -> FamilyRecord {
    FamilyRecord {
        id,
        name: name.into(),
        flushed: 8 * u64::from(id) + (1 << 32),
        options: FamilyOptions::default(),
        later: Vec::new(),
    }
}

fn edit(families: u32, n: u32) -> Edit {
    Edit {
        next_family: families + n + 1,
        floor: (1 << 32) + 100 * u64::from(n),
        created: n
            .is_multiple_of(3)
            .then(|| record(families + n, &"n".repeat(300 * n as usize + 1))),
        dropped: (n % 3 == 1).then_some(1),
        flushed: Marks::made_up((0..n % 4).map(|id| (id, 1 << 33)).collect()),
    }
}

/// A manifest of so many families with so many changes behind it, as bytes, and what it was after
/// each.
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
        bytes.extend(encode_edit(&edit(families, number), generation, number, path).unwrap());
        let mut next = states[number as usize].clone();
        next.apply(&edit(families, number));
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
        Error::UnknownOption { option, .. } => assert!(!option.is_empty(), "{error}"),
        Error::Version { found, .. } => assert!(!(OLDEST..=VERSION).contains(found), "{error}"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_mutated_manifest_is_an_earlier_one_or_refused() {
    let (bytes, states) = corpus();
    mutations("manifest", &bytes, 4_000, |_, bytes| {
        match ManifestFile::decode(bytes, Path::new(PATH)) {
            Ok(file) => assert!(states.contains(&file.manifest), "{:?}", file.manifest),
            Err(error) => check_refusal(&error, bytes.len()),
        }
    });
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// Makes the checksums of the base and of the changes good; now and then those of lengths that are
/// not.
fn seal(rng: &mut Rng, bytes: &mut [u8]) {
    if bytes.len() < HEADER {
        return;
    }
    let room = bytes.len() - HEADER;
    let mut len = word(bytes, 12).unwrap() as usize;
    if len > room {
        if rng.one_in(4) {
            return;
        }
        len = rng.index(room + 1);
        bytes[12..16].copy_from_slice(&(len as u32).to_le_bytes());
    }
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[8..16]), &bytes[HEADER..HEADER + len]);
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    for at in ((HEADER + len).next_multiple_of(SECTOR)..bytes.len()).step_by(SECTOR) {
        let change = &mut bytes[at..];
        let len = word(change, 4).unwrap_or(0) as usize;
        if let Some(whole) = change.get_mut(..EDIT_HEADER + len) {
            let sum = crc32c::crc32c(&whole[4..]);
            whole[..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Changes fields by what they mean: what mutations of bytes seldom come to.
fn rewritten(rng: &mut Rng, bytes: &[u8]) -> Option<Vec<u8>> {
    let path = Path::new(PATH);
    let mut file = ManifestFile::decode(bytes, path).ok()?;
    let families = &mut file.manifest.families;
    let (one, other) = (rng.index(families.len()), rng.index(families.len()));
    let from = families.get(other)?.clone();
    let into = families.get_mut(one)?;
    match rng.below(3) {
        0 => into.id = from.id,
        1 => into.name.clone_from(&from.name),
        _ => file.manifest.next_family = from.id,
    }
    let mut all = encode_base(&file.manifest, file.generation, path).unwrap();
    let mut edit = edit(file.manifest.next_family, rng.below(4) as u32);
    match (rng.below(4), &mut edit.created) {
        (0, Some(created)) => created.id = from.id,
        (1, Some(created)) => created.name = from.name,
        (2, _) => edit.next_family = 0,
        _ => {}
    }
    all.extend(encode_edit(&edit, file.generation, 0, path).unwrap());
    Some(all)
}

/// Families as a store has them.
fn are_distinct(manifest: &Manifest) -> bool {
    let families = &manifest.families;
    families.iter().enumerate().all(|(n, family)| {
        let mut earlier = families.iter().take(n);
        family.id < manifest.next_family && earlier.all(|it| it.id != family.id && it.name != family.name)
    })
}

/// Reads the frame of a manifest another way, by docs/design/formats/engine.md; `None` where it is to be refused.
fn reference(bytes: &[u8]) -> Option<Manifest> {
    let (version, len, sum) = (word(bytes, 8)?, word(bytes, 12)? as usize, word(bytes, 16)?);
    let payload = bytes.get(20..)?.get(..len)?;
    let covered = [&bytes[8..16], payload].concat();
    if !bytes.starts_with(b"COLLIEDB") || crc32c::crc32c(&covered) != sum {
        return None;
    }
    let is_known = (2..=5).contains(&version);
    let (mut manifest, generation) = is_known.then(|| encoding::decode_base(version, payload).ok())??;
    let mut sectors = (20 + len).next_multiple_of(512)..bytes.len();
    let mut number = 0;
    if !are_distinct(&manifest) {
        return None;
    }
    while let Some((at, change)) = sectors
        .clone()
        .step_by(512)
        .find_map(|at| Some((at, good(&bytes[at..], generation)?)))
    {
        let edit = encoding::decode_edit(version, &change[24..]).ok()?;
        let is_reused = edit
            .created
            .as_ref()
            .is_some_and(|family| family.id < manifest.next_family);
        manifest.apply(&edit);
        if word(change, 16)? != number || is_reused || !are_distinct(&manifest) {
            return None;
        }
        let len = change.len().next_multiple_of(512);
        let copies = if at == sectors.start { 2 } else { 1 };
        (sectors.start, number) = (at + copies * len, number + 1);
    }
    Some(manifest)
}

/// The change that begins there, if one of this generation does.
fn good(bytes: &[u8], generation: u64) -> Option<&[u8]> {
    let whole = bytes.get(..24 + word(bytes, 4)? as usize)?;
    let is_of_it = whole[8..16] == generation.to_le_bytes();
    (is_of_it && crc32c::crc32c(&whole[4..]) == word(bytes, 0)?).then_some(whole)
}

#[test]
fn a_mutated_manifest_with_good_checksums_is_read_or_refused() {
    let (bytes, _) = corpus();
    mutations("manifest-sealed", &bytes, 4_000, |rng, bytes| {
        let mut bytes = bytes.to_vec();
        seal(rng, &mut bytes);
        if rng.one_in(4) {
            bytes = rewritten(rng, &bytes).unwrap_or(bytes);
        }
        match ManifestFile::decode(&bytes, Path::new(PATH)) {
            Ok(file) => {
                assert_eq!(Some(&file.manifest), reference(&bytes).as_ref());
                let again = encode_base(&file.manifest, file.generation, Path::new(PATH)).unwrap();
                let again = ManifestFile::decode(&again, Path::new(PATH)).unwrap();
                assert_eq!(
                    (again.manifest, again.generation),
                    (file.manifest, file.generation)
                );
            }
            Err(error) => {
                assert_eq!(reference(&bytes), None, "{error}");
                check_refusal(&error, bytes.len());
            }
        }
    });
}
