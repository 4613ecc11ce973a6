//! How nodes speak to each other, over TCP and TLS on loopback, in memory and in turmoil's
//! simulation.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its assumptions do"
)]

#[path = "../certificates/mod.rs"]
mod certificates;
mod greeting;
mod hostile;
mod limits;
mod liveness;
mod loopback;
mod reconnection;
mod simulated;
mod sockets;
mod support;
mod tls;
mod wire;
