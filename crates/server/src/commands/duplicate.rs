//! `COLLIE.DUPLICATE`: the clusters that get the rows of this one, for its operator and for those clusters.

use collie_protocol::Request;

use super::nodes::{CATEGORIES, CHANGES, ask, changed, partitions};
use super::row::{self, Command, container};
use crate::cluster::{DuplicationInfo, NodeRequest, id_of, id_text};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("collie.duplicate", -2, container)
    .about(
        "7.0.0",
        "cluster",
        "Commands about the clusters that get the rows of this one.",
    )
    .categories(&["@slow"])
    .subcommands(SUBCOMMANDS)];

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
    Command::new("collie.duplicate|pause", 3, pause)
        .about(
            "7.0.0",
            "cluster",
            "Has nothing go to another cluster until it is resumed.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.duplicate|receive", 3, receive)
        .about(
            "7.0.0",
            "cluster",
            "Has this cluster take rows of another one, which asks for it, and returns its id.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.duplicate|resume", 3, resume)
        .about("7.0.0", "cluster", "Has another cluster get again what it lacks.")
        .flags(CHANGES)
        .categories(CATEGORIES),
];

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
    ask(exec, NodeRequest::Duplicate { name, addresses })
}

fn end(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let name = word(request.at(2))?;
    ask(exec, NodeRequest::EndDuplication(name))
}

fn pause(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let name = word(request.at(2))?;
    ask(exec, NodeRequest::PauseDuplication(name))
}

fn resume(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let name = word(request.at(2))?;
    ask(exec, NodeRequest::ResumeDuplication(name))
}

fn receive(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let from = id_of(request.at(2)).ok_or("ERR the id of a cluster has 32 hexadecimal digits")?;
    let asked = changed(exec, NodeRequest::Receive(from))?;
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
    exec.reply.bulk(id_text(&own).as_bytes());
    Ok(())
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
        ("paused", u64::from(one.is_paused)),
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
