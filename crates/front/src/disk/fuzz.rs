//! Mutated maps and records: what decodes is what the bytes say, and replaying it does not panic.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use collie_log::LogId;
use collie_sim::Rng;
use collie_sim::fuzz::mutations;

use super::map::{Map, MappedFile, Replay};
use super::record::{Entry, FileId, Place, Record, Slot};

fn entries() -> Vec<Entry> {
    let entry = |page, place, crc| Entry { page, place, crc };
    vec![
        entry(7, Place::Slot(Slot(3)), 0xdead_beef),
        entry(9, Place::Home, 0),
        entry(u32::MAX, Place::Slot(Slot(1)), 1),
    ]
}

fn records() -> Vec<Record> {
    let file = |id, path: &str, end| Record::File {
        id,
        path: path.into(),
        end,
        entries: entries(),
    };
    vec![
        file(1, "base/5/16384", 81_920),
        file(2, "base/5/16385.1", 0),
        file(1, "base/5/16385.1", u64::MAX),
        Record::Commit {
            id: 2,
            end: 1 << 40,
            entries: entries(),
        },
        Record::Commit {
            id: 1,
            end: 8192,
            entries: Vec::new(),
        },
        Record::Cut { id: 1, end: 100 },
        Record::Drop { id: 2 },
        Record::Mark,
    ]
}

/// The kind of the frame, and its payload.
fn framed() -> Vec<Vec<u8>> {
    let frame = |record: Record| [&[record.kind()], &record.encode()[..]].concat();
    records().into_iter().map(frame).collect()
}

fn empty() -> Map {
    Map {
        page_bytes: 8192,
        slots: 100,
        log_id: LogId([7; 16]),
        identity: None,
        replay_from: 4096,
        next_id: 1,
        files: BTreeMap::new(),
    }
}

fn replayed() -> Map {
    let mut map = empty();
    let mut replay = Replay::of(&mut map);
    records()
        .into_iter()
        .take(5)
        .for_each(|record| replay.apply(record));
    map
}

/// What an opening relies on: a later id is another one, and each path is one below the root.
fn check_files<'f>(next_id: FileId, mut files: impl Iterator<Item = (&'f FileId, &'f MappedFile)>) {
    files.by_ref().for_each(|(&id, file)| {
        assert!(id < next_id, "{id}, {next_id}");
        check_path(&file.path);
    });
}

fn check_path(path: &Path) {
    let is_normal = |part| matches!(part, Component::Normal(_));
    assert!(
        path.components().next().is_some() && path.components().all(is_normal),
        "{}",
        path.display()
    );
}

#[test]
fn a_mutated_record_says_what_its_bytes_say_or_is_refused() {
    mutations(
        "page-map-records",
        &framed(),
        20_000,
        |rng: &mut Rng, frame: &[u8]| {
            let Some((&kind, payload)) = frame.split_first() else {
                return;
            };
            let Some(record) = Record::decode(kind, payload) else {
                return;
            };
            assert_eq!((record.kind(), record.encode()), (kind, payload.to_vec()));
            let mut map = if rng.coin() { empty() } else { replayed() };
            Replay::of(&mut map).apply(record.clone());
            check_files(map.next_id, map.files.iter());
            // It says a state: once more, it changes nothing.
            let before = map.clone();
            Replay::of(&mut map).apply(record);
            assert_eq!(map, before);
            map.forget_behind_ends();
        },
    );
}

#[test]
fn a_mutated_map_is_refused_and_a_sealed_one_is_read() {
    let path = Path::new("MAP");
    let corpus = [empty().encode(), replayed().encode()];
    mutations("page-maps", &corpus, 20_000, |_: &mut Rng, bytes: &[u8]| {
        if let Ok(map) = Map::decode(path, bytes) {
            assert!(corpus.contains(&map.encode()), "{map:?}");
        }
        let body = bytes.get(..bytes.len().saturating_sub(4)).unwrap_or_default();
        let sealed = [body, &crc32c::crc32c(body).to_le_bytes()].concat();
        let Ok(mut map) = Map::decode(path, &sealed) else {
            return;
        };
        check_files(map.next_id, map.files.iter());
        assert_eq!(Map::decode(path, &map.encode()).unwrap(), map);
        map.forget_behind_ends();
        let mut replay = Replay::of(&mut map);
        records().into_iter().for_each(|record| replay.apply(record));
    });
}
