//! Options at both ends of their types: a store works with them, or refuses them and leaves no trace.

use std::sync::Arc;
use std::time::Duration;

use collie_db::{Db, Error, FamilyOptions, Options, Shared, SharedOptions, TransactionOptions};

use collie_sim::SimDevice;

use crate::common;

type Change<T> = (&'static str, Box<dyn Fn(&mut T)>);

/// One with each of these values for the field.
macro_rules! ends {
    ($of:ty: $($field:ident = [$($value:expr),+]);+ $(;)?) => {{
        let all: Vec<Change<$of>> = vec![
            $($((stringify!($field), Box::new(|options: &mut $of| options.$field = $value)),)+)+
        ];
        all
    }};
}

/// Writes, flushes, merges, closes and opens again with these options, or is refused for the option `named`.
fn works_or_is_refused(named: &str, options: &Options) {
    let dir = common::fast_dir();
    let path = dir.path().join("store");
    let use_it = || -> collie_db::Result<()> {
        for run in 0..3_u8 {
            let db = Db::open(&path, options.clone())?;
            let family = db.default_family();
            for n in 0..8_u8 {
                family.put([run, n], [n; 600])?;
            }
            family.flush()?;
            family.compact()?;
            let tx = db.transaction(TransactionOptions::default())?;
            tx.put(&family, [run, 0], "changed")?;
            tx.commit()?;
            assert_eq!(family.iter()?.count(), usize::from(run + 1) * 8);
            drop(family);
            db.close()?;
        }
        Ok(())
    };
    match use_it() {
        Ok(()) => {}
        Err(Error::InvalidOption {
            option,
            value,
            reason,
        }) => {
            assert!(
                named == option && !reason.is_empty(),
                "{option} is {value}: {reason}"
            );
            assert!(!path.exists(), "{option} is {value}: the store is there");
        }
        Err(error) => panic!("{named}: {error}"),
    }
}

#[test]
fn options_of_a_store_work_or_are_refused() {
    let changes = ends!(Options:
        ring_bytes = [0, 1, 8 << 10, (1 << 20) + 1, usize::MAX];
        max_commit_bytes = [0, 1, 1 << 10, u64::from(u32::MAX), u64::MAX];
        segment_bytes = [0, 1, 32 << 10, (32 << 10) + 1, 1 << 40, u64::MAX];
        max_workers = [0, 1, 2, 65_535, 65_536, usize::MAX];
        wal_ttl = [Duration::MAX];
        wal_size_limit = [1, u64::MAX];
        max_total_wal_size = [Some(0), Some(1), Some(512 << 10), Some(u64::MAX)];
        close_flush_bytes = [0, 1, u64::MAX];
        reserve_bytes = [Some(0), Some(1)];
        cache_bytes = [0, 1, u64::MAX];
        max_memtable_bytes = [Some(0), Some(1), Some(64 << 10), Some(u64::MAX)];
        max_open_files = [0, 1, usize::MAX];
        flush_threads = [0, 256, 257, usize::MAX];
        compaction_threads = [0, 256, 257, usize::MAX];
        max_row_locks = [1, usize::MAX];
        lock_timeout = [Duration::ZERO, Duration::MAX];
    );
    for (option, change) in changes {
        let mut options = common::small();
        options.reserve_bytes = Some(64 << 10);
        change(&mut options);
        works_or_is_refused(option, &options);
    }
}

/// What there is would be taken from all others on that disk, and no write admitted.
#[test]
fn a_reserve_that_its_disk_can_never_hold_is_refused() {
    let device = SimDevice::new(1);
    device.limit_space(Some(64 << 20));
    for bytes in [1 << 60, u64::MAX] {
        // Not under /dev/shm, of which a simulated device does not limit the room.
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            device: Arc::new(device.clone()),
            reserve_bytes: Some(bytes),
            ..common::small()
        };
        match Db::open(dir.path().join("store"), options).err() {
            Some(Error::InvalidOption { option, .. }) => assert_eq!(option, "reserve_bytes"),
            other => panic!("{bytes}: {other:?}"),
        }
    }
}

#[test]
fn options_of_a_family_work_or_are_refused() {
    let changes = ends!(FamilyOptions:
        write_buffer_bytes = [0, 1, 4096, 1 << 40, u64::MAX];
        max_write_buffers = [0, 1, 2, 1024, usize::MAX];
        block_bytes = [0, 1, 512, 1 << 20, u32::MAX];
        bloom_bits = [0, 1, u8::MAX];
        table_bytes = [0, 1, 4096, 1 << 40, u64::MAX];
        level0_compaction = [0, 1, 2, u8::MAX];
        level0_slowdown = [0, 4, usize::MAX];
        level0_stop = [0, 200, usize::MAX];
    );
    for (option, change) in changes {
        let mut options = common::small();
        options.reserve_bytes = Some(64 << 10);
        change(&mut options.default_family);
        // A limit is named by the one that it is beside.
        let named = match (option, options.default_family.level0_slowdown) {
            ("level0_slowdown", 0) => "level0_compaction",
            ("level0_slowdown", usize::MAX) => "level0_stop",
            _ => option,
        };
        works_or_is_refused(named, &options);
    }
}

#[test]
fn options_of_shared_parts_work_or_are_refused() {
    let changes = ends!(SharedOptions:
        flush_threads = [0, 256, 257, usize::MAX];
        compaction_threads = [0, 256, 257, usize::MAX];
        cache_bytes = [0, u64::MAX];
        max_open_files = [0, 1, usize::MAX];
        max_memtable_bytes = [Some(0), Some(64 << 10), Some(u64::MAX)];
    );
    for (named, change) in changes {
        let mut options = SharedOptions::default();
        change(&mut options);
        match Shared::new(options) {
            Ok(shared) => {
                let mut options = common::small();
                (options.reserve_bytes, options.shared) = (Some(64 << 10), Some(shared));
                works_or_is_refused("none", &options);
            }
            Err(Error::InvalidOption { option, .. }) => assert_eq!(option, named),
            Err(error) => panic!("{named}: {error}"),
        }
    }
}
