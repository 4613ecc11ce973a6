//! Errors of commands, and the text that the client reads.

use std::borrow::Cow;

use collie_db::Error as DbError;
use thiserror::Error;

use crate::cluster::Refused;
use crate::cost::Aside;
use crate::data::records::BadRecord;
use crate::data::value::BadValue;
use crate::duplication::BadRow;

/// A command's error. Its text is what the client reads after the minus sign, code first.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// A text of Redis.
    #[error("{0}")]
    Text(Cow<'static, str>),
    /// A text of Redis that echoes bytes of the client.
    #[error("{}", String::from_utf8_lossy(.0))]
    Bytes(Vec<u8>),
    /// The engine's error.
    #[error(transparent)]
    Engine(#[from] DbError),
    /// A stored value cannot be read.
    #[error(transparent)]
    Value(#[from] BadValue),
    /// The record of a command cannot be read.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A stored row, or its stamp, cannot be read.
    #[error(transparent)]
    Row(#[from] BadRow),
    /// The command must run again on a thread that may block; nothing was done yet. This is never
    /// sent to a client.
    #[error("ERR internal error: the command is to run aside ({0:?})")]
    Aside(Aside),
    /// The partition of the keys has refused the command; nothing was done. Only its text is
    /// ever sent to a client.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl From<&'static str> for Failure {
    fn from(text: &'static str) -> Failure {
        Failure::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Text(Cow::Owned(text))
    }
}

impl Failure {
    /// The error line, without minus sign and line end.
    pub(crate) fn line(&self) -> Cow<'_, [u8]> {
        match self {
            Failure::Text(text) => Cow::Borrowed(text.as_bytes()),
            Failure::Bytes(bytes) => Cow::Borrowed(bytes),
            Failure::Engine(error) => Cow::Owned(engine_line(error).into_bytes()),
            Failure::Aside(_) => Cow::Owned(self.to_string().into_bytes()),
            Failure::Refused(Refused::Text(text)) => Cow::Borrowed(text.as_bytes()),
            Failure::Refused(refused) => Cow::Owned(format!("TRYAGAIN {refused}").into_bytes()),
            Failure::Value(bad) => Cow::Owned(format!("ERR {bad}").into_bytes()),
            Failure::Row(bad) => Cow::Owned(format!("ERR {bad}").into_bytes()),
            Failure::Record(bad) => Cow::Owned(format!("ERR {bad}").into_bytes()),
        }
    }
}

/// The text for an engine's error. One that only an administrator can fix is `MISCONF`, as it is
/// when Redis cannot write its append-only file; clients already report that code.
pub(crate) fn engine_line(error: &DbError) -> String {
    match error {
        DbError::StorageFull { .. }
        | DbError::Unprepared { .. }
        | DbError::Poisoned { .. }
        | DbError::Background { .. } => not_durable(error),
        DbError::InDoubt { cause, .. } => not_durable(&format_args!(
            "the last write of what was asked for may or may not be there after a restart, which is needed to know \
             ({cause})"
        )),
        DbError::Closed => "ERR the server is shutting down".to_owned(),
        DbError::BatchTooLarge { size, limit } => {
            format!("ERR the command would commit {size} bytes at once, the limit is {limit}: split it")
        }
        other => format!("ERR {other}"),
    }
}

/// The error of a write that the log cannot make durable.
pub(crate) fn not_durable(cause: &dyn std::fmt::Display) -> String {
    format!("MISCONF Errors writing to the AOF file: {cause}")
}

/// Redis' error texts that more than one command uses.
pub(crate) mod text {
    pub(crate) const SYNTAX: &str = "ERR syntax error";
    pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
    pub(crate) const OUT_OF_RANGE_POSITIVE: &str = "ERR value is out of range, must be positive";
    pub(crate) const OVERFLOW: &str = "ERR increment or decrement would overflow";
    pub(crate) const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
    pub(crate) const SAME_OBJECT: &str = "ERR source and destination objects are the same";
    pub(crate) const DB_OUT_OF_RANGE: &str = "ERR DB index is out of range";
    pub(crate) const NO_AUTH: &str = "NOAUTH Authentication required.";
    pub(crate) const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
    pub(crate) const REPLY_TOO_LARGE: &str = "ERR the reply is larger than client-output-buffer-limit";
    pub(crate) const MAX_CLIENTS: &str = "ERR max number of clients reached";

    pub(crate) const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
    /// Collie's own: the partition has taken no commands for some time.
    pub(crate) const BUSY: &str = "TRYAGAIN the partition of the keys takes no commands at the moment";
    /// Collie's own: a command that was not executed and never will be.
    pub(crate) const TRY_AGAIN: &str = "TRYAGAIN the command was not executed and will not be: send it again";
    /// Collie's own: it is not known whether a command was executed.
    pub(crate) const UNKNOWN: &str = "UNKNOWN the command may have been executed, or may still be: \
         the partition did not answer in time";
    pub(crate) const NO_CLUSTER: &str = "ERR This instance has cluster support disabled";

    /// A slot has no leader, or belongs to no partition.
    pub(crate) fn no_leader(is_assigned: bool) -> &'static str {
        if is_assigned {
            "CLUSTERDOWN The cluster is down"
        } else {
            "CLUSTERDOWN Hash slot not served"
        }
    }

    /// A command got too few or too many arguments.
    pub(crate) fn arity(command: &str) -> String {
        format!("ERR wrong number of arguments for '{command}' command")
    }

    /// An expiry is zero, negative or too far away.
    pub(crate) fn expire_time(command: &str) -> String {
        format!("ERR invalid expire time in '{command}' command")
    }
}
