//! The lock-free core of the log under loom, built from its source without the rest of the crate:
//! `scripts/models loom`.

#![cfg(loom)]
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the models use a part of what the log uses"
)]

#[path = "../src/lockfree/mod.rs"]
mod lockfree;

use lockfree::Lsn;
