//! The links between nodes: a TCP proxy before each node's address for other nodes, by which what
//! goes from one node to another is let through, delayed, stalled or lost.
//!
//! Which node has connected is in the kernel's tables ([`super::sockets`]), so that the links of two
//! nodes can be cut while all others work. A direction is from a node to a node, whichever of them
//! has made the connection. A connection of which no node is found is closed at once, so that none
//! escapes a cut: its end may be gone already, and otherwise connects again.
//!
//! TCP delivers all or nothing: a connection on which bytes were lost is closed when its link works
//! again, as it would be reset after a partition. An end that is seen while bytes are lost is not
//! passed on before.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as BlockingListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use super::sockets::Processes;

/// Threads that find out who has connected.
const FINDERS: usize = 2;
/// Bytes that a direction of a connection holds at most.
const CHUNK_BYTES: usize = 64 << 10;

/// What becomes of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// They go on.
    Passes,
    /// They go on later by this.
    Delays(Duration),
    /// They go on when this ends.
    Stalls,
    /// They are lost.
    Loses,
}

/// The flow from each node to each node.
#[derive(Debug, Clone)]
pub(crate) struct Flows {
    nodes: usize,
    flows: Vec<Flow>,
}

impl Flows {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            flows: vec![Flow::Passes; nodes * nodes],
        }
    }

    pub(crate) fn set(&mut self, from: usize, to: usize, flow: Flow) {
        if let Some(place) = self.flows.get_mut(from * self.nodes + to) {
            *place = flow;
        }
    }

    fn get(&self, way: Way) -> Flow {
        let (from, to) = way;
        let flow = self.flows.get(from * self.nodes + to);
        flow.copied().unwrap_or(Flow::Passes)
    }
}

/// From a node to a node.
type Way = (usize, usize);

