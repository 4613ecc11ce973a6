//! The commands of the model's clients, and what they do to a key.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Get,
    Incr(i64),
    SetNx(i64),
    Del,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply(pub(crate) Option<i64>);

/// The reply, and the key's new value if the command has an effect.
pub(crate) fn execute(command: Command, value: Option<i64>) -> (Reply, Option<Option<i64>>) {
    match (command, value) {
        (Command::Get, value) => (Reply(value), None),
        (Command::Incr(by), value) => {
            let sum = Some(value.unwrap_or(0) + by);
            (Reply(sum), Some(sum))
        }
        (Command::SetNx(new), None) => (Reply(Some(1)), Some(Some(new))),
        (Command::Del, Some(_)) => (Reply(Some(1)), Some(None)),
        (Command::SetNx(_), Some(_)) | (Command::Del, None) => (Reply(Some(0)), None),
    }
}

/// A row of a replica's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Row {
    Key(u8),
    /// The record of a client's command with this number.
    Record(usize, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Int(i64),
    Record(Reply),
}

impl Value {
    pub(crate) fn int(value: Option<Self>) -> Option<i64> {
        match value {
            Some(Self::Int(int)) => Some(int),
            None => None,
            Some(Self::Record(_)) => panic!("a key has the value of a record"),
        }
    }
}
