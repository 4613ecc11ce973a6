//! A log store for openraft on collie-log ([`storage`]), run through openraft's own tests.
//!
//! ```text
//! cargo run --example raft_log            # in temporary directories; the tests sleep for eight seconds
//! ```
//!
//! Then it closes a log and opens it again: the entries, the vote, what was committed and what was
//! purged are as they were.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod state_machine;
mod storage;

use std::io;
use std::path::Path;

use anyhow::{Context, ensure};
use collie_log::LogOptions;
use openraft::entry::RaftEntry;
use openraft::impls::Vote;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::storage::{RaftLogReader, RaftLogStorage, RaftLogStorageExt};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::vote::RaftLeaderId;
use openraft::{EntryPayload, LogId, StorageError};
use tempfile::TempDir;

use crate::state_machine::StateMachine;
use crate::storage::{LogStore, Types};

/// For dozens of logs that hold little.
fn small() -> LogOptions {
    LogOptions {
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        ..LogOptions::default()
    }
}

/// Gives each of openraft's tests a log of its own.
struct Builder;

impl StoreBuilder<Types, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<Types>> {
        let failed = |error: io::Error| StorageError::read(Types::err_from_error(&error));
        let dir = tempfile::tempdir().map_err(failed)?;
        let log = LogStore::open(&dir.path().join("log"), small()).map_err(failed)?;
        Ok((dir, log, StateMachine::default()))
    }
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        Suite::test_all(Builder)
            .await
            .context("openraft's tests of a log store")?;
        println!("openraft's tests of a log store pass.");
        let dir = tempfile::tempdir()?;
        reopen(&dir.path().join("log")).await
    })
}

const LEADER: LeaderId<u64, u64> = LeaderId { term: 3, node_id: 1 };

fn id(index: u64) -> LogIdOf<Types> {
    LogId::new(LEADER.to_committed(), index)
}

fn entry(index: u64, command: &str) -> EntryOf<Types> {
    RaftEntry::new(
        id(index),
        EntryPayload::Normal(format!("{command} {index:>4000}")),
    )
}

/// Everything that a log may have, across a close. The purge lets the log free some of its files, which it
/// does in the background: sooner or later than the first close.
async fn reopen(path: &Path) -> anyhow::Result<()> {
    let mut log = open(path).await?;
    let vote = Vote::new_committed(LEADER.term, LEADER.node_id);
    log.save_vote(&vote).await?;
    log.blocking_append((1..=100).map(|index| entry(index, "first")))
        .await?;
    log.truncate_after(Some(id(79))).await?;
    log.blocking_append((80..=90).map(|index| entry(index, "second")))
        .await?;
    log.save_committed(Some(id(85))).await?;
    log.purge(id(40)).await?;
    close(log).await?;

    for _ in 0..2 {
        check(path, vote).await?;
    }
    Ok(())
}

async fn check(path: &Path, vote: VoteOf<Types>) -> anyhow::Result<()> {
    let mut log = open(path).await?;
    let state = log.get_log_state().await?;
    let purged_and_last = (state.last_purged_log_id, state.last_log_id);
    ensure!(
        purged_and_last == (Some(id(40)), Some(id(90))),
        "WRONG: {state:?}"
    );
    let committed = log.read_committed().await?;
    ensure!(committed == Some(id(85)), "WRONG: committed is {committed:?}");
    let mut reader = log.get_log_reader().await;
    let found = reader.read_vote().await?;
    ensure!(found == Some(vote), "WRONG: the vote is {found:?}");
    let entries = reader.try_get_log_entries(..).await?;
    let first = (41..80).map(|index| entry(index, "first"));
    let expected: Vec<_> = first
        .chain((80..=90).map(|index| entry(index, "second")))
        .collect();
    ensure!(entries == expected, "WRONG: the entries are {entries:?}");
    println!(
        "{} entries, the vote and the purge are back after a restart.",
        entries.len()
    );
    close(log).await
}

/// Opening and closing do I/O, so a thread does them that may block.
async fn open(path: &Path) -> anyhow::Result<LogStore> {
    let path = path.to_owned();
    Ok(tokio::task::spawn_blocking(move || LogStore::open(&path, small())).await??)
}

async fn close(log: LogStore) -> anyhow::Result<()> {
    Ok(tokio::task::spawn_blocking(|| log.close()).await??)
}
