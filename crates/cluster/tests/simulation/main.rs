//! Whole nodes on one thread, over turmoil's network and time and simulated devices: raft, logs, state
//! machines and connections are those that ship. Clients at each node run commands through the seam
//! that a server uses, while nodes lose power, links are cut and disks fail, by a schedule that is
//! drawn from a seed. Then everything heals: within a bounded time each group must take writes and all
//! replicas must agree, and what the clients saw of each object must fit one order. (madsim would need a patch of every
//! dependency.)
//!
//! `COLLIE_SEED` is the first seed, `COLLIE_RUNS` how many there are, and `COLLIE_TRACE=1` prints what
//! happened; `COLLIE_READS` is `index` or `lease`, and `COLLIE_DURABILITY` `disk` or `process`, for all seeds. With `RUSTFLAGS="--cfg tokio_unstable"`, as `scripts/simulation` has it, a seed replays
//! exactly; without, tokio chooses by itself which of several tasks that wait for one value goes first.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]
#![expect(
    clippy::print_stdout,
    reason = "a seed that fails is printed, with what happened"
)]
#![expect(
    unexpected_cfgs,
    reason = "a switch of tokio, which only scripts/simulation turns on"
)]

mod clients;
mod disk;
#[path = "../../../engine/tests/external_journal/dying.rs"]
mod dying;
mod expiry;
mod faults;
mod host;
mod judge;
#[path = "../transport/sockets.rs"]
mod sockets;
mod town;
mod world;

use std::sync::Mutex;

use town::{Ended, Plan, run};

/// One simulation at a time: see [`town::align_task_numbers`].
static ALONE: Mutex<()> = Mutex::new(());

/// A number of the environment.
fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

fn alone(plan: &Plan) -> Ended {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    run(plan)
}

#[test]
fn nodes_without_faults_serve_their_clients() {
    let ended = alone(&Plan::calm(1));
    assert!(ended.answered > 100, "{ended:?}");
}

#[test]
fn what_clients_see_fits_one_order_through_any_faults() {
    let first = from_env("COLLIE_SEED", 1);
    let runs = from_env("COLLIE_RUNS", 4);
    let mut total = Ended::default();
    for seed in first..first + runs {
        println!(
            "COLLIE_SEED={seed} COLLIE_RUNS=1 cargo test -p collie-cluster --test simulation what_clients -- --nocapture"
        );
        total.add(&alone(&Plan::faulty(seed)));
    }
    println!("figures: {runs} simulations, {total}");
}

#[test]
fn a_key_that_was_said_to_be_over_is_not_shown_by_later_leaders() {
    for seed in 1..=from_env("COLLIE_RUNS", 3) {
        alone(&Plan::expiring(seed));
    }
}

/// Only with the runtime's own draws from the seed, too.
#[cfg(tokio_unstable)]
#[test]
fn a_seed_replays_exactly() {
    let first = from_env("COLLIE_SEED", 1);
    for seed in first..first + 3 {
        let (one, other) = (alone(&Plan::faulty(seed)), alone(&Plan::faulty(seed)));
        assert_eq!(one, other, "seed {seed}");
    }
}
