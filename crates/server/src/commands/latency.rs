//! `LATENCY`. What takes long is in the [slow log](super::slowlog) and, stage by stage, in `INFO log`; events are not
//! sampled, so that this has nothing to tell, as in a Redis that was not told to.

use collie_protocol::Request;

use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;

pub(super) fn nothing(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.array(0);
    Ok(Flow::Next)
}

pub(super) fn histogram(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.map(0);
    Ok(Flow::Next)
}

pub(super) fn reset(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.integer(0);
    Ok(Flow::Next)
}

pub(super) fn graph(_exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let event = request.at(2);
    Err(Failure::Bytes(
        [b"ERR No samples available for event '", event, b"'"].concat(),
    ))
}

pub(super) fn doctor(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.verbatim(
        *b"txt",
        b"Events are not sampled here. SLOWLOG GET lists slow commands, INFO log has the time of each stage of a \
          commit.\n",
    );
    Ok(Flow::Next)
}

pub(super) fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    super::help(exec, "latency")
}
