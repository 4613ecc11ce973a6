//! What the log says of connections that are refused.

use std::net::SocketAddr;

use tokio::time::Instant;

use crate::transport::error::End;

/// Logs refused connections, a limited number of them.
#[derive(Debug)]
pub(super) struct Refusals {
    made: Instant,
    counted: collie_tls::Refusals,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            made: Instant::now(),
            counted: collie_tls::Refusals::default(),
        }
    }
}

impl Refusals {
    /// Logs a refusal, unless too many were logged lately.
    pub(super) fn report(&self, address: SocketAddr, end: &End) {
        match self.counted.next(self.made.elapsed()) {
            Some(0) => tracing::warn!(%address, %end, "the connection of a peer is refused"),
            Some(left_out) => tracing::warn!(
                %address, %end, left_out,
                "the connection of a peer is refused, as others were that are not logged"
            ),
            None => tracing::debug!(%address, %end, "the connection of a peer is refused"),
        }
    }
}
