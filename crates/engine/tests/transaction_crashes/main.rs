//! Transactions whose process is killed, whose power is cut and whose device fails: what is there
//! afterwards, and what was seen of it before.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::print_stdout, reason = "a test prints its figures")]

mod chain;
#[path = "../common/mod.rs"]
mod common;
mod kills;
mod ledger;
mod power;
mod program;

/// Prints how to run a history again where a test panics.
struct Replay {
    seed: u64,
    test: &'static str,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, test } = self;
            #[expect(clippy::print_stderr, reason = "a test's failure")]
            {
                eprintln!(
                    "replay (threads race): COLLIE_SEED={seed} cargo test -p collie-db --test transaction_crashes {test}"
                );
            }
        }
    }
}
