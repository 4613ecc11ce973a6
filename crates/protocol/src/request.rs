//! The request parser.

use memchr::memchr;

use crate::inline;
use crate::limits::{Limits, ProtocolError};
use crate::number::parse_i64;

/// Capacities above this many arguments, or bytes of inline text, are given back after a request.
const KEPT_CAPACITY: usize = 1024;

/// Where an argument lies. Offsets fit in 32 bits since a request is at most `u32::MAX` bytes long.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u32,
    len: u32,
}

impl Span {
    fn new(start: usize, len: usize) -> Span {
        // Both are below `request_len_max`, which `RequestParser::new` keeps within 32 bits.
        Span {
            start: start as u32,
            len: len as u32,
        }
    }

    fn of(self, data: &[u8]) -> &[u8] {
        let start = self.start as usize;
        data.get(start..start + self.len as usize).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// At the start of a request, or in its first line.
    Start,
    /// In the line with the length of the next argument.
    Length,
    /// In an argument of that many bytes.
    Body(usize),
}

/// Finds requests in a client's bytes, resuming where the bytes ended the last time.
///
/// What Redis does not check is not checked here either, so that both accept the same input: the
/// byte after a header's carriage return and the two bytes after an argument are skipped.
#[derive(Debug)]
pub struct RequestParser {
    limits: Limits,
    stage: Stage,
    /// How far the request has been parsed, from its start.
    pos: usize,
    /// How far the current line has been searched for its end.
    searched: usize,
    args_left: usize,
    spans: Vec<Span>,
    /// The arguments of an inline command, unquoted.
    inline: Vec<u8>,
    is_inline: bool,
}

impl RequestParser {
    /// A parser at the start of a connection's first request.
    #[must_use]
    pub fn new(mut limits: Limits) -> RequestParser {
        limits.request_len_max = limits.request_len_max.min(u32::MAX as usize);
        RequestParser {
            limits,
            stage: Stage::Start,
            pos: 0,
            searched: 0,
            args_left: 0,
            spans: Vec::new(),
            inline: Vec::new(),
            is_inline: false,
        }
    }

    /// Changes the limits from the next request on.
    pub fn set_limits(&mut self, mut limits: Limits) {
        limits.request_len_max = limits.request_len_max.min(u32::MAX as usize);
        self.limits = limits;
    }

