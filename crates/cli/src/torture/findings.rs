//! What a look at a store found, by the oracle's three sentences.

/// Violations that are described; the others are counted.
const WORDS_MAX: usize = 8;

/// What a check found, of the commits of `N` threads or clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Findings<const N: usize> {
    /// Commits that were acknowledged, or read where reads promise, and are not there.
    pub(crate) lost: u64,
    /// Commits that are there in part.
    pub(crate) partial: u64,
    /// Commits that are missing though one that had seen them is there, that are back, or that nobody made.
    pub(crate) reordered: u64,
    /// The first few in words.
    pub(crate) words: Vec<String>,
    /// How many commits of each there are.
    pub(crate) counts: [u64; N],
}

impl<const N: usize> Findings<N> {
    pub(crate) fn of(counts: [u64; N]) -> Self {
        Self {
            lost: 0,
            partial: 0,
            reordered: 0,
            words: Vec::new(),
            counts,
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.lost == 0 && self.partial == 0 && self.reordered == 0
    }

    pub(crate) fn say(&mut self, text: impl FnOnce() -> String) {
        if self.words.len() < WORDS_MAX {
            self.words.push(text());
        }
    }
}
