//! Which node has made a connection: the kernel is asked for this one socket (`sock_diag(7)`). Its
//! table `/proc/net/tcp` takes 50 ms to read where other programs have left 40,000 sockets, longer than
//! nodes wait for many connections at once, and a reading misses sockets while others come and go.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use collie_io::{Device, RealDevice};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `SOCK_DIAG_BY_FAMILY`, of a request and of its answer.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`: one socket, not a dump.
const REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
/// The bytes of a request: `nlmsghdr` and `inet_diag_req_v2`.
const REQUEST_BYTES: usize = 72;
/// Where the type of a message is, and `idiag_inode` in an `inet_diag_msg`.
const TYPE_AT: usize = 4;
const INODE_AT: usize = 84;

/// The processes of the nodes, by their numbers.
#[derive(Debug)]
pub(crate) struct Processes {
    nodes: Vec<AtomicU32>,
    /// Connections of other processes, or of nodes that were gone before they were looked for.
    strangers: AtomicU64,
}

impl Processes {
    /// None runs yet.
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes: (0..nodes).map(|_| AtomicU32::new(0)).collect(),
            strangers: AtomicU64::new(0),
        }
    }

    /// Which process a node is now.
    pub(crate) fn set(&self, node: usize, pid: Option<u32>) {
        if let Some(place) = self.nodes.get(node) {
            // Pairs with the Acquire in `owner`; a connection of a process comes after its start.
            place.store(pid.unwrap_or(0), Ordering::Release);
        }
    }

    /// The node that a connection from this address to that one belongs to; `None` where it is another
    /// process, or one that is gone.
    pub(crate) fn owner(&self, from: SocketAddr, to: SocketAddr) -> Option<usize> {
        let found = inode(from, to);
        let link = found.map(|inode| format!("socket:[{inode}]"));
        let has_it = |pid: &AtomicU32| {
            // Pairs with the Release in `set`.
            let pid = pid.load(Ordering::Acquire);
            pid != 0 && link.as_ref().is_some_and(|link| has_descriptor(pid, link))
        };
        let owner = self.nodes.iter().position(has_it);
        // Relaxed, here and below: it only counts.
        self.strangers
            .fetch_add(u64::from(owner.is_none()), Ordering::Relaxed);
        owner
    }

    /// Connections so far that no node was found for.
    pub(crate) fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::Relaxed)
    }
}

/// The number of the socket at this end of a connection.
fn inode(from: SocketAddr, to: SocketAddr) -> Option<u64> {
    let (IpAddr::V4(from_ip), IpAddr::V4(to_ip)) = (from.ip(), to.ip()) else {
        return None;
    };
    let kernel = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    );
    let kernel = kernel.ok()?;
    let mut request = Vec::with_capacity(REQUEST_BYTES);
    request.extend(u32::try_from(REQUEST_BYTES).ok()?.to_ne_bytes());
    request.extend([BY_FAMILY.to_ne_bytes(), REQUEST.to_ne_bytes()].concat());
    request.extend([0; 8]); // The sequence and the sender: there is one question.
    request.extend([AF_INET, IPPROTO_TCP, 0, 0]);
    request.extend([0; 4]); // The states, of a dump.
    request.extend([from.port().to_be_bytes(), to.port().to_be_bytes()].concat());
    for ip in [from_ip, to_ip] {
        request.extend(ip.octets());
        request.extend([0; 12]);
    }
    request.extend([0; 4]); // Of any interface.
    request.extend([0xFF; 8]); // Without a cookie.
    rustix::net::send(&kernel, &request, SendFlags::empty()).ok()?;
    let mut answer = [0; 4096];
    // The kernel answers before `send` returns.
    let (len, _) = rustix::net::recv(&kernel, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    let answer = answer.get(..len)?;
    let kind = u16::from_ne_bytes(answer.get(TYPE_AT..TYPE_AT + 2)?.try_into().ok()?);
    let inode = u32::from_ne_bytes(answer.get(INODE_AT..INODE_AT + 4)?.try_into().ok()?);
    // One that waits for its time to pass has none.
    (kind == BY_FAMILY && inode != 0).then_some(inode.into())
}

fn has_descriptor(pid: u32, link: &str) -> bool {
    let dir = PathBuf::from(format!("/proc/{pid}/fd"));
    // Where it is gone it has none.
    let descriptors = RealDevice::new().list(&dir).unwrap_or_default();
    descriptors
        .iter()
        .any(|entry| std::fs::read_link(dir.join(&entry.name)).is_ok_and(|found| found.as_os_str() == link))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_process_of_a_connection_is_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (from, to) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let processes = Processes::new(2);
        assert_eq!(processes.owner(from, to), None);
        processes.set(1, Some(std::process::id()));
        assert_eq!(processes.owner(from, to), Some(1));
        drop((stream, listener));
        assert_eq!(processes.owner(from, to), None);
        processes.set(1, None);
        assert_eq!(processes.owner(from, to), None);
        assert_eq!(processes.strangers(), 3);
    }
}
