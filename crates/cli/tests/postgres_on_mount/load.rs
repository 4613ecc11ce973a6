//! What clients do to a server until it is gone.

use std::io::Write;
use std::process::{Child, Stdio};

use collie_check::postgres::{Cluster, Ledger, Writers};

/// What is made once.
pub(crate) const TABLES: &str = "
CREATE EXTENSION amcheck;
CREATE UNLOGGED TABLE unlogged (n int PRIMARY KEY, filler text);
CREATE TABLE rewritten (n int PRIMARY KEY, filler text);
INSERT INTO rewritten SELECT n, repeat('r', 200) FROM generate_series(1, 3000) n";

/// Scripts of pgbench, and how often each is chosen.
const SCRIPTS: [(&str, u32, &str); 6] = [
    (
        "made",
        8,
        "DROP TABLE IF EXISTS made_:client_id;
CREATE TABLE made_:client_id AS SELECT n, repeat('x', 100) AS filler FROM generate_series(1, 1000) n;
CREATE INDEX ON made_:client_id (n);
TRUNCATE made_:client_id;
INSERT INTO made_:client_id SELECT n, 'y' FROM generate_series(1, 200) n;
",
    ),
    (
        "unlogged",
        4,
        "INSERT INTO unlogged SELECT n, repeat('u', 100) FROM generate_series(1, 500) n ON CONFLICT DO NOTHING;
DELETE FROM unlogged WHERE n % 3 = 0;
",
    ),
    (
        "rewritten",
        3,
        "UPDATE rewritten SET filler = repeat('s', 150) WHERE n % 5 = 0;
VACUUM FULL rewritten;
DELETE FROM rewritten WHERE n > 3000;
INSERT INTO rewritten SELECT n, repeat('t', 200) FROM generate_series(3001, 3500) n;
VACUUM rewritten;
",
    ),
    (
        "shrunk",
        3,
        "CREATE TABLE IF NOT EXISTS shrunk_:client_id (n int);
INSERT INTO shrunk_:client_id SELECT generate_series(1, 5000);
DELETE FROM shrunk_:client_id WHERE n > 100;
VACUUM shrunk_:client_id;
",
    ),
    (
        "by_copy",
        1,
        "DROP DATABASE IF EXISTS copy_:client_id;
CREATE DATABASE copy_:client_id TEMPLATE template0 STRATEGY FILE_COPY;
",
    ),
    (
        "by_log",
        1,
        "DROP DATABASE IF EXISTS log_:client_id;
CREATE DATABASE log_:client_id TEMPLATE template0 STRATEGY WAL_LOG;
",
    ),
];

/// Clients at work.
pub(crate) struct Load {
    others: Vec<Child>,
    writers: Writers,
}

/// Random updates of tables that do not fit into memory, new files and removed ones, checkpoints,
/// and the ledger's clients.
pub(crate) fn load(cluster: &Cluster, ledger: &Ledger) -> Load {
    let quiet = |program: &str, args: &[&str]| {
        let mut command = cluster.program(program);
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let files = SCRIPTS.map(|(name, weight, text)| {
        let file = cluster.write_aside(&format!("{name}.sql"), text).unwrap();
        format!("{}@{weight}", file.display())
    });
    let mut pages = quiet("pgbench", &["-n", "-c", "4", "-T", "600", "-b", "tpcb-like"]);
    let mut names = quiet("pgbench", &["-n", "-c", "2", "-T", "600", "--max-tries=20"]);
    for file in &files {
        names.args(["-f", file]);
    }
    let mut others: Vec<Child> = [&mut pages, &mut names]
        .map(|command| command.stdin(Stdio::null()).spawn().unwrap())
        .into();
    let mut checkpoints = quiet("psql", &["-X", "-q"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // It ends before it reads this where there is no server.
    let _ = checkpoints
        .stdin
        .take()
        .unwrap()
        .write_all(b"CHECKPOINT \\watch 1.5\n");
    others.push(checkpoints);
    Load {
        others,
        writers: ledger.write(cluster).unwrap(),
    }
}

impl Load {
    /// Waits for the end of clients whose server is gone.
    pub(crate) fn end(self, ledger: &mut Ledger) {
        for mut other in self.others {
            other.wait().unwrap();
        }
        ledger.note(self.writers).unwrap();
    }
}
