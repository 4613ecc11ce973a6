//! The messages of the fixtures: one of each kind, and one of each alternative.

use std::collections::BTreeSet;

use super::*;
use crate::fixtures::fixture;
use crate::ids::{EntryId, LeaderId, Vote};
use crate::layouts::Layout;

const CLUSTER: ClusterId = *b"cluster of tests";

const fn vote(term: u64, replica: u64, committed: bool) -> Vote {
    Vote {
        leader: LeaderId { term, replica },
        committed,
    }
}

const fn entry(term: u64, replica: u64, index: u64) -> EntryId {
    EntryId {
        leader: LeaderId { term, replica },
        index,
    }
}

fn greetings() -> Vec<(&'static str, Message)> {
    let hello = |lane| Hello {
        version: 1,
        cluster: CLUSTER,
        node: 2,
        to: 300,
        lane,
        level: 4,
        boot: *b"a start of tests",
    };
    let peers = vec![
        (2, "192.0.2.1:7001".parse().unwrap()),
        (300, "[2001:db8::1]:7002".parse().unwrap()),
    ];
    let place = Place {
        cluster: CLUSTER,
        node: 5,
        replica: 600,
        level: 7,
        peers,
    };
    let join = |known| Join {
        version: 1,
        known,
        token: *b"a token of tests",
        peer: "192.0.2.2:7001".parse().unwrap(),
        client: "[2001:db8::2]:6379".parse().unwrap(),
        disks: vec![*b"the first disk..", *b"the second disk."],
        least: 8,
        most: 900,
        wall_ms: 1_700_000_000_123,
    };
    let joined = |answer| Message::Joined(Joined { version: 1, answer });
    let elsewhere = Some("192.0.2.3:7001".parse().unwrap());
    let leads = Leads {
        count: 10,
        groups: vec![(0, 11), (1200, 13)],
    };
    vec![
        ("hello", Message::Hello(hello(Lane::Raft))),
        ("hello-bulk", Message::Hello(hello(Lane::Bulk))),
        ("refused", Message::Refused(Refused::new("a reason"))),
        (
            "ping",
            Message::Ping(Ping {
                wall_ms: 1_700_000_000_456,
            }),
        ),
        (
            "pong",
            Message::Pong(Pong {
                wall_ms: 1_700_000_000_789,
            }),
        ),
        ("join", Message::Join(join(None))),
        ("join-known", Message::Join(join(Some((CLUSTER, 14))))),
        ("joined-taken", joined(JoinAnswer::Taken(place))),
        ("joined-elsewhere", joined(JoinAnswer::Elsewhere(elsewhere))),
        ("joined-unknown", joined(JoinAnswer::Elsewhere(None))),
        ("joined-clock", joined(JoinAnswer::Clock(1_700_000_000_321))),
        (
            "joined-known",
            joined(JoinAnswer::Known {
                node: 700,
                peer: "192.0.2.4:7001".parse().unwrap(),
            }),
        ),
        ("leads", Message::Leads(leads)),
    ]
}

