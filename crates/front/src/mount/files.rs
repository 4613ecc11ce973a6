//! What the kernel has open.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_io::{File, FileKind};
use parking_lot::{Mutex, RwLock};

use super::names::NodeId;
use super::tasks::Opener;
use crate::file::PageFile;

/// What reads and writes of a file go to. All handles of a node have the same kind: where one is
/// open in place while a rename gives the file the name of a relation, it stays in place until
/// the last handle is closed.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Pages of a relation.
    Pages(Arc<PageFile>),
    /// Any other file, in place.
    Plain(Arc<dyn File>),
}

impl Content {
    /// Whether what is written to one is seen in the other: of two handles of one node.
    fn is_as(&self, other: &Content) -> bool {
        match (self, other) {
            (Content::Pages(one), Content::Pages(other)) => Arc::ptr_eq(one, other),
            (Content::Plain(_), Content::Plain(_)) => true,
            _ => false,
        }
    }
}

/// A node is open as another kind of file, or as another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenedOtherwise;

/// Whether a write is answered before it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    /// It is durable with the next sync.
    Cached,
    /// `O_SYNC` or `O_DSYNC`.
    Durable,
}

/// An open file.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) node: NodeId,
    pub(super) content: Content,
    pub(super) writes: Writes,
    pub(super) opener: Opener,
}

/// A directory's names, as they were when they were read from the start.
pub(super) type Listing = Arc<Vec<(OsString, FileKind, NodeId)>>;

/// All open files and directories.
#[derive(Debug, Default)]
pub(super) struct Handles {
    next: AtomicU64,
    files: RwLock<HashMap<u64, Arc<Handle>>>,
    /// What each node was opened as first, and how often it is open.
    nodes: Mutex<HashMap<NodeId, (Content, usize)>>,
    listings: Mutex<HashMap<u64, Listing>>,
}

impl Handles {
    fn next(&self) -> u64 {
        // Relaxed: only that it is another one each time matters.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The handle's number. Refused where the node is open as something else.
    pub(super) fn open(&self, handle: Handle) -> Result<u64, OpenedOtherwise> {
        let number = self.next();
        let mut nodes = self.nodes.lock();
        let (content, count) = nodes
            .entry(handle.node)
            .or_insert_with(|| (handle.content.clone(), 0));
        if !content.is_as(&handle.content) {
            return Err(OpenedOtherwise);
        }
        *count += 1;
        drop(nodes);
        self.files.write().insert(number, Arc::new(handle));
        Ok(number)
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<Handle>> {
        self.files.read().get(&number).map(Arc::clone)
    }

    /// What a node is open as, if it is.
    pub(super) fn of_node(&self, node: NodeId) -> Option<Content> {
        self.nodes.lock().get(&node).map(|(content, _)| content.clone())
    }

    /// Closes a handle.
    pub(super) fn close(&self, number: u64) -> Option<Arc<Handle>> {
        let handle = self.files.write().remove(&number)?;
        let mut nodes = self.nodes.lock();
        if let Some((_, count)) = nodes.get_mut(&handle.node) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(&handle.node);
            }
        }
        Some(handle)
    }

    pub(super) fn open_listing(&self) -> u64 {
        let number = self.next();
        self.listings.lock().insert(number, Listing::default());
        number
    }

    pub(super) fn set_listing(&self, number: u64, listing: &Listing) {
        self.listings.lock().insert(number, Arc::clone(listing));
    }

    pub(super) fn listing(&self, number: u64) -> Option<Listing> {
        self.listings.lock().get(&number).map(Arc::clone)
    }

    pub(super) fn close_listing(&self, number: u64) {
        self.listings.lock().remove(&number);
    }
}
