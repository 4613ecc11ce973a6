//! How two nodes find out that they belong together, before anything else is said; and how a process that is no
//! node yet asks to become one, and is answered: on a connection of its own, which ends behind the answer.

use std::net::SocketAddr;
use std::time::Duration;

use collie_io::Clock;
use collie_server::cluster::id_text;
use tokio::io::{AsyncWrite, AsyncWriteExt, split};
use tokio::time::{Instant, timeout};

use crate::transport::error::{End, GreetingError};
use crate::transport::liveness::Skew;
use crate::transport::network::Network;
use crate::transport::options::Identity;
use crate::transport::reader::FrameReader;
use crate::transport::shared::PeersInner;
use crate::transport::wire::{
    Frame, Hello, Join, JoinAnswer, Joined, Lane, Message, NodeId, Refused, VERSION, encode,
};

/// What this node says to `to`.
pub(super) fn hello(shared: &PeersInner, to: NodeId, lane: Lane) -> Frame {
    let &Identity {
        cluster, node, boot, ..
    } = &shared.options.identity;
    let level = shared.level();
    Frame::of_connection(
        0,
        Message::Hello(Hello {
            version: VERSION,
            cluster,
            node,
            to,
            lane,
            level,
            boot,
        }),
    )
}

/// What the first frame of a connection says, if it is a greeting.
pub(super) fn greeting(frame: Frame) -> Result<Hello, End> {
    match frame.message {
        Message::Hello(hello) => Ok(hello),
        Message::Refused(refused) => Err(End::Refused(refused.reason)),
        other => Err(End::Unexpected {
            expected: "hello",
            found: other.kind(),
        }),
    }
}

/// Whether this node and the one that says `hello` may speak to each other.
pub(super) fn check(own: &Identity, hello: &Hello) -> Result<(), GreetingError> {
    let node = hello.node;
    if hello.cluster != own.cluster {
        return Err(GreetingError::Cluster {
            node,
            own: id_text(&own.cluster),
            found: id_text(&hello.cluster),
        });
    }
    if node == own.node {
        return Err(GreetingError::Own { node });
    }
    if hello.to != own.node {
        return Err(GreetingError::Misdirected {
            own: own.node,
            found: hello.to,
        });
    }
    if !own.spoken.contains(&hello.level) {
        return Err(GreetingError::Level {
            node,
            found: hello.level,
            spoken: own.spoken.clone(),
        });
    }
    Ok(())
}

/// The same for the answer of a node that this one has connected to.
pub(super) fn check_answer(
    own: &Identity,
    expected: NodeId,
    lane: Lane,
    hello: &Hello,
) -> Result<(), GreetingError> {
    // The cluster first: in another one the numbers mean nothing.
    if hello.cluster == own.cluster && hello.node != expected {
        return Err(GreetingError::Node {
            expected,
            found: hello.node,
        });
    }
    check(own, hello)?;
    match hello.lane == lane {
        true => Ok(()),
        false => Err(GreetingError::Lane {
            expected: lane,
            found: hello.lane,
        }),
    }
}

/// Answers a request to join, and ends the connection.
pub(super) async fn admit<W: AsyncWrite + Unpin>(
    join: Join,
    to: &mut W,
    shared: &PeersInner,
) -> Result<(), End> {
    let answer = match &shared.options.admission {
        Some(admission) => timeout(shared.options.times.join, admission.join(join)).await,
        None => Ok(Err("this node takes no other nodes into its cluster".to_owned())),
    };
    let message = match answer {
        Ok(Ok(answer)) => joined(answer),
        Ok(Err(reason)) => Message::Refused(Refused::new(reason)),
        // It may still come about.
        Err(_) => joined(JoinAnswer::Elsewhere(None)),
    };
    to.write_all(&encode(&Frame::of_connection(0, message))?).await?;
    to.flush().await?;
    Ok(to.shutdown().await?)
}

fn joined(answer: JoinAnswer) -> Message {
    let version = VERSION;
    Message::Joined(Joined { version, answer })
}

/// Why a request to join has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The node refuses it. It is not to be sent again as it is.
    #[error("the node at {address} refuses it: {reason}")]
    Refused {
        /// The node's address.
        address: SocketAddr,
        /// Its reason, with what to do.
        reason: String,
    },
    /// The clocks differ.
    #[error(
        "the clock of the node at {address} is {} ms {} of this machine's, of at most 500 ms: set the clocks of both \
         machines, then start this node again",
        ahead_ms.unsigned_abs(), if *ahead_ms > 0 { "ahead" } else { "behind" }
    )]
    Clock {
        /// The node's address.
        address: SocketAddr,
        /// Milliseconds by which the node's clock is ahead of this machine's.
        ahead_ms: i64,
    },
    /// The node cannot be reached, or does not answer. The join may have come about: it is to be
    /// asked for again with the same token.
    #[error("no answer of a node at {address}: {problem}")]
    Unanswered {
        /// The address.
        address: SocketAddr,
        /// What is the matter.
        problem: String,
    },
}

/// Asks the node at an address once, for `within` at most. Its own wall clock, which `join` carries
/// as of now, is compared with the node's where that says that they differ.
///
/// # Errors
/// [`JoinError`].
pub async fn ask_to_join<N: Network>(
    network: &N,
    address: SocketAddr,
    mut join: Join,
    clock: &dyn Clock,
    within: Duration,
) -> Result<JoinAnswer, JoinError> {
    let unanswered = |problem: String| JoinError::Unanswered { address, problem };
    network.check(address).map_err(unanswered)?;
    let begun = Instant::now();
    join.wall_ms = clock.wall_ms();
    let asked = timeout(within, ask(network, address, join, within)).await;
    match asked.unwrap_or(Err(End::Silent(within))) {
        Ok(JoinAnswer::Clock(theirs)) => {
            let skew = Skew::measured(theirs, clock.wall_ms(), begun.elapsed());
            let ahead_ms = skew.ahead_ms;
            match skew.is_excessive() {
                true => Err(JoinError::Clock { address, ahead_ms }),
                false => Err(unanswered(
                    "the request took too long to compare clocks".to_owned(),
                )),
            }
        }
        Ok(answer) => Ok(answer),
        Err(End::Refused(reason)) => Err(JoinError::Refused { address, reason }),
        Err(end) => Err(unanswered(end.to_string())),
    }
}

async fn ask<N: Network>(
    network: &N,
    address: SocketAddr,
    join: Join,
    within: Duration,
) -> Result<JoinAnswer, End> {
    let (from, mut to) = split(network.connect(address).await?);
    to.write_all(&encode(&Frame::of_connection(0, Message::Join(join)))?)
        .await?;
    to.flush().await?;
    let (frame, _) = FrameReader::new(from, within).next().await?;
    match frame.message {
        Message::Joined(joined) => Ok(joined.answer),
        Message::Refused(refused) => Err(End::Refused(refused.reason)),
        other => Err(End::Unexpected {
            expected: "the answer to a request to join",
            found: other.kind(),
        }),
    }
}
