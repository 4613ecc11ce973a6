//! Transactions through the public interface: what each kind sees, waits for, refuses and leaves
//! behind.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::print_stdout, reason = "a test prints its figures")]

#[path = "../common/mod.rs"]
mod common;
mod flushes;
mod isolation;
mod locks;
mod many_rows;
mod queue;
mod random;
mod rows;
mod seeks;
mod steps;
mod transact;

use std::time::Duration;

use collie_db::{Concurrency, Db, Durability, Isolation, Options, TransactionOptions};

/// A store in which nothing waits for a sync.
fn store() -> (tempfile::TempDir, Db) {
    let dir = common::fast_dir();
    let options = Options {
        durability: Durability::Process,
        ..common::small()
    };
    let db = Db::open(dir.path(), options).unwrap();
    (dir, db)
}

fn options(concurrency: Concurrency, isolation: Isolation) -> TransactionOptions {
    TransactionOptions {
        concurrency,
        isolation,
        lock_timeout: Duration::from_secs(60),
        ..TransactionOptions::default()
    }
}

/// Each kind of transaction.
fn kinds() -> impl Iterator<Item = TransactionOptions> {
    let isolations = [Isolation::Snapshot, Isolation::Serializable];
    [Concurrency::Pessimistic, Concurrency::Optimistic]
        .into_iter()
        .flat_map(move |concurrency| isolations.map(|isolation| options(concurrency, isolation)))
}

fn is_optimistic(options: &TransactionOptions) -> bool {
    options.concurrency == Concurrency::Optimistic
}

/// Waits until so many locks were, or are, waited for.
fn until_waiting(db: &Db, count: u64) {
    while db.stats().transactions.lock_waits < count {
        std::thread::yield_now();
    }
}

fn text(value: Option<collie_db::Value>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}
