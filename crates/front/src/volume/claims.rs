//! Which names are being changed: work on one name waits for work on the same name alone.

use std::path::{Path, PathBuf};

use parking_lot::{Condvar, Mutex};

/// The names that are claimed or waited for.
#[derive(Debug, Default)]
pub(super) struct Claims {
    queue: Mutex<Queue>,
    /// Notified when a claim ends.
    is_changed: Condvar,
}

/// In the order in which they were asked for.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: Vec<(u64, Vec<PathBuf>)>,
}

/// Nothing else opens, makes, removes or renames what has these names, is above or below them. A
/// thread has one claim at most, and takes it before it locks a file.
#[derive(Debug)]
pub(super) struct Claim<'c> {
    claims: &'c Claims,
    number: u64,
}

impl Claims {
    /// Waits for those that were asked for before, so that none waits for ever.
    pub(super) fn claim(&self, paths: &[&Path]) -> Claim<'_> {
        let mut queue = self.queue.lock();
        let number = queue.next;
        queue.next += 1;
        let wanted: Vec<PathBuf> = paths.iter().map(|path| (*path).to_owned()).collect();
        queue.waiting.push((number, wanted));
        while !queue.is_first(number) {
            self.is_changed.wait(&mut queue);
        }
        Claim { claims: self, number }
    }
}

impl Queue {
    /// Whether no claim before this one concerns one of its names.
    fn is_first(&self, number: u64) -> bool {
        let before = self.waiting.iter().take_while(|(other, _)| *other != number);
        let mine = self.waiting.iter().find(|(other, _)| *other == number);
        let mine = mine.map_or(&[][..], |(_, paths)| paths);
        let is_free = |path: &PathBuf| {
            mine.iter()
                .all(|own| !own.starts_with(path) && !path.starts_with(own))
        };
        before.flat_map(|(_, paths)| paths).all(is_free)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut queue = self.claims.queue.lock();
        queue.waiting.retain(|(number, _)| *number != self.number);
        drop(queue);
        self.claims.is_changed.notify_all();
    }
}
