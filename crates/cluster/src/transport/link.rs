//! A connection that this node makes to a peer, again and again, with pauses between attempts.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::beat::Beat;
use crate::transport::error::{End, PeerError};
use crate::transport::greeting::{check_answer, greeting, hello};
use crate::transport::liveness::{Pulse, Skew};
use crate::transport::network::Network;
use crate::transport::outbox::{Budget, Haste, Outbox, Pending, write_frames};
use crate::transport::reader::FrameReader;
use crate::transport::shared::PeersInner;
use crate::transport::wire::{Frame, Hello, Lane, Leads, Message, NodeId, Ping, encode};

/// From one word of what this node leads to the next, and to another attempt where the connection took
/// none.
const TOLD_AGAIN: Duration = Duration::from_millis(20);
/// Pings whose answers are waited for. Older ones say nothing of the clock any more.
const PINGS_KEPT: usize = 32;

/// One of the two connections to a peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: NodeId,
    pub(super) lane: Lane,
    pub(super) budget: Budget,
    pulse: Arc<Pulse>,
    now: Mutex<LinkPhase>,
}

#[derive(Debug)]
enum LinkPhase {
    Connected(Arc<Session>),
    /// And why.
    Apart(String),
}

/// One connection, as long as it lasts.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) outbox: Outbox,
    pub(super) pending: Arc<Pending>,
    /// Pings without an answer, oldest first.
    pings: Mutex<VecDeque<(u64, Instant)>>,
}

type Halves<S> = (FrameReader<ReadHalf<S>>, WriteHalf<S>);

impl Link {
    pub(super) fn new(node: NodeId, lane: Lane, pulse: Arc<Pulse>, shared: &PeersInner) -> Arc<Self> {
        let now = Mutex::new(LinkPhase::Apart("not connected yet".to_owned()));
        Arc::new(Self {
            node,
            lane,
            budget: Budget::new(shared.lane),
            pulse,
            now,
        })
    }

    /// The connection, if there is one.
    pub(super) fn session(&self) -> Result<Arc<Session>, PeerError> {
        match &*self.now.lock() {
            LinkPhase::Connected(session) => Ok(Arc::clone(session)),
            LinkPhase::Apart(problem) => Err(PeerError::Unreachable {
                node: self.node,
                lane: self.lane,
                problem: problem.clone(),
            }),
        }
    }

    /// Connects, and connects anew, until the peer is removed or the node closes its connections.
    pub(super) async fn run<N: Network>(
        self: Arc<Self>,
        network: Arc<N>,
        shared: Arc<PeersInner>,
        mut address: watch::Receiver<SocketAddr>,
    ) {
        let times = &shared.options.times;
        let seed = shared.options.seed ^ self.node.rotate_left(32) ^ self.lane as u64;
        let mut backoff = Backoff::new(times.backoff, times.backoff_max, seed);
        loop {
            let at = *address.borrow_and_update();
            let end = tokio::select! {
                biased;
                end = self.connect_once(&*network, &shared, at, &mut backoff) => end,
                moved = address.changed() => match moved {
                    Ok(()) => End::Readdressed,
                    Err(_) => break,
                },
            };
            tracing::debug!(node = self.node, lane = %self.lane, address = %at, %end, "no connection to a peer");
            self.part(&end, format!("at {at}: {end}"));
            tokio::select! {
                biased;
                () = shared.closed() => break,
                moved = address.changed() => match moved {
                    Ok(()) => backoff.reset(),
                    Err(_) => break,
                },
                () = sleep(backoff.pause()) => {}
            }
        }
        self.part(&End::Closing, End::Closing.to_string());
    }

    /// There is no connection any more.
    fn part(&self, end: &End, problem: String) {
        let was = std::mem::replace(&mut *self.now.lock(), LinkPhase::Apart(problem.clone()));
        if let LinkPhase::Connected(session) = was {
            session.outbox.abandon();
            session.pending.end(end);
        }
        if self.lane == Lane::Raft {
            self.pulse.disconnected(problem, matches!(end, End::Refused(_)));
        }
    }

