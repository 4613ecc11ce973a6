//! `INCRBYFLOAT`, with the numbers that Redis has on x86: the 80-bit format of the x87 with a
//! mantissa of 64 bits.
//!
//! A decimal is rounded to the nearest such number, and so is the sum, which is printed with
//! seventeen decimals rounded from its exact value, as C's `%.17Lf` does, without the zeros at the
//! end. Ties round to even. The result is the same on every machine.

use collie_protocol::Request;
use num_bigint::BigUint;

use super::row::{Command, Keys};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("incrbyfloat", 3, incrbyfloat)
    .about("2.6.0", "string", "Adds to a floating-point number.")
    .flags(&["write", "denyoom", "fast"])
    .categories(&["@write", "@string", "@fast"])
    .keys(&[Keys::at(1, &["RW", "access", "update"])])];

/// Longest number that is read, in bytes, as in Redis.
const TEXT_LEN_MAX: usize = 5 * 1024 - 1;
const MANTISSA_BITS: i64 = 64;
/// The exponent of the smallest number above zero.
const EXPONENT_MIN: i64 = -16_445;
/// Every number is below two to this power.
const RANGE_BITS: i64 = 16_384;
/// Decimals that are printed.
const DECIMALS: usize = 17;
/// Every power of ten beyond this one, up or down, is out of range.
const POWER_OF_TEN_MAX: i64 = 5_200;

/// A number: mantissa times two to the exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extended {
    is_negative: bool,
    mantissa: u64,
    exponent: i64,
}

/// The result of parsing a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parsed {
    Finite(Extended),
    Infinite,
}

impl Extended {
    const ZERO: Extended = Extended {
        is_negative: false,
        mantissa: 0,
        exponent: 0,
    };

    /// The nearest number to `magnitude` — or to slightly more, if `is_more` — times two to the
    /// exponent; `None` if it is too large.
    fn nearest(is_negative: bool, magnitude: &BigUint, exponent: i64, is_more: bool) -> Option<Extended> {
        let bits = i64::try_from(magnitude.bits()).ok()?;
        let dropped = (bits - MANTISSA_BITS).max(EXPONENT_MIN - exponent).max(0);
        let mut kept = magnitude >> dropped;
        let rest = magnitude - (&kept << dropped);
        let twice_rest = rest << 1_u32;
        let unit = BigUint::from(1_u32) << dropped;
        let is_tie = twice_rest == unit && !is_more;
        let goes_up =
            dropped > 0 && (twice_rest > unit || (twice_rest == unit && is_more) || (is_tie && kept.bit(0)));
        if goes_up {
            kept += 1_u32;
        }
        let mut exponent = exponent + dropped;
        if kept.bits() > MANTISSA_BITS.unsigned_abs() {
            kept >>= 1_u32;
            exponent += 1;
        }
        let size = i64::try_from(kept.bits()).ok()? + exponent;
        let mantissa = u64::try_from(kept).ok()?;
        (mantissa == 0 || size <= RANGE_BITS).then_some(Extended {
            is_negative,
            mantissa,
            exponent,
        })
    }

    /// The sum; `None` if it is too large.
    fn plus(self, other: Extended) -> Option<Extended> {
        if self.mantissa == 0 || other.mantissa == 0 {
            return Some(if self.mantissa == 0 { other } else { self });
        }
        let exponent = self.exponent.min(other.exponent);
        let aligned = |one: Extended| BigUint::from(one.mantissa) << (one.exponent - exponent);
        let (one, two) = (aligned(self), aligned(other));
        let (is_negative, magnitude) = if self.is_negative == other.is_negative {
            (self.is_negative, one + two)
        } else if one >= two {
            (self.is_negative, one - two)
        } else {
            (other.is_negative, two - one)
        };
        Extended::nearest(is_negative, &magnitude, exponent, false)
    }

    /// Prints it with seventeen decimals, without the zeros at the end.
    fn print(self) -> String {
        let scaled = BigUint::from(self.mantissa) * BigUint::from(10_u32).pow(DECIMALS as u32);
        let rounded = if self.exponent >= 0 {
            scaled << self.exponent
        } else {
            let dropped = -self.exponent;
            let kept = &scaled >> dropped;
            let twice_rest = (scaled - (&kept << dropped)) << 1_u32;
            let unit = BigUint::from(1_u32) << dropped;
            let goes_up = twice_rest > unit || (twice_rest == unit && kept.bit(0));
            kept + u32::from(goes_up)
        };
        let digits = format!("{:0>1$}", rounded.to_string(), DECIMALS + 1);
        let (whole, decimals) = digits.split_at(digits.len() - DECIMALS);
        let decimals = decimals.trim_end_matches('0');
        let is_zero = decimals.is_empty() && whole == "0";
        let sign = if self.is_negative && !is_zero { "-" } else { "" };
        let point = if decimals.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{decimals}")
    }
}

