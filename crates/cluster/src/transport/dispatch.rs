//! Requests that come in, and how they are answered.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::ids::{GroupId, ReplicaId};
use crate::transport::error::End;
use crate::transport::outbox::{Haste, LaneLimits, Outbox};
use crate::transport::wire::{Frame, Kind, Message, NodeId, Refusal, Request, Response, encode};

/// Takes the requests of other nodes.
pub trait Dispatch: Send + Sync + 'static {
    /// Takes one. Called by the task that reads the connection, in the order of the connection:
    /// that of a group's appends is the order in which the peer sent them. So it must not block, and
    /// hands what takes time to a task of the group; `reply` may be answered at any later time.
    /// A replica that is not here is answered [`Refusal::Gone`] or [`Refusal::Unknown`].
    fn dispatch(&self, incoming: Incoming, reply: Reply);
}

/// A request of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// The node.
    pub node: NodeId,
    /// The group.
    pub group: GroupId,
    /// The replica that asks.
    pub from: ReplicaId,
    /// The replica that is asked.
    pub to: ReplicaId,
    /// What it asks.
    pub request: Request,
}

/// The answer to one request, on the connection that it came on. If that has ended, the answer is
/// dropped; the peer knows that it has none. Dropped without an answer it says that there is none.
#[derive(Debug)]
pub struct Reply {
    asked: Kind,
    group: GroupId,
    from: ReplicaId,
    to: ReplicaId,
    request: u64,
    /// None once it is answered.
    way: Option<Way>,
    _held: Held,
}

/// How an answer gets to who has asked.
#[derive(Debug)]
enum Way {
    Peer(Arc<Outbox>, Haste),
    /// A replica of this node.
    Own(oneshot::Sender<Result<Response, End>>),
}

/// What a peer has in flight on one connection. A peer of this version keeps to the limits by
/// itself, but for requests that it has given up and that are still carried out here.
#[derive(Debug)]
pub(super) struct Load {
    limits: LaneLimits,
    now: Mutex<Loads>,
}

#[derive(Debug, Default)]
struct Loads {
    requests: usize,
    bytes: usize,
    groups: HashMap<GroupId, OfGroup>,
}

#[derive(Debug, Default, Clone, Copy)]
struct OfGroup {
    requests: usize,
    appends: u32,
    bytes: usize,
}

/// One request's part of the load.
#[derive(Debug)]
struct Held {
    load: Arc<Load>,
    group: GroupId,
    bytes: usize,
    append: bool,
}

impl Reply {
    /// The answer to `frame`, which had `bytes` bytes; `None` if the peer has too much in flight,
    /// which is answered.
    pub(super) fn of(frame: &Frame, bytes: usize, load: &Arc<Load>, outbox: &Arc<Outbox>) -> Option<Self> {
        let &Frame {
            group,
            from,
            to,
            request,
            ..
        } = frame;
        let asked = frame.message.kind();
        let Some(held) = load.hold(group, bytes, asked == Kind::Append) else {
            if let Ok(bytes) = encode(&answer(
                group,
                from,
                to,
                request,
                Response::Refusal(Refusal::Busy),
            )) {
                outbox.push_answer(bytes, Haste::Now);
            }
            return None;
        };
        Some(Self {
            asked,
            group,
            from,
            to,
            request,
            way: Some(Way::Peer(Arc::clone(outbox), haste(&frame.message))),
            _held: held,
        })
    }

    /// The answer to a request of a replica of this node to another one, which would have so many bytes on a
    /// connection. `None` if too much is in flight, which is answered.
    pub(super) fn own(
        frame: &Frame,
        bytes: usize,
        load: &Arc<Load>,
    ) -> (Option<Self>, oneshot::Receiver<Result<Response, End>>) {
        let (answer, receiver) = oneshot::channel();
        let asked = frame.message.kind();
        let Some(held) = load.hold(frame.group, bytes, asked == Kind::Append) else {
            // An error: it is not waited for any more.
            _ = answer.send(Ok(Response::Refusal(Refusal::Busy)));
            return (None, receiver);
        };
        let reply = Self {
            asked,
            group: frame.group,
            from: frame.from,
            to: frame.to,
            request: frame.request,
            way: Some(Way::Own(answer)),
            _held: held,
        };
        (Some(reply), receiver)
    }

    /// Sends the answer.
    pub fn send(mut self, response: Response) {
        debug_assert!(
            response.kind().answers(self.asked),
            "{} answered by {}",
            self.asked,
            response.kind()
        );
        self.answer(response);
    }

    fn answer(&mut self, response: Response) {
        let (outbox, haste) = match self.way.take() {
            Some(Way::Peer(outbox, haste)) => (outbox, haste),
            // An error: it is not waited for any more.
            Some(Way::Own(answer)) => return drop(answer.send(Ok(response))),
            None => return,
        };
        let frame = |response| answer(self.group, self.from, self.to, self.request, response);
        let bytes = match encode(&frame(response)) {
            Ok(bytes) => bytes,
            Err(error) => match encode(&frame(Response::Refusal(Refusal::failed(error.to_string())))) {
                Ok(bytes) => bytes,
                Err(_) => return,
            },
        };
        outbox.push_answer(bytes, haste);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.way.is_some() {
            self.answer(Response::Refusal(Refusal::failed("the node gave no answer")));
        }
    }
}

/// How soon a request, or its answer, is written. No entry waits for an append without entries.
pub(super) fn haste(message: &Message) -> Haste {
    match message {
        Message::Request(Request::Append(append)) if append.entries.is_empty() => Haste::Together,
        Message::Request(Request::Park(_)) => Haste::Together,
        _ => Haste::Now,
    }
}

/// The frame of an answer: from the replica that was asked, to the one that asked.
fn answer(group: GroupId, from: ReplicaId, to: ReplicaId, request: u64, response: Response) -> Frame {
    Frame {
        group,
        from: to,
        to: from,
        request,
        message: Message::Response(response),
    }
}

impl Load {
    pub(super) fn new(limits: LaneLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            now: Mutex::default(),
        })
    }

    fn hold(self: &Arc<Self>, group: GroupId, bytes: usize, append: bool) -> Option<Held> {
        let mut now = self.now.lock();
        let of_group = now.groups.get(&group).copied().unwrap_or_default();
        // One request alone is never too large.
        let room = |held: usize, most: u32| held == 0 || held + bytes <= most as usize;
        if now.requests >= self.limits.requests
            || !room(now.bytes, self.limits.peer_bytes)
            || !room(of_group.bytes, self.limits.group_bytes)
            || (append && of_group.appends >= self.limits.group_appends)
        {
            return None;
        }
        now.requests += 1;
        now.bytes += bytes;
        let of_group = now.groups.entry(group).or_default();
        of_group.requests += 1;
        of_group.bytes += bytes;
        of_group.appends += u32::from(append);
        Some(Held {
            load: Arc::clone(self),
            group,
            bytes,
            append,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut now = self.load.now.lock();
        now.requests -= 1;
        now.bytes -= self.bytes;
        if let Some(of_group) = now.groups.get_mut(&self.group) {
            of_group.requests -= 1;
            of_group.bytes -= self.bytes;
            of_group.appends -= u32::from(self.append);
            if of_group.requests == 0 {
                now.groups.remove(&self.group);
            }
        }
    }
}