    /// One connection, from its beginning to its end.
    async fn connect_once<N: Network>(
        &self,
        network: &N,
        shared: &PeersInner,
        at: SocketAddr,
        backoff: &mut Backoff,
    ) -> End {
        let limit = shared.options.times.greeting;
        let greeted = tokio::select! {
            biased;
            () = shared.closed() => return End::Closing,
            greeted = timeout(limit, self.greet(network, shared, at)) => greeted,
        };
        let (halves, hello) = match greeted {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(end)) => return end,
            Err(_) => return End::Greeted(limit),
        };
        backoff.reset();
        let session = Arc::new(Session {
            outbox: Outbox::new(shared.lane.peer_bytes as usize),
            pending: Arc::default(),
            pings: Mutex::default(),
        });
        *self.now.lock() = LinkPhase::Connected(Arc::clone(&session));
        if self.lane == Lane::Raft {
            self.pulse.connected(hello.boot, hello.level);
        }
        self.talk(&session, halves, shared).await
    }

    async fn greet<N: Network>(
        &self,
        network: &N,
        shared: &PeersInner,
        at: SocketAddr,
    ) -> Result<(Halves<N::Stream>, Hello), End> {
        let (own, times) = (&shared.options.identity, &shared.options.times);
        let (from, mut to) = split(network.connect(at).await?);
        let mut from = FrameReader::new(from, times.greeting);
        to.write_all(&encode(&hello(shared, self.node, self.lane))?)
            .await?;
        to.flush().await?;
        let (frame, _) = from.next().await?;
        let hello = greeting(frame)?;
        check_answer(own, self.node, self.lane, &hello)?;
        from.greeted(times.silence_of(self.lane), times.frame);
        Ok(((from, to), hello))
    }

    /// Sends and receives until the connection ends.
    async fn talk<S>(&self, session: &Session, (mut from, to): Halves<S>, shared: &PeersInner) -> End
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let options = &shared.options;
        let (stall, batch) = (options.times.bulk_silence, options.limits.batch_bytes);
        let mut writes = pin!(write_frames(to, &session.outbox, batch, stall, &shared.written));
        let ended = tokio::select! {
            biased;
            end = self.receive(session, &mut from, shared) => return end,
            end = self.ping(session, shared) => return end,
            end = self.tell(session, shared) => return end,
            end = session.outbox.kicked() => return end,
            written = &mut writes => written,
            () = shared.closed() => {
                session.outbox.finish();
                tokio::join!(writes, from.drain(options.times.close)).0
            }
        };
        ended.err().unwrap_or(End::Closing)
    }

    async fn receive<R: AsyncRead + Unpin>(
        &self,
        session: &Session,
        from: &mut FrameReader<R>,
        shared: &PeersInner,
    ) -> End {
        loop {
            let frame = match from.next().await {
                Ok((frame, _)) => frame,
                Err(end) => return end,
            };
            if self.lane == Lane::Raft {
                self.pulse.heard();
            }
            if let Message::Pong(pong) = &frame.message {
                if let Some(sent) = session.answered(frame.request)
                    && self.lane == Lane::Raft
                {
                    let ours = shared.options.clock.wall_ms();
                    self.pulse
                        .measured(Skew::measured(pong.wall_ms, ours, sent.elapsed()));
                }
            } else if let Err(end) = session.pending.answer(frame) {
                return end;
            }
        }
    }

    /// Asks the peer again and again whether it is there.
    async fn ping(&self, session: &Session, shared: &PeersInner) -> End {
        let mut ticks = shared.beat.every(shared.options.times.ping_of(self.lane));
        loop {
            ticks.tick().await;
            let request = shared.next_request();
            let wall_ms = shared.options.machine_clock.wall_ms();
            let bytes = match encode(&Frame::of_connection(request, Message::Ping(Ping { wall_ms }))) {
                Ok(bytes) => bytes,
                Err(error) => return error.into(),
            };
            session.pinged(request);
            // Without room the peer takes nothing, which shows as silence.
            let _full = session.outbox.push_urgent(bytes);
        }
    }
}

impl Link {
    /// Tells the peer what this node leads, as soon as that is known, and whenever it changes.
    async fn tell(&self, session: &Session, shared: &PeersInner) -> End {
        let mut leads = shared.leaders.own.subscribe();
        let is_known = |leads: &Leads| leads.count > 0;
        if self.lane == Lane::Bulk || leads.wait_for(is_known).await.is_err() {
            return pending().await;
        }
        loop {
            let told = Message::Leads(leads.borrow_and_update().clone());
            let is_queued = match encode(&Frame::of_connection(0, told)) {
                Ok(bytes) => session.outbox.push(bytes, None, Haste::Now).is_ok(),
                Err(error) => return error.into(),
            };
            if is_queued && leads.changed().await.is_err() {
                return pending().await;
            }
            sleep(TOLD_AGAIN).await;
        }
    }
}

impl Session {
    fn pinged(&self, request: u64) {
        let mut pings = self.pings.lock();
        if pings.len() == PINGS_KEPT {
            pings.pop_front();
        }
        pings.push_back((request, Instant::now()));
    }

    /// When the ping was sent that is answered now. Those before it will not be.
    fn answered(&self, request: u64) -> Option<Instant> {
        let mut pings = self.pings.lock();
        let at = pings.iter().position(|&(number, _)| number == request)?;
        pings.drain(..=at).next_back().map(|(_, sent)| sent)
    }
}

/// Looks at a peer's silence in the intervals of its pings, and when it has been silent for too long.
pub(super) async fn watch_pulse(
    pulse: Arc<Pulse>,
    beat: Beat,
    every: Duration,
    over: impl Future<Output = ()>,
) {
    let mut ticks = beat.every(every);
    let mut over = pin!(over);
    loop {
        // A peer that answers its pings is never that silent before the next of them.
        let late = pulse.suspected_at().filter(|at| *at < Instant::now() + every);
        tokio::select! {
            biased;
            () = &mut over => return,
            () = sleep_until_some(late) => {}
            _ = ticks.tick() => {}
        }
        pulse.look();
    }
}

/// Until then, or for ever.
async fn sleep_until_some(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Doubles from attempt to attempt. Each pause is drawn between half and all of the length, so that
/// nodes that lost a peer at one time do not come back to it at one time.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    random: u64,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration, seed: u64) -> Self {
        Self {
            first,
            most,
            next: first,
            random: seed,
        }
    }

    /// An attempt succeeded.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The pause before the next attempt.
    pub(super) fn pause(&mut self) -> Duration {
        let length = self.next;
        self.next = (length * 2).min(self.most);
        // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut drawn = self.random;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        drawn ^= drawn >> 31;
        let share = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        length / 2 + (length / 2).mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let (first, most) = (Duration::from_millis(50), Duration::from_secs(2));
        for seed in 0..100 {
            let mut backoff = Backoff::new(first, most, seed);
            let mut length = first;
            for _ in 0..10 {
                let pause = backoff.pause();
                assert!(
                    pause >= length / 2 && pause <= length,
                    "seed {seed}: {pause:?} of {length:?}"
                );
                length = (length * 2).min(most);
            }
            backoff.reset();
            assert!(backoff.pause() <= first, "seed {seed}");
        }
    }
}
