//! Arguments that are numbers, times or options, with Redis' error texts.

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use crate::data::keyspace::DATABASES;
use crate::failure::{Failure, text};

/// An integer argument.
pub(super) fn integer(arg: &[u8]) -> Result<i64, Failure> {
    parse_i64(arg).ok_or_else(|| text::NOT_AN_INTEGER.into())
}

/// An integer argument that may not be negative.
pub(super) fn positive(arg: &[u8]) -> Result<i64, Failure> {
    let value = integer(arg)?;
    if value < 0 {
        Err(text::OUT_OF_RANGE_POSITIVE.into())
    } else {
        Ok(value)
    }
}

/// The number of a database.
pub(super) fn database(arg: &[u8]) -> Result<u8, Failure> {
    let range = "ERR value is out of range, value must between -2147483648 and 2147483647";
    let index = i32::try_from(integer(arg)?).map_err(|_| Failure::from(range))?;
    let index = u8::try_from(index).ok().filter(|index| *index < DATABASES);
    index.ok_or_else(|| text::DB_OUT_OF_RANGE.into())
}

/// Milliseconds that a command may wait; 0 means for ever.
pub(super) fn timeout_ms(arg: &[u8]) -> Result<u64, Failure> {
    let value = parse_i64(arg).ok_or("ERR timeout is not an integer or out of range")?;
    u64::try_from(value).map_err(|_| "ERR timeout is negative".into())
}

/// Whether an argument is this keyword, in any case.
pub(super) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// The range of a string that a request names: first and last, both included, counted from the end
/// if negative.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestedRange {
    pub(super) start: i64,
    pub(super) end: i64,
}

impl RequestedRange {
    /// Parses argument `i` and the next one.
    pub(super) fn read(request: Request<'_>, i: usize) -> Result<RequestedRange, Failure> {
        Ok(RequestedRange {
            start: integer(request.at(i))?,
            end: integer(request.at(i + 1))?,
        })
    }

    /// Whether both are counted from the end, and in the wrong order: for most commands such a
    /// range is empty, however short the string is.
    pub(super) fn is_backward(self) -> bool {
        self.start < 0 && self.end < 0 && self.start > self.end
    }

    /// The first and the last index in a string of length `len`; `None` if the range is empty.
    pub(super) fn within(self, len: u64) -> Option<(u64, u64)> {
        let index = |wanted: i64| match u64::try_from(wanted) {
            Ok(from_start) => from_start,
            Err(_) => len.saturating_sub(wanted.unsigned_abs()),
        };
        let (first, last) = (index(self.start), index(self.end).min(len.checked_sub(1)?));
        (first <= last).then_some((first, last))
    }
}

/// The unit of a time, and whether it is relative to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
    UnixSeconds,
    UnixMilliseconds,
}

impl Unit {
    pub(super) fn is_absolute(self) -> bool {
        matches!(self, Unit::UnixSeconds | Unit::UnixMilliseconds)
    }

    /// The time in milliseconds since the Unix epoch; `None` if it is out of range.
    pub(super) fn to_unix_ms(self, value: i64, now_ms: u64) -> Option<i64> {
        let ms = match self {
            Unit::Seconds | Unit::UnixSeconds => value.checked_mul(1000)?,
            Unit::Milliseconds | Unit::UnixMilliseconds => value,
        };
        if self.is_absolute() {
            Some(ms)
        } else {
            ms.checked_add(i64::try_from(now_ms).ok()?)
        }
    }
}

/// An expiry that must be in the future, in milliseconds since the Unix epoch.
pub(super) fn expiry_of(arg: &[u8], unit: Unit, now_ms: u64, command: &str) -> Result<u64, Failure> {
    let value = integer(arg)?;
    let ms = (value > 0).then(|| unit.to_unix_ms(value, now_ms)).flatten();
    ms.and_then(|ms| u64::try_from(ms).ok())
        .ok_or_else(|| text::expire_time(command).into())
}

/// The options of `SET` and `GETEX`.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct StringOptions<'a> {
    pub(super) only_if_absent: bool,
    pub(super) only_if_present: bool,
    pub(super) get: bool,
    pub(super) keep_ttl: bool,
    pub(super) persist: bool,
    expiry: Option<(Unit, &'a [u8])>,
}

impl<'a> StringOptions<'a> {
    /// Parses the options of `SET` from argument 3 on, or those of `GETEX` from argument 2 on.
    pub(super) fn read(request: Request<'a>, is_set: bool) -> Result<StringOptions<'a>, Failure> {
        let mut options = StringOptions::default();
        let mut i = if is_set { 3 } else { 2 };
        while let Some(word) = request.get(i) {
            let unit = match word {
                _ if is(word, "EX") => Some(Unit::Seconds),
                _ if is(word, "PX") => Some(Unit::Milliseconds),
                _ if is(word, "EXAT") => Some(Unit::UnixSeconds),
                _ if is(word, "PXAT") => Some(Unit::UnixMilliseconds),
                _ => None,
            };
            match (unit, request.get(i + 1)) {
                (Some(unit), Some(value)) if options.takes(unit) => {
                    options.expiry = Some((unit, value));
                    i += 2;
                    continue;
                }
                (Some(_), _) => return Err(text::SYNTAX.into()),
                (None, _) => options.word(word, is_set)?,
            }
            i += 1;
        }
        Ok(options)
    }

    /// Whether an expiry in `unit` is compatible with the options so far; the same unit may occur
    /// again.
    fn takes(&self, unit: Unit) -> bool {
        !self.keep_ttl && !self.persist && self.expiry.is_none_or(|(before, _)| before == unit)
    }

    fn word(&mut self, word: &[u8], is_set: bool) -> Result<(), Failure> {
        if is_set && is(word, "NX") && !self.only_if_present {
            self.only_if_absent = true;
        } else if is_set && is(word, "XX") && !self.only_if_absent {
            self.only_if_present = true;
        } else if is_set && is(word, "GET") {
            self.get = true;
        } else if is_set && is(word, "KEEPTTL") && self.expiry.is_none() {
            self.keep_ttl = true;
        } else if !is_set && is(word, "PERSIST") && self.expiry.is_none() {
            self.persist = true;
        } else {
            return Err(text::SYNTAX.into());
        }
        Ok(())
    }

    /// The expiry in milliseconds since the Unix epoch, and whether it was given as a point in
    /// time.
    pub(super) fn expiry(&self, now_ms: u64, command: &str) -> Result<Option<(u64, bool)>, Failure> {
        let Some((unit, value)) = self.expiry else {
            return Ok(None);
        };
        let ms = expiry_of(value, unit, now_ms, command)?;
        Ok(Some((ms, unit.is_absolute())))
    }
}
