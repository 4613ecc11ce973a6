//! The state machine of a replica beside a plain map: its log on a simulated device, which loses what
//! is not durable, and its store in a real directory, whose process dies.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

#[path = "../../../engine/tests/external_journal/dying.rs"]
mod dying;
mod model;
mod parts;
mod plain;
mod replica;
mod rules;
mod splits;
mod suite;
mod transfers;

/// A number of the environment.
fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}
