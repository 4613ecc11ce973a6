//! The way to other clusters, which rows are duplicated to: as any client has it, with a password and by TLS.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use collie_cli::resp::{Client, Reply};
use collie_cluster::{TargetConnection, TargetNetwork, TargetReply};

use crate::args::AccessArgs;
use crate::cluster::Access;

/// A connection is made, and a reply comes, within so long; for rows of many bytes later, by so many a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);
const BYTES_PER_MS: u64 = 4 << 10;

/// Other clusters, all of which take the same password and certificate.
#[derive(Debug)]
pub(super) struct Targets(pub(super) AccessArgs);

impl TargetNetwork for Targets {
    /// The files are read each time: a new password needs no restart.
    fn connect(&self, address: &str) -> io::Result<Box<dyn TargetConnection>> {
        let (host, port) = parts(address)?;
        let mut args = self.0.clone();
        if args.tls_ca_cert_file.is_some() && host.parse::<IpAddr>().is_err() {
            // As any client: the certificate is to be for the name that was given, or that a node has sent it to.
            args.tls_name = Some(host.to_owned());
        }
        let access = Access::of(&args).map_err(|error| io::Error::other(format!("{error:#}")))?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name stands for no address");
        for found in (host, port).to_socket_addrs()? {
            match access.connect(found, PATIENCE) {
                Ok(client) => return Ok(Box::new(Target(client))),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Behind the last colon is the port; an address of IPv6 may stand without brackets, as in MOVED.
fn parts(address: &str) -> io::Result<(&str, u16)> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "expected HOST:PORT");
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse::<u16>().map_err(|_| wrong())?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    Ok((host, port))
}

/// A connection to a node of another cluster.
struct Target(Client);

impl TargetConnection for Target {
    fn call(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<Vec<TargetReply>> {
        self.call_now(commands).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                io::Error::new(error.kind(), "no answer in time")
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                io::Error::new(error.kind(), format!("it ended the connection ({error})"))
            }
            _ => error,
        })
    }
}

impl Target {
    fn call_now(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<Vec<TargetReply>> {
        let bytes: usize = commands.iter().flatten().map(Vec::len).sum();
        let of_bytes = Duration::from_millis(bytes as u64 / BYTES_PER_MS);
        self.0.set_patience(PATIENCE + of_bytes)?;
        for words in commands {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            self.0.push(&words);
        }
        self.0.send()?;
        commands
            .iter()
            .map(|_| {
                Ok(match self.0.reply()? {
                    Reply::Number(number) => TargetReply::Number(number),
                    Reply::Error(text) => TargetReply::Error(text),
                    Reply::Text(text) => TargetReply::Text(text),
                    Reply::Bulk(bytes) => TargetReply::Text(String::from_utf8_lossy(&bytes).into_owned()),
                    other => TargetReply::Text(format!("{other:?}")),
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_as_nodes_name_them() {
        for (text, expected) in [
            ("127.0.0.1:7001", "127.0.0.1"),
            ("::1:7001", "::1"),
            ("[::1]:7001", "::1"),
            ("a.host:7001", "a.host"),
        ] {
            assert_eq!(parts(text).unwrap(), (expected, 7001));
        }
        for wrong in ["127.0.0.1", "127.0.0.1:x", "", "127.0.0.1:70000"] {
            parts(wrong).unwrap_err();
        }
    }
}
