//! A client: as much of the Redis protocol as the commands of this program need.

use std::io::{self, BufRead, BufReader, Read, Write};
#[cfg(feature = "lab")]
use std::net::Ipv4Addr;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

/// How long a server may take for a reply while its disk works.
#[cfg(feature = "lab")]
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest reply that is taken, in bytes and in elements.
const LONGEST: usize = 64 << 20;

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(String),
    Error(String),
    Number(i64),
    Bulk(Vec<u8>),
    Nothing,
    Array(Vec<Reply>),
}

/// What secures a connection.
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    /// Whom the server's certificate is to be for.
    pub(crate) name: ServerName<'static>,
}

/// A connection, plain or by TLS.
enum Stream {
    Plain(TcpStream),
    Secured(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    #[cfg(feature = "lab")]
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Secured(secured) => secured.get_ref(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(buffer),
            Self::Secured(secured) => secured.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            Self::Secured(secured) => secured.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Secured(secured) => secured.flush(),
        }
    }
}

/// A connection.
pub(crate) struct Client {
    stream: BufReader<Stream>,
    out: Vec<u8>,
}

fn wrong(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server sent {what}"))
}

impl Client {
    /// To a server on loopback.
    #[cfg(feature = "lab")]
    pub(crate) fn connect(port: u16) -> io::Result<Self> {
        Self::connect_for(port, PATIENCE)
    }

    /// With another patience for replies.
    #[cfg(feature = "lab")]
    pub(crate) fn connect_for(port: u16, patience: Duration) -> io::Result<Self> {
        Self::connect_to((Ipv4Addr::LOCALHOST, port).into(), patience)
    }

    /// To a server anywhere; so long for the connection, and for each reply.
    pub(crate) fn connect_to(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        Ok(Self::over(Stream::Plain(tcp(address, patience)?)))
    }

    /// The same by TLS.
    pub(crate) fn connect_secured(address: SocketAddr, patience: Duration, tls: Tls) -> io::Result<Self> {
        let connection = ClientConnection::new(tls.config, tls.name).map_err(io::Error::other)?;
        let stream = StreamOwned::new(connection, tcp(address, patience)?);
        Ok(Self::over(Stream::Secured(Box::new(stream))))
    }

    fn over(stream: Stream) -> Self {
        Self {
            stream: BufReader::with_capacity(1 << 16, stream),
            out: Vec::new(),
        }
    }

    /// Whether the server has ended the connection, as far as is known here.
    #[cfg(feature = "lab")]
    pub(crate) fn has_ended(&mut self) -> bool {
        let stream = self.stream.get_ref().tcp();
        let ended = stream.set_nonblocking(true).is_err() || !is_silent(stream.peek(&mut [0]));
        ended || stream.set_nonblocking(false).is_err()
    }

    /// Adds a command to what [`Client::send`] sends.
    pub(crate) fn push(&mut self, words: &[&[u8]]) {
        self.out
            .extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.out
                .extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn send(&mut self) -> io::Result<()> {
        let stream = self.stream.get_mut();
        let sent = stream.write_all(&self.out).and_then(|()| stream.flush());
        self.out.clear();
        sent
    }

    /// Sends a command and returns the reply to it.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.push(words);
        self.send()?;
        self.reply()
    }

    /// The next reply.
    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let Some((&kind, rest)) = line.strip_suffix(b"\r\n").and_then(<[u8]>::split_first) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let text = String::from_utf8_lossy(rest).into_owned();
        match kind {
            b'+' => Ok(Reply::Text(text)),
            b'-' => Ok(Reply::Error(text)),
            b':' => text.parse().map(Reply::Number).map_err(|_| wrong(text)),
            b'$' => match length(&text)? {
                Some(len) => self.bulk(len),
                None => Ok(Reply::Nothing),
            },
            b'*' => match length(&text)? {
                Some(len) => (0..len)
                    .map(|_| self.reply())
                    .collect::<io::Result<_>>()
                    .map(Reply::Array),
                None => Ok(Reply::Nothing),
            },
            _ => Err(wrong(String::from_utf8_lossy(&line))),
        }
    }

    fn bulk(&mut self, len: usize) -> io::Result<Reply> {
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(Reply::Bulk(bytes))
    }
}

/// A connection to an address, on which all waits for so long at most.
fn tcp(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

/// Whether nothing has come on a connection, nor its end.
#[cfg(feature = "lab")]
fn is_silent(peeked: io::Result<usize>) -> bool {
    matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// A length; `None` for that of nothing.
fn length(text: &str) -> io::Result<Option<usize>> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(len) => match usize::try_from(len) {
            Ok(len) if len <= LONGEST => Ok(Some(len)),
            _ => Err(wrong(format_args!("the length {len}"))),
        },
        Err(_) => Err(wrong(format_args!("the length \"{text}\""))),
    }
}

impl Reply {
    /// The elements of an array of bulk strings, of which some may be nothing.
    #[cfg(feature = "lab")]
    pub(crate) fn bulks(self) -> io::Result<Vec<Option<Vec<u8>>>> {
        let Self::Array(elements) = self else {
            return Err(wrong(format_args!("{self:?} where values were asked for")));
        };
        let bulk = |element| match element {
            Self::Bulk(bytes) => Ok(Some(bytes)),
            Self::Nothing => Ok(None),
            other => Err(wrong(format_args!("{other:?} where a value was asked for"))),
        };
        elements.into_iter().map(bulk).collect()
    }

    /// That it is no error, nor has one in it.
    pub(crate) fn good(self) -> io::Result<Self> {
        match &self {
            Self::Error(text) => Err(io::Error::other(format!("the server refused: {text}"))),
            Self::Array(elements) => {
                for element in elements {
                    if let Self::Error(text) = element {
                        return Err(io::Error::other(format!("the server refused: {text}")));
                    }
                }
                Ok(self)
            }
            _ => Ok(self),
        }
    }
}
