//! `COLLIE.DUPLICATE`: the clusters that get the rows of this one, for its operator and for those clusters.

use collie_protocol::Request;
use tokio::runtime::Handle;

use super::row::{self, Command, container};
use crate::cluster::{DuplicationInfo, NodeRequest};
use crate::cost::Aside;
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::partitions::Partitions;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("collie.duplicate", -2, container)
    .about(
        "7.0.0",
        "cluster",
        "Commands about the clusters that get the rows of this one.",
    )
    .categories(&["@slow"])
    .subcommands(SUBCOMMANDS)];

const CHANGES: &[&str] = &["admin", "stale", "no_async_loading", "no_multi"];
const CATEGORIES: &[&str] = &["@admin", "@slow", "@dangerous"];

const SUBCOMMANDS: &[Command] = &[
    Command::new("collie.duplicate|add", -4, add)
        .about(
            "7.0.0",
            "cluster",
            "Has the rows of this cluster go to another one, too.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.duplicate|end", 3, end)
        .about(
            "7.0.0",
            "cluster",
            "Has the rows of this cluster go to another one no more.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.duplicate|help", 2, help)
        .about("7.0.0", "cluster", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("collie.duplicate|id", 2, id)
        .about("7.0.0", "cluster", "Returns the id of this cluster.")
        .flags(&["stale"])
        .categories(&["@slow"]),
    Command::new("collie.duplicate|list", 2, list)
        .about(
            "7.0.0",
            "cluster",
            "Lists the clusters that get the rows of this one, and how far this node's partitions are.",
        )
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"]),
    Command::new("collie.duplicate|receive", 3, receive)
        .about(
            "7.0.0",
            "cluster",
            "Has this cluster take rows of another one, which asks for it, and returns its id.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
];

fn partitions<'a>(exec: &'a Exec<'_>) -> Result<&'a Partitions, Failure> {
    exec.shared
        .partitions
        .as_ref()
        .ok_or_else(|| text::NO_CLUSTER.into())
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    partitions(exec)?;
    row::help(exec, "collie.duplicate", SUBCOMMANDS)
}

fn word(arg: &[u8]) -> Result<String, Failure> {
    let word = std::str::from_utf8(arg).map(str::to_owned);
    word.map_err(|_| "ERR a name and an address are text in UTF-8".into())
}

fn add(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let name = word(request.at(2))?;
    let addresses = request.iter().skip(3).map(word).collect::<Result<_, _>>()?;
    let asked = ask(exec, NodeRequest::Duplicate { name, addresses })?;
    reply_ok(exec, asked)
}

fn end(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let name = word(request.at(2))?;
    let asked = ask(exec, NodeRequest::EndDuplication(name))?;
    reply_ok(exec, asked)
}

fn reply_ok(exec: &mut Exec<'_>, asked: Flow) -> Outcome {
    if matches!(asked, Flow::Next) {
        exec.reply.ok();
    }
    Ok(asked)
}

fn receive(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let from = read_id(request.at(2)).ok_or("ERR the id of a cluster has 32 hexadecimal digits")?;
    let asked = ask(exec, NodeRequest::Receive(from))?;
    if matches!(asked, Flow::Next) {
        push_id(exec)?;
    }
    Ok(asked)
}

fn id(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    push_id(exec)?;
    Ok(Flow::Next)
}

fn push_id(exec: &mut Exec<'_>) -> Result<(), Failure> {
    let own = partitions(exec)?.cluster.topology().cluster;
    let own = own.ok_or("ERR this node has no map yet: ask again")?;
    let own: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
    exec.reply.bulk(own.as_bytes());
    Ok(())
}

fn read_id(digits: &[u8]) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != id.len() || !rest.is_empty() {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    for (byte, [high, low]) in id.iter_mut().zip(pairs) {
        *byte = u8::try_from(value(*high)? << 4 | value(*low)?).ok()?;
    }
    Some(id)
}

/// Waits until the map is changed, or is not.
fn ask(exec: &mut Exec<'_>, wanted: NodeRequest) -> Result<Flow, Failure> {
    let partitions = partitions(exec)?;
    if !exec.may_block {
        return Ok(Flow::Aside(Aside::Waits));
    }
    match Handle::current().block_on(partitions.cluster.change_node(wanted)) {
        Ok(()) => Ok(Flow::Next),
        Err(problem) => Err(format!("ERR {problem}").into()),
    }
}

fn list(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let all = partitions(exec)?.cluster.duplications();
    exec.reply.array(all.len());
    for one in &all {
        push(exec, one);
    }
    Ok(Flow::Next)
}

fn push(exec: &mut Exec<'_>, one: &DuplicationInfo) {
    let reply = &mut exec.reply;
    let (stuck, problem) = match &one.problem {
        Some((since, text)) => (since.as_secs(), text.as_str()),
        None => (0, ""),
    };
    let texts = [
        ("name", one.name.as_str()),
        ("cluster", &one.cluster),
        ("addresses", &one.addresses.join(",")),
        ("problem", problem),
    ];
    let numbers = [
        ("partitions", one.partitions),
        ("waiting", one.waiting),
        ("copying", one.copying),
        ("following", one.following),
        ("lag_entries", one.lag),
        ("rows", one.rows),
        ("problem_s", stuck),
    ];
    reply.map(texts.len() + numbers.len());
    for (name, value) in texts {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (name, value) in numbers {
        reply.bulk(name.as_bytes());
        reply.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_so_many_digits() {
        let id = read_id(b"00112233445566778899aabbccddEEff").unwrap();
        assert_eq!((id[1], id[15]), (0x11, 0xff));
        for wrong in [&b""[..], b"00", b"0011223344556677 899aabbccddeeff", &[b'0'; 34]] {
            assert_eq!(read_id(wrong), None);
        }
    }
}
