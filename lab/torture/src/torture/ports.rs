//! Ports for servers that are started again on the same ones.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Context;

/// Below those that the system gives to connections: none takes one while its server is down.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// So many ports of loopback that are free at this moment, each handed out once by this process.
pub(crate) fn free(count: usize) -> anyhow::Result<Vec<u16>> {
    // Relaxed: it only counts.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    // Two runs at once begin at different places.
    let first = std::process::id() % u32::from(span) * 97;
    let ports = (0..span).map(|_| {
        let taken = NEXT.fetch_add(1, Ordering::Relaxed);
        PORTS.start + u16::try_from((first + u32::from(taken)) % u32::from(span)).unwrap_or(0)
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let found: Vec<u16> = ports.filter(is_free).take(count).collect();
    (found.len() == count)
        .then_some(found)
        .context("there are not enough free ports on loopback")
}
