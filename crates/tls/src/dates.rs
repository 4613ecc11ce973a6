//! The validity period of a certificate, and how it is shown.

use std::fmt;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

const DAY: u64 = 86_400;
/// Days of 400 years, after which the calendar repeats itself.
const DAYS_OF_400_YEARS: u64 = 146_097;
/// Days from the first of March of the year 0 to the first day of 1970.
const DAYS_BEFORE_1970: u64 = 719_468;

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second, since 1970.
    pub from: u64,
    /// The last second, since 1970.
    pub until: u64,
}

impl Validity {
    /// That of a certificate in DER (RFC 5280, 4.1); `None` if the bytes are not one. It is shown and
    /// compared with the clock; it does not prove that a certificate is genuine.
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let mut rest = certificate;
        let mut rest = expect(&mut rest, SEQUENCE)?;
        let mut rest = expect(&mut rest, SEQUENCE)?;
        if rest.first() == Some(&VERSION) {
            expect(&mut rest, VERSION)?;
        }
        expect(&mut rest, INTEGER)?;
        let (_algorithm, _issuer) = (expect(&mut rest, SEQUENCE)?, expect(&mut rest, SEQUENCE)?);
        let mut dates = expect(&mut rest, SEQUENCE)?;
        let (from, until) = (time(&mut dates)?, time(&mut dates)?);
        Some(Self { from, until })
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} until {}", Date(self.from), Date(self.until))
    }
}

/// A second since 1970, as a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date(pub u64);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / DAY + DAYS_BEFORE_1970, self.0 % DAY);
        let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
        // A year begins in March here, so that the leap day is its last.
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
        let year = era * 400 + year + u64::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"
        )
    }
}

/// The content of the next element, which is to have this tag.
fn expect<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (found, content) = element(rest)?;
    (found == tag).then_some(content)
}

/// The next element's tag and content (X.690, 8.1).
fn element<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, after) = rest.split_first()?;
    let (&short, after) = after.split_first()?;
    let (len, after) = match short {
        0..=0x7f => (usize::from(short), after),
        // The length of the length: more than four bytes are no certificate.
        0x81..=0x84 => {
            let (len, after) = after.split_at_checked(usize::from(short & 0x7f))?;
            let len = len.iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
            (len, after)
        }
        _ => return None,
    };
    let (content, after) = after.split_at_checked(len)?;
    *rest = after;
    Some((tag, content))
}

/// The next element, a time, in seconds since 1970; one before is taken for 1970.
fn time(rest: &mut &[u8]) -> Option<u64> {
    let (tag, text) = element(rest)?;
    let text = text.strip_suffix(b"Z")?;
    let (year, text) = match tag {
        UTC_TIME => {
            let (year, text) = text.split_at_checked(2)?;
            let year = number(year)?;
            (year + if year < 50 { 2000 } else { 1900 }, text)
        }
        GENERALIZED_TIME => {
            let (year, text) = text.split_at_checked(4)?;
            (number(year)?, text)
        }
        _ => return None,
    };
    let mut parts = [0; 5];
    if text.len() != 2 * parts.len() {
        return None;
    }
    for (part, text) in parts.iter_mut().zip(text.chunks(2)) {
        *part = number(text)?;
    }
    let [month, day, hour, minute, second] = parts;
    let valid =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
    if !valid {
        return None;
    }
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * DAYS_OF_400_YEARS + 365 * of_era + of_era / 4 - of_era / 100 + of_year;
    Some(days.saturating_sub(DAYS_BEFORE_1970) * DAY + hour * 3600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        Some(10 * number + u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tag: u8, text: &str) -> Option<u64> {
        let mut bytes = vec![tag, text.len() as u8];
        bytes.extend_from_slice(text.as_bytes());
        time(&mut bytes.as_slice())
    }

    #[test]
    fn times_are_read_and_shown_as_the_same_date() {
        let cases = [
            (UTC_TIME, "700101000000Z", 0, "1970-01-01 00:00:00 UTC"),
            (UTC_TIME, "000229235959Z", 951_868_799, "2000-02-29 23:59:59 UTC"),
            (
                UTC_TIME,
                "491231235959Z",
                2_524_607_999,
                "2049-12-31 23:59:59 UTC",
            ),
            (
                GENERALIZED_TIME,
                "20500101000000Z",
                2_524_608_000,
                "2050-01-01 00:00:00 UTC",
            ),
            (
                GENERALIZED_TIME,
                "99991231235959Z",
                253_402_300_799,
                "9999-12-31 23:59:59 UTC",
            ),
        ];
        for (tag, text, seconds, shown) in cases {
            assert_eq!(read(tag, text), Some(seconds), "{text}");
            assert_eq!(Date(seconds).to_string(), shown);
        }
    }

    #[test]
    fn every_day_of_four_centuries_is_shown_as_it_is_read() {
        for day in 0..DAYS_OF_400_YEARS {
            let shown = Date(day * DAY + 3661).to_string();
            let digits: String = shown.chars().filter(char::is_ascii_digit).collect();
            assert_eq!(
                read(GENERALIZED_TIME, &format!("{digits}Z")),
                Some(day * DAY + 3661),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_dates() {
        for bytes in [
            &b""[..],
            b"0",
            b"0\x84\xff\xff\xff\xff",
            &[SEQUENCE, 2, SEQUENCE, 0],
        ] {
            assert_eq!(Validity::of(bytes), None);
        }
        for text in [
            "200000000000Z",
            "201301000000Z",
            "2001010000Z",
            "20010100000",
            "2o0101000000Z",
        ] {
            assert_eq!(read(UTC_TIME, text), None, "{text}");
        }
    }
}
