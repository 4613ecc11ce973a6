//! Frames: what is encoded decodes to the same, and nothing else decodes.

use collie_cluster::testing::wire::*;
use collie_cluster::testing::{EntryId, LeaderId, Vote};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;

fn vote() -> impl Strategy<Value = Vote> {
    (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(term, replica, committed)| Vote {
        leader: LeaderId { term, replica },
        committed,
    })
}

fn id() -> impl Strategy<Value = EntryId> {
    (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(term, replica, index)| EntryId {
        leader: LeaderId { term, replica },
        index,
    })
}

fn payload() -> impl Strategy<Value = Payload> {
    vec(any::<u8>(), 0..300).prop_map(Payload)
}

fn name() -> impl Strategy<Value = FileName> {
    "[a-z0-9._-]{0,20}x".prop_map(|name| FileName::new(name).unwrap())
}

fn hello() -> impl Strategy<Value = Hello> {
    let lane = prop_oneof![Just(Lane::Raft), Just(Lane::Bulk)];
    (
        any::<[u8; 16]>(),
        any::<u64>(),
        any::<u64>(),
        lane,
        any::<u32>(),
        any::<[u8; 16]>(),
    )
        .prop_map(|(cluster, node, to, lane, level, boot)| Hello {
            version: VERSION,
            cluster,
            node,
            to,
            lane,
            level,
            boot,
        })
}

fn request() -> impl Strategy<Value = Request> {
    let entry = (id(), payload()).prop_map(|(id, payload)| LogEntry { id, payload });
    let append = (vote(), option::of(id()), option::of(id()), vec(entry, 0..8)).prop_map(
        |(vote, previous, committed, entries)| Append {
            vote,
            previous,
            committed,
            entries,
        },
    );
    let ask = || {
        (vote(), option::of(id()), any::<bool>()).prop_map(|(vote, last, leadership_transfer)| VoteRequest {
            vote,
            last,
            leadership_transfer,
        })
    };
    let transfer = (vote(), any::<u64>(), option::of(id())).prop_map(|(vote, to, last)| TransferLeader {
        vote,
        to,
        last,
    });
    let file = (name(), any::<u64>(), any::<u32>()).prop_map(|(name, bytes, crc32c)| FileOffer {
        name,
        bytes,
        crc32c,
    });
    let offer = (vote(), any::<u64>(), option::of(id()), payload(), vec(file, 0..5)).prop_map(
        |(vote, snapshot, last, meta, files)| Offer {
            vote,
            snapshot,
            last,
            meta,
            files,
        },
    );
    let piece =
        (any::<u64>(), any::<u32>(), any::<u64>(), payload()).prop_map(|(snapshot, file, offset, bytes)| {
            Piece {
                snapshot,
                file,
                offset,
                bytes,
            }
        });
    prop_oneof![
        append.prop_map(Request::Append),
        ask().prop_map(Request::Vote),
        ask().prop_map(Request::PreVote),
        transfer.prop_map(Request::Transfer),
        offer.prop_map(Request::Offer),
        piece.prop_map(Request::Piece),
        (vote(), any::<u64>())
            .prop_map(|(vote, snapshot)| Request::SnapshotEnd(SnapshotEnd { vote, snapshot })),
        any::<u64>().prop_map(|bytes| Request::Room(Room { bytes })),
        Just(Request::MayLead),
        any::<u64>().prop_map(|to| Request::HandOver(HandOver { to })),
        map_request().prop_map(Request::ChangeMap),
    ]
}

fn map_request() -> impl Strategy<Value = MapRequest> {
    let number = || any::<u64>();
    prop_oneof![
        (number(), vec(number(), 0..8), number()).prop_map(|(group, replicas, changed)| MapRequest::Moved {
            group,
            replicas,
            changed
        }),
        number().prop_map(MapRequest::Drain),
        (number(), number()).prop_map(|(node, by)| MapRequest::Replace { node, by }),
        (number(), number()).prop_map(|(group, changed)| MapRequest::IsUnchanged { group, changed }),
        (number(), number()).prop_map(|(group, changed)| MapRequest::Hangs { group, changed }),
        (number(), address(), address(), "[a-z]{0,64}").prop_map(|(node, peer, client, text)| {
            let site = Site {
                peer,
                client,
                host: text.clone(),
                zone: text,
            };
            MapRequest::Describe { node, site }
        }),
        ("[a-z]{0,9}", any::<[u8; 16]>(), vec("[a-z]{0,9}", 0..17)).prop_map(|(name, cluster, addresses)| {
            MapRequest::Duplicate(Target {
                name,
                cluster,
                addresses,
            })
        }),
    ]
}

