//! What a crash may leave: for each name the files that it may be, for each file its pages.
//!
//! A page is the list of the stamps of its sectors. Each write call makes a new version of a page.
//! Below the end that the last sync acknowledged, a crash leaves one of the versions since that
//! sync; behind it, anything.

use std::collections::BTreeMap;

/// Bytes of a page, and of its sectors, each with one stamp.
pub(crate) const PAGE: usize = 2048;
pub(crate) const SECTOR: usize = 512;
const SECTORS: usize = PAGE / SECTOR;

/// The stamps of a page; 0 is a sector of zeros.
pub(crate) type Version = [u64; SECTORS];

/// A page, as a crash may leave it.
#[derive(Debug, Clone)]
struct PageSpec {
    /// What a reader sees.
    current: Version,
    /// Those that a crash may leave; `None`: anything.
    allowed: Option<Vec<Version>>,
}

/// A file.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileSpec {
    /// The length that a reader sees.
    pub(crate) len: u64,
    /// The shortest that a crash may leave.
    len_min: u64,
    pages: Vec<PageSpec>,
}

impl FileSpec {
    fn page(&mut self, number: usize) -> &mut PageSpec {
        while self.pages.len() <= number {
            self.pages.push(PageSpec {
                current: [0; SECTORS],
                allowed: None,
            });
        }
        &mut self.pages[number]
    }

    /// A write of whole sectors begins. Until it is `half` of a version only, a crash must not
    /// leave it.
    pub(crate) fn write(&mut self, offset: u64, stamps: &[u64], half: bool) {
        let first = offset / SECTOR as u64;
        for (at, stamp) in (first..).zip(stamps) {
            let page = self.page(at as usize / SECTORS);
            page.current[at as usize % SECTORS] = *stamp;
        }
        let (from, to) = (
            first as usize / SECTORS,
            (first as usize + stamps.len()).div_ceil(SECTORS),
        );
        for page in &mut self.pages[from..to] {
            let current = page.current;
            if let Some(allowed) = page.allowed.as_mut().filter(|_| !half) {
                allowed.push(current);
            }
        }
        self.len = self.len.max(offset + (stamps.len() * SECTOR) as u64);
    }

    /// A commit of everything begins: halves of versions may be left, too.
    pub(crate) fn commit_begins(&mut self) {
        for page in &mut self.pages {
            let current = page.current;
            page.allowed.iter_mut().for_each(|allowed| allowed.push(current));
        }
    }

    /// Everything is durable.
    pub(crate) fn synced(&mut self) {
        self.len_min = self.len;
        let pages = self.len.div_ceil(PAGE as u64) as usize;
        self.page(pages);
        for (number, page) in self.pages.iter_mut().enumerate() {
            page.allowed = (number < pages).then(|| vec![page.current]);
        }
    }

    /// The length is being set.
    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.len_min = self.len_min.min(len);
            let (pages, rest) = (len.div_ceil(PAGE as u64) as usize, len as usize % PAGE / SECTOR);
            self.pages.truncate(pages);
            if rest > 0 {
                let page = self.page(pages - 1);
                page.current[rest..].fill(0);
                // Cut in the middle at home, and grown again, it may be a part of each.
                page.allowed = None;
            }
        }
        self.len = len;
    }

    /// Its last name is removed and it is changed all the same: if a crash brings the name back, it
    /// may hold anything.
    pub(crate) fn abandon(&mut self) {
        self.len_min = 0;
        self.pages.iter_mut().for_each(|page| page.allowed = None);
    }

    /// What a reader sees.
    pub(crate) fn content(&self) -> Vec<u8> {
        let stamps = self.pages.iter().flat_map(|page| page.current);
        let mut bytes: Vec<u8> = stamps
            .flat_map(|stamp| stamp.to_le_bytes().repeat(SECTOR / 8))
            .collect();
        bytes.resize(self.len as usize, 0);
        bytes
    }

    /// Why a crash must not leave `found`.
    pub(crate) fn refuses(&self, found: &[u8]) -> Option<String> {
        if (found.len() as u64) < self.len_min {
            return Some(format!(
                "{} bytes, {} at least were expected",
                found.len(),
                self.len_min
            ));
        }
        for (number, (page, spec)) in found.chunks(PAGE).zip(&self.pages).enumerate() {
            let Some(allowed) = &spec.allowed else { continue };
            let stamps: Vec<Option<u64>> = page.chunks(SECTOR).map(stamp_of).collect();
            let is = |version: &Version| stamps.iter().zip(version).all(|(is, stamp)| *is == Some(*stamp));
            if !allowed.iter().any(is) {
                return Some(format!("page {number} is {stamps:?}, not one of {allowed:?}"));
            }
        }
        None
    }

    /// The file as it was found after a crash. It is durable if `is_durable`; else what was allowed
    /// still is.
    pub(crate) fn found(&mut self, found: &[u8], is_durable: bool) {
        self.len = found.len() as u64;
        self.len_min = if is_durable {
            self.len
        } else {
            self.len_min.min(self.len)
        };
        self.pages.truncate(found.len().div_ceil(PAGE));
        for (number, page) in found.chunks(PAGE).enumerate() {
            let stamps = page.chunks(SECTOR).map(stamp_of).collect::<Option<Vec<_>>>();
            let spec = self.page(number);
            // What holds garbage is nobody's page; it is written before it is relied on.
            let Some(mut stamps) = stamps else {
                spec.allowed = None;
                continue;
            };
            stamps.resize(SECTORS, 0);
            spec.current.copy_from_slice(&stamps);
            if is_durable {
                spec.allowed = Some(vec![spec.current]);
            }
        }
    }
}

