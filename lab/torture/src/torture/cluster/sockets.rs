//! Which node has made a connection, by the kernel's tables.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use collie_io::{Device, RealDevice};

/// How often the kernel's table is read for a socket: a reading may miss one while others come and
/// go, and several in a row do where thousands come and go.
const READINGS: u32 = 50;

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

    /// The node that the end of a connection belongs to whose address this is; `None` where it is
    /// another process, or one that is gone.
    pub(crate) fn owner(&self, end: SocketAddr) -> Option<usize> {
        let found = (0..READINGS).find_map(|_| inode(end));
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

/// The number of the socket with this address.
fn inode(end: SocketAddr) -> Option<u64> {
    let IpAddr::V4(ip) = end.ip() else { return None };
    let address = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), end.port());
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        if fields.nth(1)? != address {
            return None;
        }
        // One that waits for its time to pass has none.
        fields.nth(7)?.parse().ok().filter(|&inode| inode != 0)
    })
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
        let end = stream.local_addr().unwrap();
        let processes = Processes::new(2);
        assert_eq!(processes.owner(end), None);
        processes.set(1, Some(std::process::id()));
        assert_eq!(processes.owner(end), Some(1));
        processes.set(1, None);
        assert_eq!(processes.owner(end), None);
        assert_eq!(processes.strangers(), 2);
    }
}