fn leads() -> impl Strategy<Value = Leads> {
    let groups = vec((any::<u64>(), any::<u64>()), 0..5);
    (any::<u64>(), groups).prop_map(|(count, groups)| Leads { count, groups })
}

fn response() -> impl Strategy<Value = Response> {
    let appended = prop_oneof![
        Just(Appended::Success),
        option::of(id()).prop_map(Appended::Partial),
        Just(Appended::Conflict),
        vote().prop_map(Appended::HigherVote),
    ];
    let voted = || {
        (vote(), any::<bool>(), option::of(id())).prop_map(|(vote, granted, last)| VoteAnswer {
            vote,
            granted,
            last,
        })
    };
    let refusal = prop_oneof![
        Just(Refusal::Gone),
        Just(Refusal::Unknown),
        Just(Refusal::Busy),
        Just(Refusal::NoRoom),
        ".{0,40}".prop_map(Refusal::failed),
    ];
    prop_oneof![
        appended.prop_map(Response::Appended),
        voted().prop_map(Response::Voted),
        voted().prop_map(Response::PreVoted),
        Just(Response::Transferred),
        Just(Response::HasRoom),
        Just(Response::Ready),
        Just(Response::HandingOver),
        (vote(), vec(any::<u64>(), 0..5)).prop_map(|(vote, from)| Response::Wanted(Wanted { vote, from })),
        any::<u64>().prop_map(|upto| Response::Stored(Stored { upto })),
        vote().prop_map(|vote| Response::Installed(Installed { vote })),
        refusal.prop_map(Response::Refusal),
    ]
}

fn address() -> impl Strategy<Value = std::net::SocketAddr> {
    (any::<std::net::IpAddr>(), any::<u16>()).prop_map(Into::into)
}

fn join() -> impl Strategy<Value = Join> {
    let ids = (option::of((any::<[u8; 16]>(), any::<u64>())), any::<[u8; 16]>());
    let disks = vec(any::<[u8; 16]>(), 0..4);
    let levels = (any::<u32>(), any::<u32>());
    (ids, address(), address(), disks, levels, any::<u64>()).prop_map(
        |((known, token), peer, client, disks, (least, most), wall_ms)| Join {
            version: VERSION,
            known,
            token,
            peer,
            client,
            disks,
            least,
            most,
            wall_ms,
        },
    )
}

fn joined() -> impl Strategy<Value = Joined> {
    let peers = vec((any::<u64>(), address()), 0..4);
    let place = (any::<[u8; 16]>(), any::<u64>(), any::<u64>(), any::<u32>(), peers).prop_map(
        |(cluster, node, replica, level, peers)| Place {
            cluster,
            node,
            replica,
            level,
            peers,
        },
    );
    let answer = prop_oneof![
        place.prop_map(JoinAnswer::Taken),
        option::of(address()).prop_map(JoinAnswer::Elsewhere),
        any::<u64>().prop_map(JoinAnswer::Clock),
        (any::<u64>(), address()).prop_map(|(node, peer)| JoinAnswer::Known { node, peer }),
    ];
    answer.prop_map(|answer| Joined {
        version: VERSION,
        answer,
    })
}

fn frame() -> impl Strategy<Value = Frame> {
    let of_connection = prop_oneof![
        hello().prop_map(Message::Hello),
        ".{0,40}".prop_map(|reason| Message::Refused(Refused::new(reason))),
        any::<u64>().prop_map(|wall_ms| Message::Ping(Ping { wall_ms })),
        any::<u64>().prop_map(|wall_ms| Message::Pong(Pong { wall_ms })),
        leads().prop_map(Message::Leads),
        join().prop_map(Message::Join),
        joined().prop_map(Message::Joined),
    ];
    let of_group = prop_oneof![
        request().prop_map(Message::Request),
        response().prop_map(Message::Response)
    ];
    prop_oneof![
        1 => (any::<u64>(), of_connection).prop_map(|(request, message)| Frame::of_connection(request, message)),
        4 => (any::<[u64; 4]>(), of_group)
            .prop_map(|([group, from, to, request], message)| Frame { group, from, to, request, message }),
    ]
}

/// Puts the checksum right again, so that what is behind it is looked at.
fn seal(bytes: &mut [u8]) {
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..4]), &bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
}

