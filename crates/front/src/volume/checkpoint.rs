//! Writing the map, so that the log before it can be released.

use std::sync::atomic::Ordering;

use super::{OWN, Volume};
use crate::FrontError;
use crate::disk::map::{Map, MappedFile};
use crate::disk::record::Record;
use crate::file::Mapping;

impl Volume {
    /// Writes the map and releases the log before it. Blocks on the device; commits continue, each
    /// file's but for the moment in which its state is copied.
    ///
    /// Records before the mark are in the map: a file's state is copied under its committer, so of
    /// a record that was appended before the mark its file has made the state its own. Those after
    /// the mark are read again, and contain states.
    ///
    /// # Errors
    /// [`FrontError::Io`], [`FrontError::Log`]: the old map holds, and nothing is released.
    pub fn checkpoint(&self) -> Result<(), FrontError> {
        let _checkpoint = self.checkpoint.lock();
        self.shared.check()?;
        let mark = self.shared.record(&Record::Mark)?;
        let files = {
            let files = self.files.lock();
            let all = files.open.values().chain(files.removed.values());
            all.map(std::sync::Arc::clone).collect::<Vec<_>>()
        };
        let mut map = Map {
            page_bytes: self.shared.page_bytes,
            slots: self.shared.shadow.slots(),
            log_id: self.recovered.log_id,
            identity: *self.identity.lock(),
            replay_from: mark.start,
            next_id: 0,
            files: self.kept.clone(),
        };
        for file in files {
            let committer = file.committer();
            let Mapping::Mapped(id) = committer.mapping else {
                continue;
            };
            let (end, pages) = file.committed();
            let path = file.name().path().to_owned();
            map.files.insert(id, MappedFile { path, end, pages });
        }
        // After the ids of all files were read.
        map.next_id = self.shared.next_id();
        map.write(&*self.shared.device, &self.shared.root.join(OWN))?;
        self.shared.retain(mark.start);
        // Relaxed: only for `status`.
        self.checkpointed.store(mark.start, Ordering::Relaxed);
        Ok(())
    }
}