/// Parses a number as C's `strtold` does, without blanks around it; `None` if it is not a number,
/// or out of range.
fn parse(text: &[u8]) -> Option<Parsed> {
    if text.len() > TEXT_LEN_MAX {
        return None;
    }
    let (is_negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
        return Some(Parsed::Infinite);
    }
    let (text, radix) = match text {
        [b'0', b'x' | b'X', rest @ ..] => (rest, 16),
        _ => (text, 10),
    };
    let (digits, power) = split(text, radix)?;
    let magnitude = BigUint::parse_bytes(&digits, radix)?;
    if magnitude == BigUint::ZERO {
        return Some(Parsed::Finite(Extended {
            is_negative,
            ..Extended::ZERO
        }));
    }
    let number = if radix == 16 {
        let power = power.clamp(-RANGE_BITS * 4, RANGE_BITS * 4);
        Extended::nearest(is_negative, &magnitude, power, false)
    } else {
        let size = i64::try_from(digits.len()).ok()?.saturating_add(power);
        if size > POWER_OF_TEN_MAX {
            return None;
        }
        from_decimal(is_negative, magnitude, power.max(-POWER_OF_TEN_MAX * 2))
    };
    // A number that was rounded to zero is refused.
    number.filter(|number| number.mantissa != 0).map(Parsed::Finite)
}

/// The nearest number to `magnitude` times ten to the power.
fn from_decimal(is_negative: bool, magnitude: BigUint, power: i64) -> Option<Extended> {
    let ten = BigUint::from(10_u32).pow(u32::try_from(power.unsigned_abs()).ok()?);
    if power >= 0 {
        return Extended::nearest(is_negative, &(magnitude * ten), 0, false);
    }
    // Shifts so far that the quotient has more bits than a mantissa, and the remainder only breaks
    // ties.
    let up = (ten.bits() + 2 + MANTISSA_BITS.unsigned_abs()).saturating_sub(magnitude.bits());
    let scaled = magnitude << up;
    let quotient = &scaled / &ten;
    let is_more = &quotient * ten != scaled;
    Extended::nearest(is_negative, &quotient, -i64::try_from(up).ok()?, is_more)
}

/// The digits without their point, and the power by which they are multiplied: of ten, or of two if
/// they are hexadecimal.
fn split(text: &[u8], radix: u32) -> Option<(Vec<u8>, i64)> {
    let is_digit = |byte: &u8| char::from(*byte).is_digit(radix);
    let end = text
        .iter()
        .position(|byte| !is_digit(byte) && *byte != b'.')
        .unwrap_or(text.len());
    let (mantissa, exponent) = text.split_at_checked(end)?;
    let mut parts = mantissa.split(|byte| *byte == b'.');
    let (whole, decimals) = (parts.next()?, parts.next().unwrap_or_default());
    if parts.next().is_some() || whole.len() + decimals.len() == 0 {
        return None;
    }
    let per_digit = if radix == 16 { 4 } else { 1 };
    let behind_point = per_digit * i64::try_from(decimals.len()).ok()?;
    let power = match exponent {
        [] => 0,
        [mark, rest @ ..] if mark.eq_ignore_ascii_case(if radix == 16 { &b'p' } else { &b'e' }) => {
            power_of(rest)?
        }
        _ => return None,
    };
    Some(([whole, decimals].concat(), power.saturating_sub(behind_point)))
}

/// Parses an exponent; very large ones are capped.
fn power_of(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let power = digits.iter().fold(0_i64, |power, digit| {
        power.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    });
    let power = power.min(i64::MAX / 2);
    Some(if is_negative { -power } else { power })
}

fn incrbyfloat(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let no_float = Failure::from("ERR value is not a valid float");
    let before = match prior.live() {
        // A longer one is none, and need not be read.
        Some(found) if found.len() > TEXT_LEN_MAX => None,
        Some(found) => parse(&exec.payload(found)?),
        None => Some(Parsed::Finite(Extended::ZERO)),
    };
    let (Some(before), Some(by)) = (before, parse(request.at(2))) else {
        return Err(no_float);
    };
    let after = match (before, by) {
        (Parsed::Finite(before), Parsed::Finite(by)) => before.plus(by),
        _ => None,
    };
    let after = after
        .ok_or("ERR increment would produce NaN or Infinity")?
        .print();
    exec.store(key, &prior, after.as_bytes(), prior.live_expiry())?;
    exec.reply.bulk(after.as_bytes());
    Ok(Flow::Next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(one: &str, other: &str) -> Option<String> {
        match (parse(one.as_bytes())?, parse(other.as_bytes())?) {
            (Parsed::Finite(one), Parsed::Finite(other)) => Some(one.plus(other)?.print()),
            _ => None,
        }
    }

    #[test]
    fn sums_print_as_the_x87_and_printf_give_them() {
        for (one, other, expected) in [
            ("0", "0.1", "0.1"),
            ("3.0", "1.1", "4.1"),
            ("1", "1e-20", "1"),
            ("10.5", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0", "0x1p3", "8"),
            ("0", "0x.8p-1", "0.25"),
            ("0", "-0", "0"),
            ("0", "-1e-18", "0"),
            ("17179869184", "1.5", "17179869185.5"),
            ("1e17", "0.1", "100000000000000000.1015625"),
            ("1e18", "0.1", "1000000000000000000.125"),
            ("0.1", "-0.1", "0"),
            ("0", "1e-4950", "0"),
        ] {
            assert_eq!(sum(one, other).as_deref(), Some(expected), "{one} + {other}");
        }
    }

    #[test]
    fn what_is_no_number_or_beyond_all_numbers_is_refused() {
        for text in [
            "", " 1", "1 ", "1e", "1e+", ".", "-", "x", "nan", "1.2.3", "1e4933", "1e-4970", "0x", "1p3",
            "--1",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse(b"-INFinity"), Some(Parsed::Infinite));
        assert_eq!(sum("1.1e4932", "1.1e4932"), None);
    }
}