proptest! {
    #[test]
    fn a_frame_decodes_to_what_was_encoded(frame in frame()) {
        let bytes = encode(&frame).unwrap();
        prop_assert_eq!(frame_len(&bytes, FRAME_MAX), Ok(Some(bytes.len())));
        prop_assert_eq!(decode(&bytes).unwrap(), frame);
    }

    #[test]
    fn a_mutated_frame_is_an_error(frame in frame(), at in any::<Index>(), bits in 1u8..) {
        let mut bytes = encode(&frame).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        prop_assert!(decode(&bytes).is_err(), "byte {} changed unseen", at);
    }

    #[test]
    fn a_truncated_or_longer_frame_is_an_error(frame in frame(), at in any::<Index>(), more in 1usize..9) {
        let mut bytes = encode(&frame).unwrap();
        let end = at.index(bytes.len());
        prop_assert!(decode(&bytes[..end]).is_err());
        let mut short = bytes[..end.max(HEAD.min(bytes.len() - 1))].to_vec();
        seal(&mut short);
        if bytes.len() > HEAD {
            prop_assert!(decode(&short).is_err(), "cut at {} with a right checksum", short.len());
        }
        bytes.extend(vec![0; more]);
        seal(&mut bytes);
        let error = decode(&bytes).unwrap_err();
        let trailing = WireError::Trailing { kind: frame.message.kind(), end: bytes.len() - more, trailing: more };
        prop_assert_eq!(error, trailing);
    }

    /// A peer can make the checksum right for any bytes at all.
    #[test]
    fn any_body_under_a_right_checksum_decodes_or_is_an_error(
        frame in frame(),
        changes in vec((any::<Index>(), any::<u8>()), 1..6),
        tail in vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = encode(&frame).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(tail);
        seal(&mut bytes);
        if let Ok(frame) = decode(&bytes) {
            prop_assert_eq!(decode(&encode(&frame).unwrap()).unwrap(), frame);
        }
    }
}

fn request_bytes(request: Request) -> Vec<u8> {
    let message = Message::Request(request);
    encode(&Frame {
        group: 1,
        from: 2,
        to: 3,
        request: 4,
        message,
    })
    .unwrap()
}

fn piece(bytes: usize) -> Request {
    Request::Piece(Piece {
        snapshot: 0,
        file: 0,
        offset: 0,
        bytes: Payload(vec![0; bytes]),
    })
}

