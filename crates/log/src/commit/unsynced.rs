//! What the next sync has to cover.

use std::sync::Arc;

use crate::commit::writer::Written;
use crate::error::{At, Fatal};
use crate::lockfree::sync::{Mutex, lock};
use crate::segments::segment::Segment;

/// Segments written to through the page cache since their last sync began.
#[derive(Debug, Default)]
pub(crate) struct Unsynced(Mutex<Vec<Arc<Segment>>>);

impl Unsynced {
    /// Called before `written` is raised: a leader that has seen the watermark finds the segment
    /// here, or in a sync that began after the write.
    pub(super) fn add(&self, written: &Written) {
        let segment = written.segment();
        let mut segments = lock(&self.0);
        if !segments.iter().any(|other| other.number == segment.number) {
            segments.push(Arc::clone(segment));
        }
    }

    /// Makes durable what was written before the call. After an error nothing may be synced again:
    /// the kernel has marked the pages clean.
    pub(super) fn sync(&self) -> Result<(), Fatal> {
        let segments = std::mem::take(&mut *lock(&self.0));
        for segment in segments {
            let synced = segment.file.sync_data().at("sync", &segment.path);
            synced.map_err(|error| Fatal::frames(&error))?;
        }
        Ok(())
    }
}
