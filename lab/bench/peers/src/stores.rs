//! Stores: 16-byte keys, 100-byte values, 64 MiB write buffers, no compression.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use crate::{Maker, Op, Peer, key};

const VALUE: [u8; 100] = [7; 100];
const PAGE_CACHE: &str = "process (write call per put)";

pub const DURABLE: [Peer; 2] = [
    Peer {
        name: "collie",
        level: "device",
        open: |dir| {
            collie(
                dir,
                collie_db::Options::default(),
                collie_db::WriteOptions::disk(),
            )
        },
    },
    Peer {
        name: "fjall",
        level: "device",
        open: |dir| fjall(dir, Some(fjall::PersistMode::SyncData)),
    },
];

pub const FILL: [Peer; 4] = [
    Peer {
        name: "collie",
        level: "process (shared ring)",
        open: |dir| {
            collie(
                dir,
                collie_db::Options::default(),
                collie_db::WriteOptions::process(),
            )
        },
    },
    Peer {
        name: "collie-private",
        level: PAGE_CACHE,
        open: |dir| {
            let options = collie_db::Options {
                ring: collie_db::RingMode::Private,
                ..Default::default()
            };
            collie(dir, options, collie_db::WriteOptions::process())
        },
    },
    Peer {
        name: "collie-log-off",
        level: "nothing",
        open: |dir| {
            let options = collie_db::Options {
                disable_wal: true,
                ..Default::default()
            };
            collie(dir, options, collie_db::WriteOptions::buffered())
        },
    },
    Peer {
        name: "fjall",
        level: PAGE_CACHE,
        open: |dir| fjall(dir, None),
    },
];

fn collie(dir: &Path, options: collie_db::Options, write: collie_db::WriteOptions) -> Result<Maker> {
    let db = collie_db::Db::open(dir.join("store"), options)?;
    Ok(Arc::new(move || {
        let (family, write) = (db.default_family(), write.clone());
        Ok(Box::new(move |n: u64| {
            family.put_with(key(n), VALUE, &write)?;
            Ok(())
        }) as Op)
    }))
}

fn fjall(dir: &Path, durability: Option<fjall::PersistMode>) -> Result<Maker> {
    let db = fjall::Database::builder(dir).open()?;
    let keyspace = db.keyspace("data", || {
        fjall::KeyspaceCreateOptions::default()
            .max_memtable_size(64 << 20)
            .data_block_compression_policy(fjall::config::CompressionPolicy::disabled())
    })?;
    Ok(Arc::new(move || {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        Ok(Box::new(move |n: u64| {
            match durability {
                None => keyspace.insert(key(n), VALUE)?,
                Some(mode) => {
                    let mut batch = db.batch().durability(Some(mode));
                    batch.insert(&keyspace, key(n), VALUE);
                    batch.commit()?;
                }
            }
            Ok(())
        }) as Op)
    }))
}