/// The proxies, and a thread that runs them. Dropped, all connections are closed.
pub(crate) struct Links {
    flows: watch::Sender<Flows>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Links {
    /// Listens on each of the ports `before`, of loopback, for what goes to the port `behind` it. Without
    /// processes it does not matter who connects: the way is from the node to itself.
    pub(crate) fn start(
        before: &[u16],
        behind: &[u16],
        processes: Option<&Arc<Processes>>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(FINDERS)
            .build()?;
        let (flows, watched) = watch::channel(Flows::new(before.len()));
        let (stop, stopped) = oneshot::channel();
        let proxies = before
            .iter()
            .zip(behind)
            .enumerate()
            .map(|(node, (&before, &behind))| {
                let listener = BlockingListener::bind((Ipv4Addr::LOCALHOST, before))?;
                listener.set_nonblocking(true)?;
                Ok(Proxy {
                    listener,
                    node,
                    behind: (Ipv4Addr::LOCALHOST, behind).into(),
                    processes: processes.cloned(),
                    flows: watched.clone(),
                })
            });
        let proxies: Vec<Proxy> = proxies.collect::<io::Result<_>>()?;
        let run = move || {
            runtime.block_on(async {
                for proxy in proxies {
                    tokio::spawn(proxy.run());
                }
                // Either way it is the end.
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new().name("links".to_owned()).spawn(run)?;
        Ok(Self {
            flows,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// From now on it is so; takes effect for what is read after this.
    pub(crate) fn set(&self, flows: Flows) {
        self.flows.send_replace(flows);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

struct Proxy {
    listener: BlockingListener,
    node: usize,
    behind: SocketAddr,
    processes: Option<Arc<Processes>>,
    flows: watch::Receiver<Flows>,
}

impl Proxy {
    async fn run(self) {
        let Ok(listener) = TcpListener::from_std(self.listener) else {
            return;
        };
        loop {
            // What fails is a connection that is gone, or a lack of descriptors that passes.
            let Ok((client, address)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let (node, behind) = (self.node, self.behind);
            let (processes, flows) = (self.processes.clone(), self.flows.clone());
            tokio::spawn(async move {
                // Whose it is takes long to find where nodes have many descriptors: what is carried
                // meanwhile must not wait for it.
                let source = match processes {
                    None => Some(node),
                    Some(processes) => {
                        let Ok(here) = client.local_addr() else { return };
                        let owner = tokio::task::spawn_blocking(move || processes.owner(address, here));
                        owner.await.unwrap_or_default()
                    }
                };
                if let Some(source) = source {
                    connection(client, behind, (source, node), flows).await;
                }
            });
        }
    }
}

/// Carries a connection until it ends. It begins when both directions work, as the first packets
/// of one would be repeated until then.
async fn connection(client: TcpStream, behind: SocketAddr, way: Way, mut flows: watch::Receiver<Flows>) {
    let back = (way.1, way.0);
    loop {
        let works = |flow| matches!(flow, Flow::Passes | Flow::Delays(_));
        {
            let flows = flows.borrow_and_update();
            if works(flows.get(way)) && works(flows.get(back)) {
                break;
            }
        }
        if flows.changed().await.is_err() {
            return;
        }
    }
    let Ok(server) = TcpStream::connect(behind).await else {
        return;
    };
    // Without them it is slower and no less right.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        biased;
        () = carry(from_client, to_server, way, flows.clone()) => {}
        () = carry(from_server, to_client, back, flows) => {}
    }
}

/// Carries one direction, until it ends or bytes were lost and the link works again.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: Way, mut flows: watch::Receiver<Flows>) {
    let mut bytes = vec![0; CHUNK_BYTES];
    let mut lost = false;
    loop {
        let flow = flows.borrow_and_update().get(way);
        if lost && flow != Flow::Loses {
            return;
        }
        let read = tokio::select! {
            biased;
            changed = flows.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = from.read(&mut bytes), if flow != Flow::Stalls => read,
        };
        let chunk = match (flow, read) {
            (Flow::Loses, Ok(1..)) => {
                lost = true;
                continue;
            }
            (Flow::Loses, _) => {
                // Neither is the end passed on, and there is nothing more to be read.
                while flows.borrow_and_update().get(way) == Flow::Loses {
                    if flows.changed().await.is_err() {
                        return;
                    }
                }
                return;
            }
            (_, Ok(len @ 1..)) => bytes.get(..len).unwrap_or_default(),
            _ => return,
        };
        if let Flow::Delays(span) = flow {
            tokio::time::sleep(span).await;
        }
        if to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream as Stream;

    use collie_io::{Clock, RealClock};

    use super::*;
    use crate::torture::ports;

    /// How long a byte may take that comes, and how long one is waited for that must not.
    const COMES: Duration = Duration::from_secs(20);
    const STAYS_AWAY: Duration = Duration::from_millis(200);

    /// Two nodes' links of which this process is node 0, and both ends of a connection to node 1.
    struct Pair {
        links: Links,
        behind: BlockingListener,
        port: u16,
    }

    impl Pair {
        fn new() -> Self {
            let behind = BlockingListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let before = ports::free(2).unwrap();
            let processes = Arc::new(Processes::new(2));
            processes.set(0, Some(std::process::id()));
            let port = behind.local_addr().unwrap().port();
            let links = Links::start(&before, &[1, port], Some(&processes)).unwrap();
            Self {
                links,
                behind,
                port: before[1],
            }
        }

        fn connect(&self) -> (Stream, Stream) {
            let client = Stream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
            (client, self.accept())
        }

        /// What the link has connected, which a test waits for no longer than for a byte.
        fn accept(&self) -> Stream {
            self.behind.set_nonblocking(true).unwrap();
            let began = RealClock.monotonic();
            loop {
                match self.behind.accept() {
                    Ok((server, _)) => return server,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                let waited = Duration::from_nanos(RealClock.monotonic().saturating_sub(began));
                assert!(waited < COMES, "the link has not connected");
                std::thread::sleep(Duration::from_millis(1));
            }
        }

        fn set(&self, ways: &[(usize, usize, Flow)]) {
            let mut flows = Flows::new(2);
            for &(from, to, flow) in ways {
                flows.set(from, to, flow);
            }
            self.links.set(flows);
        }
    }

    fn arrives(stream: &mut Stream, text: &[u8]) {
        stream.set_read_timeout(Some(COMES)).unwrap();
        let mut found = vec![0; text.len()];
        stream.read_exact(&mut found).unwrap();
        assert_eq!(found, text);
    }

    fn stays_away(stream: &mut Stream) {
        stream.set_read_timeout(Some(STAYS_AWAY)).unwrap();
        let error = stream.read(&mut [0; 8]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            "{error}"
        );
    }

    fn ends(stream: &mut Stream) {
        stream.set_read_timeout(Some(COMES)).unwrap();
        match stream.read(&mut [0; 8]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("it goes on: {other:?}"),
        }
    }

    #[test]
    fn a_link_carries_both_directions_and_ends_with_either_end() {
        let pair = Pair::new();
        let (mut client, mut server) = pair.connect();
        client.write_all(b"ping").unwrap();
        arrives(&mut server, b"ping");
        server.write_all(b"pong").unwrap();
        arrives(&mut client, b"pong");
        drop(server);
        ends(&mut client);
    }

    #[test]
    fn a_cut_one_way_loses_that_direction_alone() {
        let pair = Pair::new();
        let (mut client, mut server) = pair.connect();
        let (mut idle, mut idle_server) = pair.connect();
        client.write_all(b"a").unwrap();
        arrives(&mut server, b"a");
        pair.set(&[(0, 1, Flow::Loses)]);
        client.write_all(b"lost").unwrap();
        stays_away(&mut server);
        server.write_all(b"back").unwrap();
        arrives(&mut client, b"back");
        pair.set(&[]);
        ends(&mut server);
        ends(&mut client);
        // One on which nothing was lost goes on.
        idle.write_all(b"b").unwrap();
        arrives(&mut idle_server, b"b");
    }

    #[test]
    fn only_links_of_the_nodes_that_are_named_are_cut() {
        let pair = Pair::new();
        let (mut client, mut server) = pair.connect();
        // Of this process's links none is among these.
        pair.set(&[(1, 0, Flow::Loses), (1, 1, Flow::Loses)]);
        client.write_all(b"a").unwrap();
        arrives(&mut server, b"a");
        server.write_all(b"lost").unwrap();
        stays_away(&mut client);
    }

    #[test]
    fn what_a_stalled_link_holds_arrives_when_it_works_again() {
        let pair = Pair::new();
        let (mut client, mut server) = pair.connect();
        client.write_all(b"a").unwrap();
        arrives(&mut server, b"a");
        pair.set(&[(0, 1, Flow::Stalls)]);
        client.write_all(b"held").unwrap();
        stays_away(&mut server);
        pair.set(&[]);
        arrives(&mut server, b"held");
    }

    #[test]
    fn a_slow_link_delays_and_a_cut_holds_new_connections() {
        let pair = Pair::new();
        let (mut client, mut server) = pair.connect();
        let span = Duration::from_millis(150);
        pair.set(&[(0, 1, Flow::Delays(span))]);
        client.write_all(b"x").unwrap();
        // The first byte may have been read before the link became slow.
        arrives(&mut server, b"x");
        let began = RealClock.monotonic();
        client.write_all(b"y").unwrap();
        arrives(&mut server, b"y");
        let took = RealClock.monotonic() - began;
        assert!(u128::from(took) >= span.as_nanos(), "{took} ns");
        pair.set(&[(1, 0, Flow::Loses)]);
        let mut late = Stream::connect((Ipv4Addr::LOCALHOST, pair.port)).unwrap();
        late.write_all(b"z").unwrap();
        pair.behind.set_nonblocking(true).unwrap();
        std::thread::sleep(STAYS_AWAY);
        assert_eq!(pair.behind.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        pair.set(&[]);
        let mut server = pair.accept();
        arrives(&mut server, b"z");
    }
}
