//! A client of a cluster: it follows `MOVED`, and says of each attempt whether it was executed, was
//! not, or may have been.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use crate::client::stream;
use collie_cli::resp::{Client, Reply};

/// How long a node may take for a reply. Longer than it lets a command wait for a leader.
const PATIENCE: Duration = Duration::from_secs(4);
/// Errors that say that the command was not executed, and will be if it is sent again.
const NOT_EXECUTED: [&str; 6] = [
    "TRYAGAIN",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "BUSY",
    "EXECABORT",
];

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The replies, one for each command.
    Executed(Vec<Reply>),
    /// It was not, and this is why.
    NotExecuted(String),
    /// It may have been, or may still be.
    Unknown(String),
    /// A reply that no command of these may have.
    Unexpected(String),
}

/// Commands that are sent together: one, or several in `MULTI` and `EXEC`.
pub(crate) type Commands = Vec<Vec<Vec<u8>>>;

/// The ports of nodes, and those by which they name each other to clients: of themselves, or of what stands before
/// them.
#[derive(Debug, Clone)]
pub(crate) struct Ports {
    pub(crate) own: Vec<u16>,
    pub(crate) named: Vec<u16>,
}

/// A client, and its connection to look at.
struct Connection {
    client: Client,
    stream: TcpStream,
}

impl Connection {
    fn to(port: u16, patience: Duration) -> io::Result<Self> {
        let stream = stream(port, patience)?;
        let client = Client::plain(stream.try_clone()?);
        Ok(Self { client, stream })
    }

    /// Whether the node has ended the connection, as far as is known here.
    fn has_ended(&self) -> bool {
        let ended = self.stream.set_nonblocking(true).is_err() || !is_silent(self.stream.peek(&mut [0]));
        ended || self.stream.set_nonblocking(false).is_err()
    }
}

