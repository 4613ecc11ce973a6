//! The request parser against requests that are known, split anywhere, and against hostile bytes.
//!
//! Random cases come from proptest, which prints the smallest failing input and stores its seed
//! beside this file; `PROPTEST_CASES` sets how many there are.

#![expect(clippy::unwrap_used, reason = "a test ends where its assumptions do")]

use collie_protocol::{Limits, ProtocolError, RequestParser};
use proptest::prelude::*;
use redis_protocol::resp2::encode::encode;
use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame};

type Args = Vec<Vec<u8>>;

/// Feeds `input` in pieces that end at the sorted `cuts`, as a connection would: consumed bytes are
/// dropped, the rest is kept before the next piece.
fn parse_in_pieces(
    input: &[u8],
    cuts: &[usize],
    limits: Limits,
    authenticated: bool,
) -> (Vec<Args>, Option<ProtocolError>) {
    let mut parser = RequestParser::new(limits);
    let (mut buffer, mut requests, mut at) = (Vec::new(), Vec::new(), 0);
    for &cut in cuts.iter().chain([&input.len()]) {
        let cut = cut.clamp(at, input.len());
        buffer.extend_from_slice(&input[at..cut]);
        at = cut;
        loop {
            match parser.parse(&buffer, authenticated) {
                Ok(Some(request)) => {
                    let args: Args = request.iter().map(<[u8]>::to_vec).collect();
                    assert_eq!(args.len(), request.len());
                    let consumed = request.consumed();
                    assert!(consumed > 0, "every request consumes something");
                    buffer.drain(..consumed);
                    if !args.is_empty() {
                        requests.push(args);
                    }
                }
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

fn parse_whole(input: &[u8]) -> (Vec<Args>, Option<ProtocolError>) {
    parse_in_pieces(input, &[], Limits::default(), true)
}

fn one_error(input: &[u8], limits: Limits, authenticated: bool) -> String {
    let (requests, error) = parse_in_pieces(input, &[], limits, authenticated);
    assert_eq!(
        requests,
        Vec::<Args>::new(),
        "{:?}",
        String::from_utf8_lossy(input)
    );
    let error = error.unwrap_or_else(|| panic!("accepted {:?}", String::from_utf8_lossy(input)));
    assert_eq!(error.text(), error.to_string().into_bytes());
    error.to_string()
}

fn encoded(args: &Args) -> Vec<u8> {
    // The oracle's encoder writes the request.
    let frame = OwnedFrame::Array(args.iter().cloned().map(OwnedFrame::BulkString).collect());
    let mut buffer = vec![0; frame.encode_len(false)];
    encode(&mut buffer, &frame, false).unwrap();
    buffer
}

fn args() -> impl Strategy<Value = Args> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8)
}

/// Bytes so similar to the protocol that they get deep into the parser.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"-1".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"'".to_vec()),
        Just(b"*3\r\n$3\r\nSET\r\n".to_vec()),
        Just(b"99999999999999999999".to_vec()),
        (0..70_000_u32).prop_map(|n| n.to_string().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn requests_cut_anywhere_parse_to_what_was_sent(
        sent in prop::collection::vec(args(), 1..6),
        mut cuts in prop::collection::vec(0..2_000_usize, 0..12),
    ) {
        let input: Vec<u8> = sent.iter().flat_map(encoded).collect();
        cuts.sort_unstable();
        let (requests, error) = parse_in_pieces(&input, &cuts, Limits::default(), true);
        prop_assert_eq!(error, None);
        prop_assert_eq!(requests, sent);
    }

    #[test]
    fn hostile_bytes_parse_alike_however_they_are_cut(
        input in hostile(),
        mut cuts in prop::collection::vec(0..300_usize, 0..12),
        authenticated in any::<bool>(),
    ) {
        cuts.sort_unstable();
        let limits = Limits { args_max: 50, bulk_len_max: 60_000, line_len_max: 40, ..Limits::default() };
        let whole = parse_in_pieces(&input, &[], limits, authenticated);
        let pieces = parse_in_pieces(&input, &cuts, limits, authenticated);
        prop_assert_eq!(&whole, &pieces);
        let each_byte: Vec<usize> = (0..input.len()).collect();
        prop_assert_eq!(&whole, &parse_in_pieces(&input, &each_byte, limits, authenticated));
    }

    #[test]
    fn quoted_inline_arguments_come_back_whole(sent in args()) {
        let mut line = Vec::new();
        for arg in &sent {
            line.push(b'"');
            for byte in arg {
                line.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
            }
            line.extend_from_slice(b"\" ");
        }
        line.extend_from_slice(b"\r\n");
        let (requests, error) = parse_whole(&line);
        prop_assert_eq!(error, None);
        prop_assert_eq!(requests, vec![sent]);
    }
}

#[test]
fn empty_requests_are_consumed_and_hold_no_arguments() {
    let (requests, error) = parse_whole(b"\r\n\n*0\r\n*-5\r\nPING\r\n");
    assert_eq!(error, None);
    assert_eq!(requests, [[b"PING".to_vec()]]);
    let mut parser = RequestParser::new(Limits::default());
    let request = parser.parse(b"\r\n", true).unwrap().unwrap();
    assert!(request.is_empty());
    assert_eq!((request.consumed(), request.get(0)), (2, None));
}

#[test]
fn each_broken_request_gets_the_text_of_redis() {
    let limits = Limits::default();
    for (input, expected) in [
        (&b"*x\r\n"[..], "Protocol error: invalid multibulk length"),
        (
            b"*9223372036854775808\r\n",
            "Protocol error: invalid multibulk length",
        ),
        (b"*01\r\n", "Protocol error: invalid multibulk length"),
        (b"*\r\n", "Protocol error: invalid multibulk length"),
        (b"*1\r\nGET\r\n", "Protocol error: expected '$', got 'G'"),
        (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$x\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "Protocol error: invalid bulk length"),
        (b"get \"a\r\n", "Protocol error: unbalanced quotes in request"),
    ] {
        assert_eq!(
            one_error(input, limits, true),
            expected,
            "{:?}",
            String::from_utf8_lossy(input)
        );
    }
}

#[test]
fn limits_hold_at_the_limit_and_break_one_beyond() {
    let limits = Limits {
        args_max: 3,
        bulk_len_max: 30,
        line_len_max: 10,
        request_len_max: 60,
        unauthenticated_args_max: 2,
        unauthenticated_bulk_len_max: 4,
    };
    let accepted = |input: &[u8], authenticated: bool| {
        let (requests, error) = parse_in_pieces(input, &[], limits, authenticated);
        assert_eq!(error, None, "{:?}", String::from_utf8_lossy(input));
        assert_eq!(requests.len(), 1);
    };
    let refused = |input: &[u8], authenticated: bool, expected: &str| {
        assert_eq!(one_error(input, limits, authenticated), expected);
    };
    accepted(b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", true);
    refused(b"*4\r\n", true, "Protocol error: invalid multibulk length");
    accepted(b"*2\r\n$1\r\na\r\n$4\r\nbbbb\r\n", false);
    refused(
        b"*3\r\n",
        false,
        "Protocol error: unauthenticated multibulk length",
    );
    refused(
        b"*1\r\n$5\r\n",
        false,
        "Protocol error: unauthenticated bulk length",
    );
    accepted(
        &[b"*1\r\n$30\r\n".as_slice(), &[b'x'; 30], b"\r\n"].concat(),
        true,
    );
    refused(b"*1\r\n$31\r\n", true, "Protocol error: invalid bulk length");
    accepted(b"0123456789\n", true);
    refused(b"01234567890", true, "Protocol error: too big inline request");
    refused(b"01234567890\n", true, "Protocol error: too big inline request");
    refused(b"*0000000001", true, "Protocol error: too big mbulk count string");
    refused(
        b"*1\r\n$0000000001",
        true,
        "Protocol error: too big bulk count string",
    );
    refused(
        b"*2\r\n$30\r\n012345678901234567890123456789\r\n$13\r\n",
        true,
        "Protocol error: too big request",
    );
}

#[test]
fn a_header_that_announces_much_takes_no_memory() {
    // Shown by the parser's hint for the next read, and by the announced sizes being accepted at
    // once: if they had been allocated, 1,048,576 arguments of 512 MiB would not have been
    // accepted.
    let mut parser = RequestParser::new(Limits::default());
    let input = b"*1048576\r\n$536870912\r\nabc";
    assert!(parser.parse(input, true).unwrap().is_none());
    assert_eq!(parser.missing(input.len()), 536_870_912 + 2 - 3);
    assert!(parser.is_midway());
}
