//! The requests on one connection that have no answer yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::ids::{GroupId, ReplicaId};
use crate::transport::budget::Permit;
use crate::transport::error::End;
use crate::transport::wire::{Frame, Kind, Message, Response};

/// What is waited for, by the number of the request.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: Mutex<Waitings>,
}

#[derive(Debug, Default)]
struct Waitings {
    by_request: BTreeMap<u64, Waiting>,
    /// Why no answer will come any more.
    ended: Option<End>,
}

#[derive(Debug)]
struct Waiting {
    kind: Kind,
    group: GroupId,
    from: ReplicaId,
    to: ReplicaId,
    answer: oneshot::Sender<Result<Response, End>>,
    /// Given back with the answer.
    _permit: Option<Arc<Permit>>,
}

/// Why a request cannot wait for an answer.
#[derive(Debug)]
pub(super) enum Unawaited {
    /// The connection has ended.
    Ended(End),
    /// There are as many as there may be.
    Full,
}

/// The place of one request among those that wait. Dropped, the request is given up.
#[derive(Debug)]
pub(super) struct Place {
    pending: Arc<Pending>,
    request: u64,
}

impl Pending {
    /// Notes a request that will be sent, at most as the `most`th.
    pub(super) fn enter(
        self: &Arc<Self>,
        frame: &Frame,
        permit: Option<Arc<Permit>>,
        most: usize,
    ) -> Result<(Place, oneshot::Receiver<Result<Response, End>>), Unawaited> {
        let (answer, receiver) = oneshot::channel();
        let &Frame {
            group,
            from,
            to,
            request,
            ..
        } = frame;
        let waiting = Waiting {
            kind: frame.message.kind(),
            group,
            from,
            to,
            answer,
            _permit: permit,
        };
        let mut waitings = self.waiting.lock();
        if let Some(end) = &waitings.ended {
            return Err(Unawaited::Ended(end.clone()));
        }
        if waitings.by_request.len() >= most {
            return Err(Unawaited::Full);
        }
        waitings.by_request.insert(request, waiting);
        Ok((
            Place {
                pending: Arc::clone(self),
                request,
            },
            receiver,
        ))
    }

    /// Hands an answer to what waits for it. One that nothing waits for came too late.
    pub(super) fn answer(&self, frame: Frame) -> Result<(), End> {
        let Frame {
            group,
            from,
            to,
            request,
            message,
        } = frame;
        let Message::Response(response) = message else {
            return Err(End::Unexpected {
                expected: "an answer",
                found: message.kind(),
            });
        };
        let Some(waiting) = self.waiting.lock().by_request.remove(&request) else {
            return Ok(());
        };
        let found = response.kind();
        if !found.answers(waiting.kind) || (group, from, to) != (waiting.group, waiting.to, waiting.from) {
            let end = End::Mismatch {
                request,
                asked: waiting.kind,
                found,
            };
            let _gone = waiting.answer.send(Err(end.clone()));
            return Err(end);
        }
        // An error: what waited has just been given up.
        let _gone = waiting.answer.send(Ok(response));
        Ok(())
    }

    /// The connection has ended: no answer comes any more.
    pub(super) fn end(&self, end: &End) {
        let mut waitings = self.waiting.lock();
        waitings.ended = Some(end.clone());
        let all = std::mem::take(&mut waitings.by_request);
        drop(waitings);
        for waiting in all.into_values() {
            let _gone = waiting.answer.send(Err(end.clone()));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let given_up = self.pending.waiting.lock().by_request.remove(&self.request);
        drop(given_up);
    }
}
