//! The holders: who retains the log, and from where on.

use std::collections::BTreeMap;

use crate::Lsn;

/// Who retains the log.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// Those that were named by the log's user. Without any, nothing is released at all.
    pub(crate) named: BTreeMap<String, Lsn>,
    /// Readers and tails under way, by their names. They retain, but do not cause a release.
    pub(crate) readers: BTreeMap<u64, (String, Lsn)>,
}

impl Holders {
    /// What may be released, if anything may.
    pub(super) fn lowest(&self) -> Option<Lsn> {
        let named = self.named.values().min()?;
        Some(
            self.readers
                .values()
                .map(|(_, reader)| reader)
                .min()
                .map_or(*named, |reader| *named.min(reader)),
        )
    }
}
