//! The Redis protocol, RESP2 and RESP3, without I/O.
//!
//! * [`RequestParser`] finds requests — arrays of bulk strings and inline commands — in the bytes
//!   that a client sent. It resumes where it stopped, copies only quoted inline arguments, and
//!   allocates memory in proportion to the bytes that arrived, never to the size that a header
//!   announces.
//! * [`Limits`] names what a client may send before and after it has authenticated. A request past
//!   a limit gives Redis' own error text ([`ProtocolError`]), after which the caller closes the
//!   connection.
//! * [`ReplyBuffer`] encodes every reply type for both protocol versions into one reusable buffer.
//! * [`number`] reads and writes numbers as Redis does.
//!
//! ```
//! use collie_protocol::{Limits, ReplyBuffer, RequestParser};
//! let mut parser = RequestParser::new(Limits::default());
//! let input = b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\nPI";
//! let request = parser.parse(input, true)?.expect("the first request is complete");
//! assert_eq!((request.at(0), request.at(1)), (&b"ECHO"[..], &b"hi"[..]));
//! let mut reply = ReplyBuffer::new();
//! reply.bulk(request.at(1));
//! assert_eq!(reply.as_slice(), b"$2\r\nhi\r\n");
//! let rest = &input[request.consumed()..];
//! assert!(parser.parse(rest, true)?.is_none(), "an inline command ends with its line");
//! # Ok::<(), collie_protocol::ProtocolError>(())
//! ```

mod inline;
mod limits;
pub mod number;
mod reply;
mod request;

pub use limits::{Limits, ProtocolError};
pub use reply::{ReplyBuffer, Version};
pub use request::{KeptRequest, Request, RequestParser};
