//! The map as raft has it: its members, and changing it by a rule, evaluated on the newest map by the leader of
//! its group, and committed as one entry.

use std::collections::BTreeMap;

use crate::ids::ReplicaId;
use crate::map::{Changes, Map, MapError, MapMember, NodeRecord, PartitionRecord};
use crate::proposals::Answer;
use crate::raft::{CommandError, Member, Replica, Row, Rows};

/// The rows of the map are in this slot of group 0. That is no slot of users' keys.
const SLOT: u16 = 0;

/// The row of a key of the map.
pub(super) fn row(key: Vec<u8>) -> Row {
    Row { slot: SLOT, key }
}

/// What a rule says of the newest map: an answer, and what changes.
pub(super) type Ruled<T> = Result<(T, Option<Changes>), String>;

enum Unread {
    Command(CommandError),
    Map(MapError),
}

impl From<MapError> for Unread {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

/// Has a rule change the map. The inner error is the rule's, or says what is wrong with the map;
/// nothing has changed then.
pub(super) async fn change<T, F>(
    replica: &Replica,
    rule: F,
) -> Result<Answer<Result<T, String>>, CommandError>
where
    T: Clone + Send + 'static,
    F: Fn(Option<&Map>) -> Ruled<T> + Send + Sync + 'static,
{
    replica.execute(move |rows| evaluate(rows, &rule)).await
}

/// Whether the map was changed.
///
/// # Errors
/// Why it was not, as far as that is known.
pub(super) fn decided(answer: Result<Answer<Result<(), String>>, CommandError>) -> Result<(), String> {
    match answer {
        Ok(Answer::Reply(changed)) => changed,
        Ok(Answer::TryAgain) => {
            Err("the map was not changed, as another replica leads its group: ask again".to_owned())
        }
        Ok(Answer::Unknown) => Err("it is not known whether the map was changed: ask again".to_owned()),
        // Its leader has just begun, or has just ended.
        Err(error @ (CommandError::NotOpen(_) | CommandError::Replica(_))) => {
            Err(format!("{error}: ask again"))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn evaluate<T>(
    rows: &mut Rows<'_>,
    rule: &impl Fn(Option<&Map>) -> Ruled<T>,
) -> crate::raft::Executed<Result<T, String>> {
    let nothing = |problem: String| Ok((BTreeMap::new(), Err(problem)));
    let map = match Map::read(|key| rows.get(&row(key)).map_err(Unread::Command)) {
        Ok(map) => map,
        Err(Unread::Command(error)) => return Err(error),
        Err(Unread::Map(error)) => return nothing(error.to_string()),
    };
    let (answer, changes) = match rule(map.as_ref()) {
        Ok(ruled) => ruled,
        Err(problem) => return nothing(problem),
    };
    let set = match changes.as_ref().map(Map::rows).transpose() {
        Ok(set) => set.unwrap_or_default(),
        Err(error) => return nothing(error.to_string()),
    };
    let effects = set.into_iter().map(|(key, value)| (row(key), value));
    Ok((effects.collect(), Ok(answer)))
}

/// A node's replica of group 0, as a member.
pub(super) fn map_member(node: &NodeRecord) -> Member {
    Member {
        node: node.number,
        disk: 0,
        address: node.peer.to_string(),
    }
}

/// The members of a partition.
pub(super) fn members(map: &Map, partition: &PartitionRecord) -> BTreeMap<ReplicaId, Member> {
    let members = partition.members.iter();
    members.map(|one| (one.replica, member(map, one))).collect()
}

/// A replica of a partition, as a member.
pub(super) fn member(map: &Map, member: &MapMember) -> Member {
    let node = map.nodes.get(&member.node);
    Member {
        node: member.node,
        disk: member.disk,
        address: node.map(|node| node.peer.to_string()).unwrap_or_default(),
    }
}
