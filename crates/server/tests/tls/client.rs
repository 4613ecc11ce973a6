//! A client over TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use crate::certificates::Signed;
use crate::support::{PATIENCE, command, reply_len};

/// The versions of TLS, each alone.
pub(crate) static VERSIONS: [[&SupportedProtocolVersion; 1]; 2] = [[&TLS12], [&TLS13]];

/// What a client trusts, and what it presents.
#[derive(Clone)]
pub(crate) struct Trust {
    roots: RootCertStore,
    own: Option<Signed>,
    versions: &'static [&'static SupportedProtocolVersion],
}

impl Trust {
    /// Trusts these CAs, PEM, and presents nothing.
    pub(crate) fn new(cas: &[&str]) -> Trust {
        let mut roots = RootCertStore::empty();
        for pem in cas {
            let ca = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            roots.add(ca).unwrap();
        }
        Trust {
            roots,
            own: None,
            versions: ALL_VERSIONS,
        }
    }

    pub(crate) fn presenting(self, own: Signed) -> Trust {
        Trust {
            own: Some(own),
            ..self
        }
    }

    pub(crate) fn speaking(self, versions: &'static [&'static SupportedProtocolVersion]) -> Trust {
        Trust { versions, ..self }
    }

    fn config(&self) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(self.roots.clone());
        match &self.own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        }
    }
}

/// A connection over TLS whose handshake is done at the client's side.
pub(crate) struct Secure {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
    buffer: Vec<u8>,
}

impl Secure {
    pub(crate) fn connect(addr: SocketAddr, trust: &Trust) -> io::Result<Secure> {
        let mut socket = TcpStream::connect(addr)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = ClientConnection::new(Arc::new(trust.config()), name).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Secure {
            stream: StreamOwned::new(tls, socket),
            buffer: Vec::new(),
        })
    }

    /// Sends a line, split at blanks, as one command and returns its reply as it arrived.
    pub(crate) fn line(&mut self, line: &str) -> String {
        self.try_line(line).unwrap()
    }

    pub(crate) fn try_line(&mut self, line: &str) -> io::Result<String> {
        let args: Vec<&str> = line.split(' ').collect();
        self.try_send(&command(&args))?;
        Ok(String::from_utf8_lossy(&self.try_reply()?).into_owned())
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    pub(crate) fn reply(&mut self) -> Vec<u8> {
        self.try_reply().unwrap()
    }

    pub(crate) fn try_reply(&mut self) -> io::Result<Vec<u8>> {
        let mut chunk = vec![0; 64 * 1024];
        // Large replies are not searched again at each piece.
        let mut next = 0;
        loop {
            if self.buffer.len() >= next
                && let Some(len) = reply_len(&self.buffer)
            {
                return Ok(self.buffer.drain(..len).collect());
            }
            next = announced(&self.buffer);
            let n = self.stream.read(&mut chunk)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffer.extend_from_slice(&chunk[..n]);
        }
    }

    /// Whether the server has sent close_notify, and nothing before it.
    pub(crate) fn is_at_end(&mut self) -> bool {
        let mut byte = [0];
        self.buffer.is_empty() && matches!(self.stream.read(&mut byte), Ok(0))
    }

    /// The certificate that the server has presented.
    pub(crate) fn presented(&self) -> Vec<u8> {
        self.stream.conn.peer_certificates().unwrap()[0].to_vec()
    }
}

/// How long a bulk string will be that has begun.
fn announced(bytes: &[u8]) -> usize {
    let Some(rest) = bytes.strip_prefix(b"$") else {
        return 0;
    };
    let digits: String = rest
        .iter()
        .map_while(|byte| byte.is_ascii_digit().then_some(char::from(*byte)))
        .collect();
    digits.parse().unwrap_or(0)
}
