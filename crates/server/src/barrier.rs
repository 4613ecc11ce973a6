//! The wait between a reply and its leaving: one per worker thread, shared by its connections.
//!
//! Each connection waits for the largest commit end that its commands wrote or saw. Asking the log for every
//! one of them would wake every connection's task from the log's flusher, across threads. So the connections
//! of a thread put their ends into this barrier, and one task, the *pump*, asks the log for the largest one.
//! It runs after the connections that were ready in the same turn of the event loop have run, so that a turn
//! makes one request of the log, and it asks again at once for what comes in while a flush is under way, so
//! that the flusher finds the next group waiting when it is done with this one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use collie_db::{Db, Durability, Error, Lsn};

use crate::health::WriteHealth;

/// Why the log will never reach what was waited for.
pub(crate) type Cause = Arc<str>;

type Asked = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// The barrier of one thread and one level of durability.
#[derive(Debug)]
pub(crate) struct Barrier {
    level: Durability,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Rc<Waiter>>,
    /// The largest end that anybody waits for.
    wanted: Lsn,
    /// The largest end that the log was asked for.
    asked: Lsn,
    /// What the log was asked for, in rising order.
    in_flight: VecDeque<(Lsn, Asked)>,
    pump: Option<Waker>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiting, in_flight) = (self.waiting.len(), self.in_flight.len());
        f.debug_struct("State")
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

    /// Returns once everything up to `end` has reached the barrier's level. May be dropped at any time.
    ///
    /// # Errors
    /// The log failed and will not reach it before it is opened again.
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

    /// Asks the log on behalf of all who wait. Never returns.
    pub(crate) async fn pump(&self, db: &Db, health: &WriteHealth) {
        poll_fn(|context| {
            self.turn(db, health, context);
            Poll::<()>::Pending
        })
        .await;
    }

    fn turn(&self, db: &Db, health: &WriteHealth, context: &mut Context<'_>) {
        let mut state = self.state.borrow_mut();
        if state.wanted > state.asked {
            let wanted = state.wanted;
            state
                .in_flight
                .push_back((wanted, Box::pin(db.when(wanted, self.level))));
            state.asked = wanted;
        }
        // Everything that was asked for is polled, so that each has this turn's waker. What is reached for a
        // later end is reached for the earlier ones.
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
                // One whose connection went away is not waited for either.
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
