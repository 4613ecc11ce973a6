//! Logs: each append is durable when it returns.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use crate::{Maker, Op, Peer};

const RECORD: [u8; 100] = [7; 100];
const DEVICE: &str = "device";

pub const PEERS: [Peer; 4] = [
    Peer {
        name: "collie",
        level: DEVICE,
        open: |dir| collie(dir, collie_log::WritePath::Direct),
    },
    Peer {
        name: "collie-fdatasync",
        level: DEVICE,
        open: |dir| collie(dir, collie_log::WritePath::FdataSync),
    },
    Peer {
        name: "okaywal",
        level: DEVICE,
        open: okaywal,
    },
    Peer {
        name: "raft-engine",
        level: DEVICE,
        open: raft_engine,
    },
];

fn collie(dir: &Path, write_path: collie_log::WritePath) -> Result<Maker> {
    let options = collie_log::LogOptions {
        write_path,
        ..Default::default()
    };
    let log = collie_log::Log::open(dir, options)?;
    Ok(Arc::new(move || {
        let log = log.clone();
        let mut worker = log.worker()?;
        Ok(Box::new(move |_| {
            let span = worker.append(0, 0, &RECORD)?;
            Ok(log.wait(span.end, collie_log::Level::Disk)?)
        }) as Op)
    }))
}

#[derive(Debug)]
struct Discard;

impl okaywal::LogManager for Discard {
    fn recover(&mut self, _: &mut okaywal::Entry<'_>) -> std::io::Result<()> {
        Ok(())
    }

    fn checkpoint_to(
        &mut self,
        _: okaywal::EntryId,
        _: &mut okaywal::SegmentReader,
        _: &okaywal::WriteAheadLog,
    ) -> std::io::Result<()> {
        Ok(())
    }
}

fn okaywal(dir: &Path) -> Result<Maker> {
    let log = okaywal::WriteAheadLog::recover(dir, Discard)?;
    Ok(Arc::new(move || {
        let log = log.clone();
        Ok(Box::new(move |_| {
            let mut entry = log.begin_entry()?;
            entry.write_chunk(&RECORD)?;
            entry.commit()?;
            Ok(())
        }) as Op)
    }))
}

fn raft_engine(dir: &Path) -> Result<Maker> {
    let config = raft_engine::Config {
        dir: dir.display().to_string(),
        ..Default::default()
    };
    let engine = Arc::new(raft_engine::Engine::open(config)?);
    Ok(Arc::new(move || {
        let engine = Arc::clone(&engine);
        Ok(Box::new(move |n: u64| {
            let mut batch = raft_engine::LogBatch::default();
            // A region per thread, as a replicated service has a log per group.
            batch.put((n >> 40) + 1, b"k".to_vec(), RECORD.to_vec())?;
            engine.write(&mut batch, true)?;
            Ok(())
        }) as Op)
    }))
}
