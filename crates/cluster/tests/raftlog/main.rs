//! The log store on a simulated device: random operations against a plain map, crash images,
//! damage, layouts.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

mod crash;
mod damage;
mod driver;
mod layouts;
mod plain;
mod pressure;
mod random;
mod refusals;
mod threads;

use collie_sim::PowerCut;

/// The ways of a power cut that are tried. With fresh garbage, the simulated device takes a synced
/// sector of zeros for one that was never written, and frames may end with zeros.
fn ways() -> Vec<(&'static str, PowerCut)> {
    let ways = PowerCut::WAYS.into_iter();
    ways.filter(|(name, _)| *name != "fresh garbage").collect()
}

/// A number of the environment.
fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}