/// The stamp of a sector, if it has one throughout.
fn stamp_of(sector: &[u8]) -> Option<u64> {
    let stamp = u64::from_le_bytes(sector[..8].try_into().unwrap());
    let is_one = sector.chunks(8).all(|chunk| chunk == stamp.to_le_bytes());
    is_one.then_some(stamp)
}

/// The directory: what each name may be after a crash.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spec {
    pub(crate) files: BTreeMap<u32, FileSpec>,
    /// For each name the file that it is, and all that it may be after a crash.
    pub(crate) names: BTreeMap<String, (Option<u32>, Vec<Option<u32>>)>,
    next: u32,
}

impl Spec {
    pub(crate) fn new(names: &[&str]) -> Spec {
        let names = names.iter().map(|name| ((*name).to_owned(), (None, vec![None])));
        Spec {
            names: names.collect(),
            ..Spec::default()
        }
    }

    pub(crate) fn file(&mut self, name: &str) -> Option<&mut FileSpec> {
        self.files.get_mut(&self.names[name].0?)
    }

    fn set(&mut self, name: &str, file: Option<u32>) {
        let (now, may_be) = self.names.get_mut(name).unwrap();
        *now = file;
        may_be.push(file);
    }

    pub(crate) fn create(&mut self, name: &str) {
        let file = self.next;
        self.next += 1;
        self.files.insert(file, FileSpec::default());
        self.set(name, Some(file));
    }

    pub(crate) fn unlink(&mut self, name: &str) {
        self.set(name, None);
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        let file = self.names[from].0;
        self.set(to, file);
        self.set(from, None);
    }

    /// A file was synced, its name too.
    pub(crate) fn synced(&mut self, name: &str) {
        let (now, may_be) = self.names.get_mut(name).unwrap();
        *may_be = vec![*now];
        let file = *now;
        if let Some(file) = file.and_then(|file| self.files.get_mut(&file)) {
            file.synced();
        }
    }

    /// Compares what a crash left, and goes on from there.
    pub(crate) fn found(
        &mut self,
        found: &BTreeMap<String, Option<Vec<u8>>>,
        is_durable: bool,
    ) -> Result<(), String> {
        let mut files = BTreeMap::new();
        for (name, content) in found {
            let (now, may_be) = self.names.get_mut(name).unwrap();
            let Some(content) = content else {
                if !may_be.contains(&None) {
                    return Err(format!("{name} is missing"));
                }
                *now = None;
                if is_durable {
                    *may_be = vec![None];
                }
                continue;
            };
            let mut refused = Vec::new();
            let fits = may_be.iter().flatten().rev().find(|file| {
                let refuses = self.files[file].refuses(content);
                refused.extend(refuses.iter().cloned());
                refuses.is_none()
            });
            let Some(fits) = fits else {
                return Err(format!("{name}: {refused:?}"));
            };
            let mut file = self.files[fits].clone();
            file.found(content, is_durable);
            // From here on each name has a file of its own: nothing is linked twice for long.
            let new = self.next;
            self.next += 1;
            files.insert(new, file);
            *now = Some(new);
            if is_durable {
                *may_be = vec![Some(new)];
            } else {
                may_be.push(Some(new));
            }
        }
        self.files.extend(files);
        Ok(())
    }
}
