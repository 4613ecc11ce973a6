//! Connections that peers make to this node.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, split};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};

use crate::transport::dispatch::{Incoming, Load, Reply};
use crate::transport::error::{End, GreetingError};
use crate::transport::greeting::{admit, check, greeting, hello};
use crate::transport::liveness::difference_ms;
use crate::transport::network::Network;
use crate::transport::outbox::{Outbox, write_frames};
use crate::transport::reader::FrameReader;
use crate::transport::shared::{PeersInner, Taken};
use crate::transport::wire::{Frame, Join, Lane, Message, Pong, Refused, WireError, encode};

/// The pause after a connection could not be taken, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes connections until the node closes them.
pub(super) async fn accept<N: Network>(network: Arc<N>, listener: N::Listener, shared: Arc<PeersInner>) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.closed() => return,
            accepted = network.accept(&listener) => accepted,
        };
        match accepted {
            // Above the limit a connection is closed at once: peers come back, and strangers are
            // not worth more.
            Ok((accepted, from)) => {
                if let Ok(stranger) = Arc::clone(&shared.strangers).try_acquire_owned() {
                    let (network, shared_too) = (Arc::clone(&network), Arc::clone(&shared));
                    shared.spawn(serve(network, accepted, from, shared_too, stranger));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot take the connection of a peer");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One connection, from its beginning to its end.
async fn serve<N: Network>(
    network: Arc<N>,
    accepted: N::Accepted,
    address: SocketAddr,
    shared: Arc<PeersInner>,
    stranger: OwnedSemaphorePermit,
) {
    let times = &shared.options.times;
    let outbox = Arc::new(Outbox::new(shared.lane.peer_bytes as usize));
    let welcome = async {
        let (from, mut to) = split(network.secure(accepted).await?);
        let mut from = FrameReader::new(from, times.greeting);
        let first = greet(&mut from, &mut to, &shared, &outbox).await?;
        Ok((first, from, to))
    };
    let greeted = tokio::select! {
        biased;
        () = shared.closed() => return,
        greeted = timeout(times.greeting, welcome) => greeted,
    };
    let (taken, from, to) = match greeted.unwrap_or(Err(End::Greeted(times.greeting))) {
        Ok((First::Peer(taken), from, to)) => (taken, from, to),
        Ok((First::Join(join), _, mut to)) => {
            let ended = tokio::select! {
                biased;
                () = shared.closed() => Err(End::Closing),
                ended = admit(join, &mut to, &shared) => ended,
            };
            if let Err(end) = ended {
                tracing::warn!(%address, %end, "a process that asked to join got no answer");
            }
            return;
        }
        Err(end) => {
            shared.refusals.report(address, &end);
            return;
        }
    };
    drop(stranger);
    let end = tokio::select! {
        biased;
        end = outbox.kicked() => end,
        end = talk(&taken, from, to, &shared, &outbox) => end,
    };
    outbox.abandon();
    if taken.lane == Lane::Raft && taken.is_current() {
        shared.leaders.out_of_touch(taken.node, taken.boot);
    }
    tracing::debug!(node = taken.node, lane = %taken.lane, %address, %end, "the connection of a peer has ended");
}

/// What a connection is for, by its first frame.
enum First {
    /// A peer has it, and both sides have said who they are.
    Peer(Taken),
    /// A process wants to become a node. It stays a stranger.
    Join(Join),
}

async fn greet<R, W>(
    from: &mut FrameReader<R>,
    to: &mut W,
    shared: &PeersInner,
    outbox: &Arc<Outbox>,
) -> Result<First, End>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let own = &shared.options.identity;
    let first = async {
        let frame = from.next().await?.0;
        if let Message::Join(join) = frame.message {
            return Ok(First::Join(join));
        }
        let theirs = greeting(frame)?;
        check(own, &theirs)?;
        let (node, admission) = (theirs.node, &shared.options.admission);
        if admission
            .as_ref()
            .is_some_and(|admission| admission.was_removed(node))
        {
            return Err(GreetingError::Removed { node }.into());
        }
        let taken = shared.slots.take(&theirs, outbox, shared.options.times.suspect)?;
        Ok(First::Peer(taken))
    };
    let first: Result<First, End> = first.await;
    let answer = match &first {
        Ok(First::Peer(taken)) => hello(shared, taken.node, taken.lane),
        Ok(First::Join(_)) => return first,
        Err(end @ (End::Greeting(_) | End::Wire(WireError::Version { .. }))) => {
            Frame::of_connection(0, Message::Refused(Refused::new(end.to_string())))
        }
        // Bytes that no node would send get no answer.
        Err(_) => return first,
    };
    to.write_all(&encode(&answer)?).await?;
    to.flush().await?;
    if first.is_err() {
        // The reason arrives before the end of the connection.
        to.shutdown().await?;
    }
    first
}

async fn talk<S, W>(
    taken: &Taken,
    mut from: FrameReader<ReadHalf<S>>,
    to: W,
    shared: &PeersInner,
    outbox: &Arc<Outbox>,
) -> End
where
    S: AsyncRead,
    W: AsyncWrite + Unpin,
{
    let (times, limits) = (&shared.options.times, &shared.options.limits);
    from.greeted(times.silence_of(taken.lane), times.frame);
    let mut writes = pin!(write_frames(
        to,
        outbox,
        limits.batch_bytes,
        times.bulk_silence,
        &shared.written
    ));
    let written = tokio::select! {
        biased;
        end = receive(taken, &mut from, shared, outbox) => return end,
        written = &mut writes => written,
        () = shared.closed() => {
            outbox.finish();
            tokio::join!(writes, from.drain(times.close)).0
        }
    };
    written.err().unwrap_or(End::Closing)
}

/// Hands requests on, in the order in which they come.
async fn receive<S: AsyncRead>(
    taken: &Taken,
    from: &mut FrameReader<ReadHalf<S>>,
    shared: &PeersInner,
    outbox: &Arc<Outbox>,
) -> End {
    let load = Load::new(shared.lane);
    loop {
        let (frame, bytes) = match from.next().await {
            Ok(next) => next,
            Err(end) => return end,
        };
        taken.heard();
        match &frame.message {
            Message::Ping(ping) => {
                let wall_ms = shared.options.clock.wall_ms();
                if taken.lane == Lane::Raft {
                    let ahead_ms = difference_ms(ping.wall_ms, wall_ms);
                    shared.machine_clocks.lock().insert(taken.node, ahead_ms);
                }
                let pong = Message::Pong(Pong { wall_ms });
                match encode(&Frame::of_connection(frame.request, pong)) {
                    // Without room the peer takes nothing, and will find this node silent.
                    Ok(bytes) => _ = outbox.push_urgent(bytes),
                    Err(error) => return error.into(),
                }
            }
            Message::Leads(leads) if taken.lane == Lane::Raft => {
                shared.leaders.heard(taken.node, taken.boot, leads);
            }
            Message::Request(request) if request.lane() == taken.lane => {
                let Some(reply) = Reply::of(&frame, bytes, &load, outbox) else {
                    continue;
                };
                let Frame {
                    group,
                    from,
                    to,
                    message: Message::Request(request),
                    ..
                } = frame
                else {
                    continue;
                };
                let node = taken.node;
                shared.dispatch.dispatch(
                    Incoming {
                        node,
                        group,
                        from,
                        to,
                        request,
                    },
                    reply,
                );
            }
            other => {
                let expected = match taken.lane {
                    Lane::Raft => "a ping, what the node leads, or a request of the raft connection",
                    Lane::Bulk => "a ping, or a request of the bulk connection",
                };
                return End::Unexpected {
                    expected,
                    found: other.kind(),
                };
            }
        }
    }
}
