//! The bodies of the fixtures, one of each kind, and what an entry with effects has in it.

use super::*;
use crate::fixtures::fixture;
use crate::ids::LeaderId;
use crate::proposals::{Header, Recorded, RunId, Ticket};
use crate::replica_store::effects::{EffectsBuf, Split};

const ID: EntryId = EntryId {
    leader: LeaderId { term: 2, replica: 3 },
    index: 4,
};

const TICKET: Ticket = Ticket {
    run: RunId {
        leader: LeaderId { term: 5, replica: 6 },
        run: 7,
    },
    n: 8,
};

fn read(name: &str, body: &Body) {
    let bytes = fixture(&format!("body-v1/{name}.bin"), &encode(body).unwrap());
    assert_eq!(&decode(ID, &bytes).unwrap(), body, "{name}");
}

#[test]
fn bodies_of_version_1_say_what_was_written() {
    read("blank", &Body::Blank);
    let member = |(id, node, disk, address): (_, _, _, &str)| {
        let address = address.to_owned();
        (id, Member { node, disk, address })
    };
    let members: BTreeMap<ReplicaId, Member> = [
        (1, 10, 0, "192.0.2.1:7001"),
        (300, 20, 1, "[2001:db8::1]:7001"),
        (70_000, 30, 2, "host:7001"),
    ]
    .map(member)
    .into();
    let voters = vec![BTreeSet::from([1, 300]), BTreeSet::from([300, 70_000])];
    let members = Membership::new(voters, members).unwrap();
    read("members", &EntryPayload::Membership(members));
}

#[test]
fn an_entry_with_effects_of_version_1_says_what_was_written() {
    let header = Header {
        ticket: TICKET,
        count: 9,
        base: 10,
        stamp_ms: 1_700_000_000_123,
    };
    let put = Effect::Put {
        slot: 16_383,
        key: b"a key",
        value: b"its value",
    };
    let empty = Effect::Put {
        slot: 0,
        key: b"",
        value: b"",
    };
    let delete = Effect::Delete {
        slot: 11,
        key: b"another",
    };
    let count = Effect::Count { slot: 12, delta: -13 };
    let effects = [put, empty, delete, count];
    let mut buf = EffectsBuf::default();
    effects.into_iter().for_each(|effect| buf.push(effect).unwrap());
    let now = [&header.encode()[..], buf.bytes()].concat();
    let now = encode(&EntryPayload::Normal(now.into())).unwrap();
    let bytes = fixture("body-v1/effects.bin", &now);
    let EntryPayload::Normal(body) = decode(ID, &bytes).unwrap() else {
        panic!("no effects");
    };
    let (read, rest) = Header::decode(&body.bytes).unwrap();
    assert_eq!(read, header);
    assert_eq!(effects::decode(rest).unwrap(), effects);
    // As a file of its own, since both have versions of their own.
    let bytes = fixture("effects-v1.bin", buf.bytes());
    assert_eq!(effects::decode(&bytes).unwrap(), effects);
}

#[test]
fn a_split_of_version_2_says_what_was_written() {
    let pairs = Split::pairs([(20, 30), (21, 1 << 40)]);
    let split = Effect::Split(Split {
        first: 12_000,
        group: 17,
        replicas: &pairs,
        members: b"the members",
    });
    let mut buf = EffectsBuf::default();
    buf.push(split).unwrap();
    let bytes = fixture("effects-v2.bin", buf.bytes());
    assert_eq!(effects::decode(&bytes).unwrap(), [split]);
}

#[test]
fn parts_of_version_4_say_what_was_written() {
    let part = Effect::Part {
        number: 300,
        bytes: b"a part",
    };
    let parts = Effect::Parts {
        count: 301,
        bytes: 1 << 28,
    };
    for (name, effect) in [("effects-v4-part.bin", part), ("effects-v4.bin", parts)] {
        let mut buf = EffectsBuf::default();
        buf.push(effect).unwrap();
        let bytes = fixture(name, buf.bytes());
        assert_eq!(effects::decode(&bytes).unwrap(), [effect]);
    }
}

#[test]
fn a_begin_of_stamps_of_version_3_says_what_was_written() {
    let stamps = Effect::Stamps(0x0102_0304_0506_0708);
    let mut buf = EffectsBuf::default();
    buf.push(stamps).unwrap();
    let bytes = fixture("effects-v3.bin", buf.bytes());
    assert_eq!(effects::decode(&bytes).unwrap(), [stamps]);
}

#[test]
fn a_recorded_position_says_what_was_written() {
    let recorded = Recorded {
        ticket: TICKET,
        index: 14,
        stamp_ms: 1_700_000_000_456,
    };
    let bytes = fixture("body-v1/recorded.bin", &recorded.encode());
    assert_eq!(Recorded::decode(&bytes).unwrap(), recorded);
}
