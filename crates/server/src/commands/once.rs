//! `COLLIE.ONCE`: a command that takes effect once, however often its client sends it.

use collie_protocol::number::parse_i64;
use collie_protocol::{KeptRequest, Request, Version};

use super::call::call;
use super::row::{Command, Keys};
use super::table::find;
use crate::data::records::{KEPT_MS, Record, RecordCount, RecordName, check_of};
use crate::exec::{Exec, Flow, Outcome, Transaction};
use crate::failure::{Failure, text};
use crate::partitions::evaluate::{CommandKeys, evaluate};
use crate::partitions::transaction::PartitionTransaction;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new(NAME, -5, refuse_alone)
    .about(
        "7.0.0",
        "generic",
        "Executes a command once, however often a client sends it under one number.",
    )
    .flags(&["write", "denyoom", "noscript", "no_multi"])
    .categories(&["@keyspace", "@write", "@slow"])
    .keys(&[Keys::at(1, &["RW", "access", "update"])])];

pub(super) const NAME: &str = "collie.once";
/// The argument at which the command that is executed begins.
const COMMAND: usize = 4;
/// The longest name of a client.
const CLIENT_MAX: usize = 256;

fn refuse_alone(_exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    Err("ERR COLLIE.ONCE is for clusters: this server is alone, and keeps no records of commands".into())
}

/// A command, and the name and checksum of its record.
struct Once {
    name: RecordName,
    command: &'static Command,
    request: KeptRequest,
    check: u64,
}

/// Runs `COLLIE.ONCE key client number command …` in the partition of the key.
pub(super) fn run(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let once = parse(request)?;
    let inner = once.request.request();
    let keys = once.command.keys.iter().flat_map(|keys| keys.of(inner));
    let named = std::iter::once(request.at(1)).chain(keys);
    let keys = CommandKeys::of(named, false)?.ok_or(text::SYNTAX)?;
    // The record as well: of two that come at the same time, one finds that of the other.
    let keys = keys.and([once.name.row(), RecordCount::ROW.to_vec()]);
    match evaluate(exec, &keys, |exec| once.execute(exec)) {
        Err(Failure::Aside(why)) => Ok(Flow::Aside(why)),
        outcome => outcome,
    }
}

fn parse(request: Request<'_>) -> Result<Once, Failure> {
    let client = request.at(2);
    if client.is_empty() || client.len() > CLIENT_MAX {
        return Err(format!("ERR the name of a client has 1 to {CLIENT_MAX} bytes").into());
    }
    let number = parse_i64(request.at(3)).and_then(|number| u64::try_from(number).ok());
    let number = number.ok_or("ERR the number of a command is from 0 to 2^63 - 1")?;
    let kept = request.keep_from(COMMAND);
    let command = find(kept.request())?;
    if command.name == NAME || !command.is_write() || !command.can_be_undone() {
        let name = command.full_name.to_ascii_uppercase();
        let text = format!(
            "ERR {name} cannot be executed by COLLIE.ONCE, which takes commands that write the \
                     keys that they name and nothing else"
        );
        return Err(text.into());
    }
    Ok(Once {
        name: RecordName {
            client: client.to_vec(),
            number,
        },
        command,
        check: check_of(request.iter().skip(COMMAND)),
        request: kept,
    })
}

/// What the command reads and changes.
fn partition<'e>(exec: &'e mut Exec<'_>) -> Result<&'e mut PartitionTransaction, Failure> {
    match &mut exec.transaction {
        Some(Transaction::Partition(transaction)) => Ok(transaction),
        _ => Err("ERR internal error: there is no partition".into()),
    }
}

impl Once {
    /// Executes the command, unless it was. Its record is one of its changes, whether it makes others
    /// or not; a command that fails leaves none, as it has changed nothing.
    fn execute(&self, exec: &mut Exec<'_>) -> Outcome {
        let transaction = partition(exec)?;
        if let Some(stored) = transaction.get(&self.name.row())? {
            return self.repeat(exec, &stored);
        }
        let mut count = RecordCount::decode(transaction.get(RecordCount::ROW)?.as_ref())?;
        if count.is_full() {
            return Err(format!(
                "BUSY the slot of the key has {} records of COLLIE.ONCE of {} bytes, and none goes within {} minutes",
                count.records,
                count.bytes,
                KEPT_MS / 60_000
            )
            .into());
        }
        let start = exec.reply.len();
        match call(exec, self.command, self.request.request()) {
            Ok(Flow::Next) => {}
            other => return other,
        }
        let record = Record {
            resp: resp_of(exec),
            time_ms: exec.now_ms,
            check: self.check,
            reply: exec.reply.as_slice().get(start..).unwrap_or_default(),
        };
        let (value, due) = (record.encode(), self.name.due_row(record.time_ms));
        exec.weigh(value.len())?;
        count.add(&self.name, value.len());
        let expiry_ms = exec.now_ms.saturating_add(KEPT_MS);
        let pending = partition(exec)?.pending();
        for (row, value) in [
            (self.name.row(), &value[..]),
            (due, &[]),
            (RecordCount::ROW.to_vec(), &count.encode()),
        ] {
            pending.changes.insert(row, Some(value.into()));
        }
        pending.count(0, 0, Some(expiry_ms));
        Ok(Flow::Next)
    }

    /// Replies as recorded.
    fn repeat(&self, exec: &mut Exec<'_>, stored: &[u8]) -> Outcome {
        let record = Record::decode(stored)?;
        if record.check != self.check {
            return Err("ERR this client has sent another command under this number".into());
        }
        let resp = resp_of(exec);
        if record.resp != resp {
            let text = format!(
                "ERR the command was executed, and its reply recorded for RESP{}, not RESP{resp}: send HELLO {} first",
                record.resp, record.resp
            );
            return Err(text.into());
        }
        exec.reply.raw(record.reply);
        Ok(Flow::Next)
    }
}

/// The version of the protocol that the connection speaks.
fn resp_of(exec: &Exec<'_>) -> u8 {
    match exec.reply.version() {
        Version::Resp2 => 2,
        Version::Resp3 => 3,
    }
}