    /// Takes one request from the start of `input`, or `None` where it is not yet complete.
    ///
    /// The caller then drops [`Request::consumed`] bytes; until a request is complete `input` must
    /// keep its start and may only grow at its end. An empty request (a blank line, an array
    /// without elements) has no arguments and gets no reply. `authenticated` turns off the limits
    /// for clients that have yet to authenticate.
    ///
    /// # Errors
    /// The request breaks the protocol or a limit. Send the error and close the connection: the
    /// parser cannot be used any more.
    pub fn parse<'a>(
        &'a mut self,
        input: &'a [u8],
        authenticated: bool,
    ) -> Result<Option<Request<'a>>, ProtocolError> {
        if !self.advance(input, authenticated)? {
            if input.len() > self.limits.request_len_max {
                return Err(ProtocolError::RequestTooLong);
            }
            return Ok(None);
        }
        let consumed = self.pos;
        self.stage = Stage::Start;
        self.pos = 0;
        self.searched = 0;
        if consumed > self.limits.request_len_max {
            return Err(ProtocolError::RequestTooLong);
        }
        let data = if self.is_inline { &self.inline } else { input };
        Ok(Some(Request {
            data,
            spans: &self.spans,
            consumed,
        }))
    }

    /// How many more bytes are known to be missing from the current request; 0 where that is
    /// unknown. A hint for the size of the next read, not a promise: never allocate it at once.
    #[must_use]
    pub fn missing(&self, available: usize) -> usize {
        match self.stage {
            Stage::Body(len) => (self.pos + len + 2).saturating_sub(available),
            Stage::Start | Stage::Length => 0,
        }
    }

    /// Whether a request has begun and is not complete.
    #[must_use]
    pub fn is_midway(&self) -> bool {
        self.stage != Stage::Start || self.searched > 0
    }

    /// Goes on as far as `input` reaches; `true` when the request is complete.
    fn advance(&mut self, input: &[u8], authenticated: bool) -> Result<bool, ProtocolError> {
        loop {
            match self.stage {
                Stage::Start => {
                    match input.first() {
                        None => return Ok(false),
                        Some(b'*') => {}
                        Some(_) => return self.inline_command(input),
                    }
                    let Some(line) = self.line(input, ProtocolError::CountLineTooLong)? else {
                        return Ok(false);
                    };
                    self.begin(line, authenticated)?;
                    if self.args_left == 0 {
                        return Ok(true);
                    }
                    self.stage = Stage::Length;
                }
                Stage::Length => {
                    let Some(line) = self.line(input, ProtocolError::LengthLineTooLong)? else {
                        return Ok(false);
                    };
                    self.stage = Stage::Body(self.bulk_len(line, authenticated)?);
                }
                Stage::Body(len) => {
                    let end = self.pos + len + 2;
                    if end > self.limits.request_len_max {
                        return Err(ProtocolError::RequestTooLong);
                    }
                    if input.len() < end {
                        return Ok(false);
                    }
                    self.spans.push(Span::new(self.pos, len));
                    self.pos = end;
                    self.searched = end;
                    self.args_left -= 1;
                    if self.args_left == 0 {
                        return Ok(true);
                    }
                    self.stage = Stage::Length;
                }
            }
        }
    }

    /// The header line at `pos`, without its end; `pos` moves behind it.
    fn line<'i>(
        &mut self,
        input: &'i [u8],
        too_long: ProtocolError,
    ) -> Result<Option<&'i [u8]>, ProtocolError> {
        let from = self.searched.max(self.pos);
        let Some(found) = memchr(b'\r', input.get(from..).unwrap_or_default()) else {
            self.searched = input.len();
            let too_much = input.len() - self.pos > self.limits.line_len_max;
            return if too_much { Err(too_long) } else { Ok(None) };
        };
        let end = from + found;
        if end - self.pos > self.limits.line_len_max {
            return Err(too_long);
        }
        if end + 1 >= input.len() {
            self.searched = end;
            return Ok(None);
        }
        let line = input.get(self.pos..end).unwrap_or_default();
        self.pos = end + 2;
        self.searched = self.pos;
        Ok(Some(line))
    }

    /// Starts an array of bulk strings from its header line.
    fn begin(&mut self, line: &[u8], authenticated: bool) -> Result<(), ProtocolError> {
        self.forget();
        let count = line
            .get(1..)
            .and_then(parse_i64)
            .ok_or(ProtocolError::InvalidCount)?;
        let count = usize::try_from(count).unwrap_or(0); // A negative count is an empty request.
        if count > self.limits.args_max {
            return Err(ProtocolError::InvalidCount);
        }
        if !authenticated && count > self.limits.unauthenticated_args_max {
            return Err(ProtocolError::UnauthenticatedCount);
        }
        self.args_left = count;
        Ok(())
    }

    fn bulk_len(&self, line: &[u8], authenticated: bool) -> Result<usize, ProtocolError> {
        // An empty line means that the carriage return itself stands where '$' belongs.
        let (first, digits) = line.split_first().unwrap_or((&b'\r', &[]));
        if *first != b'$' {
            return Err(ProtocolError::ExpectedBulk(*first));
        }
        let len = parse_i64(digits).and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or(ProtocolError::InvalidLength)?;
        if len > self.limits.bulk_len_max {
            return Err(ProtocolError::InvalidLength);
        }
        if !authenticated && len > self.limits.unauthenticated_bulk_len_max {
            return Err(ProtocolError::UnauthenticatedLength);
        }
        Ok(len)
    }

    fn inline_command(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        let Some(found) = memchr(b'\n', input.get(self.searched..).unwrap_or_default()) else {
            self.searched = input.len();
            let too_much = input.len() > self.limits.line_len_max;
            return if too_much {
                Err(ProtocolError::InlineTooLong)
            } else {
                Ok(false)
            };
        };
        let end = self.searched + found;
        if end > self.limits.line_len_max {
            return Err(ProtocolError::InlineTooLong);
        }
        let line = input.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.forget();
        self.is_inline = true;
        let spans = &mut self.spans;
        inline::split(line, &mut self.inline, |place| {
            spans.push(Span::new(place.start, place.len()));
        })
        .map_err(|inline::Unbalanced| ProtocolError::UnbalancedQuotes)?;
        self.pos = end + 1;
        Ok(true)
    }

    /// Drops the arguments of the previous request.
    fn forget(&mut self) {
        self.is_inline = false;
        self.spans.clear();
        self.spans.shrink_to(KEPT_CAPACITY);
        self.inline.clear();
        self.inline.shrink_to(KEPT_CAPACITY);
    }
}

/// One request: its arguments lie in the input, or, unquoted, in the parser.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    data: &'a [u8],
    spans: &'a [Span],
    consumed: usize,
}

impl<'a> Request<'a> {
    /// How many bytes of the input it took.
    #[must_use]
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Number of arguments, the command's name included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether it is a blank line or an array without elements, which get no reply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `i`.
    ///
    /// # Panics
    /// Where there is no such argument; see [`get`](Request::get).
    #[must_use]
    pub fn at(&self, i: usize) -> &'a [u8] {
        self.spans[i].of(self.data)
    }

    /// Argument `i`, where there is one.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        self.spans.get(i).map(|span| span.of(self.data))
    }

    /// A copy that outlives the input.
    #[must_use]
    pub fn keep(&self) -> KeptRequest {
        self.keep_from(0)
    }

    /// A copy of the arguments from number `first` on, as a request of its own.
    #[must_use]
    pub fn keep_from(&self, first: usize) -> KeptRequest {
        let mut data = Vec::with_capacity(self.iter().skip(first).map(<[u8]>::len).sum());
        let mut spans = Vec::with_capacity(self.len().saturating_sub(first));
        for arg in self.iter().skip(first) {
            spans.push(Span::new(data.len(), arg.len()));
            data.extend_from_slice(arg);
        }
        KeptRequest {
            data: data.into_boxed_slice(),
            spans: spans.into_boxed_slice(),
        }
    }

    /// The arguments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let data = self.data;
        self.spans.iter().map(move |span| span.of(data))
    }
}

/// A request that owns its arguments, to be executed later.
#[derive(Debug, Clone)]
pub struct KeptRequest {
    data: Box<[u8]>,
    spans: Box<[Span]>,
}

impl KeptRequest {
    /// The request; it took no bytes of any input.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request {
            data: &self.data,
            spans: &self.spans,
            consumed: 0,
        }
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.data.len() + size_of_val(&*self.spans)
    }
}
