//! The holders: who retains the log, and from where on.

use std::collections::BTreeMap;

use crate::Lsn;

/// Who retains the log. Without a named holder nothing is released at all.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// Those that were named by the log's user.
    named: BTreeMap<String, Lsn>,
    /// Readers and tails under way, by their names. They retain, but do not cause a release.
    readers: BTreeMap<u64, (String, Lsn)>,
}

impl Holders {
    /// Adds a named holder, or moves it.
    pub(crate) fn retain(&mut self, name: &str, lsn: Lsn) {
        match self.named.get_mut(name) {
            Some(retained) => *retained = lsn,
            None => {
                self.named.insert(name.to_owned(), lsn);
            }
        }
    }

    pub(crate) fn release(&mut self, name: &str) {
        self.named.remove(name);
    }

    /// Adds a reader, which `name` names by its number; returns that.
    pub(crate) fn add_reader(&mut self, name: impl FnOnce(u64) -> String, lsn: Lsn) -> u64 {
        let id = self.readers.last_key_value().map_or(0, |(id, _)| id + 1);
        self.readers.insert(id, (name(id), lsn));
        id
    }

    pub(crate) fn move_reader(&mut self, id: u64, lsn: Lsn) {
        if let Some((_, retained)) = self.readers.get_mut(&id) {
            *retained = lsn;
        }
    }

    pub(crate) fn remove_reader(&mut self, id: u64) {
        self.readers.remove(&id);
    }

    /// All of them and what they retain, lowest first.
    pub(crate) fn list(&self) -> Vec<(String, Lsn)> {
        let named = self.named.iter().map(|(name, lsn)| (name.clone(), *lsn));
        let mut all: Vec<_> = named.chain(self.readers.values().cloned()).collect();
        all.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        all
    }

    /// What may be released, if anything may.
    pub(crate) fn lowest(&self) -> Option<Lsn> {
        let named = *self.named.values().min()?;
        let readers = self.readers.values().map(|(_, lsn)| *lsn);
        Some(readers.fold(named, Lsn::min))
    }
}
