//! What an entry holds, as its frame has it: a format of our own, drawn in `docs/design/formats/cluster.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use openraft::{EntryPayload, Membership};
use serde::{Deserialize, Serialize};

use crate::ids::{EntryId, ReplicaId};
use crate::proposals::HEADER;
use crate::raft::types::{EncodedEffects, Member};
use crate::replica_store::effects::{self, Effect, VERSION_OF_SPLIT};

const BLANK: u8 = 0;
const EFFECTS: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// What an entry of these groups holds.
pub(super) type Body = EntryPayload<EncodedEffects, ReplicaId, Member>;

#[derive(Serialize, Deserialize)]
struct MembersRecord {
    /// The voters; two sets in the middle of a change.
    voters: Vec<BTreeSet<ReplicaId>>,
    /// All members.
    members: BTreeMap<ReplicaId, MemberRecord>,
}

#[derive(Serialize, Deserialize)]
struct MemberRecord {
    node: u64,
    disk: u32,
    address: String,
}

pub(super) fn encode(body: &Body) -> io::Result<Vec<u8>> {
    match body {
        EntryPayload::Blank => Ok(vec![BLANK]),
        EntryPayload::Normal(EncodedEffects { bytes: effects, .. }) => {
            let mut bytes = Vec::with_capacity(1 + effects.len());
            bytes.push(EFFECTS);
            bytes.extend_from_slice(effects);
            Ok(bytes)
        }
        EntryPayload::Membership(membership) => {
            let place = |member: &Member| MemberRecord {
                node: member.node,
                disk: member.disk,
                address: member.address.clone(),
            };
            let members = membership.nodes().map(|(id, member)| (*id, place(member)));
            let members = MembersRecord {
                voters: membership.get_joint_config().clone(),
                members: members.collect(),
            };
            postcard::to_extend(&members, vec![MEMBERSHIP]).map_err(io::Error::other)
        }
    }
}

/// Whether an entry with effects splits its group.
pub(super) fn is_split(effects: &[u8]) -> bool {
    effects.get(HEADER) == Some(&VERSION_OF_SPLIT)
}

/// The effects of an entry, behind their header; none: it has no effects.
pub(super) fn effects_of(bytes: &[u8]) -> Option<&[u8]> {
    match bytes.split_first() {
        Some((&EFFECTS, effects)) => Some(effects),
        _ => None,
    }
}

/// Whether an entry brings no values into tables.
pub(super) fn removes_only(bytes: &[u8]) -> bool {
    match bytes.split_first() {
        Some((&EFFECTS, effects)) => {
            let effects = effects.get(HEADER..).map(effects::decode);
            matches!(effects, Some(Ok(effects)) if !effects.iter().any(Effect::adds))
        }
        _ => true,
    }
}

pub(super) fn decode(id: EntryId, bytes: &[u8]) -> io::Result<Body> {
    let wrong = |expected: &str, found: &dyn std::fmt::Display| {
        let text = format!("{id}: expected {expected}, found {found}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    match bytes.split_first() {
        Some((&BLANK, [])) => Ok(EntryPayload::Blank),
        Some((&EFFECTS, effects)) => Ok(EntryPayload::Normal(effects.to_vec().into())),
        Some((&MEMBERSHIP, rest)) => {
            let (members, rest) =
                postcard::take_from_bytes::<MembersRecord>(rest).map_err(|error| wrong("members", &error))?;
            if !rest.is_empty() {
                return Err(wrong("the end", &format!("{} more bytes", rest.len())));
            }
            let member = |place: MemberRecord| Member {
                node: place.node,
                disk: place.disk,
                address: place.address,
            };
            let nodes = members.members.into_iter().map(|(id, place)| (id, member(place)));
            let nodes: BTreeMap<_, _> = nodes.collect();
            let membership = Membership::new(members.voters, nodes);
            membership
                .map(EntryPayload::Membership)
                .map_err(|error| wrong("voters who are members", &error))
        }
        Some((kind, rest)) => {
            let found = format!("a body of kind {kind} and {} more bytes", rest.len());
            Err(wrong("a body of kind 0 to 2", &found))
        }
        None => Err(wrong("a body", &"nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LeaderId;

    const ID: EntryId = EntryId {
        leader: LeaderId { term: 2, replica: 3 },
        index: 4,
    };

    fn membership() -> Body {
        let member = |node| Member {
            node,
            disk: 1,
            address: format!("host{node}:7001"),
        };
        let nodes: BTreeMap<_, _> = (1..=4).map(|id| (id, member(id * 10))).collect();
        let voters = vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])];
        EntryPayload::Membership(Membership::new(voters, nodes).unwrap())
    }

    #[test]
    fn bodies_come_back_as_they_were_and_nothing_else_decodes() {
        let effects = |bytes: &[u8]| EntryPayload::Normal(EncodedEffects::from(bytes.to_vec()));
        for body in [Body::Blank, effects(b""), effects(b"\x00\x01"), membership()] {
            let bytes = encode(&body).unwrap();
            assert_eq!(decode(ID, &bytes).unwrap(), body);
            let effects = matches!(body, EntryPayload::Normal(_));
            assert_eq!(decode(ID, &[&bytes[..], b"x"].concat()).is_ok(), effects);
            assert!((0..bytes.len()).all(|len| decode(ID, &bytes[..len]).is_err() || (effects && len > 0)));
        }
        let said = decode(ID, &[7, 0]).unwrap_err().to_string();
        assert_eq!(
            said,
            "entry 4 (term 2 of replica 3): expected a body of kind 0 to 2, found a body of kind 7 and 1 more bytes"
        );
    }
}

#[cfg(test)]
mod versions;
