//! A flipped bit in each frame in turn: it hits the replicas whose chain of needed frames it breaks,
//! and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_cluster::Layout;
use collie_cluster::testing::frames::{Directory, KIND_TOMBSTONE, Listed, NODE_STREAM, StreamFrame};
use collie_cluster::testing::{LeaderId, NodeStore, ReplicaId, StoreError, Vote};
use collie_io::Device;
use collie_log::{FRAME_HEADER, inspect};
use collie_sim::{Image, Rng, SimDevice};

use crate::driver::{Node, Setup};
use crate::from_env;
use crate::plain::{Plain, found};

const DIR: &str = "/disk0/raft/shared";

const SETUP: Setup = Setup::plain(Layout::Shared);

/// A frame of the log, as a closed log shows it.
struct Seen {
    start: u64,
    stream: u32,
    kind: u8,
    /// Its file, and where in it it begins.
    place: (PathBuf, u64),
}

/// A closed node: its device, its frames, its last directory, and what it holds.
struct Closed {
    image: Image,
    frames: Vec<Seen>,
    directory: Vec<Listed>,
    directory_at: u64,
    plain: Plain,
    highest: ReplicaId,
}

fn closed(seed: u64, operations: usize) -> Closed {
    let mut rng = Rng::new(seed);
    let mut node = Node::start(SETUP, SimDevice::new(seed));
    for _ in 0..operations {
        node.step(&mut rng);
    }
    let (plain, highest, device) = (node.plain(), node.highest, node.device.clone());
    node.close();
    left(device.snapshot().process_death(), plain, highest)
}

/// What a process left.
fn left(image: Image, plain: Plain, highest: ReplicaId) -> Closed {
    let (mut frames, mut directory) = (Vec::new(), None);
    let device: Arc<dyn Device> = Arc::new(image.device());
    inspect::inspect(&device, Path::new(DIR), |frame| {
        let Ok((_, content)) = StreamFrame::decode(frame.kind, frame.payload) else {
            // One of the log's own.
            return;
        };
        if let StreamFrame::Directory(Directory { lines, .. }) = content {
            directory = Some((frame.lsn, lines));
        }
        let (path, offset) = frame.place.unwrap();
        frames.push(Seen {
            start: frame.lsn,
            stream: frame.stream,
            kind: frame.kind,
            place: (path.to_owned(), offset),
        });
    })
    .unwrap();
    let (directory_at, directory) = directory.unwrap();
    Closed {
        image,
        frames,
        directory,
        directory_at,
        plain,
        highest,
    }
}

/// The image with one bit of a frame's payload turned.
fn damaged(closed: &Closed, frame: &Seen) -> Image {
    let (path, offset) = &frame.place;
    let mut image = closed.image.clone();
    let payload = offset + FRAME_HEADER as u64;
    assert!(image.flip_bit(path, (payload + 3) * 8));
    image
}

/// Opens a damaged image: the replicas that are quarantined, once all others were seen to be as they
/// should be.
fn quarantined(closed: &Closed, image: &Image, context: &str) -> BTreeSet<ReplicaId> {
    let device = image.device();
    let mut before = None;
    // The second opening finds the directory of the first one behind the damage.
    for opening in 1..3 {
        let store = SETUP
            .open(&device)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let hit: BTreeSet<_> = store.quarantined().iter().map(|lost| lost.replica).collect();
        let mut rest = closed.plain.clone();
        rest.retain(|id, _| !hit.contains(id));
        let mut whole = Plain::new();
        for id in (1..=closed.highest).filter(|id| !hit.contains(id)) {
            whole.extend(found(&store, id..=id));
        }
        assert_eq!(whole, rest, "{context}, opening {opening}");
        assert_eq!(
            *before.get_or_insert_with(|| hit.clone()),
            hit,
            "{context}, opening {opening}"
        );
        store.close().unwrap();
    }
    before.unwrap()
}

#[test]
fn a_flipped_frame_quarantines_whose_needed_chain_it_breaks() {
    let first = from_env("COLLIE_SEED", 1);
    let mut hits = BTreeMap::new();
    for seed in first..first + from_env("COLLIE_RUNS", 3) {
        println!("COLLIE_SEED={seed} COLLIE_RUNS=1 replays this program");
        let closed = closed(seed, 60);
        for frame in closed
            .frames
            .iter()
            .filter(|frame| frame.start < closed.directory_at)
        {
            let needs = |line: &&Listed| {
                line.stream == frame.stream
                    && line.oldest.is_some_and(|oldest| oldest <= frame.start)
                    && frame.start <= line.last_frame
            };
            let expected: BTreeSet<_> = closed
                .directory
                .iter()
                .filter(needs)
                .map(|line| line.replica)
                .collect();
            let context = format!(
                "seed {seed}, kind {} at LSN {}, stream {}",
                frame.kind, frame.start, frame.stream
            );
            let hit = quarantined(&closed, &damaged(&closed, frame), &context);
            assert_eq!(hit, expected, "{context}");
            assert!(frame.stream != NODE_STREAM || hit.is_empty(), "{context}");
            *hits.entry((frame.kind, hit.len())).or_insert(0) += 1;
        }
    }
    // Frames of most kinds were needed by their replica, and others were not needed any more.
    println!("figures: frames by kind and replicas hit: {hits:?}");
    for kind in [(1, 0), (1, 1), (2, 1), (3, 1), (4, 1), (5, 0), (5, 1)] {
        assert!(hits.contains_key(&kind), "{hits:?}");
    }
}

/// No later frame and no later directory shows whose frames were there.
#[test]
fn damage_behind_the_last_directory_quarantines_all_in_doubt() {
    let closed = closed(7, 40);
    let last = closed
        .frames
        .iter()
        .find(|frame| frame.start == closed.directory_at);
    let image = damaged(&closed, last.unwrap());
    let hit = quarantined(&closed, &image, "the last directory");
    let here: BTreeSet<_> = closed
        .directory
        .iter()
        .filter(|line| line.oldest.is_some())
        .map(|line| line.replica)
        .collect();
    assert_eq!(hit, here);
}

/// The tombstone of a replica that never was here is in stream 0. Without it, the replica is unknown;
/// that it may have been there is said.
#[test]
fn a_lost_tombstone_is_missed_until_a_directory_repeats_it() {
    let (group, unknown) = (77, 500);
    let node = Node::start(SETUP, SimDevice::new(5));
    node.drive(node.store.remove(group, unknown)).unwrap();
    let removed = |store: &NodeStore| matches!(store.replica(unknown), Err(StoreError::Removed { .. }));
    assert!(removed(&node.store));
    for term in 1..4 {
        let leader = LeaderId { term, replica: 1 };
        let vote = Vote {
            leader,
            committed: false,
        };
        // What is durable behind it shows that it was.
        node.drive(node.replica(1).save_vote(vote)).unwrap();
    }
    let closed = left(node.device.snapshot().process_death(), Plain::new(), 0);
    let whole = SETUP.open(&closed.image.device()).unwrap();
    assert!(removed(&whole) && !whole.logs()[0].tombstones_lost());
    let tombstone = closed.frames.iter().find(|frame| frame.kind == KIND_TOMBSTONE);
    let device = damaged(&closed, tombstone.unwrap()).device();
    let store = SETUP.open(&device).unwrap();
    assert!(!removed(&store) && store.logs()[0].tombstones_lost());
    // It took no frame of replica 1, whose votes came later. Of the others nothing came later.
    let hit: Vec<_> = store.quarantined().iter().map(|lost| lost.replica).collect();
    assert_eq!(hit, (2..=8).collect::<Vec<_>>());
}
