//! Which nodes are asked, and which of their answers counts.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use collie_cli::resp::{Client, Refusal, Reply};

use super::access::Access;
use super::local::LocalCluster;
use super::view::words;
use crate::args::WhereArgs;

/// A change of the map is decided within this time, or the node says that it was not.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a refusal ends with that may be an answer a moment later, or at another node, as while a leader of the map is
/// elected.
const AGAIN: [&str; 2] = [": ask again", ": ask again, or another node"];
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(500);

/// The nodes that the command line names, in their order, and how they are asked.
struct Asked {
    access: Access,
    nodes: Vec<SocketAddr>,
}

impl Asked {
    fn of(at: &WhereArgs) -> anyhow::Result<Self> {
        let access = Access::of(&at.access)?;
        let nodes = match &at.node[..] {
            [] => {
                let cluster = LocalCluster::get(&at.dir)?;
                cluster.nodes().iter().map(|node| node.address).collect()
            }
            nodes => nodes.to_vec(),
        };
        Ok(Self { access, nodes })
    }

    fn ask<T>(
        &self,
        node: SocketAddr,
        question: &mut impl FnMut(&mut Client) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut client = self.access.connect(node, PATIENCE)?;
        question(&mut client)
    }
}

/// Asks one node after the other until one gives a good answer; of others the first.
pub(super) fn look<T>(
    at: &WhereArgs,
    mut question: impl FnMut(&mut Client) -> io::Result<T>,
    is_good: impl Fn(&T) -> bool,
) -> anyhow::Result<T> {
    let asked = Asked::of(at)?;
    let (mut other, mut why) = (None, Vec::new());
    for node in &asked.nodes {
        match asked.ask(*node, &mut question) {
            Ok(answer) if is_good(&answer) => return Ok(answer),
            Ok(answer) => other = other.or(Some(answer)),
            Err(error) => why.push(format!("{node}: {}", words(&error, PATIENCE))),
        }
    }
    match other {
        Some(answer) => Ok(answer),
        None => bail!("{}", why.join("; ")),
    }
}

/// Asks every node of the cluster. Returns the answers, and of the others why there is none.
pub(super) fn all<T>(
    at: &WhereArgs,
    mut question: impl FnMut(&mut Client) -> io::Result<T>,
) -> anyhow::Result<(Vec<T>, Vec<String>)> {
    let asked = Asked::of(at)?;
    let nodes = |client: &mut Client| {
        let nodes = list(client, &[b"COLLIE.NODE", b"LIST"])?;
        nodes.iter().map(|node| node.text("address")).collect()
    };
    let nodes: Vec<String> = look(at, nodes, |_| true)?;
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for node in nodes {
        let address = node.parse().map_err(io::Error::other);
        match address.and_then(|address| asked.ask(address, &mut question)) {
            Ok(answer) => answers.push(answer),
            Err(error) => silent.push(format!("{node}: {}", words(&error, PATIENCE))),
        }
    }
    Ok((answers, silent))
}

/// Asks for a change. What one node refuses is not asked of another one, which may be of another version. Where one
/// does not answer, or does not know for now, the next is asked.
pub(super) fn change<T>(
    at: &WhereArgs,
    mut question: impl FnMut(&mut Client) -> io::Result<T>,
) -> anyhow::Result<T> {
    let asked = Asked::of(at)?;
    for attempt in 1.. {
        let (mut again, mut why) = (false, Vec::new());
        for node in &asked.nodes {
            let error = match asked.ask(*node, &mut question) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let text = format!("{node}: {}", words(&error, PATIENCE));
            let refused = error
                .get_ref()
                .is_some_and(|error| error.downcast_ref::<Refusal>().is_some());
            let is_for_now = refused && AGAIN.iter().any(|again| text.ends_with(again));
            if refused && !is_for_now {
                bail!("{text}");
            }
            again |= is_for_now;
            why.push(text);
        }
        if !again || attempt == ATTEMPTS {
            bail!("{}", why.join("; "));
        }
        thread::sleep(PAUSE);
    }
    bail!("no node was asked")
}

/// Asks for a list: of each element its fields, by their names.
pub(super) fn list(client: &mut Client, words: &[&[u8]]) -> io::Result<Vec<Fields>> {
    let unexpected = |found| {
        let problem = format!("expected a list of fields, found {found:?}");
        io::Error::new(io::ErrorKind::InvalidData, problem)
    };
    let elements = match client.call(words)?.good()? {
        Reply::Array(elements) => elements,
        found => return Err(unexpected(found)),
    };
    let fields = |element| match element {
        Reply::Array(fields) => Ok(Fields::of(fields)),
        found => Err(unexpected(found)),
    };
    elements.into_iter().map(fields).collect()
}

/// The fields of an element of a list.
pub(super) struct Fields(BTreeMap<String, Reply>);

impl Fields {
    fn of(fields: Vec<Reply>) -> Self {
        let mut pairs = BTreeMap::new();
        let mut fields = fields.into_iter();
        while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
            if let Reply::Bulk(name) = name {
                pairs.insert(String::from_utf8_lossy(&name).into_owned(), value);
            }
        }
        Self(pairs)
    }

    pub(super) fn text(&self, name: &str) -> io::Result<String> {
        match self.0.get(name) {
            Some(Reply::Bulk(text)) => Ok(String::from_utf8_lossy(text).into_owned()),
            found => Err(unlike("text", name, found)),
        }
    }

    pub(super) fn number(&self, name: &str) -> io::Result<i64> {
        match self.0.get(name) {
            Some(Reply::Number(number)) => Ok(*number),
            found => Err(unlike("number", name, found)),
        }
    }

    /// A number, or nothing.
    pub(super) fn optional(&self, name: &str) -> io::Result<Option<i64>> {
        match self.0.get(name) {
            Some(Reply::Number(number)) => Ok(Some(*number)),
            Some(Reply::Nothing) => Ok(None),
            found => Err(unlike("number", name, found)),
        }
    }

    pub(super) fn numbers(&self, name: &str) -> io::Result<Vec<i64>> {
        let Some(Reply::Array(numbers)) = self.0.get(name) else {
            return Err(unlike("list of numbers", name, self.0.get(name)));
        };
        let number = |reply: &Reply| match reply {
            Reply::Number(number) => Ok(*number),
            found => Err(unlike("list of numbers", name, Some(found))),
        };
        numbers.iter().map(number).collect()
    }
}

fn unlike(what: &str, name: &str, found: Option<&Reply>) -> io::Error {
    let problem = format!("expected the {what} {name}, found {found:?}");
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
