//! The one task that is told how far the log is durable. Nothing comes with time in a model: an append
//! that nobody flushes for it, or a boundary that it misses, leaves it waiting for ever.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;

use collie_log::LogError;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{future, thread};

use crate::{explore, join, spawn, with_threads};

const WORKERS: usize = 2;
const FRAMES: usize = 1;

#[test]
fn one_task_is_told_of_unawaited_frames_and_of_the_end() {
    explore("durable changes", || {
        let world = with_threads();
        let done = Arc::new(AtomicUsize::new(0));
        let mut changes = world.log.durable_changes();
        let task = thread::spawn({
            let (log, done) = (world.log.clone(), Arc::clone(&done));
            move || {
                while done.load(Ordering::SeqCst) < WORKERS || changes.last() < log.appended() {
                    let last = changes.last();
                    if last == log.appended() {
                        // There is nothing to be told yet.
                        thread::yield_now();
                        continue;
                    }
                    if thread_rng().gen_bool(0.3) {
                        // A future that is dropped after a look loses nothing.
                        let looked = future::block_on(async {
                            let mut next = Box::pin(changes.next());
                            std::future::poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await
                        });
                        assert!(!matches!(looked, Poll::Ready(Err(_))), "{looked:?}");
                        continue;
                    }
                    let durable = future::block_on(changes.next()).unwrap();
                    assert!(durable > last && durable == changes.last());
                }
                changes
            }
        });
        let workers = spawn(&world, WORKERS as u32, move |world, stream| {
            let mut worker = world.log.worker().unwrap();
            for n in 0..FRAMES {
                let span = world.append(&mut worker, stream, n, 100).unwrap();
                // Some wait for themselves, most leave it to the task.
                if thread_rng().gen_bool(0.2) {
                    world.commit(span).unwrap();
                }
            }
            drop(worker);
            done.fetch_add(1, Ordering::SeqCst);
        });
        join(workers);
        // Nobody else has the last frames brought to the device, or wakes the task.
        let mut changes = task.join().unwrap();
        assert!(world.log.durable() >= changes.last());
        world.log.clone().close().unwrap();
        let error = loop {
            match future::block_on(changes.next()) {
                Ok(end) => assert_eq!(end, world.log.durable()),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LogError::Closed), "{error}");
        world.close_and_reopen();
    });
}
