//! The views of all families at one moment.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rpds::HashTrieMapSync;

use crate::store::view::View;

/// Families by id, with what reads of them see. Persistent: a changed one shares all but a few
/// nodes with the one before.
pub(crate) type Views = HashTrieMapSync<u32, Arc<View>>;

/// The views of the families that reads find, which a snapshot takes with one load, however many
/// they are.
#[derive(Default)]
pub(crate) struct AllViews {
    current: ArcSwap<Views>,
    /// Held while a view is replaced.
    edit: Mutex<()>,
}

impl AllViews {
    pub(crate) fn load(&self) -> Arc<Views> {
        self.current.load_full()
    }

    /// Adds a family that reads find from now on.
    pub(super) fn add(&self, id: u32, view: Arc<View>) {
        let _edit = self.edit.lock();
        let views = self.current.load();
        self.current.store(Arc::new(views.insert(id, view)));
    }

    /// Replaces a family's view, if reads find the family.
    pub(super) fn replace(&self, id: u32, view: Arc<View>) {
        let _edit = self.edit.lock();
        let views = self.current.load();
        if views.contains_key(&id) {
            self.current.store(Arc::new(views.insert(id, view)));
        }
    }

    pub(super) fn remove(&self, id: u32) {
        let _edit = self.edit.lock();
        let views = self.current.load();
        self.current.store(Arc::new(views.remove(&id)));
    }
}
