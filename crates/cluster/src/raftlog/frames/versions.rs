//! The frames of the fixtures, one of each kind.

use super::*;
use crate::fixtures::fixture;

const fn leader(term: u64, replica: ReplicaId) -> LeaderId {
    LeaderId { term, replica }
}

const fn entry(term: u64, replica: ReplicaId, index: u64) -> EntryId {
    EntryId {
        leader: leader(term, replica),
        index,
    }
}

const VOTE: Vote = Vote {
    leader: leader(258, 772),
    committed: true,
};

fn check(name: &str, kind: u8, frame: &StreamFrame<'_>) {
    let mut now = Vec::new();
    frame.encode(0x0102_0304_0506_0708, &mut now);
    let bytes = fixture(&format!("frames-v1/{name}.bin"), &now);
    let decoded = StreamFrame::decode(kind, &bytes);
    assert_eq!(decoded, Ok((0x0102_0304_0506_0708, frame.clone())), "{name}");
}

#[test]
fn frames_of_version_1_say_what_was_written() {
    let mut payloads = PayloadsBuf::default();
    payloads.push(b"one");
    payloads.push(b"");
    payloads.push(&[0xee; 300]);
    let entries = Entries {
        committed: Some(40),
        first: 41,
        leader: leader(7, 8),
        payloads: payloads.payloads(),
    };
    check("entries", 1, &StreamFrame::Entries(entries));
    let none = Entries {
        committed: None,
        first: 1,
        leader: leader(9, 10),
        payloads: Payloads::NONE,
    };
    check("entries-none", 1, &StreamFrame::Entries(none));
    check("vote", 2, &StreamFrame::Vote(VOTE));
    check("truncate", 3, &StreamFrame::Truncate(Some(entry(3, 4, 5))));
    check("truncate-all", 3, &StreamFrame::Truncate(None));
    check("purge", 4, &StreamFrame::Purge(entry(6, 7, 8)));
    let state = State {
        group: 11,
        replica: 12,
        generation: 13,
        from_log: *b"the log it is of",
        last: Some(entry(14, 15, 16)),
        purged: Some(entry(17, 18, 19)),
        committed: Some(entry(20, 21, 22)),
        vote: Some(VOTE),
    };
    check("state", 5, &StreamFrame::State(state));
    let new = State {
        from_log: [0; 16],
        last: None,
        purged: None,
        committed: None,
        vote: None,
        ..state
    };
    check("state-new", 5, &StreamFrame::State(new));
    let (group, replica) = (23, 24);
    check(
        "tombstone",
        6,
        &StreamFrame::Tombstone(Tombstone { group, replica }),
    );
    let listed = Listed {
        stream: 25,
        group: 26,
        replica: 27,
        generation: 28,
        last_frame: 29,
        oldest: Some(30),
    };
    let removed = Listed {
        stream: NODE_STREAM,
        group: 31,
        replica: 32,
        generation: 33,
        last_frame: 34,
        oldest: None,
    };
    let directory = Directory {
        as_of: 35,
        lines: vec![listed, removed],
    };
    check("directory", 7, &StreamFrame::Directory(directory));
}