fn requests() -> Vec<(&'static str, Request)> {
    let entries = vec![
        LogEntry {
            id: entry(1, 2, 300),
            payload: Payload(b"an entry".to_vec()),
        },
        LogEntry {
            id: entry(4, 5, 301),
            payload: Payload(Vec::new()),
        },
    ];
    let append = Append {
        vote: vote(6, 7, true),
        previous: Some(entry(8, 9, 1000)),
        committed: Some(entry(11, 12, 1300)),
        entries,
    };
    let heartbeat = Append {
        vote: vote(14, 15, true),
        previous: None,
        committed: None,
        entries: Vec::new(),
    };
    let candidate = |term, leadership_transfer| VoteRequest {
        vote: vote(term, 16, false),
        last: Some(entry(17, 18, 1900)),
        leadership_transfer,
    };
    let transfer = TransferLeader {
        vote: vote(20, 21, true),
        to: 22,
        last: Some(entry(23, 24, 2500)),
    };
    let file = |name: &str, bytes, crc32c| FileOffer {
        name: FileName::new(name).unwrap(),
        bytes,
        crc32c,
    };
    let offer = Offer {
        vote: vote(26, 27, true),
        snapshot: 28,
        last: Some(entry(29, 30, 3100)),
        meta: Payload(b"what else".to_vec()),
        files: vec![file("MANIFEST", 1 << 40, 0x8765_4321), file("1", 32, 33)],
    };
    let piece = Piece {
        snapshot: 34,
        file: 35,
        offset: 1 << 40,
        bytes: Payload(b"a piece".to_vec()),
    };
    let end = SnapshotEnd {
        vote: vote(36, 37, true),
        snapshot: 38,
    };
    let moved = MapRequest::Moved {
        group: 43,
        replicas: vec![44, 45],
        changed: 51,
    };
    let unchanged = MapRequest::IsUnchanged {
        group: 52,
        changed: 530,
    };
    let layout = MapRequest::Layout {
        of: LayoutOf::Disk(65),
        layout: Layout::Private,
    };
    let describe = MapRequest::Describe {
        node: 56,
        site: Site {
            peer: "192.0.2.5:7001".parse().unwrap(),
            client: "[2001:db8::3]:6379".parse().unwrap(),
            host: "a.host".to_owned(),
            zone: "a zone".to_owned(),
        },
    };
    let hangs = MapRequest::Hangs {
        group: 54,
        changed: 550,
    };
    let replace = MapRequest::Replace { node: 49, by: 50 };
    let has_split = MapRequest::HasSplit {
        group: 66,
        changed: 670,
    };
    let duplicate = MapRequest::Duplicate(Target {
        name: "second".to_owned(),
        cluster: CLUSTER,
        addresses: vec!["192.0.2.6:7001".to_owned(), "a.host:7002".to_owned()],
    });
    let end_duplication = MapRequest::EndDuplication("second".to_owned());
    let drain_disk = MapRequest::DrainDisk { node: 68, disk: 690 };
    let serve_disk = MapRequest::ServeDisk { node: 70, disk: 710 };
    let pause_duplication = MapRequest::PauseDuplication("second".to_owned());
    let resume_duplication = MapRequest::ResumeDuplication("second".to_owned());
    let park = Park {
        vote: vote(57, 58, true),
        last: entry(59, 60, 610),
    };
    vec![
        ("append", Request::Append(append)),
        ("append-none", Request::Append(heartbeat)),
        ("vote", Request::Vote(candidate(39, true))),
        ("pre-vote", Request::PreVote(candidate(40, false))),
        ("transfer", Request::Transfer(transfer)),
        ("offer", Request::Offer(offer)),
        ("piece", Request::Piece(piece)),
        ("snapshot-end", Request::SnapshotEnd(end)),
        ("room", Request::Room(Room { bytes: 1 << 41 })),
        ("hand-over", Request::HandOver(HandOver { to: 42 })),
        ("may-lead", Request::MayLead),
        ("change-map-moved", Request::ChangeMap(moved)),
        ("change-map-serve", Request::ChangeMap(MapRequest::Serve(46))),
        ("change-map-drain", Request::ChangeMap(MapRequest::Drain(47))),
        ("change-map-remove", Request::ChangeMap(MapRequest::Remove(48))),
        ("change-map-replace", Request::ChangeMap(replace)),
        ("change-map-is-unchanged", Request::ChangeMap(unchanged)),
        ("change-map-hangs", Request::ChangeMap(hangs)),
        ("change-map-describe", Request::ChangeMap(describe)),
        ("change-map-speaks", Request::ChangeMap(MapRequest::Speaks(62))),
        ("change-map-note", Request::ChangeMap(MapRequest::Note(63))),
        (
            "change-map-finalize",
            Request::ChangeMap(MapRequest::Finalize(64)),
        ),
        ("change-map-layout", Request::ChangeMap(layout)),
        ("change-map-split", Request::ChangeMap(MapRequest::Split(6800))),
        ("change-map-has-split", Request::ChangeMap(has_split)),
        ("change-map-duplicate", Request::ChangeMap(duplicate)),
        ("change-map-end-duplication", Request::ChangeMap(end_duplication)),
        (
            "change-map-receive",
            Request::ChangeMap(MapRequest::Receive(CLUSTER)),
        ),
        ("change-map-drain-disk", Request::ChangeMap(drain_disk)),
        ("change-map-serve-disk", Request::ChangeMap(serve_disk)),
        (
            "change-map-accept-loss",
            Request::ChangeMap(MapRequest::AcceptLoss),
        ),
        (
            "change-map-pause-duplication",
            Request::ChangeMap(pause_duplication),
        ),
        (
            "change-map-resume-duplication",
            Request::ChangeMap(resume_duplication),
        ),
        ("park", Request::Park(park)),
        ("wake", Request::Wake),
        ("last-entry", Request::LastEntry),
    ]
}

