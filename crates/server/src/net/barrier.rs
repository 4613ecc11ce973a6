//! The wait for durability before a reply is sent: one barrier per worker thread, shared by its
//! connections.
//!
//! Each connection waits for the largest commit end that its commands wrote or saw. If each waited
//! on the log itself, the log's flusher would wake every connection's task across threads. So the
//! connections of a thread register their ends with this barrier, and one task, the *pump*, waits
//! on the log for the largest one. The pump runs after the connections that were ready in the same
//! iteration of the event loop, so that an iteration makes one request to the log. It makes the
//! next request while a flush is still under way, so that the flusher finds the next group waiting
//! when that flush completes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use collie_db::{Db, Durability, Error, Lsn};

use crate::health::WriteHealth;

/// Why the log will never reach the requested end.
pub(crate) type Cause = Arc<str>;

type LogWait = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// The barrier of one thread and one level of durability.
#[derive(Debug)]
pub(crate) struct Barrier {
    level: Durability,
    state: RefCell<Phase>,
}

#[derive(Default)]
struct Phase {
    waiting: Vec<Rc<Waiter>>,
    /// The largest end that a connection waits for.
    wanted: Lsn,
    /// The largest end that was requested from the log.
    asked: Lsn,
    /// The requests to the log, in rising order.
    in_flight: VecDeque<(Lsn, LogWait)>,
    pump: Option<Waker>,
}

impl std::fmt::Debug for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiting, in_flight) = (self.waiting.len(), self.in_flight.len());
        f.debug_struct("Phase")
            .field("waiting", &waiting)
            .field("in_flight", &in_flight)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Waiter {
    end: Lsn,
    progress: RefCell<Progress>,
}

#[derive(Debug)]
enum Progress {
    Waiting(Option<Waker>),
    Done(Result<(), Cause>),
}

impl Waiter {
    fn finish(&self, result: Result<(), Cause>) {
        if let Progress::Waiting(Some(waker)) = self.progress.replace(Progress::Done(result)) {
            waker.wake();
        }
    }
}

impl Barrier {
    pub(crate) fn new(level: Durability) -> Barrier {
        Barrier {
            level,
            state: RefCell::default(),
        }
    }

    /// Returns once everything up to `end` has reached the barrier's level. The future may be
    /// dropped at any time.
    ///
    /// # Errors
    /// The log failed and cannot reach `end` before it is opened again.
    pub(crate) async fn reach(&self, end: Lsn) -> Result<(), Cause> {
        let waiter = Rc::new(Waiter {
            end,
            progress: RefCell::new(Progress::Waiting(None)),
        });
        {
            let mut state = self.state.borrow_mut();
            state.waiting.push(Rc::clone(&waiter));
            state.wanted = state.wanted.max(end);
            if state.wanted > state.asked
                && let Some(pump) = state.pump.take()
            {
                pump.wake();
            }
        }
        poll_fn(|context| match &mut *waiter.progress.borrow_mut() {
            Progress::Done(result) => Poll::Ready(result.clone()),
            Progress::Waiting(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Waits on the log for all connections of the thread. Never returns.
    pub(crate) async fn pump(&self, db: &Db, health: &WriteHealth) {
        poll_fn(|context| {
            self.poll_requests(db, health, context);
            Poll::<()>::Pending
        })
        .await;
    }

    fn poll_requests(&self, db: &Db, health: &WriteHealth, context: &mut Context<'_>) {
        let mut state = self.state.borrow_mut();
        if state.wanted > state.asked {
            let wanted = state.wanted;
            state
                .in_flight
                .push_back((wanted, Box::pin(db.wait_async(wanted, self.level))));
            state.asked = wanted;
        }
        // Every request is polled, so that each has the waker of this poll. A request that has
        // completed also completes those for earlier ends.
        let mut reached = None;
        let mut failed = None;
        for (index, (end, asked)) in state.in_flight.iter_mut().enumerate() {
            match asked.as_mut().poll(context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => reached = Some((index, *end)),
                Poll::Ready(Err(error)) => {
                    health.refused(&error);
                    failed = Some(Cause::from(error.to_string()));
                    break;
                }
            }
        }
        if let Some((index, end)) = reached {
            state.in_flight.drain(..=index);
            state.waiting.retain(|waiter| {
                let is_reached = waiter.end <= end;
                if is_reached {
                    waiter.finish(Ok(()));
                }
                // Also removes the waiters whose connections were dropped.
                !is_reached && Rc::strong_count(waiter) > 1
            });
        }
        if let Some(cause) = failed {
            state.in_flight.clear();
            state.asked = 0;
            state.wanted = 0;
            for waiter in state.waiting.drain(..) {
                let is_durable = self.level == Durability::Disk && db.durable() >= waiter.end;
                waiter.finish(if is_durable {
                    Ok(())
                } else {
                    Err(Arc::clone(&cause))
                });
            }
        }
        state.pump = Some(context.waker().clone());
    }
}
