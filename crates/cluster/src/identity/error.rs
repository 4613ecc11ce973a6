//! What can be wrong with a node's directories. Each error says what to do.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// A node cannot be who it is said to be, or who it was.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The store cannot be opened, read or written.
    #[error("the node's own store in {}: {error}", dir.display())]
    Store {
        /// Its directory.
        dir: PathBuf,
        /// What the store says.
        error: collie_db::Error,
    },
    /// Another process has the directory.
    #[error(
        "{} is in use by another process: of two nodes on one directory, stop one, or give this one a directory of its \
         own",
        dir.display()
    )]
    InUse {
        /// The node's directory.
        dir: PathBuf,
    },
    /// A record of the store.
    #[error("the node's own store in {}: {what}: {problem}", dir.display())]
    Record {
        /// Its directory.
        dir: PathBuf,
        /// Which record.
        what: &'static str,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A file of a disk.
    #[error("cannot {op} {}: {error}", path.display())]
    Io {
        /// The operation that failed.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: Arc<std::io::Error>,
    },
    /// A mark that is none.
    #[error("{}: {problem}; run the version of the program that wrote it, or take the disk's directory away", path.display())]
    Mark {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A disk of this node has no mark.
    #[error(
        "disk {disk} of node {node}, {}, has no mark: it was emptied, or another disk is mounted there. Mount the right \
         one. If its data is lost, node {node} cannot come back: the others go on without it",
        dir.display()
    )]
    Unmarked {
        /// The disk, counted from 0.
        disk: usize,
        /// The node.
        node: u64,
        /// The disk's directory.
        dir: PathBuf,
    },
    /// A directory has the mark of something else.
    #[error(
        "{}: expected {expected}, found {found}: {advice}",
        dir.display()
    )]
    Foreign {
        /// The disk's directory.
        dir: PathBuf,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// The node has another number of disks than it had.
    #[error(
        "node {node} has {expected} disks, and is started with {found}: start it with the same disks in the same order"
    )]
    Disks {
        /// The node.
        node: u64,
        /// How many it has.
        expected: usize,
        /// How many it was given.
        found: usize,
    },
    /// The node is started without a disk that it needs.
    #[error("disk {disk} of node {node} is not among those that it is started with: {advice}")]
    Absent {
        /// The node.
        node: u64,
        /// The disk, counted from 0.
        disk: u32,
        /// What to do.
        advice: &'static str,
    },
    /// The node runs already, elsewhere.
    #[error(
        "node {node} runs at {there}, and two processes of one node would vote twice: stop that one, or, if this directory \
         was copied from it, give this node an empty directory"
    )]
    Runs {
        /// The node.
        node: u64,
        /// Where other nodes reach that process.
        there: SocketAddr,
    },
    /// A cluster is to be made where a node is.
    #[error(
        "{} is the directory of node {node} of cluster {cluster} already: start it without --bootstrap, or give a new \
         cluster an empty directory",
        dir.display()
    )]
    Exists {
        /// The node's directory.
        dir: PathBuf,
        /// The node.
        node: u64,
        /// Its cluster.
        cluster: String,
    },
    /// A node is to be started that is none yet.
    #[error(
        "{} is not the directory of a node yet: start it with --bootstrap to make a cluster, or with --join and the \
         peer address of a node to join one",
        dir.display()
    )]
    None {
        /// The node's directory.
        dir: PathBuf,
    },
}
