//! Limits on what a client may send, and the errors that it gets past them.

use thiserror::Error;

/// Bounds on one request. The defaults are those of Redis 7.0 except where a field says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Arguments in one request. Redis takes up to 2³¹ − 1; a request of a million arguments is
    /// already 6 MB of pure framing, so the default here is 1,048,576.
    pub args_max: usize,
    /// Bytes in one argument (`proto-max-bulk-len`, 512 MiB).
    pub bulk_len_max: usize,
    /// Bytes in one inline command, or in the line that announces a count or a length (64 KiB).
    pub line_len_max: usize,
    /// Bytes in one whole request, framing included (`client-query-buffer-limit`, 1 GiB). Never
    /// more than 4 GiB − 1, whatever is set.
    pub request_len_max: usize,
    /// Arguments in one request of a client that has yet to authenticate.
    pub unauthenticated_args_max: usize,
    /// Bytes in one argument of a client that has yet to authenticate.
    pub unauthenticated_bulk_len_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            args_max: 1024 * 1024,
            bulk_len_max: 512 * 1024 * 1024,
            line_len_max: 64 * 1024,
            request_len_max: 1024 * 1024 * 1024,
            unauthenticated_args_max: 10,
            unauthenticated_bulk_len_max: 16 * 1024,
        }
    }
}

/// A request that breaks the protocol or a limit. The text is what Redis sends (after `-ERR `)
/// before it closes the connection; the bytes after such a request cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// An inline command longer than [`Limits::line_len_max`].
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    /// An inline command whose quotes do not match.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The line with the number of arguments is longer than [`Limits::line_len_max`].
    #[error("Protocol error: too big mbulk count string")]
    CountLineTooLong,
    /// The number of arguments is no number, or above [`Limits::args_max`].
    #[error("Protocol error: invalid multibulk length")]
    InvalidCount,
    /// More arguments than a client may send before it authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// An argument that does not start with its length.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(
        /// The byte that stood there.
        u8,
    ),
    /// The line with an argument's length is longer than [`Limits::line_len_max`].
    #[error("Protocol error: too big bulk count string")]
    LengthLineTooLong,
    /// An argument's length is no number, negative, or above [`Limits::bulk_len_max`].
    #[error("Protocol error: invalid bulk length")]
    InvalidLength,
    /// A longer argument than a client may send before it authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
    /// The whole request is longer than [`Limits::request_len_max`]. Redis closes the connection without
    /// an error here.
    #[error("Protocol error: too big request")]
    RequestTooLong,
}

impl ProtocolError {
    /// The error's text as bytes. It differs from the `Display` form where Redis echoes a byte that
    /// is not ASCII.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        match self {
            ProtocolError::ExpectedBulk(found) => {
                let mut text = b"Protocol error: expected '$', got '".to_vec();
                text.push(*found);
                text.push(b'\'');
                text
            }
            other => other.to_string().into_bytes(),
        }
    }
}
