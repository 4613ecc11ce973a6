//! Options at both ends of their types: a log works with them, or refuses them and leaves no trace.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use collie_log::{Level, Log, LogError, LogOptions, LogSet, LogSetOptions, RingMode};
use collie_sim::SimDevice;

fn small() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        reserve_bytes: Some(0),
        ..LogOptions::default()
    }
}

type Change = (&'static str, Box<dyn Fn(&mut LogOptions)>);

/// One with each of these values for the field.
macro_rules! ends {
    ($($field:ident = [$($value:expr),+]);+ $(;)?) => {{
        let all: Vec<Change> = vec![
            $($((stringify!($field), Box::new(|options: &mut LogOptions| options.$field = $value)),)+)+
        ];
        all
    }};
}

/// Appends, waits and opens again.
fn works(dir: &Path, options: &LogOptions) -> Result<(), LogError> {
    for _ in 0..3 {
        let log = Log::open(dir, options.clone())?;
        let mut worker = log.worker()?;
        for n in 0..8_u8 {
            let span = worker.append(1, 1, &[n; 600])?;
            if n % 4 == 0 {
                log.wait(span.end, Level::Disk)?;
            }
        }
        drop(worker);
        log.close()?;
    }
    Ok(())
}

#[test]
fn options_of_a_log_work_or_are_refused() {
    let changes = ends!(
        ring_bytes = [0, 1, 8 << 10, (1 << 20) + 1, usize::MAX];
        segment_bytes = [0, 1, 32 << 10, (32 << 10) + 1, u64::MAX];
        max_workers = [0, 1, 2, 65_536, 65_537, usize::MAX];
        min_lsn = [0, 1, 8, (1 << 62) - 8, 1 << 62, u64::MAX];
        archive_ttl = [Duration::MAX];
        archive_bytes = [1, u64::MAX];
        flush_interval = [Duration::ZERO, Duration::from_millis(1), Duration::MAX];
        reserve_bytes = [Some(0), Some(1)];
    );
    for (named, change) in changes {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut options = small();
        change(&mut options);
        match works(&path, &options) {
            Ok(()) => {}
            Err(LogError::Options {
                option,
                value,
                reason,
            }) => {
                assert!(
                    named == option && !reason.is_empty(),
                    "{option} is {value}: {reason}"
                );
                assert!(!path.exists(), "{option} is {value}: the log is there");
            }
            Err(error) => panic!("{named}: {error}"),
        }
    }
}

#[test]
fn a_reserve_that_its_disk_can_never_hold_is_refused() {
    let device = SimDevice::new(1);
    device.limit_space(Some(64 << 20));
    let disk = collie_io::file_system_bytes(&device, Path::new("/"));
    for bytes in [disk, 1 << 60, u64::MAX] {
        let options = LogOptions {
            device: Arc::new(device.clone()),
            reserve_bytes: Some(bytes),
            ..small()
        };
        match Log::open("/log", options).err() {
            Some(LogError::Options { option, .. }) => assert_eq!(option, "reserve_bytes"),
            other => panic!("{bytes}: {other:?}"),
        }
    }
}

#[test]
fn options_of_a_set_work_or_are_refused() {
    for (flushers, period) in [
        (0, Duration::from_millis(5)),
        (65, Duration::from_millis(5)),
        (usize::MAX, Duration::from_millis(5)),
        (1, Duration::ZERO),
        (64, Duration::MAX),
    ] {
        match LogSet::new(LogSetOptions { flushers, period }) {
            Ok(set) => {
                let dir = tempfile::tempdir().unwrap();
                let options = LogOptions {
                    set: Some(set),
                    ..small()
                };
                works(dir.path(), &options).unwrap();
            }
            Err(LogError::Options { reason, .. }) => assert!(!reason.is_empty()),
            Err(error) => panic!("{error}"),
        }
    }
}
