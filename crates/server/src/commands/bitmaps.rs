//! Strings as arrays of bits: `SETBIT`, `GETBIT`, `BITCOUNT`, `BITPOS` and `BITOP`. Bit 0 is the
//! highest bit of the first byte.

use std::borrow::Cow;

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use super::numbers::{RequestedRange, integer, is};
use super::row::{Command, Keys};
use crate::exec::{Exec, Flow, Found, Outcome, Prior};
use crate::failure::{Failure, text};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("bitcount", -2, bitcount)
        .about("2.6.0", "bitmap", "Counts the bits of a value that are set.")
        .flags(&["readonly"])
        .categories(&["@read", "@bitmap", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("bitop", -4, bitop)
        .about("2.6.0", "bitmap", "Combines values bit by bit.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@bitmap", "@slow"])
        .keys(&[
            Keys::at(2, &["OW", "update"]),
            Keys::to(3, -1, 1, &["RO", "access"]),
        ]),
    Command::new("bitpos", -3, bitpos)
        .about(
            "2.8.7",
            "bitmap",
            "Finds the first bit of a value that is set or clear.",
        )
        .flags(&["readonly"])
        .categories(&["@read", "@bitmap", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("getbit", 3, getbit)
        .about("2.2.0", "bitmap", "Returns a bit of a value.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@bitmap", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("setbit", 4, setbit)
        .about("2.2.0", "bitmap", "Sets a bit of a value.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@bitmap", "@slow"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
];

const NO_OFFSET: &str = "ERR bit offset is not an integer or out of range";
const NO_BIT: &str = "ERR bit is not an integer or out of range";

/// The offset of a bit. `#3` is the third field of `width` bits, if a width is given.
pub(super) fn bit_offset(exec: &Exec<'_>, arg: &[u8], width: Option<u32>) -> Result<u64, Failure> {
    let wide = match (arg.strip_prefix(b"#"), width) {
        (Some(number), Some(width)) => parse_i64(number).and_then(|n| n.checked_mul(i64::from(width))),
        _ => parse_i64(arg),
    };
    let bytes_max = exec.shared.settings.bulk_len_max() as u64;
    wide.and_then(|offset| u64::try_from(offset).ok())
        .filter(|offset| offset >> 3 < bytes_max)
        .ok_or_else(|| NO_OFFSET.into())
}

/// The byte that contains a bit, and a mask of the bit in it.
fn byte_and_mask(offset: u64) -> (usize, u8) {
    let byte = usize::try_from(offset >> 3).unwrap_or(usize::MAX);
    (byte, 0x80 >> (offset & 7))
}

fn setbit(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (byte, mask) = byte_and_mask(bit_offset(exec, request.at(2), None)?);
    let on = match integer(request.at(3)) {
        Ok(0) => false,
        Ok(1) => true,
        Ok(_) | Err(_) => return Err(NO_BIT.into()),
    };
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let before = match prior.live() {
        Some(found) => exec.part(found, byte..byte + 1)?.first().copied(),
        None => None,
    };
    let bits = before.unwrap_or(0);
    let was_on = bits & mask != 0;
    if before.is_none() || was_on != on {
        let bits = if on { bits | mask } else { bits & !mask };
        exec.store_part(key, &prior, byte, &[bits])?;
    }
    exec.reply.integer(i64::from(was_on));
    Ok(Flow::Next)
}

fn getbit(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (byte, mask) = byte_and_mask(bit_offset(exec, request.at(2), None)?);
    let found = exec.find(request.at(1))?;
    exec.count_lookup(found.is_some());
    let byte = match &found {
        Some(found) => exec.part(found, byte..byte + 1)?.first().copied(),
        None => None,
    };
    exec.reply
        .integer(i64::from(byte.is_some_and(|byte| byte & mask != 0)));
    Ok(Flow::Next)
}

/// A range of bits in a string, first and last included, counted from the start of the string.
struct Part {
    first: u64,
    last: u64,
}

/// Whether the unit is `BIT` rather than `BYTE`, which is the default.
fn counts_bits(word: Option<&[u8]>) -> Result<bool, Failure> {
    match word {
        None => Ok(false),
        Some(word) if is(word, "BYTE") => Ok(false),
        Some(word) if is(word, "BIT") => Ok(true),
        Some(_) => Err(text::SYNTAX.into()),
    }
}

/// The range from `start` to `end`, both in bits or both in bytes, in a string of `len` bytes;
/// `None` if it is empty.
fn part(range: RequestedRange, len: usize, in_bits: bool) -> Option<Part> {
    let unit = if in_bits { 1 } else { 8 };
    let (first, last) = range.within(len as u64 * 8 / unit)?;
    Some(Part {
        first: first * unit,
        last: last * unit + unit - 1,
    })
}

fn bitcount(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let found = exec.find(request.at(1))?;
    exec.count_lookup(found.is_some());
    let Some(found) = found else {
        exec.reply.integer(0);
        return Ok(Flow::Next);
    };
    let len = found.len();
    let wanted = match request.len() {
        2 => part(RequestedRange { start: 0, end: -1 }, len, false),
        4 | 5 => {
            let range = RequestedRange::read(request, 2)?;
            // Redis does not check the unit of such a range.
            if range.is_backward() {
                None
            } else {
                part(range, len, counts_bits(request.get(4))?)
            }
        }
        _ => return Err(text::SYNTAX.into()),
    };
    let count = match wanted {
        Some(part) => {
            let (bytes, part, _) = read_part(exec, &found, &part)?;
            count_ones(&bytes, &part)
        }
        None => 0,
    };
    exec.reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}

/// The bytes that a range touches, the range in them, and the number of bits before them.
fn read_part<'f>(
    exec: &mut Exec<'_>,
    found: &'f Found,
    part: &Part,
) -> Result<(Cow<'f, [u8]>, Part, u64), Failure> {
    let (first, last) = (byte_and_mask(part.first).0, byte_and_mask(part.last).0);
    let bytes = exec.part(found, first..last.saturating_add(1))?;
    let before = first as u64 * 8;
    let part = Part {
        first: part.first - before,
        last: part.last - before,
    };
    Ok((bytes, part, before))
}

/// A mask of the bits of byte number `index` that lie in the range.
fn mask_of(part: &Part, index: u64) -> u8 {
    let mut mask = 0xff;
    if index == part.first >> 3 {
        mask &= 0xff >> (part.first & 7);
    }
    if index == part.last >> 3 {
        mask &= 0xff << (7 - (part.last & 7));
    }
    mask
}

/// The bytes that a range touches, with their numbers.
fn touched<'b>(bytes: &'b [u8], part: &Part) -> impl Iterator<Item = (u64, u8)> + use<'b> {
    let (first, last) = (byte_and_mask(part.first).0, byte_and_mask(part.last).0);
    let touched = bytes.get(first..=last.min(bytes.len().saturating_sub(1)));
    (first as u64..).zip(touched.unwrap_or_default().iter().copied())
}

fn count_ones(bytes: &[u8], part: &Part) -> u64 {
    touched(bytes, part)
        .map(|(index, byte)| u64::from((byte & mask_of(part, index)).count_ones()))
        .sum()
}

fn bitpos(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let wanted = match integer(request.at(2))? {
        0 => false,
        1 => true,
        _ => return Err("ERR The bit argument must be 1 or 0.".into()),
    };
    let found = exec.find(request.at(1))?;
    exec.count_lookup(found.is_some());
    let Some(found) = found else {
        // A missing string counts as zeros without an end.
        exec.reply.integer(if wanted { -1 } else { 0 });
        return Ok(Flow::Next);
    };
    let len = found.len();
    let has_end = request.len() > 4;
    let searched = match request.len() {
        3 => part(RequestedRange { start: 0, end: -1 }, len, false),
        4..=6 => {
            let start = integer(request.at(3))?;
            let in_bits = counts_bits(request.get(5))?;
            let end = request.get(4).map_or(Ok(-1), integer)?;
            part(RequestedRange { start, end }, len, in_bits)
        }
        _ => return Err(text::SYNTAX.into()),
    };
    let position = match searched {
        None => -1,
        Some(part) => {
            let (bytes, own, before) = read_part(exec, &found, &part)?;
            match first_bit(&bytes, &own, wanted) {
                Some(position) => i64::try_from(before + position).unwrap_or(i64::MAX),
                // Zeros follow the string, unless the request gives an end.
                None if !wanted && !has_end => i64::try_from(part.last + 1).unwrap_or(i64::MAX),
                None => -1,
            }
        }
    };
    exec.reply.integer(position);
    Ok(Flow::Next)
}

fn first_bit(bytes: &[u8], part: &Part, wanted: bool) -> Option<u64> {
    let mut found = touched(bytes, part).filter_map(|(index, byte)| {
        let byte = if wanted { byte } else { !byte } & mask_of(part, index);
        (byte != 0).then(|| index * 8 + u64::from(byte.leading_zeros()))
    });
    found.next()
}

/// The operation of `BITOP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BitOperation {
    And,
    Or,
    Xor,
    Not,
}

