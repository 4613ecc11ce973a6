//! `OBJECT`: what Redis tells of how a value is kept in memory.

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;

/// Longest string that Redis keeps in one piece with its header, in bytes.
const EMBEDDED_LEN_MAX: usize = 44;

/// The encoding that Redis gives a string that is set as it is.
pub(super) fn encoding(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    match exec.find(request.at(2))? {
        None => exec.reply.null(),
        Some(found) => exec.reply.bulk(match found.payload() {
            payload if parse_i64(payload).is_some() => b"int",
            payload if payload.len() <= EMBEDDED_LEN_MAX => b"embstr",
            _ => b"raw",
        }),
    }
    Ok(Flow::Next)
}

pub(super) fn refcount(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    tell(exec, request, Ok(1))
}

/// When a key was last read is not kept.
pub(super) fn idletime(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    tell(exec, request, Ok(0))
}

pub(super) fn freq(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let untold = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
                  when switching between policies at runtime LRU and LFU data will take some time to adjust.";
    tell(exec, request, Err(untold))
}

fn tell(exec: &mut Exec<'_>, request: Request<'_>, told: Result<i64, &'static str>) -> Outcome {
    match exec.find(request.at(2))? {
        None => exec.reply.null(),
        Some(_) => exec.reply.integer(told.map_err(Failure::from)?),
    }
    Ok(Flow::Next)
}

pub(super) fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    super::help(exec, "object")
}
