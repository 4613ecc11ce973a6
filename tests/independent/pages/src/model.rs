//! What a file's pages may be after a crash.

use std::hash::Hasher;

/// What may be found of one page.
#[derive(Clone)]
struct Page {
    /// Hashes of what it was, padded with zeros: first what a sync covered, last what it is.
    versions: Vec<u64>,
    /// The file grew here since a sync covered it: it may be zeros, or not there.
    grown: bool,
    /// It was written in a way that promises no whole pages.
    torn: bool,
}

#[derive(Clone)]
pub struct File {
    pub id: u64,
    page: usize,
    /// What its readers see.
    pub live: Vec<u8>,
    pages: Vec<Page>,
    /// All lengths since the last sync, that of the sync first.
    lens: Vec<usize>,
    /// Written in place, as no relation is.
    pub plain: bool,
    /// A sync covered a name of it.
    pub named: bool,
    /// Its last name was taken away since.
    pub gone: bool,
    /// Nothing is promised of it any more.
    pub suspect: bool,
}

const KERNEL_PAGE: usize = 4096;

/// How a life ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// What is found is on the disk.
    Cut,
    /// What is found may be in the cache of the disk.
    Killed,
}

fn hash(bytes: &[u8], page: usize) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    debug_assert!(used <= page);
    hasher.write(&bytes[..used]);
    hasher.finish()
}

impl File {
    pub fn new(id: u64, page: usize, plain: bool) -> Self {
        Self {
            id,
            page,
            live: Vec::new(),
            pages: Vec::new(),
            lens: vec![0],
            plain,
            named: false,
            gone: false,
            suspect: false,
        }
    }

    fn live_page(&self, number: usize) -> &[u8] {
        let end = self.live.len();
        &self.live[(number * self.page).min(end)..((number + 1) * self.page).min(end)]
    }

    fn live_pages(&self) -> usize {
        self.live.len().div_ceil(self.page)
    }

    fn version(&mut self, number: usize, torn: bool) {
        let now = hash(self.live_page(number), self.page);
        let torn = torn || self.plain;
        let page = &mut self.pages[number];
        page.torn |= torn;
        if page.versions.last() != Some(&now) {
            page.versions.push(now);
        }
    }

    fn resize(&mut self, len: usize) {
        let old = self.live.len();
        self.live.resize(len, 0);
        let zeros = hash(&[], self.page);
        let fresh = || Page {
            versions: vec![zeros],
            grown: true,
            torn: false,
        };
        let pages = self.live_pages().max(self.pages.len());
        self.pages.resize_with(pages, fresh);
        // Pages that lie wholly between the two lengths came or went.
        let (from, to) = (old.min(len).div_ceil(self.page), old.max(len).div_ceil(self.page));
        self.pages[from..to].iter_mut().for_each(|page| page.grown = true);
        if len < old && !len.is_multiple_of(self.page) {
            // The length may last and a write before it not: then it is an older version that is cut.
            let number = len / self.page;
            self.version(number, self.pages[number].versions.len() > 1);
        }
        if len > old {
            (from..to).for_each(|number| self.version(number, false));
        }
        if self.lens.last() != Some(&len) {
            self.lens.push(len);
        }
    }

    pub fn set_len(&mut self, len: usize) {
        self.resize(len);
    }

    /// Whole pages of it are old or new; with `torn` nothing is promised of them.
    pub fn write(&mut self, at: usize, bytes: &[u8], torn: bool) {
        let end = at + bytes.len();
        if bytes.is_empty() {
            return;
        }
        if end > self.live.len() {
            self.resize(end);
        }
        self.live[at..end].copy_from_slice(bytes);
        (at / self.page..end.div_ceil(self.page)).for_each(|number| self.version(number, torn));
    }

    /// A sync covers all of it.
    pub fn synced(&mut self) {
        let page = |number| Page {
            versions: vec![hash(self.live_page(number), self.page)],
            grown: false,
            torn: false,
        };
        self.pages = (0..self.live_pages()).map(page).collect();
        self.lens = vec![self.live.len()];
    }

    /// Whether this may be what is left of it.
    pub fn check(&self, found: &[u8]) -> Result<(), String> {
        if self.suspect {
            return Ok(());
        }
        let (least, most) = (self.lens.iter().min(), self.lens.iter().max());
        let len = found.len();
        let is_torn = self.plain || self.pages.iter().any(|page| page.torn);
        // The kernel may hand on a write in parts that end with its own pages, and a commit come between.
        let is_part = !self.lens.contains(&len) && len.is_multiple_of(KERNEL_PAGE);
        let was_long = self.lens.contains(&len) || is_part || is_torn;
        if Some(&len) < least || Some(&len) > most || !was_long {
            let lens: Vec<_> = self.lens.iter().rev().take(12).collect();
            return Err(format!(
                "{len} bytes, not as it ever was since a sync: {least:?} to {most:?}, last {lens:?}"
            ));
        }
        let pages = found.chunks(self.page).zip(&self.pages);
        for (number, (bytes, page)) in pages.enumerate() {
            let now = hash(bytes, self.page);
            let is_version = page.versions.contains(&now);
            let is_zeros = bytes.iter().all(|b| *b == 0);
            let is_cut_short = is_part && bytes.len() < self.page;
            if !(is_version || is_cut_short || page.torn || page.grown && is_zeros) {
                let halves: Vec<String> = bytes.chunks(512).map(says).collect();
                return Err(format!(
                    "page {number} is none of its {} versions{}; its pieces: {}",
                    page.versions.len(),
                    if page.grown { " (it grew)" } else { "" },
                    halves.join(" ")
                ));
            }
        }
        Ok(())
    }

