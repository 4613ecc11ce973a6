//! Addresses on the command line and in files: an IP address or the name of a host, and a port.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// What is expected of one.
const EXPECTED: &str = "an address and a port, as in 127.0.0.1:6380, [::1]:6380 or localhost:6380";

/// An IP address or the name of a host, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    At(SocketAddr),
    Named { host: String, port: u16 },
}

impl Address {
    /// The same host with another port.
    pub(crate) fn with_port(&self, port: u16) -> Self {
        match self {
            Self::At(addr) => Self::At(SocketAddr::new(addr.ip(), port)),
            Self::Named { host, .. } => Self::Named {
                host: host.clone(),
                port,
            },
        }
    }

    /// The host, if it is named.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Self::At(_) => None,
            Self::Named { host, .. } => Some(host),
        }
    }

    /// The address that it stands for now. Of a host with several it is the first of IPv4, or else the
    /// first. Blocks while the system looks a name up.
    pub(crate) fn resolve(&self) -> Result<SocketAddr, String> {
        let (host, port) = match self {
            Self::At(addr) => return Ok(*addr),
            Self::Named { host, port } => (host.as_str(), *port),
        };
        let why = |why: &dyn fmt::Display| format!("expected the name of a known host, found {host} ({why})");
        let found: Vec<SocketAddr> = (host, port)
            .to_socket_addrs()
            .map_err(|error| why(&error))?
            .collect();
        let first = found.iter().find(|addr| addr.is_ipv4()).or(found.first());
        first.copied().ok_or_else(|| why(&"it has no address"))
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(addr) = text.parse() {
            return Ok(Self::At(addr));
        }
        let named = text.rsplit_once(':').and_then(|(host, port)| {
            let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            // A last label of digits would be that of an IPv4 address.
            let is_host = host.rsplit('.').next().is_some_and(|last| !is_digits(last))
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
            (is_host && is_digits(port)).then_some(())?;
            Some(Self::Named {
                host: host.to_owned(),
                port: port.parse().ok()?,
            })
        });
        named.ok_or_else(|| format!("expected {EXPECTED}"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(addr) => write!(f, "{addr}"),
            Self::Named { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Reads an address on the command line, and looks its host up.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse::<Address>()?.resolve()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port_and_reads_back() {
        for text in [
            "127.0.0.1:6380",
            "[::1]:0",
            "localhost:6380",
            "db-1.example.org:1",
            "a_b:2",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "6380",
            ":6380",
            "localhost",
            "localhost:",
            "localhost:65536",
            "localhost:+1",
            "::1:6380",
            "127.0.0.1:99999",
            "999.0.0.1:1",
            "a b:1",
            "redis://localhost:1",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains("localhost:6380"), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_is_looked_up_and_one_that_nobody_has_is_named() {
        let addr = address("localhost:6380").unwrap();
        assert!(addr.ip().is_loopback() && addr.port() == 6380, "{addr}");
        assert_eq!(address("[::1]:7").unwrap().to_string(), "[::1]:7");
        let host = |text: &str| text.parse::<Address>().unwrap().host().map(str::to_owned);
        assert_eq!(host("localhost:7").unwrap(), "localhost");
        assert_eq!(host("127.0.0.1:7"), None);
        let error = address("nobody.invalid:1").unwrap_err();
        assert!(error.contains("found nobody.invalid"), "{error}");
    }
}
