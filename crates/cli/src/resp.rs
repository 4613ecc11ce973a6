//! A client: as much of the Redis protocol as the commands need.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

/// The longest reply that is taken, in bytes and in elements.
const LONGEST: usize = 64 << 20;

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A line.
    Text(String),
    /// An error, by its text.
    Error(String),
    /// An integer.
    Number(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// The null of either kind.
    Nothing,
    /// Several replies.
    Array(Vec<Reply>),
}

/// The server answered, with an error.
#[derive(Debug, thiserror::Error)]
#[error("the server refused: {0}")]
pub struct Refusal(pub String);

/// What secures a connection.
pub struct Tls {
    /// The certificates that are trusted, and the client's own.
    pub config: Arc<ClientConfig>,
    /// Whom the server's certificate is to be for.
    pub name: ServerName<'static>,
}

/// A connection, plain or by TLS.
enum Stream {
    Plain(TcpStream),
    Secured(Box<StreamOwned<ClientConnection, TcpStream>>),
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
pub struct Client {
    stream: BufReader<Stream>,
    out: Vec<u8>,
}

fn wrong(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server sent {what}"))
}

impl Client {
    /// Over a connection.
    #[must_use]
    pub fn plain(stream: TcpStream) -> Self {
        Self::over(Stream::Plain(stream))
    }

    /// By TLS over a connection.
    ///
    /// # Errors
    /// The configuration allows no connection to a server of that name.
    pub fn secured(stream: TcpStream, tls: Tls) -> io::Result<Self> {
        let connection = ClientConnection::new(tls.config, tls.name).map_err(io::Error::other)?;
        let secured = StreamOwned::new(connection, stream);
        Ok(Self::over(Stream::Secured(Box::new(secured))))
    }

    /// Every reply may take so long from now on.
    ///
    /// # Errors
    /// The socket's.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        let stream = match self.stream.get_ref() {
            Stream::Plain(stream) => stream,
            Stream::Secured(secured) => &secured.sock,
        };
        stream.set_read_timeout(Some(patience))
    }

    fn over(stream: Stream) -> Self {
        Self {
            stream: BufReader::with_capacity(1 << 16, stream),
            out: Vec::new(),
        }
    }

    /// Adds a command to what [`Client::send`] sends.
    pub fn push(&mut self, words: &[&[u8]]) {
        self.out
            .extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.out
                .extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Sends what was pushed.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send(&mut self) -> io::Result<()> {
        let stream = self.stream.get_mut();
        let sent = stream.write_all(&self.out).and_then(|()| stream.flush());
        self.out.clear();
        sent
    }

    /// Sends a command and returns the reply to it.
    ///
    /// # Errors
    /// As [`Client::send`] and [`Client::reply`].
    pub fn call(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.push(words);
        self.send()?;
        self.reply()
    }

    /// The next reply.
    ///
    /// # Errors
    /// The connection has failed or ended, no reply came in time, or it is none of this protocol.
    pub fn reply(&mut self) -> io::Result<Reply> {
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

/// A connection to an address; it and every reply may take so long.
///
/// # Errors
/// The server cannot be reached in that time.
pub fn connect(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
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
    /// That it is no error, nor has one in it.
    ///
    /// # Errors
    /// The server's error, as a [`Refusal`].
    pub fn good(self) -> io::Result<Self> {
        let elements = match &self {
            Self::Array(elements) => &elements[..],
            one => std::slice::from_ref(one),
        };
        let error = elements.iter().find_map(|element| match element {
            Self::Error(text) => Some(text.clone()),
            _ => None,
        });
        match error {
            Some(text) => Err(io::Error::other(Refusal(text))),
            None => Ok(self),
        }
    }
}