fn responses() -> Vec<(&'static str, Response)> {
    let answer = |term, granted| VoteAnswer {
        vote: vote(term, 1, true),
        granted,
        last: Some(entry(2, 3, 400)),
    };
    let wanted = Wanted {
        vote: vote(5, 6, true),
        from: vec![0, 7, 1 << 40],
    };
    let installed = Installed {
        vote: vote(8, 9, false),
    };
    let last = LastEntry {
        last: Some(entry(17, 18, 190)),
        leads: Some(vote(20, 21, true).leader),
    };
    vec![
        ("appended", Response::Appended(Appended::Success)),
        (
            "appended-partial",
            Response::Appended(Appended::Partial(Some(entry(10, 11, 1200)))),
        ),
        ("appended-conflict", Response::Appended(Appended::Conflict)),
        (
            "appended-higher-vote",
            Response::Appended(Appended::HigherVote(vote(13, 14, true))),
        ),
        ("voted", Response::Voted(answer(15, true))),
        ("pre-voted", Response::PreVoted(answer(16, false))),
        ("transferred", Response::Transferred),
        ("wanted", Response::Wanted(wanted)),
        ("stored", Response::Stored(Stored { upto: 1 << 42 })),
        ("installed", Response::Installed(installed)),
        ("has-room", Response::HasRoom),
        ("handing-over", Response::HandingOver),
        ("ready", Response::Ready),
        ("map-changed", Response::MapChanged),
        ("parked", Response::Parked),
        ("awake", Response::Awake),
        ("last-entry-is", Response::LastEntry(last)),
        ("refusal-gone", Response::Refusal(Refusal::Gone)),
        ("refusal-unknown", Response::Refusal(Refusal::Unknown)),
        ("refusal-busy", Response::Refusal(Refusal::Busy)),
        ("refusal-failed", Response::Refusal(Refusal::failed("a text"))),
        ("refusal-no-room", Response::Refusal(Refusal::NoRoom)),
    ]
}

#[test]
fn messages_of_version_1_say_what_was_written() {
    let requests = requests()
        .into_iter()
        .map(|(name, request)| (name, Message::Request(request)));
    let responses = responses()
        .into_iter()
        .map(|(name, response)| (name, Message::Response(response)));
    let to_replicas = requests.chain(responses).map(|(name, message)| {
        let frame = Frame {
            group: 1 << 33,
            from: 1 << 34,
            to: 1 << 35,
            request: 1 << 36,
            message,
        };
        (name, frame)
    });
    let greetings = greetings()
        .into_iter()
        .map(|(name, message)| (name, Frame::of_connection(1 << 37, message)));
    let mut kinds = BTreeSet::new();
    for (name, frame) in greetings.chain(to_replicas) {
        let bytes = fixture(&format!("wire-v1/{name}.bin"), &encode(&frame).unwrap());
        assert_eq!(decode(&bytes).unwrap(), frame, "{name}");
        kinds.insert(frame.message.kind() as u8);
    }
    let all = Kind::ALL.iter().map(|kind| *kind as u8);
    assert_eq!(kinds, all.collect(), "each kind has a fixture");
}
