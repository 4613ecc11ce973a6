//! The reply encoder.

use crate::number::push_double;

/// The protocol's version, chosen by `HELLO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// What every connection starts with.
    #[default]
    Resp2,
    /// Adds maps, sets, doubles, booleans, big numbers, verbatim strings, pushes and one null.
    Resp3,
}

/// Encoded replies, in order, in one buffer that is reused.
///
/// Types that RESP2 lacks are sent in the form that Redis gives them there: a map as a flat array,
/// a boolean as 0 or 1, a double and a big number as bulk strings.
#[derive(Debug, Default)]
pub struct ReplyBuffer {
    bytes: Vec<u8>,
    version: Version,
}

impl ReplyBuffer {
    /// An empty buffer for RESP2.
    #[must_use]
    pub fn new() -> ReplyBuffer {
        ReplyBuffer::default()
    }

    /// The version that the next reply is encoded for.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Encodes the following replies for `version`.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// What was encoded since the last [`clear`](ReplyBuffer::clear).
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Encoded bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing is encoded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that the buffer holds, used or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes back what was encoded after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Forgets what was encoded and keeps at most `kept` bytes of memory.
    pub fn clear(&mut self, kept: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(kept);
    }

    /// Makes room for so many more bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve_exact(bytes);
    }

    /// Adds the replies that `other` holds.
    pub fn append(&mut self, other: &ReplyBuffer) {
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// Adds replies that are encoded already.
    pub fn raw(&mut self, encoded: &[u8]) {
        self.bytes.extend_from_slice(encoded);
    }

    /// `+text`. Line ends in it become blanks.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `+OK`.
    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// `-text`, which starts with the error's code (`ERR …`). Line ends in it become blanks.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'-', text.as_ref());
    }

    /// `:value`.
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// A bulk string.
    pub fn bulk(&mut self, data: &[u8]) {
        self.bytes.reserve(data.len() + 24);
        self.header(b'$', data.len());
        self.bytes.extend_from_slice(data);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A bulk string that holds a decimal number.
    pub fn bulk_integer(&mut self, value: i64) {
        let mut digits = itoa::Buffer::new();
        self.bulk(digits.format(value).as_bytes());
    }

    /// The absence of a string.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// The absence of an array.
    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Resp2 => b"*-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// The header of an array; `len` replies follow.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// The header of a map; `len` pairs of replies follow.
    pub fn map(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.header(b'*', len * 2),
            Version::Resp3 => self.header(b'%', len),
        }
    }

    /// The header of a set; `len` replies follow.
    pub fn set(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.header(b'*', len),
            Version::Resp3 => self.header(b'~', len),
        }
    }

    /// The header of an out-of-band message (a push); `len` replies follow. RESP2 clients get an
    /// array, which they can distinguish from a reply only in a mode that they asked for.
    pub fn push(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.header(b'*', len),
            Version::Resp3 => self.header(b'>', len),
        }
    }

    /// A floating-point number with 17 significant digits.
    pub fn double(&mut self, value: f64) {
        match self.version {
            Version::Resp2 => {
                let mut text = Vec::with_capacity(32);
                push_double(&mut text, value);
                self.bulk(&text);
            }
            Version::Resp3 => {
                self.bytes.push(b',');
                push_double(&mut self.bytes, value);
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    /// A truth value.
    pub fn boolean(&mut self, value: bool) {
        self.bytes.extend_from_slice(match (self.version, value) {
            (Version::Resp2, false) => b":0\r\n",
            (Version::Resp2, true) => b":1\r\n",
            (Version::Resp3, false) => b"#f\r\n",
            (Version::Resp3, true) => b"#t\r\n",
        });
    }

    /// An integer of any size, given as its digits.
    pub fn big_number(&mut self, digits: &str) {
        match self.version {
            Version::Resp2 => self.bulk(digits.as_bytes()),
            Version::Resp3 => self.line(b'(', digits.as_bytes()),
        }
    }

    /// Text for people, in a format of three characters (`txt`, `mkd`).
    pub fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        match self.version {
            Version::Resp2 => self.bulk(text),
            Version::Resp3 => {
                self.bytes.reserve(text.len() + 24);
                self.header(b'=', text.len() + 4);
                self.bytes.extend_from_slice(&format);
                self.bytes.push(b':');
                self.bytes.extend_from_slice(text);
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    fn header(&mut self, kind: u8, value: impl itoa::Integer) {
        let mut digits = itoa::Buffer::new();
        self.bytes.push(kind);
        self.bytes.extend_from_slice(digits.format(value).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend(
            text.iter()
                .map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }),
        );
        self.bytes.extend_from_slice(b"\r\n");
    }
}
