//! Threads for requests that may wait for the device, so that those that read the kernel's requests
//! do not.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Threads at most. A request that finds all of them busy waits for one.
const MOST: usize = 64;
/// Threads that stay when there is nothing to do.
const KEPT: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

#[derive(Default)]
struct JobQueue {
    state: Mutex<PoolState>,
    changed: Condvar,
}

/// The threads.
#[derive(Default)]
pub(super) struct Pool(Arc<JobQueue>);

impl Pool {
    /// Does `job` on another thread; on this one where no thread can be started.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= MOST {
            self.0.changed.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.0);
        let named = std::thread::Builder::new().name("front-sync".to_owned());
        if named.spawn(move || work(&shared)).is_err() {
            let mut state = self.0.state.lock();
            state.threads -= 1;
            let job = state.jobs.pop_front();
            drop(state);
            if let Some(job) = job {
                job();
            }
        }
    }

    /// Ends the threads after what was handed over is done. Not to be called by one of them.
    pub(super) fn finish(&self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        self.0.changed.notify_all();
        while state.threads > 0 {
            self.0.changed.wait(&mut state);
        }
    }
}

fn work(shared: &JobQueue) {
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            // A request that panics is answered with an error when its reply is dropped.
            let _ = catch_unwind(AssertUnwindSafe(job));
            state = shared.state.lock();
            continue;
        }
        if state.is_closed || state.idle >= KEPT {
            break;
        }
        state.idle += 1;
        shared.changed.wait(&mut state);
        state.idle -= 1;
    }
    state.threads -= 1;
    // `finish` may wait for the last one.
    shared.changed.notify_all();
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn jobs_run_beside_each_other_and_all_are_done_at_the_end() {
        let pool = Pool::default();
        let barrier = Arc::new(Barrier::new(8));
        let (sender, done) = channel();
        for job in 0..8 {
            let (barrier, sender) = (Arc::clone(&barrier), sender.clone());
            pool.run(move || {
                // None of them passes before all eight run.
                barrier.wait();
                sender.send(job).unwrap();
            });
        }
        for job in 8..500 {
            let sender = sender.clone();
            pool.run(move || sender.send(job).unwrap());
        }
        drop(sender);
        pool.finish();
        let mut done: Vec<i32> = done.iter().collect();
        done.sort_unstable();
        assert_eq!(done, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_panics_takes_no_thread_with_it() {
        let pool = Pool::default();
        for _ in 0..2 * MOST {
            pool.run(|| panic!("on purpose"));
        }
        let (sender, done) = channel();
        pool.run(move || sender.send(()).unwrap());
        assert_eq!(done.recv(), Ok(()));
    }
}
