//! Connections between nodes over TLS 1.3. Each side presents a certificate that the cluster's CA
//! has signed for [`TLS_NAME`], and each verifies the other's; decision 29 says why it is so.

mod files;
mod tcp;

pub use collie_tls::{TlsError, Validity};
pub use files::{TlsContents, TlsFiles};
pub use tcp::{TlsStream, TlsTcp};

/// The DNS name that every node's certificate is for, whatever the node's address is: addresses
/// change, and membership does not. A name below `internal` is never one of the public DNS.
pub const TLS_NAME: &str = "node.collie.internal";
