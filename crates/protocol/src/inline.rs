//! Inline commands: one line, split at blanks, with quotes.

use std::ops::Range;

/// Quotes do not match, or something follows a closing quote.
#[derive(Debug)]
pub(crate) struct Unbalanced;

/// Splits `line` into arguments: appends their bytes to `text`, and calls `argument` with the place
/// of each in it.
///
/// The rules are those of Redis' `sdssplitargs`: double quotes have the escapes `\n \r \t \b \a` and
/// `\xHH`, and a backslash before anything else stands for that character; single quotes have only
/// `\'`; a quote may open in the middle of a word; a closing quote ends the argument and must be
/// followed by a blank.
pub(crate) fn split(
    line: &[u8],
    text: &mut Vec<u8>,
    mut argument: impl FnMut(Range<usize>),
) -> Result<(), Unbalanced> {
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest {
            if !is_space(*first) {
                break;
            }
            rest = tail;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len();
        rest = word(rest, text)?;
        argument(start..text.len());
    }
}

/// Takes one argument from the start of `rest` and returns what follows it.
fn word<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], Unbalanced> {
    loop {
        match rest {
            [] => return Ok(rest),
            [b' ' | b'\n' | b'\r' | b'\t' | 0, tail @ ..] => return Ok(tail),
            [b'"', tail @ ..] => return after_quote(double_quoted(tail, text)?),
            [b'\'', tail @ ..] => return after_quote(single_quoted(tail, text)?),
            [byte, tail @ ..] => {
                text.push(*byte);
                rest = tail;
            }
        }
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], Unbalanced> {
    loop {
        match rest {
            [] => return Err(Unbalanced),
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                text.push(hex(*high) << 4 | hex(*low));
                rest = tail;
            }
            [b'\\', escaped, tail @ ..] => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                rest = tail;
            }
            [b'"', tail @ ..] => return Ok(tail),
            [byte, tail @ ..] => {
                text.push(*byte);
                rest = tail;
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], Unbalanced> {
    loop {
        match rest {
            [] => return Err(Unbalanced),
            [b'\\', b'\'', tail @ ..] => {
                text.push(b'\'');
                rest = tail;
            }
            [b'\'', tail @ ..] => return Ok(tail),
            [byte, tail @ ..] => {
                text.push(*byte);
                rest = tail;
            }
        }
    }
}

fn after_quote(rest: &[u8]) -> Result<&[u8], Unbalanced> {
    match rest.first() {
        Some(byte) if !is_space(*byte) => Err(Unbalanced),
        _ => Ok(rest),
    }
}

/// C's `isspace`, and the zero byte, which ends a line for Redis.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | 0)
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A').wrapping_add(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_to_strings(line: &str) -> Option<Vec<String>> {
        let (mut text, mut places) = (Vec::new(), Vec::new());
        split(line.as_bytes(), &mut text, |place| places.push(place)).ok()?;
        let arguments = places.into_iter().map(|place| text[place].to_vec());
        arguments
            .map(|argument| String::from_utf8(argument).ok())
            .collect()
    }

    #[test]
    fn lines_split_by_the_quoting_rules_of_redis() {
        for (line, expected) in [
            ("", Some(vec![])),
            ("   ", Some(vec![])),
            ("PING", Some(vec!["PING"])),
            ("  set  a\tb ", Some(vec!["set", "a", "b"])),
            (r#"set a "x y""#, Some(vec!["set", "a", "x y"])),
            (r#"set a "\x41\n\q\"""#, Some(vec!["set", "a", "A\nq\""])),
            (r#"set a "\xZZ""#, Some(vec!["set", "a", "xZZ"])),
            (r"set a 'it\'s \n'", Some(vec!["set", "a", r"it's \n"])),
            (r#"a"b" c"#, Some(vec!["ab", "c"])),
            (r#"a """#, Some(vec!["a", ""])),
            (r#"a "b"c"#, None),
            (r#"a "b"#, None),
            ("a 'b", None),
            (r#"a "b\"#, None),
        ] {
            let expected: Option<Vec<String>> = expected.map(|v| v.into_iter().map(String::from).collect());
            assert_eq!(split_to_strings(line), expected, "{line:?}");
        }
    }
}
