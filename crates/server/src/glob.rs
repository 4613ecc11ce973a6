//! Patterns as `KEYS`, `SCAN MATCH`, `CONFIG GET` and `COMMAND LIST` take them.

/// Whether `pattern` matches all of `text`, as Redis' `stringmatchlen` decides it: `*`, `?`,
/// `[a-c]`, `[^a]`, and a backslash before a character that stands for itself. Ranges compare
/// signed bytes, an open bracket may stay open, and an empty text is matched by the empty pattern
/// alone.
///
/// Only the last star is ever retried — a match that fails behind it fails wherever the stars
/// before it ended — so the time is at most pattern × text and nothing recurses.
pub(crate) fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let mut steps = u64::MAX;
    matches_within(pattern, text, ignore_case, &mut steps).unwrap_or(false)
}

/// As [`matches()`], in at most `steps` comparisons of two bytes, from which those made are
/// subtracted; `None` if they do not suffice.
pub(crate) fn matches_within(
    pattern: &[u8],
    text: &[u8],
    ignore_case: bool,
    steps: &mut u64,
) -> Option<bool> {
    if text.is_empty() {
        return Some(pattern.is_empty());
    }
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if t == text.len() {
            let rest = pattern.get(p..).unwrap_or_default();
            return Some(rest.iter().all(|&byte| byte == b'*'));
        }
        *steps = steps.checked_sub(1)?;
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        let next = match pattern.get(p) {
            Some(_) => one(pattern, p, text[t], ignore_case, steps),
            None => None,
        };
        if let Some(after) = next {
            p = after;
            t += 1;
            continue;
        }
        // The last star takes one more character.
        match retry {
            Some((star, from)) => {
                retry = Some((star, from + 1));
                p = star;
                t = from + 1;
            }
            None => return Some(false),
        }
    }
}

/// Matches the pattern's element at `p` against one character; returns where the next element
/// starts.
fn one(pattern: &[u8], p: usize, c: u8, ignore_case: bool, steps: &mut u64) -> Option<usize> {
    let same = |a: u8, b: u8| a == b || (ignore_case && a.eq_ignore_ascii_case(&b));
    match pattern[p] {
        b'?' => Some(p + 1),
        b'[' => class(pattern, p + 1, c, ignore_case, steps),
        b'\\' if p + 1 < pattern.len() => same(pattern[p + 1], c).then_some(p + 2),
        literal => same(literal, c).then_some(p + 1),
    }
}

fn class(pattern: &[u8], mut p: usize, c: u8, ignore_case: bool, steps: &mut u64) -> Option<usize> {
    let start = p;
    let negated = pattern.get(p) == Some(&b'^');
    if negated {
        p += 1;
    }
    let mut found = false;
    loop {
        match pattern.get(p..).unwrap_or_default() {
            [b'\\', escaped, ..] => {
                found |= *escaped == c;
                p += 2;
            }
            [b']', ..] => {
                p += 1;
                break;
            }
            [] => break,
            [first, b'-', last, ..] => {
                let fold = |byte: u8| {
                    if ignore_case {
                        byte.to_ascii_lowercase()
                    } else {
                        byte
                    }
                };
                let (a, b) = (fold(*first).cast_signed(), fold(*last).cast_signed());
                let c = fold(c).cast_signed();
                found |= (a.min(b)..=a.max(b)).contains(&c);
                p += 3;
            }
            [literal, ..] => {
                found |= *literal == c || (ignore_case && literal.eq_ignore_ascii_case(&c));
                p += 1;
            }
        }
    }
    *steps = steps.saturating_sub((p - start) as u64);
    (found != negated).then_some(p)
}

/// The bytes that every match of `pattern` starts with, at which a search can begin.
pub(crate) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern
        .iter()
        .position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    end.and_then(|end| pattern.get(..end)).unwrap_or(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "anything", true),
            ("*", "", false), // The commands treat a lone star apart, as Redis does.
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("a**c", "ac", true),
            ("*a*b*", "xxaxxbxx", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("[a", "a", true),
            ("[", "a", false),
            ("[^", "a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
            ("[\\]]", "]", true),
            ("a*b*c*d*e", "aXbXcXdXe", true),
            ("abc", "abcd", false),
            ("abcd", "abc", false),
            ("abc***", "abc", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes(), false),
                expected,
                "{pattern:?} {text:?}"
            );
        }
        assert!(matches(b"SAVE", b"save", true));
        assert!(matches(b"[A-C]", b"b", true));
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_exponential_time() {
        let pattern = "a*".repeat(20_000);
        let text = "a".repeat(20_000) + "b";
        assert!(!matches(
            (pattern.clone() + "c").as_bytes(),
            text.as_bytes(),
            false
        ));
        assert!(matches(pattern.as_bytes(), text.as_bytes(), false));
    }

    #[test]
    fn a_match_ends_undecided_when_its_steps_are_used_up() {
        let (pattern, text) = (b"*aaab", b"aaaaaaaaaaaa");
        let mut steps = 1_000;
        assert_eq!(matches_within(pattern, text, false, &mut steps), Some(false));
        let mut fewer = 1_000 - steps - 1;
        assert_eq!(matches_within(pattern, text, false, &mut fewer), None);
        // A class costs as many steps as it has bytes.
        let mut steps = 100;
        assert_eq!(matches_within(b"[bcdefgh]", b"a", false, &mut steps), Some(false));
        assert!(steps < 95, "{steps}");
    }

    #[test]
    fn the_literal_prefix_ends_at_the_first_special_character() {
        assert_eq!(literal_prefix(b"user:*"), b"user:");
        assert_eq!(literal_prefix(b"a\\*"), b"a");
        assert_eq!(literal_prefix(b"plain"), b"plain");
        assert_eq!(literal_prefix(b"*"), b"");
    }
}
