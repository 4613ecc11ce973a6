//! What a volume is doing, for its operators.

use std::sync::atomic::Ordering;

use super::Volume;

/// What a volume is doing: numbers of one moment, though not all of the same one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeStatus {
    /// Pages that the shadow file has room for.
    pub slots: u32,
    /// Of these, those that are free.
    pub free_slots: u32,
    /// Files with displaced pages.
    pub mapped: usize,
    /// Files with displaced pages that are missing, and whose pages are kept.
    pub missing: usize,
    /// Displaced pages.
    pub displaced: usize,
    /// Overwritten pages that are not committed yet.
    pub dirty: usize,
    /// Files that were removed, whose removal is not in the log yet, or that are open and may hold slots.
    pub removed: usize,
    /// Bytes of the log that a recovery would read.
    pub log_bytes: u64,
    /// Why the volume, or else one of its files, takes no more writes.
    pub poisoned: Option<String>,
}

impl Volume {
    /// What the volume is doing. Waits for no device.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        let (files, removed) = {
            let files = self.files.lock();
            let open: Vec<_> = files.open.values().map(std::sync::Arc::downgrade).collect();
            (open, files.removed.len() + files.orphans.len())
        };
        let mut status = VolumeStatus {
            slots: self.shared.shadow.slots(),
            free_slots: self.free_slots(),
            removed,
            missing: self.kept.values().filter(|kept| kept.has_pages()).count(),
            // Relaxed: a number that is stored when it holds.
            log_bytes: self
                .shared
                .log_end()
                .saturating_sub(self.checkpointed.load(Ordering::Relaxed)),
            poisoned: self.shared.failure().map(ToString::to_string),
            ..VolumeStatus::default()
        };
        for file in files.iter().filter_map(|file| self.if_open(file)) {
            if let (None, Some(own)) = (&status.poisoned, file.failure()) {
                status.poisoned = Some(own.to_string());
            }
            let (displaced, dirty) = file.counts();
            status.mapped += usize::from(displaced > 0);
            status.displaced += displaced;
            status.dirty += dirty;
        }
        status
    }

    /// Whether a failed write or sync has ended all writes.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.shared.failure().is_some()
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u32 {
        self.shared.page_bytes
    }
}
