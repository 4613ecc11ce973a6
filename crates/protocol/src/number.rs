//! Numbers in the forms that Redis reads and writes.

/// Reads a signed 64-bit integer as strictly as Redis does: an optional minus, no plus, no leading
/// zero, no `-0`, no space, and nothing beyond the range.
///
/// ```
/// use collie_protocol::number::parse_i64;
/// assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
/// assert_eq!(parse_i64(b"007"), None);
/// ```
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    if text == b"0" {
        return Some(0);
    }
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if !matches!(digits.first(), Some(b'1'..=b'9')) || digits.len() > 19 {
        return None;
    }
    let mut magnitude: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Nineteen digits always fit in 64 bits.
        magnitude = magnitude * 10 + u64::from(digit - b'0');
    }
    if negative {
        0_i64.checked_sub_unsigned(magnitude)
    } else {
        i64::try_from(magnitude).ok()
    }
}

/// Reads a SCAN cursor: an unsigned 64-bit integer as C's `strtoul` reads it — spaces are refused,
/// a sign is taken (minus wraps around), leading zeros are taken, and what is beyond the range is
/// refused.
#[must_use]
pub fn parse_cursor(text: &[u8]) -> Option<u64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return if text.is_empty() { Some(0) } else { None };
    }
    let mut value: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some(if negative { value.wrapping_neg() } else { value })
}

/// Appends a double as C's `%.17g` prints it, with Redis' `inf`, `-inf` and `nan`.
pub fn push_double(out: &mut Vec<u8>, value: f64) {
    if value.is_nan() {
        out.extend_from_slice(b"nan");
        return;
    }
    if value.is_infinite() {
        out.extend_from_slice(if value > 0.0 { b"inf" } else { b"-inf" });
        return;
    }
    // `{:.16e}` gives 17 significant digits and the exponent by which `%g` chooses its form.
    let scientific = format!("{value:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..17).contains(&exponent) {
        let decimals = usize::try_from(16 - exponent).unwrap_or(0);
        let fixed = format!("{value:.decimals$}");
        out.extend_from_slice(without_trailing_zeros(&fixed).as_bytes());
    } else {
        out.extend_from_slice(without_trailing_zeros(mantissa).as_bytes());
        let sign = if exponent < 0 { '-' } else { '+' };
        out.extend_from_slice(format!("e{sign}{:02}", exponent.unsigned_abs()).as_bytes());
    }
}

fn without_trailing_zeros(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_strictly_as_redis_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("", None),
            ("-", None),
            ("1a", None),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn doubles_print_as_printf_prints_them() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (3.5, "3.5"),
            (0.1, "0.10000000000000001"),
            (1e17, "1e+17"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (12_345_678_901_234_568.0, "12345678901234568"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (1e-300, "1e-300"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            let mut out = Vec::new();
            push_double(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{value:?}");
        }
    }

    #[test]
    fn cursors_are_read_as_strtoul_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("17", Some(17)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", Some(u64::MAX)),
            ("abc", None),
            ("1 ", None),
        ] {
            assert_eq!(parse_cursor(text.as_bytes()), expected, "{text:?}");
        }
    }
}
