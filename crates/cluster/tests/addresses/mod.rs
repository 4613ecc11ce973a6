//! Addresses of nodes that end and start again where they were.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below those that the system gives to connections: none takes one while its node is down.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Addresses of loopback that are free, and that no other test of this process has had.
pub(crate) fn addresses(count: usize) -> Vec<SocketAddr> {
    // Relaxed: it only counts.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Two runs at once begin at different places.
    let first = std::process::id() % 20_000 * 97;
    let ports = std::iter::repeat_with(|| {
        let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed).into());
        PORTS.start + u16::try_from(next % u32::from(PORTS.end - PORTS.start)).unwrap()
    });
    ports
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .filter(|address| TcpListener::bind(address).is_ok())
        .take(count)
        .collect()
}
