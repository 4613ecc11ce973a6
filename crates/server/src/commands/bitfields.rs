//! `BITFIELD` and `BITFIELD_RO`: integers of any width in a string.

use std::borrow::Cow;

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use super::bitmaps::bit_offset;
use super::numbers::{integer, is};
use super::row::{Command, Keys};
use crate::exec::{Exec, Flow, Found, Outcome};
use crate::failure::{Failure, text};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("bitfield", -2, bitfield)
        .about(
            "3.2.0",
            "bitmap",
            "Reads and changes integers of any width in a value.",
        )
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@bitmap", "@slow"])
        .keys(&[Keys::at(1, &["RW", "access", "update", "variable_flags"])
            .notes("This command allows both access and modification of the key")]),
    Command::new("bitfield_ro", -2, bitfield_ro)
        .about("6.0.0", "bitmap", "Reads integers of any width in a value.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@bitmap", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
];

/// Width and sign of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FieldKind {
    is_signed: bool,
    bits: u32,
}

impl FieldKind {
    fn read(arg: &[u8]) -> Result<FieldKind, Failure> {
        let (is_signed, digits) = match arg {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => (false, &b""[..]),
        };
        let most = if is_signed { 64 } else { 63 };
        let bits = parse_i64(digits).filter(|bits| (1..=most).contains(bits));
        match bits.and_then(|bits| u32::try_from(bits).ok()) {
            Some(bits) => Ok(FieldKind { is_signed, bits }),
            None => Err(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is."
                    .into(),
            ),
        }
    }

    /// The smallest and the largest value.
    fn range(self) -> (i128, i128) {
        if self.is_signed {
            let half = 1 << (self.bits - 1);
            (-half, half - 1)
        } else {
            (0, (1 << self.bits) - 1)
        }
    }

    /// The integer of this width whose bits are the lowest bits of `wide`.
    fn wrapped(self, wide: i128) -> i128 {
        let (_, max) = self.range();
        let low = wide & ((1 << self.bits) - 1);
        if low > max { low - (1 << self.bits) } else { low }
    }

    /// A value that `SET` writes and that does not fit. Redis computes the distance to the maximum
    /// in 64 bits, where that of the smallest values wraps: it takes them for too large instead of
    /// too small, and so they saturate at the maximum.
    fn as_redis_takes(self, value: i64) -> i128 {
        let (_, max) = self.range();
        let value = i128::from(value);
        let room_wraps = self.bits < 64 && max - value > i128::from(i64::MAX);
        if room_wraps { value + (1 << 64) } else { value }
    }

    fn get(self, bytes: &[u8], offset: u64) -> i128 {
        let bits = (offset..offset + u64::from(self.bits)).map(|bit| {
            let byte = usize::try_from(bit >> 3).ok().and_then(|byte| bytes.get(byte));
            i128::from(byte.is_some_and(|byte| byte & (0x80 >> (bit & 7)) != 0))
        });
        self.wrapped(bits.fold(0, |value, bit| value << 1 | bit))
    }

    fn set(self, bytes: &mut [u8], offset: u64, value: i128) {
        for (bit, shift) in (offset..).zip((0..self.bits).rev()) {
            let byte = usize::try_from(bit >> 3)
                .ok()
                .and_then(|byte| bytes.get_mut(byte));
            if let Some(byte) = byte {
                let mask = 0x80 >> (bit & 7);
                *byte = if value >> shift & 1 == 1 {
                    *byte | mask
                } else {
                    *byte & !mask
                };
            }
        }
    }
}

/// What happens to a value that does not fit into the integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

impl Overflow {
    fn read(word: &[u8]) -> Result<Overflow, Failure> {
        match word {
            _ if is(word, "WRAP") => Ok(Overflow::Wrap),
            _ if is(word, "SAT") => Ok(Overflow::Saturate),
            _ if is(word, "FAIL") => Ok(Overflow::Fail),
            _ => Err("ERR Invalid OVERFLOW type specified".into()),
        }
    }

