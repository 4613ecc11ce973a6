//! Parts of strings: `GETRANGE`, `SUBSTR` and `SETRANGE`.

use collie_protocol::Request;

use super::numbers::{RequestedRange, integer};
use super::row::{Command, Keys};
use crate::exec::{Exec, Flow, Outcome};
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
    let payload = found.as_ref().map_or(&[][..], |found| found.payload());
    let resolved = range
        .within(payload.len() as u64)
        .filter(|_| !range.is_backward());
    let part = resolved.and_then(|(first, last)| {
        let (first, last) = (usize::try_from(first).ok()?, usize::try_from(last).ok()?);
        payload.get(first..=last)
    });
    exec.reply.bulk(part.unwrap_or_default());
    Ok(Flow::Next)
}

fn setrange(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (key, part) = (request.at(1), request.at(3));
    let start = usize::try_from(integer(request.at(2))?).map_err(|_| "ERR offset is out of range")?;
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let mut bytes = prior
        .live()
        .map(|found| found.payload().to_vec())
        .unwrap_or_default();
    if !part.is_empty() {
        let end = start.saturating_add(part.len());
        if end > exec.shared.settings.bulk_len_max() {
            return Err(text::TOO_LONG.into());
        }
        exec.weigh(end)?;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(target) = bytes.get_mut(start..end) {
            target.copy_from_slice(part);
        }
        exec.store(key, &prior, &bytes, prior.live_expiry())?;
    }
    exec.reply.integer(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}
