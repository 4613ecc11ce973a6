//! The server as a whole.

use collie_protocol::Request;

use super::numbers::{integer, is, positive, timeout_ms};
use crate::exec::{Exec, Flow, Outcome, Pause};
use crate::failure::text;

pub(super) fn time(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let now_us = exec.shared.clock.wall_us();
    exec.reply.array(2);
    exec.reply
        .bulk_integer(i64::try_from(now_us / 1_000_000).unwrap_or(i64::MAX));
    exec.reply
        .bulk_integer(i64::try_from(now_us % 1_000_000).unwrap_or(0));
    Ok(Flow::Next)
}

pub(super) fn wait(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let replicas = integer(request.at(1))?;
    let timeout_ms = timeout_ms(request.at(2))?;
    if replicas > 0 {
        return Ok(Flow::Pause(Pause::Replicas { timeout_ms }));
    }
    exec.reply.integer(0);
    Ok(Flow::Next)
}

pub(super) fn waitaof(_exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let local = integer(request.at(1))?;
    if !(0..=1).contains(&local) {
        return Err("ERR value is out of range, value must between 0 and 1".into());
    }
    let replicas = positive(request.at(2))?;
    let timeout_ms = timeout_ms(request.at(3))?;
    Ok(Flow::Pause(Pause::Local {
        wanted: local == 1,
        replicas,
        timeout_ms,
    }))
}

pub(super) fn shutdown(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut abort = false;
    let mut other = false;
    let (mut save, mut nosave) = (false, false);
    for word in request.iter().skip(1) {
        match word {
            _ if is(word, "NOSAVE") => (nosave, other) = (true, true),
            _ if is(word, "SAVE") => (save, other) = (true, true),
            _ if is(word, "NOW") || is(word, "FORCE") => other = true,
            _ if is(word, "ABORT") => abort = true,
            _ => return Err(text::SYNTAX.into()),
        }
    }
    if (abort && other) || (save && nosave) {
        return Err(text::SYNTAX.into());
    }
    if abort {
        return Err("ERR No shutdown in progress.".into());
    }
    exec.shared.end();
    Ok(Flow::Close)
}

/// There are no functions, so all are gone.
pub(super) fn function_flush(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    match (request.len(), request.get(2)) {
        (2, _) => {}
        (3, Some(mode)) if is(mode, "ASYNC") || is(mode, "SYNC") => {}
        _ => return Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into()),
    }
    exec.reply.ok();
    Ok(Flow::Next)
}