    /// The value that is stored for `wide`; `None` if the operation fails.
    fn fit(self, kind: FieldKind, wide: i128) -> Option<i128> {
        let (min, max) = kind.range();
        match self {
            _ if (min..=max).contains(&wide) => Some(wide),
            Overflow::Wrap => Some(kind.wrapped(wide)),
            Overflow::Saturate => Some(wide.clamp(min, max)),
            Overflow::Fail => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

#[derive(Debug, Clone, Copy)]
struct FieldOperation {
    kind: FieldKind,
    offset: u64,
    action: Action,
    overflow: Overflow,
}

impl FieldOperation {
    /// Parses all operations of a request.
    fn read_all(exec: &Exec<'_>, request: Request<'_>) -> Result<Vec<FieldOperation>, Failure> {
        let mut operations = Vec::new();
        let mut overflow = Overflow::Wrap;
        let mut i = 2;
        while let Some(word) = request.get(i) {
            let left = request.len() - i - 1;
            let (is_get, is_set) = (is(word, "GET"), is(word, "SET"));
            if is(word, "OVERFLOW") && left >= 1 {
                overflow = Overflow::read(request.at(i + 1))?;
                i += 2;
                continue;
            }
            let is_known = (is_get && left >= 2) || ((is_set || is(word, "INCRBY")) && left >= 3);
            if !is_known {
                return Err(text::SYNTAX.into());
            }
            let kind = FieldKind::read(request.at(i + 1))?;
            let offset = bit_offset(exec, request.at(i + 2), Some(kind.bits))?;
            let action = if is_get {
                Action::Get
            } else if is_set {
                Action::Set(integer(request.at(i + 3))?)
            } else {
                Action::Add(integer(request.at(i + 3))?)
            };
            operations.push(FieldOperation {
                kind,
                offset,
                action,
                overflow,
            });
            i += if is_get { 3 } else { 4 };
        }
        Ok(operations)
    }

    /// The operation on the bytes from number `first` on.
    fn counted_from(self, first: usize) -> FieldOperation {
        FieldOperation {
            offset: self.offset - first as u64 * 8,
            ..self
        }
    }

    /// Executes the operation; returns the value for the reply, and whether `bytes` changed.
    fn run(&self, bytes: &mut [u8]) -> (Option<i128>, bool) {
        let before = self.kind.get(bytes, self.offset);
        let wide = match self.action {
            Action::Get => return (Some(before), false),
            // To an unsigned integer a negative value is a very large number.
            Action::Set(value) if !self.kind.is_signed => i128::from(value.cast_unsigned()),
            Action::Set(value) => self.kind.as_redis_takes(value),
            Action::Add(by) => before + i128::from(by),
        };
        let Some(after) = self.overflow.fit(self.kind, wide) else {
            return (None, false);
        };
        self.kind.set(bytes, self.offset, after);
        let answer = if matches!(self.action, Action::Set(_)) {
            before
        } else {
            after
        };
        (Some(answer), after != before)
    }
}

fn answer(exec: &mut Exec<'_>, value: Option<i128>) {
    match value.and_then(|value| i64::try_from(value).ok()) {
        Some(value) => exec.reply.integer(value),
        None => exec.reply.null(),
    }
}

fn bitfield(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let operations = FieldOperation::read_all(exec, request)?;
    let writes = operations.iter().filter(|one| one.action != Action::Get);
    let Some(last_bit) = writes.map(|one| one.offset + u64::from(one.kind.bits) - 1).max() else {
        return read_only(exec, request, &operations);
    };
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let last = usize::try_from(last_bit >> 3).unwrap_or(usize::MAX - 1);
    let (first, end) = touched(&operations);
    let len = prior.live().map_or(0, Found::len);
    let mut has_changed = len <= last;
    // What lies beyond the value reads as zeros, and becomes part of it up to the last bit written.
    let end = end.min(len.max(last + 1));
    let first = first.min(end);
    exec.weigh(end - first)?;
    let mut bytes = match prior.live() {
        Some(found) => exec.part(found, first..end)?.into_owned(),
        None => Vec::new(),
    };
    bytes.resize(end - first, 0);
    exec.reply.array(operations.len());
    for operation in &operations {
        let (value, changed) = operation.counted_from(first).run(&mut bytes);
        has_changed |= changed;
        answer(exec, value);
    }
    if has_changed {
        exec.store_part(key, &prior, first, &bytes)?;
    }
    Ok(Flow::Next)
}

fn bitfield_ro(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let operations = FieldOperation::read_all(exec, request)?;
    if operations.iter().any(|one| one.action != Action::Get) {
        return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
    }
    read_only(exec, request, &operations)
}

fn read_only(exec: &mut Exec<'_>, request: Request<'_>, operations: &[FieldOperation]) -> Outcome {
    let found = exec.find(request.at(1))?;
    exec.count_lookup(found.is_some());
    let (first, end) = touched(operations);
    let bytes = match &found {
        Some(found) => exec.part(found, first..end)?,
        None => Cow::Borrowed(&[][..]),
    };
    exec.reply.array(operations.len());
    for operation in operations {
        let operation = operation.counted_from(first);
        let value = operation.kind.get(&bytes, operation.offset);
        answer(exec, Some(value));
    }
    Ok(Flow::Next)
}

/// The bytes from the first to behind the last that operations read or write.
fn touched(operations: &[FieldOperation]) -> (usize, usize) {
    let byte = |bit: u64| usize::try_from(bit >> 3).unwrap_or(usize::MAX - 1);
    let first = operations.iter().map(|one| byte(one.offset)).min();
    let last = operations
        .iter()
        .map(|one| byte(one.offset + u64::from(one.kind.bits) - 1))
        .max();
    (first.unwrap_or(0), last.map_or(0, |last| last + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_come_back_from_every_place() {
        for is_signed in [false, true] {
            for bits in 1..=if is_signed { 64 } else { 63 } {
                let kind = FieldKind { is_signed, bits };
                let (min, max) = kind.range();
                for offset in 0..20 {
                    for value in [min, max, max / 3, min / 3, 0] {
                        let mut bytes = [0xa5; 12];
                        kind.set(&mut bytes, offset, value);
                        assert_eq!(kind.get(&bytes, offset), value, "{kind:?} at {offset}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_wraps_saturates_or_fails() {
        let kind = FieldKind {
            is_signed: true,
            bits: 8,
        };
        assert_eq!(Overflow::Wrap.fit(kind, 130), Some(-126));
        assert_eq!(Overflow::Saturate.fit(kind, 130), Some(127));
        assert_eq!(Overflow::Saturate.fit(kind, -130), Some(-128));
        assert_eq!(Overflow::Fail.fit(kind, 130), None);
    }
}
