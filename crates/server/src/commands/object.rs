//! `OBJECT`: how Redis would represent a value in memory.

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use super::row::{self, Command, Keys, container};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("object", -2, container)
    .about("2.2.3", "generic", "Commands about the representation of values.")
    .categories(&["@slow"])
    .subcommands(SUBCOMMANDS)];

/// The subcommands of `OBJECT`.
const SUBCOMMANDS: &[Command] = &[
    Command::new("object|encoding", 3, encoding)
        .about(
            "2.2.3",
            "generic",
            "Returns the encoding that Redis would choose.",
        )
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(2, &["RO"])]),
    Command::new("object|freq", 3, freq)
        .about(
            "4.0.0",
            "generic",
            "Returns how often a key is used: not tracked.",
        )
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(2, &["RO"])]),
    Command::new("object|help", 2, help)
        .about("6.2.0", "generic", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@keyspace", "@slow"]),
    Command::new("object|idletime", 3, idletime)
        .about(
            "2.2.3",
            "generic",
            "Returns the seconds since the key was used: not tracked, so 0.",
        )
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(2, &["RO"])]),
    Command::new("object|refcount", 3, refcount)
        .about(
            "2.2.3",
            "generic",
            "Returns the number of references to a value: one.",
        )
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(2, &["RO"])]),
];

/// The longest string that Redis allocates together with its header, in bytes.
const EMBEDDED_LEN_MAX: usize = 44;

/// The encoding that Redis uses for such a string when it is set.
fn encoding(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    match exec.find(request.at(2))? {
        None => exec.reply.null(),
        // A longer one is no integer, and need not be read.
        Some(found) if found.len() > EMBEDDED_LEN_MAX => exec.reply.bulk(b"raw"),
        Some(found) => {
            let payload = exec.payload(&found)?;
            exec.reply.bulk(match parse_i64(&payload) {
                Some(_) => b"int",
                None => b"embstr",
            });
        }
    }
    Ok(Flow::Next)
}

fn refcount(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    reply_for_key(exec, request, Ok(1))
}

/// The time of the last read is not tracked.
fn idletime(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    reply_for_key(exec, request, Ok(0))
}

fn freq(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let no_lfu = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
                  when switching between policies at runtime LRU and LFU data will take some time to adjust.";
    reply_for_key(exec, request, Err(no_lfu))
}

fn reply_for_key(exec: &mut Exec<'_>, request: Request<'_>, answer: Result<i64, &'static str>) -> Outcome {
    match exec.find(request.at(2))? {
        None => exec.reply.null(),
        Some(_) => exec.reply.integer(answer.map_err(Failure::from)?),
    }
    Ok(Flow::Next)
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    row::help(exec, "object", SUBCOMMANDS)
}