/// Whether nothing has come on a connection, nor its end.
fn is_silent(peeked: io::Result<usize>) -> bool {
    matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Connections to the nodes, and what is known of where keys are.
pub(crate) struct ClusterClient {
    ports: Ports,
    patience: Duration,
    connections: Vec<Option<Connection>>,
    /// For each object the node that it is known to be on.
    homes: Vec<Option<usize>>,
    /// The node that is asked next where none is known.
    next: usize,
}

impl ClusterClient {
    /// For keys of so many objects. `first`: the node that it begins with.
    pub(crate) fn new(ports: &Ports, objects: usize, first: usize) -> Self {
        Self {
            ports: ports.clone(),
            patience: PATIENCE,
            connections: ports.own.iter().map(|_| None).collect(),
            homes: vec![None; objects],
            next: first,
        }
    }

    /// With another patience for replies.
    pub(crate) fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sends commands for the keys of an object to where it is thought to be.
    pub(crate) fn attempt(&mut self, object: usize, commands: &Commands) -> Attempt {
        let node = self.homes[object].unwrap_or(self.next % self.connections.len());
        let attempt = self.attempt_at(node, commands);
        match &attempt {
            Attempt::Executed(_) => self.homes[object] = Some(node),
            Attempt::NotExecuted(text) => match moved_to(text) {
                Some(port) => self.homes[object] = self.ports.named.iter().position(|&named| named == port),
                None => self.elsewhere(object, node),
            },
            // It may be dead.
            Attempt::Unknown(_) | Attempt::Unexpected(_) => self.elsewhere(object, node),
        }
        attempt
    }

    fn elsewhere(&mut self, object: usize, node: usize) {
        self.homes[object] = None;
        self.next = node + 1;
    }

    fn attempt_at(&mut self, node: usize, commands: &Commands) -> Attempt {
        let place = &mut self.connections[node];
        if place.as_ref().is_some_and(Connection::has_ended) {
            *place = None;
        }
        let Connection { client, .. } = match place {
            Some(connection) => connection,
            None => match Connection::to(self.ports.own[node], self.patience) {
                Ok(connection) => place.insert(connection),
                Err(error) => return Attempt::NotExecuted(error.to_string()),
            },
        };
        let attempt = exchange(client, commands).unwrap_or_else(|error| Attempt::Unknown(error.to_string()));
        if matches!(attempt, Attempt::Unknown(_) | Attempt::Unexpected(_)) {
            // Its replies would be taken for those of the next attempt.
            *place = None;
        }
        attempt
    }
}

/// Sends commands and takes the replies. An error: the connection failed before they were complete.
fn exchange(client: &mut Client, commands: &Commands) -> io::Result<Attempt> {
    let push = |client: &mut Client, words: &[Vec<u8>]| {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        client.push(&words);
    };
    if let [single] = commands.as_slice() {
        push(client, single);
        client.send()?;
        return Ok(match client.reply()? {
            Reply::Error(text) => refusal(text),
            reply => Attempt::Executed(vec![reply]),
        });
    }
    client.push(&[b"MULTI"]);
    commands.iter().for_each(|words| push(client, words));
    client.push(&[b"EXEC"]);
    client.send()?;
    // The first error says more than that of EXEC.
    let mut first = None;
    for _ in 0..=commands.len() {
        match client.reply()? {
            Reply::Error(text) => match refusal(text) {
                unknown @ Attempt::Unknown(_) => return Ok(unknown),
                other => drop(first.get_or_insert(other)),
            },
            Reply::Text(_) => {}
            other => {
                return Ok(Attempt::Unexpected(format!(
                    "{other:?} where a command is queued"
                )));
            }
        }
    }
    let last = match client.reply()? {
        Reply::Array(replies) if replies.len() == commands.len() && first.is_none() => {
            return Ok(Attempt::Executed(replies));
        }
        Reply::Error(text) => refusal(text),
        other => return Ok(Attempt::Unexpected(format!("{other:?} to EXEC"))),
    };
    Ok(match (first, last) {
        (Some(first), Attempt::NotExecuted(_)) => first,
        (_, last) => last,
    })
}

/// What an error says.
fn refusal(text: String) -> Attempt {
    let word = text.split_whitespace().next().unwrap_or_default();
    if word == "MOVED" || NOT_EXECUTED.contains(&word) {
        Attempt::NotExecuted(text)
    } else if word == "UNKNOWN" {
        Attempt::Unknown(text)
    } else {
        Attempt::Unexpected(text)
    }
}

/// The port that a `MOVED` names.
fn moved_to(text: &str) -> Option<u16> {
    let address = text.strip_prefix("MOVED ")?.split_whitespace().nth(1)?;
    address.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    /// A node that answers what it is given, once anything has come.
    fn node(answers: &[&'static [u8]]) -> (u16, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = answers.to_vec();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let read = stream.read(&mut [0; 1 << 10]).unwrap();
                assert!(read > 0);
                stream.write_all(answer).unwrap();
            }
        });
        (port, thread)
    }

    fn client(ports: &[u16]) -> ClusterClient {
        let ports = Ports {
            own: ports.to_vec(),
            named: ports.to_vec(),
        };
        ClusterClient::new(&ports, 1, 0)
    }

    fn single() -> Commands {
        vec![vec![b"INCR".to_vec(), b"k".to_vec()]]
    }

    #[test]
    fn errors_say_whether_a_command_was_executed() {
        let kinds = [
            ("TRYAGAIN later", "not"),
            ("CLUSTERDOWN Hash slot not served", "not"),
            ("MOVED 1 127.0.0.1:2", "not"),
            ("EXECABORT Transaction discarded", "not"),
            ("UNKNOWN the command may have been executed", "unknown"),
            ("ERR value is not an integer or out of range", "unexpected"),
        ];
        for (text, kind) in kinds {
            let found = match refusal(text.to_owned()) {
                Attempt::NotExecuted(_) => "not",
                Attempt::Unknown(_) => "unknown",
                Attempt::Unexpected(_) => "unexpected",
                Attempt::Executed(_) => "executed",
            };
            assert_eq!(found, kind, "{text}");
        }
    }

    #[test]
    fn a_client_goes_where_it_is_sent() {
        let (there, other) = node(&[b":1\r\n"]);
        let moved: &'static [u8] = format!("-MOVED 7 127.0.0.1:{there}\r\n").into_bytes().leak();
        let (here, one) = node(&[moved]);
        let mut client = client(&[here, there]);
        assert!(matches!(client.attempt(0, &single()), Attempt::NotExecuted(_)));
        assert_eq!(
            client.attempt(0, &single()),
            Attempt::Executed(vec![Reply::Number(1)])
        );
        one.join().unwrap();
        other.join().unwrap();
    }

    #[test]
    fn a_connection_lost_after_sending_leaves_the_outcome_open() {
        // Half a reply, and the end.
        let (port, thread) = node(&[b":"]);
        let mut client = client(&[port]);
        assert!(matches!(client.attempt(0, &single()), Attempt::Unknown(_)));
        thread.join().unwrap();
        // Nothing listens there any more.
        assert!(matches!(client.attempt(0, &single()), Attempt::NotExecuted(_)));
    }

    #[test]
    fn a_refused_command_aborts_and_a_lost_exec_is_unknown() {
        let commands = vec![vec![b"INCR".to_vec(), b"k".to_vec()]; 2];
        let refused = b"+OK\r\n-MOVED 7 127.0.0.1:1\r\n+QUEUED\r\n-EXECABORT discarded\r\n";
        let unknown = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n-UNKNOWN it may be\r\n";
        let executed = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:2\r\n";
        let outcome = |answer: &'static [u8]| {
            let (port, thread) = node(&[answer]);
            let attempt = client(&[port]).attempt(0, &commands);
            thread.join().unwrap();
            attempt
        };
        assert_eq!(
            outcome(refused),
            Attempt::NotExecuted("MOVED 7 127.0.0.1:1".to_owned())
        );
        assert!(matches!(outcome(unknown), Attempt::Unknown(_)));
        assert!(matches!(outcome(executed), Attempt::Executed(replies) if replies.len() == 2));
    }
}