impl BitOperation {
    fn read(word: &[u8]) -> Result<BitOperation, Failure> {
        match word {
            _ if is(word, "AND") => Ok(BitOperation::And),
            _ if is(word, "OR") => Ok(BitOperation::Or),
            _ if is(word, "XOR") => Ok(BitOperation::Xor),
            _ if is(word, "NOT") => Ok(BitOperation::Not),
            _ => Err(text::SYNTAX.into()),
        }
    }

    /// Combines `result` with one more source. A shorter source counts as filled up with zeros.
    fn combine(self, result: &mut [u8], source: &[u8]) {
        let filled = source.iter().copied().chain(std::iter::repeat(0));
        for (byte, other) in result.iter_mut().zip(filled) {
            match self {
                BitOperation::And => *byte &= other,
                BitOperation::Or => *byte |= other,
                BitOperation::Xor => *byte ^= other,
                BitOperation::Not => *byte = !other,
            }
        }
    }
}

fn bitop(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let operation = BitOperation::read(request.at(1))?;
    if operation == BitOperation::Not && request.len() != 4 {
        return Err("ERR BITOP NOT must be called with a single source key.".into());
    }
    let target = request.at(2);
    let _locks = exec.lock_several(request.iter().skip(2))?;
    let mut sources: Vec<Prior> = Vec::with_capacity(request.len() - 3);
    for key in request.iter().skip(3) {
        sources.push(exec.prior(key)?);
    }
    let longest = sources.iter().filter_map(Prior::live).map(Found::len);
    let len = longest.max().unwrap_or(0);
    let first = sources.first().and_then(Prior::live);
    let mut result = exec.payload_or_empty(first)?.into_owned();
    result.resize(len, 0);
    let rest = if operation == BitOperation::Not { 0 } else { 1 };
    for source in sources.iter().skip(rest) {
        let source = exec.payload_or_empty(source.live())?;
        operation.combine(&mut result, &source);
    }
    let prior = exec.prior(target)?;
    if len == 0 {
        exec.remove(target, &prior)?;
    } else {
        exec.store(target, &prior, &result, None)?;
    }
    exec.reply.integer(i64::try_from(len).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}
