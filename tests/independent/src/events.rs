//! What the child reports to its parent, one line of JSON each.

use serde::{Deserialize, Serialize};

/// A list's number.
pub type ListId = u32;
/// An element; no two are the same. See [`element`].
pub type Element = u64;
/// A transaction's number; a plain write or read counts as one.
pub type TxId = u64;

/// The `nth` element that a transaction appends.
pub fn element(tx: TxId, nth: u64) -> Element {
    assert!(nth < 256, "a transaction appends fewer than 256 elements");
    tx << 8 | nth
}

/// The transaction that appended an element.
pub fn appender(element: Element) -> TxId {
    element >> 8
}

/// One step of a transaction, as the history has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Appended to a list.
    #[serde(rename = "a")]
    Append(ListId, Element),
    /// Read a list. The flag: no other transaction may have appended to it between this and
    /// the commit.
    #[serde(rename = "r")]
    Read(ListId, Vec<Element>, bool),
}

/// What kind of transaction it was, for the figures.
pub type Kind = String;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "t")]
pub enum Event {
    /// The store is about to be opened.
    Opening,
    /// It is open; everything below this was recovered.
    Opened {
        visible: u64,
    },
    /// All lists that are there, read at once. An epoch begins.
    State {
        lists: Vec<(ListId, Vec<Element>)>,
        families: Vec<(String, u32)>,
    },
    /// These lists are empty again. Comes before any transaction of the epoch.
    Emptied {
        lists: Vec<ListId>,
    },
    /// Begun.
    Begin {
        id: TxId,
        thread: u32,
        kind: Kind,
    },
    /// About to commit.
    Commit {
        id: TxId,
        steps: Vec<Step>,
    },
    /// Committed, up to `end` in the log, which is promised to survive the process or not; after so many
    /// ways back to savepoints.
    Ok {
        id: TxId,
        steps: Vec<Step>,
        end: u64,
        promised: bool,
        back: u32,
    },
    /// A snapshot's transaction: it shows all below `lsn` and nothing else.
    Snapshot {
        id: TxId,
        lsn: u64,
    },
    /// Not committed, and never will be.
    Fail {
        id: TxId,
        appended: Vec<(ListId, Element)>,
        why: String,
    },
    /// Everything below `end` is promised to survive.
    Promise {
        end: u64,
    },
    /// This element, which no log holds, is promised to survive.
    Flushed {
        list: ListId,
        element: Element,
    },
    /// A family is about to be created, or is there.
    Creating {
        name: String,
    },
    Created {
        name: String,
        id: u32,
    },
    /// A family is about to be dropped, or is gone.
    Dropping {
        name: String,
        id: u32,
    },
    Dropped {
        name: String,
        id: u32,
    },
    /// Background work is about to be forced, or is done.
    Work {
        what: String,
        done: bool,
    },
    /// All transactions of the epoch are done; the store was closed in order if `closed`.
    End {
        closed: bool,
    },
    /// Something is wrong.
    Violation {
        text: String,
    },
    /// The child has nothing more to do.
    Done,
}
