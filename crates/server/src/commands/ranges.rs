//! Parts of strings: `GETRANGE`, `SUBSTR` and `SETRANGE`.

use collie_protocol::Request;

use super::numbers::{RequestedRange, integer};
use super::row::{Command, Keys};
use crate::exec::{Exec, Flow, Found, Outcome};
use crate::failure::text;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("getrange", 4, getrange)
        .about("2.4.0", "string", "Returns a part of a value.")
        .flags(&["readonly"])
        .categories(&["@read", "@string", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("setrange", 4, setrange)
        .about("2.2.0", "string", "Overwrites a part of a value.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("substr", 4, getrange)
        .about(
            "1.0.0",
            "string",
            "Returns a part of a value; the older name of GETRANGE.",
        )
        .flags(&["readonly"])
        .categories(&["@read", "@string", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
];

fn getrange(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let range = RequestedRange::read(request, 2)?;
    let found = exec.find(request.at(1))?;
    exec.count_lookup(found.is_some());
    let len = found.as_ref().map_or(0, Found::len);
    let resolved = range.within(len as u64).filter(|_| !range.is_backward());
    let part = resolved.and_then(|(first, last)| {
        let (first, last) = (usize::try_from(first).ok()?, usize::try_from(last).ok()?);
        Some(first..last + 1)
    });
    match (found, part) {
        (Some(found), Some(part)) => {
            let part = exec.part(&found, part)?;
            exec.reply.bulk(&part);
        }
        _ => exec.reply.bulk(b""),
    }
    Ok(Flow::Next)
}

fn setrange(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (key, part) = (request.at(1), request.at(3));
    let start = usize::try_from(integer(request.at(2))?).map_err(|_| "ERR offset is out of range")?;
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let mut len = prior.live().map_or(0, Found::len);
    if !part.is_empty() {
        if start.saturating_add(part.len()) > exec.shared.settings.bulk_len_max() {
            return Err(text::TOO_LONG.into());
        }
        len = exec.store_part(key, &prior, start, part)?;
    }
    exec.reply.integer(i64::try_from(len).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}
