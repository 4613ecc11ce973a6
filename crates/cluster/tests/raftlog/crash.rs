//! Crash images at every operation of short programs, on each layout. `COLLIE_IMAGES` sets their
//! number for each, `COLLIE_SEED` the first program.

#![expect(clippy::print_stdout, reason = "figures for the reader of the test's output")]

use std::sync::Arc;

use collie_cluster::Layout;
use collie_sim::{Points, Rng, SimDevice};

use crate::driver::{Node, Setup};
use crate::plain::found;
use crate::{from_env, ways};

/// Operations of a program.
const OPERATIONS: usize = 12;

/// Runs a program, and opens what a crash at each of its moments leaves. Returns how many images.
fn images_of(layout: Layout, moves: bool, seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let setup = Setup {
        moves,
        ..Setup::random(layout, &mut rng)
    };
    let mut node = Node::start(setup, SimDevice::new(seed));
    node.flush();
    let history = Arc::clone(&node.history);
    node.device.tag_snapshots(move || history.lock().unwrap().now());
    node.device.record(Points::Changes, 400);
    for _ in 0..OPERATIONS {
        node.step(&mut rng);
    }
    let highest = node.highest;
    let snapshots = node.device.take_snapshots();
    let mut images = 0;
    for (n, snapshot) in snapshots.iter().enumerate() {
        let ways = ways();
        let (way, cut) = ways[(seed as usize + n) % ways.len()];
        let cases = [
            ("process death", snapshot.process_death()),
            (way, snapshot.power_cut(cut, seed + n as u64)),
        ];
        for (how, image) in cases {
            images += 1;
            let context = format!("COLLIE_SEED={seed}, {setup:?}, {how} at {:?}", snapshot.at());
            let device = image.device();
            let store = setup
                .open(&device)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(
                store.quarantined().is_empty(),
                "{context}: {:?}",
                store.quarantined()
            );
            let plain = found(&store, 1..=highest);
            let verdict = node.history.lock().unwrap().judge(&setup, snapshot.tag(), &plain);
            verdict.unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
            if images % 8 == 0 {
                let again = device.snapshot().process_death().device();
                let again = setup
                    .open(&again)
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(found(&again, 1..=highest), plain, "{context}, opened twice");
            }
        }
    }
    images
}

fn images(layout: Layout, moves: bool) {
    let wanted = from_env("COLLIE_IMAGES", 1_500);
    let (mut images, mut seed) = (0, from_env("COLLIE_SEED", 1));
    while images < wanted {
        images += images_of(layout, moves, seed);
        seed += 1;
    }
    println!("figures: {images} images, layout {layout:?}, with moves: {moves}");
}

#[test]
fn a_crash_anywhere_keeps_acknowledged_entries_of_one_log() {
    images(Layout::Shared, false);
}

#[test]
fn a_crash_anywhere_keeps_acknowledged_entries_of_many_logs() {
    images(Layout::PerDisk, false);
}

#[test]
fn a_crash_anywhere_keeps_what_was_acknowledged_in_private_logs() {
    images(Layout::Private, false);
}

/// Each program begins in one layout, and moves replicas to others.
#[test]
fn a_crash_anywhere_finds_a_replica_that_moves_in_one_log() {
    for layout in [Layout::Shared, Layout::PerDisk, Layout::Private] {
        images(layout, true);
    }
}
