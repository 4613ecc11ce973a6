//! What the tables hold beside the data: reading and writing the records.

use std::sync::Arc;

use crate::ids::EntryId;
use crate::replica_store::error::FieldError;
use crate::replica_store::fields::{Fields, put_entry_id};
use crate::replica_store::positions::Membership;

pub(super) fn encode_applied(id: EntryId) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_entry_id(&mut bytes, id);
    bytes
}

pub(super) fn decode_applied(bytes: &[u8]) -> Result<EntryId, FieldError> {
    let mut fields = Fields::new(bytes);
    let id = fields.entry_id()?;
    fields.end()?;
    Ok(id)
}

pub(super) fn encode_membership(membership: &Membership) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_entry_id(&mut bytes, membership.id);
    bytes.extend_from_slice(&membership.members);
    bytes
}

pub(super) fn decode_membership(bytes: &[u8]) -> Result<Membership, FieldError> {
    let mut fields = Fields::new(bytes);
    let id = fields.entry_id()?;
    let members = Arc::from(fields.take(fields.left(), "the members")?);
    Ok(Membership { id, members })
}

/// The number of keys in a slot; 0 where nothing is recorded.
pub(super) fn decode_count(bytes: Option<&[u8]>) -> Result<u64, FieldError> {
    let Some(bytes) = bytes else {
        return Ok(0);
    };
    let mut fields = Fields::new(bytes);
    let count = fields.u64("a number of keys")?;
    fields.end()?;
    Ok(count)
}
