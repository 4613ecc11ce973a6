//! A log in a child that is forked from the process that opened it: a typed error for whatever it
//! tries, and nothing of its parent's is touched. Shown with a real process.

#![cfg(not(any(loom, shuttle)))]

use std::io::Write;
use std::sync::Arc;

use collie_io::{Device, RealDevice};
use collie_log::{FIRST_LSN, Level, Log, LogError, LogOptions, LogSet, LogSetOptions, RingMode, follow};

fn refused<T>(what: &str, result: Result<T, LogError>) -> Result<(), String> {
    match result {
        Err(LogError::Forked { opener, .. }) if opener != std::process::id() => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
        Ok(_) => Err(format!("{what} was done")),
    }
}

#[test]
fn a_forked_child_appends_nothing_and_closes_nothing() {
    for ring in [RingMode::Private, RingMode::default()] {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions {
            ring,
            ring_bytes: 1 << 20,
            ..LogOptions::default()
        };
        let log = Log::open(dir.path(), options.clone()).unwrap();
        let mut worker = log.worker().unwrap();
        let first = worker.append(0, 1, b"before").unwrap();
        log.wait(first.end, Level::Disk).unwrap();
        let (tail, reader) = (
            log.tail("made before", FIRST_LSN).unwrap(),
            log.read(FIRST_LSN).unwrap(),
        );
        let device: Arc<dyn Device> = Arc::new(RealDevice::new());
        let mut follower = follow::Follower::open(&device, dir.path(), None).unwrap();
        let mut copies = Some((log.clone(), worker));
        let mut readers = Some((tail, reader));
        let in_set = LogOptions {
            set: Some(LogSet::new(LogSetOptions::default()).unwrap()),
            ..options.clone()
        };
        let unmade = dir.path().join("in-a-set");
        let mut in_child = |copies: &mut Option<(Log, collie_log::Worker)>| {
            let (Some((log, mut worker)), Some((mut tail, mut reader))) = (copies.take(), readers.take())
            else {
                return Err("nothing to take".into());
            };
            for level in [Level::Buffered, Level::Process, Level::Disk] {
                refused("wait", log.wait(first.end, level))?;
            }
            for level in [Level::Process, Level::Disk] {
                refused("flush", log.flush(level))?;
            }
            refused("a step of a tail", tail.try_next())?;
            refused(
                "a step of a reader",
                reader.next().unwrap_or(Err(LogError::Closed)),
            )?;
            refused("get", log.get(first.start))?;
            refused("an answer about room", log.setback().map_or(Ok(()), Err))?;
            // It reads files and nothing else, so a child may go on with its copy.
            follower.poll().map_err(|error| error.to_string())?;
            let shown = log.stats().poisoned.unwrap_or_default();
            if !shown.contains("fork") || !log.holders().is_empty() || log.oldest() + log.oldest_end() != 0 {
                return Err(format!("figures are given, with {shown:?}"));
            }
            drop((tail, reader));
            refused("append", worker.append(0, 1, b"child"))?;
            refused("worker", log.worker())?;
            refused("read", log.read(FIRST_LSN))?;
            refused("tail", log.tail("child", FIRST_LSN))?;
            log.retain("child", first.end);
            log.release("child");
            refused("close", log.clone().close())?;
            refused("open in a set", Log::open(&unmade, in_set.clone()))?;
            if unmade.exists() {
                return Err("what was refused was made".into());
            }
            drop((worker, log));
            Ok::<(), String>(())
        };
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: what the child does is what is tested; it leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            let result = in_child(&mut copies);
            if let Err(problem) = &result {
                // Past what the test harness collects, which would be lost here.
                let _ = writeln!(std::io::stderr(), "in the child: {problem}");
            }
            #[expect(unsafe_code, reason = "the point of the test")]
            // SAFETY: ends the process at once.
            unsafe {
                libc::_exit(i32::from(result.is_err()))
            };
        }
        let mut status = 0;
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: waits for the child from above.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        let (other, mut worker) = copies.unwrap();
        let last = worker.append(0, 1, b"after").unwrap();
        assert_eq!(last.start, first.end, "the child has not appended in between");
        log.wait(last.end, Level::Disk).unwrap();
        drop((worker, other));
        log.close().unwrap();
        let log = Log::open(dir.path(), options).unwrap();
        let payloads: Vec<_> = log
            .read(FIRST_LSN)
            .unwrap()
            .map(|frame| frame.unwrap().payload)
            .collect();
        assert_eq!(payloads, [&b"before"[..], b"after"]);
    }
}
