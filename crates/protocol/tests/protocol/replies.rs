//! The reply encoder against the decoder of the `redis-protocol` crate.

#![expect(clippy::unwrap_used, reason = "a test ends where its assumptions do")]

use collie_protocol::{ReplyBuffer, Version};
use proptest::prelude::*;
use redis_protocol::resp2::decode::decode as decode2;
use redis_protocol::resp2::types::OwnedFrame as Frame2;
use redis_protocol::resp3::decode::complete::decode as decode3;
use redis_protocol::resp3::types::{OwnedFrame as Frame3, VerbatimStringFormat};

fn encoded(version: Version, fill: impl FnOnce(&mut ReplyBuffer)) -> Vec<u8> {
    let mut reply = ReplyBuffer::new();
    reply.set_version(version);
    fill(&mut reply);
    assert_eq!(reply.len(), reply.as_slice().len());
    reply.as_slice().to_vec()
}

fn read2(bytes: &[u8]) -> Frame2 {
    let (frame, used) = decode2(bytes).unwrap().unwrap();
    assert_eq!(used, bytes.len());
    frame
}

fn read3(bytes: &[u8]) -> Frame3 {
    let (frame, used) = decode3(bytes).unwrap().unwrap();
    assert_eq!(used, bytes.len());
    frame
}

proptest! {
    #[test]
    fn strings_and_integers_decode_to_what_was_encoded(
        data in prop::collection::vec(any::<u8>(), 0..200),
        number in any::<i64>(),
    ) {
        let fill = |reply: &mut ReplyBuffer| {
            reply.array(3);
            reply.bulk(&data);
            reply.integer(number);
            reply.bulk_integer(number);
        };
        let text = number.to_string().into_bytes();
        prop_assert_eq!(
            read2(&encoded(Version::Resp2, fill)),
            Frame2::Array(vec![
                Frame2::BulkString(data.clone()),
                Frame2::Integer(number),
                Frame2::BulkString(text.clone()),
            ])
        );
        prop_assert_eq!(
            read3(&encoded(Version::Resp3, fill)),
            Frame3::Array {
                data: vec![
                    Frame3::BlobString { data: data.clone(), attributes: None },
                    Frame3::Number { data: number, attributes: None },
                    Frame3::BlobString { data: text, attributes: None },
                ],
                attributes: None,
            }
        );
    }

    #[test]
    fn doubles_survive_the_way_in_both_versions(value in any::<f64>().prop_filter("a number", |v| !v.is_nan())) {
        let Frame3::Double { data, .. } = read3(&encoded(Version::Resp3, |r| r.double(value))) else {
            panic!("no double");
        };
        prop_assert_eq!(data.to_bits(), value.to_bits());
        let Frame2::BulkString(text) = read2(&encoded(Version::Resp2, |r| r.double(value))) else {
            panic!("no bulk string");
        };
        let back: f64 = String::from_utf8(text).unwrap().parse().unwrap();
        prop_assert_eq!(back.to_bits(), value.to_bits());
    }

    #[test]
    fn errors_and_simple_strings_never_break_the_framing(text in any::<String>()) {
        let clean = text.replace(['\r', '\n'], " ");
        let error = format!("ERR {text}");
        prop_assert_eq!(
            read2(&encoded(Version::Resp2, |r| r.error(&error))),
            Frame2::Error(format!("ERR {clean}"))
        );
        prop_assert_eq!(
            read2(&encoded(Version::Resp2, |r| r.simple(&text))),
            Frame2::SimpleString(clean.into_bytes())
        );
    }
}

#[test]
fn each_type_has_the_form_of_its_version() {
    type Fill = fn(&mut ReplyBuffer);
    let cases: [(Fill, &[u8], &[u8]); 13] = [
        (|r| r.null(), b"$-1\r\n", b"_\r\n"),
        (|r| r.null_array(), b"*-1\r\n", b"_\r\n"),
        (|r| r.array(2), b"*2\r\n", b"*2\r\n"),
        (|r| r.map(2), b"*4\r\n", b"%2\r\n"),
        (|r| r.set(2), b"*2\r\n", b"~2\r\n"),
        (|r| r.push(2), b"*2\r\n", b">2\r\n"),
        (|r| r.boolean(true), b":1\r\n", b"#t\r\n"),
        (|r| r.boolean(false), b":0\r\n", b"#f\r\n"),
        (|r| r.double(f64::INFINITY), b"$3\r\ninf\r\n", b",inf\r\n"),
        (|r| r.double(1.5), b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (|r| r.big_number("123"), b"$3\r\n123\r\n", b"(123\r\n"),
        (
            |r| r.verbatim(*b"txt", b"ab"),
            b"$2\r\nab\r\n",
            b"=6\r\ntxt:ab\r\n",
        ),
        (|r| r.ok(), b"+OK\r\n", b"+OK\r\n"),
    ];
    for (fill, resp2, resp3) in cases {
        assert_eq!(encoded(Version::Resp2, fill), resp2);
        assert_eq!(encoded(Version::Resp3, fill), resp3);
    }
}

#[test]
fn a_verbatim_string_decodes_with_its_format() {
    let frame = read3(&encoded(Version::Resp3, |r| r.verbatim(*b"txt", b"a\r\nb")));
    assert_eq!(
        frame,
        Frame3::VerbatimString {
            data: b"a\r\nb".to_vec(),
            format: VerbatimStringFormat::Text,
            attributes: None,
        }
    );
}

#[test]
fn a_cleared_buffer_frees_its_memory() {
    let mut reply = ReplyBuffer::new();
    reply.ok();
    let first = reply.len();
    reply.bulk(&[b'x'; 100_000]);
    reply.truncate(first);
    assert_eq!(reply.as_slice(), b"+OK\r\n");
    reply.clear(1024);
    assert!(reply.is_empty());
    assert!(reply.capacity() <= 1024, "kept {} bytes", reply.capacity());
}
