//! Mutated requests: for any bytes, split anywhere, the parser returns the same requests or the
//! same error, and only what the bytes contain.

use collie_protocol::{Limits, ProtocolError, RequestParser, number};
use collie_sim::Rng;
use collie_sim::fuzz::{corpus, mutations};

/// What a connection would parse from the bytes: each request's arguments, and the error that ends
/// them.
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    requests: Vec<Vec<Vec<u8>>>,
    error: Option<String>,
    consumed: usize,
}

/// Feeds the bytes in pieces that end at the sorted `cuts`.
fn parse(input: &[u8], cuts: &[usize], limits: Limits, authenticated: bool) -> Parsed {
    let mut parser = RequestParser::new(limits);
    let (mut requests, mut from) = (Vec::new(), 0);
    for &to in cuts.iter().chain([&input.len()]) {
        loop {
            match parser.parse(&input[from..to], authenticated) {
                Ok(Some(request)) => {
                    assert!(request.consumed() > 0 && request.consumed() <= to - from);
                    assert!(request.len() <= limits.args_max.max(limits.line_len_max));
                    let kept = request.keep();
                    assert!(kept.request().iter().eq(request.iter()));
                    // An empty request has several encodings: *0, *-1.
                    if input[from] == b'*' && !request.is_empty() {
                        assert_eq!(encoded_len(request.iter()), request.consumed());
                    }
                    requests.push(request.iter().map(<[u8]>::to_vec).collect());
                    from += request.consumed();
                }
                Ok(None) => {
                    // A hint is at most one argument and its end.
                    assert!(parser.missing(to - from) <= limits.bulk_len_max + 2);
                    break;
                }
                Err(error) => {
                    let error = Some(error.to_string());
                    return Parsed {
                        requests,
                        error,
                        consumed: from,
                    };
                }
            }
        }
    }
    Parsed {
        requests,
        error: None,
        consumed: from,
    }
}

/// Bytes of an array of bulk strings.
fn encoded_len<'a>(args: impl ExactSizeIterator<Item = &'a [u8]>) -> usize {
    let line = |n: usize| n.to_string().len() + 3;
    line(args.len()) + args.map(|arg| line(arg.len()) + arg.len() + 2).sum::<usize>()
}

fn some_limits(rng: &mut Rng) -> Limits {
    if rng.coin() {
        return Limits::default();
    }
    Limits {
        args_max: 1 + rng.index(40),
        bulk_len_max: rng.index(2_000),
        line_len_max: 8 + rng.index(64),
        request_len_max: 64 + rng.index(4_000),
        unauthenticated_args_max: 1 + rng.index(10),
        unauthenticated_bulk_len_max: rng.index(200),
    }
}

/// If a request is both too long and malformed, the bytes that have arrived decide which error is
/// returned.
fn check_same(pieces: &Parsed, whole: &Parsed) {
    let too_long = Some(ProtocolError::RequestTooLong.to_string());
    let both_refuse = pieces.error.is_some() && whole.error.is_some();
    if both_refuse && [&pieces.error, &whole.error].contains(&&too_long) {
        assert_eq!(
            (&pieces.requests, pieces.consumed),
            (&whole.requests, whole.consumed)
        );
    } else {
        assert_eq!(pieces, whole);
    }
}

fn check(rng: &mut Rng, input: &[u8]) {
    let (limits, authenticated) = (some_limits(rng), rng.coin());
    let whole = parse(input, &[], limits, authenticated);
    assert!(whole.consumed <= input.len());
    let every_byte: Vec<usize> = (0..input.len().min(1_500)).collect();
    check_same(&parse(input, &every_byte, limits, authenticated), &whole);
    let mut cuts: Vec<usize> = (0..rng.below(6)).map(|_| rng.index(input.len() + 1)).collect();
    cuts.sort_unstable();
    check_same(&parse(input, &cuts, limits, authenticated), &whole);
    for arg in whole.requests.iter().flatten() {
        check_numbers(arg);
    }
}

/// A number that is parsed is the one in the text.
fn check_numbers(text: &[u8]) {
    if let Some(value) = number::parse_i64(text) {
        assert_eq!(value.to_string().as_bytes(), text);
    }
}

#[test]
fn mutated_requests_are_what_was_sent_or_an_error() {
    mutations("requests", &corpus("requests"), 3_000, check);
}
