//! Random operations on eight groups, with crashes and reopenings, beside a plain map.
//! `COLLIE_RUNS` sets the number of programs, `COLLIE_SEED` the first, `COLLIE_OPS` their length.

use collie_cluster::Layout;
use collie_sim::{Rng, SimDevice};

use crate::driver::{Node, Setup};
use crate::{from_env, ways};

const LAYOUTS: [Layout; 3] = [Layout::Shared, Layout::PerDisk, Layout::Private];

fn run(seed: u64, operations: u64) {
    let mut rng = Rng::new(seed);
    let layout = LAYOUTS[seed as usize % LAYOUTS.len()];
    let setup = Setup {
        moves: rng.coin(),
        ..Setup::random(layout, &mut rng)
    };
    let mut node = Node::start(setup, SimDevice::new(seed));
    for operation in 0..operations {
        node.step(&mut rng);
        if rng.one_in(20) {
            node.assert_as_it_should_be();
        }
        if rng.one_in(80) {
            let context = format!("seed {seed}, operation {operation}, {setup:?}");
            let snapshot = node.device.snapshot();
            node = match rng.below(3) {
                0 => node.reopen(),
                1 => node.crash(snapshot.process_death().device(), &context),
                _ => {
                    let ways = ways();
                    let (way, cut) = ways[rng.index(ways.len())];
                    let device = snapshot.power_cut(cut, rng.next_u64()).device();
                    node.crash(device, &format!("{context}, {way}"))
                }
            };
        }
    }
    node.reopen();
}

#[test]
fn a_nodes_logs_hold_what_a_map_holds_through_crashes() {
    let first = from_env("COLLIE_SEED", 1);
    for seed in first..first + from_env("COLLIE_RUNS", 18) {
        println!("COLLIE_SEED={seed} COLLIE_RUNS=1 replays this program");
        run(seed, from_env("COLLIE_OPS", 500));
    }
}