#[test]
fn a_length_without_its_bytes_allocates_nothing() {
    // The last varint of each body is replaced by 2^60: an allocation of it would abort.
    let append = Request::Append(Append {
        vote: super::support::vote(),
        previous: None,
        committed: None,
        entries: vec![],
    });
    for bytes in [request_bytes(append), request_bytes(piece(0))] {
        let mut bytes = bytes[..bytes.len() - 1].to_vec();
        bytes.extend([0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
        seal(&mut bytes);
        assert!(matches!(decode(&bytes), Err(WireError::Body { .. })));
    }
}

#[test]
fn a_frame_at_the_limit_is_sent_and_one_above_is_refused() {
    let empty = request_bytes(piece(1 << 22)).len() - (1 << 22);
    let most = FRAME_MAX - empty;
    let bytes = request_bytes(piece(most));
    assert_eq!(bytes.len(), FRAME_MAX);
    assert!(decode(&bytes).is_ok());
    let message = Message::Request(piece(most + 1));
    let error = encode(&Frame {
        group: 0,
        from: 0,
        to: 0,
        request: 0,
        message,
    })
    .unwrap_err();
    let expected = WireError::TooLarge {
        kind: Kind::Piece,
        found: FRAME_MAX + 1,
        unit: "bytes",
        most: FRAME_MAX,
    };
    assert_eq!(error, expected);
    let len = (FRAME_MAX as u32 - 3).to_le_bytes();
    assert!(matches!(
        frame_len(&len, FRAME_MAX),
        Err(WireError::Length { .. })
    ));
    assert!(matches!(
        frame_len(&37u32.to_le_bytes(), FRAME_MAX),
        Err(WireError::Length { .. })
    ));
    assert_eq!(frame_len(&len[..3], FRAME_MAX), Ok(None));
}

#[test]
fn lists_have_limits_on_both_sides() {
    let vote = super::support::vote();
    let id = EntryId {
        leader: vote.leader,
        index: 0,
    };
    let entries = |count| {
        let entries = vec![
            LogEntry {
                id,
                payload: Payload::default()
            };
            count
        ];
        let message = Message::Request(Request::Append(Append {
            vote,
            previous: None,
            committed: None,
            entries,
        }));
        encode(&Frame {
            group: 0,
            from: 0,
            to: 0,
            request: 0,
            message,
        })
    };
    let mut bytes = entries(ENTRIES_MAX).unwrap();
    assert!(decode(&bytes).is_ok());
    assert!(matches!(
        entries(ENTRIES_MAX + 1),
        Err(WireError::TooLarge { unit: "entries", .. })
    ));
    // One more than is allowed, as a peer could send it: the count is the varint before 65,536 entries of 4 bytes.
    let count = bytes.len() - 4 * ENTRIES_MAX - 3;
    assert_eq!(bytes[count..][..3], [0x80, 0x80, 0x04]);
    bytes[count] = 0x81;
    bytes.extend([3, 11, 0, 0]);
    seal(&mut bytes);
    assert!(matches!(decode(&bytes), Err(WireError::Body { .. })));
}

#[test]
fn a_file_name_stays_in_its_directory() {
    for bad in [
        "",
        ".",
        "..",
        "/etc/passwd",
        "a/b",
        "..\\x",
        "a\0b",
        &"x".repeat(NAME_MAX + 1),
    ] {
        assert!(FileName::new(bad).is_err(), "{bad:?}");
    }
    assert!(FileName::new("x".repeat(NAME_MAX)).is_ok());
    let file = FileOffer {
        name: FileName::new("abc").unwrap(),
        bytes: 1,
        crc32c: 2,
    };
    let offer = Offer {
        vote: super::support::vote(),
        snapshot: 0,
        last: None,
        meta: Payload::default(),
        files: vec![file],
    };
    let mut bytes = request_bytes(Request::Offer(offer));
    let at = bytes.windows(3).position(|window| window == b"abc").unwrap();
    bytes[at..][..3].copy_from_slice(b"../");
    seal(&mut bytes);
    let error = decode(&bytes).unwrap_err();
    assert!(
        matches!(
            error,
            WireError::Body {
                kind: Kind::Offer,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn each_error_says_where_it_is() {
    let ping = encode(&Frame::of_connection(1, Message::Ping(Ping { wall_ms: 5 }))).unwrap();
    let with = |change: fn(&mut Vec<u8>)| {
        let mut bytes = ping.clone();
        change(&mut bytes);
        seal(&mut bytes);
        decode(&bytes).unwrap_err()
    };
    assert_eq!(with(|bytes| bytes[8] = 99), WireError::Kind { found: 99 });
    assert_eq!(with(|bytes| bytes[9] = 1), WireError::Flags { found: 1 });
    assert_eq!(
        with(|bytes| bytes[18] = 9),
        WireError::Address {
            kind: Kind::Ping,
            at: 18,
            found: 9
        }
    );
    let mut bytes = ping.clone();
    bytes[4] ^= 1;
    assert!(
        decode(&bytes)
            .unwrap_err()
            .to_string()
            .starts_with("byte 4 of a frame: expected the CRC-32C")
    );
}

#[test]
fn kinds_keep_their_numbers_and_answers_their_requests() {
    for number in 0..=u8::MAX {
        let known = Kind::ALL.iter().find(|&&kind| kind as u8 == number);
        assert_eq!(Kind::of(number).ok().as_ref(), known);
    }
    assert!(Kind::Appended.answers(Kind::Append) && Kind::Refusal.answers(Kind::Append));
    assert!(!Kind::Voted.answers(Kind::Append) && !Kind::Pong.answers(Kind::Ping));
}

#[test]
fn another_version_is_recognized_whatever_else_it_says() {
    let mut bytes = encode(&Frame::of_connection(
        0,
        Message::Hello(super::support::hello(1, 2)),
    ))
    .unwrap();
    bytes[HEAD] = 2;
    bytes.extend([1, 2, 3]);
    seal(&mut bytes);
    assert_eq!(decode(&bytes), Err(WireError::Version { found: 2 }));
}

/// The bytes of version 1. They do not change.
#[test]
fn the_format_is_as_drawn() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ping = encode(&Frame::of_connection(7, Message::Ping(Ping { wall_ms: 300 }))).unwrap();
    assert_eq!(
        &hex(ping)[16..],
        concat!(
            "0300",
            "0000000000000000",
            "0000000000000000",
            "0000000000000000",
            "0700000000000000",
            "ac02"
        )
    );
    let append = hex(request_bytes(super::support::append(9, 2)));
    let head = concat!(
        "1000",
        "0100000000000000",
        "0200000000000000",
        "0300000000000000",
        "0400000000000000"
    );
    // vote · no previous · nothing committed · 1 entry: term 3, replica 11, index 9, 2 bytes
    assert_eq!(&append[16..], format!("{head}030b01000001030b09020707"));
    assert_eq!(&append[..8], "32000000");
}