    /// It goes on as it was found.
    pub fn adopt(&mut self, found: Vec<u8>, end: End) {
        self.live = found;
        if end == End::Cut {
            self.named = true;
            self.gone = false;
            self.suspect = false;
            return self.synced();
        }
        if self.lens.last() != Some(&self.live.len()) {
            self.lens.push(self.live.len());
        }
        let live = self.live_pages();
        // Of a file of which nothing is promised there may be more than was known.
        let unknown = || Page {
            versions: Vec::new(),
            grown: true,
            torn: true,
        };
        self.pages.resize_with(live.max(self.pages.len()), unknown);
        for number in 0..self.pages.len() {
            let now = hash(self.live_page(number), self.page);
            let page = &mut self.pages[number];
            page.grown |= number >= live;
            match page.versions.iter().rposition(|version| *version == now) {
                Some(at) => page.versions.truncate(at + 1),
                None => page.versions.push(now),
            }
        }
    }
}

/// A piece of what `content` makes says whose it is.
fn says(piece: &[u8]) -> String {
    let text: String = piece
        .iter()
        .take(28)
        .map(|b| char::from(*b))
        .take_while(|c| c.is_ascii_graphic())
        .collect();
    match text.strip_prefix('<').and_then(|text| text.split_once('>')) {
        Some((name, _)) => name.to_owned(),
        None if piece.iter().all(|b| *b == 0) => "0".to_owned(),
        None => "?".to_owned(),
    }
}

/// Bytes of which each 512 say in which file and by which write they are.
pub fn content(id: u64, write: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (number, piece) in bytes.chunks_mut(512).enumerate() {
        let name = format!("<{id}.{write}.{number}>");
        let from = name.len().min(piece.len());
        piece[..from].copy_from_slice(&name.as_bytes()[..from]);
        let fill = (id * 31 + write * 7 + number as u64) as u8 | 1;
        piece[from..].fill(fill);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: usize = 8192;

    fn synced() -> File {
        let mut file = File::new(1, P, false);
        file.write(0, &content(1, 1, 4 * P), false);
        file.synced();
        file
    }

    #[test]
    fn each_page_is_old_or_new_and_never_half() {
        let mut file = synced();
        let old = file.live.clone();
        file.write(0, &content(1, 2, 2 * P), false);
        let new = file.live.clone();
        assert!(file.check(&old).is_ok() && file.check(&new).is_ok());
        assert!(
            file.check(&[&old[..P], &new[P..]].concat()).is_ok(),
            "each page is for itself"
        );
        assert!(
            file.check(&[&old[..P / 2], &new[P / 2..]].concat()).is_err(),
            "half a page"
        );
        assert!(
            file.check(&[&[0; P][..], &new[P..]].concat()).is_err(),
            "a page that was synced is zeros"
        );
        assert!(
            file.check(&new[..3 * P]).is_err(),
            "a page that was synced is missing"
        );
        assert!(
            file.check(&[&new[..], &[0; P][..]].concat()).is_err(),
            "a page that was never there"
        );
        file.synced();
        assert!(file.check(&old).is_err(), "what a sync replaced comes back");
        let other = content(2, 1, P);
        assert!(
            file.check(&[&other[..], &new[P..]].concat()).is_err(),
            "another file's page"
        );
    }

    #[test]
    fn where_a_file_grew_there_may_be_zeros_or_nothing_until_a_sync() {
        let mut file = synced();
        let old = file.live.clone();
        file.set_len(P + 100);
        file.write(2 * P, &content(1, 3, 2 * P), false);
        let new = file.live.clone();
        assert!(file.check(&old).is_ok() && file.check(&new).is_ok());
        assert!(file.check(&new[..P + 100]).is_ok() && file.check(&new[..2 * P]).is_ok());
        assert!(file.check(&new[..P]).is_err(), "what was never cut");
        assert!(file.check(&new[..P + 200]).is_err(), "a length it never had");
        assert!(
            file.check(&[&new[..2 * P], &[0; 2 * P][..]].concat()).is_ok(),
            "grew by zeros"
        );
        let half = [&new[..2 * P + 512], &vec![0; P - 512][..]].concat();
        assert!(file.check(&half).is_err(), "half of it");
        file.synced();
        assert!(file.check(&new).is_ok() && file.check(&old).is_err());
        assert!(
            file.check(&[&new[..2 * P], &[0; 2 * P][..]].concat()).is_err(),
            "zeros after a sync"
        );
    }

    #[test]
    fn what_was_seen_after_a_crash_stays() {
        for end in [End::Cut, End::Killed] {
            let mut file = synced();
            let old = file.live.clone();
            file.write(0, &content(1, 2, P), false);
            let middle = file.live.clone();
            file.write(0, &content(1, 3, P), false);
            let new = file.live.clone();
            file.adopt(middle.clone(), end);
            assert!(file.check(&middle).is_ok());
            assert!(file.check(&new).is_err(), "what was lost comes back");
            assert_eq!(
                file.check(&old).is_ok(),
                end == End::Killed,
                "nobody synced it since"
            );
        }
    }
}
