//! What a crash may leave: for each name the files that it may be, for each file its pages.
//!
//! A page is the list of the stamps of its sectors. Each write call makes a new version of a page.
//! Below the end that the last sync acknowledged, a crash leaves one of the versions since that
//! sync. Behind it, and where the file was cut since, also zeros or nothing, but never a mix.

use std::collections::BTreeMap;

/// Bytes of a page, and of its sectors, each with one stamp.
pub(crate) const PAGE: usize = 2048;
pub(crate) const SECTOR: usize = 512;
const SECTORS: usize = PAGE / SECTOR;

/// The stamp of a sector that holds something, and it does not matter what.
const ANYTHING: u64 = u64::MAX;

/// The stamps of a page; 0 is a sector of zeros.
pub(crate) type Version = [u64; SECTORS];

/// What a crash leaves of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// One of its versions.
    Version,
    /// One of them, zeros or nothing.
    VersionOrNone,
    /// Anything.
    Anything,
}

/// A page, as a crash may leave it.
#[derive(Debug, Clone)]
struct PageSpec {
    /// What a reader sees.
    current: Version,
    /// Its versions since the last sync.
    versions: Vec<Version>,
    left: Left,
    /// Which of the versions a sync under way is about to make the oldest one.
    syncing: Option<usize>,
}

/// A file.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileSpec {
    /// The length that a reader sees.
    pub(crate) len: u64,
    /// The shortest that a crash may leave.
    len_min: u64,
    /// The length that a sync under way is about to make durable.
    syncing: u64,
    pages: Vec<PageSpec>,
}

impl FileSpec {
    fn page(&mut self, number: usize) -> &mut PageSpec {
        while self.pages.len() <= number {
            self.pages.push(PageSpec {
                current: [0; SECTORS],
                versions: Vec::new(),
                left: Left::VersionOrNone,
                syncing: None,
            });
        }
        &mut self.pages[number]
    }

    /// A write of whole sectors begins. Until it is `half` of a version only, a crash must not
    /// leave it.
    pub(crate) fn write(&mut self, offset: u64, stamps: &[u64], half: bool) {
        if offset > self.len {
            self.set_len(offset);
        }
        let first = offset / SECTOR as u64;
        for (at, stamp) in (first..).zip(stamps) {
            let page = self.page(at as usize / SECTORS);
            page.current[at as usize % SECTORS] = *stamp;
        }
        let (from, to) = (
            first as usize / SECTORS,
            (first as usize + stamps.len()).div_ceil(SECTORS),
        );
        for page in self.pages[from..to].iter_mut().filter(|_| !half) {
            page.versions.push(page.current);
        }
        self.len = self.len.max(offset + (stamps.len() * SECTOR) as u64);
    }

    /// A commit of everything begins: halves of versions may be left, too.
    pub(crate) fn sync_begins(&mut self) {
        self.syncing = self.len;
        for page in &mut self.pages {
            page.syncing = Some(page.versions.len());
            page.versions.push(page.current);
        }
    }

    /// Everything that was written when it began is durable.
    pub(crate) fn sync_ends(&mut self) {
        self.len_min = self.syncing;
        let pages = self.syncing.div_ceil(PAGE as u64) as usize;
        for (number, page) in self.pages.iter_mut().enumerate() {
            page.left = match number < pages {
                true => Left::Version,
                false => Left::VersionOrNone,
            };
            if let Some(oldest) = page.syncing.take() {
                page.versions.drain(..oldest);
            } else if page.left == Left::Version {
                // It began behind the end, and was not there yet: zeros.
                page.versions.insert(0, [0; SECTORS]);
            }
        }
    }

    /// The length is being set.
    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.len_min = self.len_min.min(len);
            let (pages, rest) = (len.div_ceil(PAGE as u64) as usize, len as usize % PAGE / SECTOR);
            for page in self.pages.iter_mut().skip(pages) {
                page.current = [0; SECTORS];
                // A crash may leave it uncut.
                if page.left == Left::Version {
                    page.left = Left::VersionOrNone;
                }
            }
            if rest > 0 {
                let page = self.page(pages - 1);
                page.current[rest..].fill(0);
                // Cut in the middle at home, and grown again, it may be a part of each.
                page.left = Left::Anything;
            }
        }
        self.len = len;
    }

    /// Its last name is removed and it is changed all the same: if a crash brings the name back, it
    /// may hold anything.
    pub(crate) fn abandon(&mut self) {
        self.len_min = 0;
        self.pages.iter_mut().for_each(|page| page.left = Left::Anything);
    }

    /// The first sector that is not what a reader should see.
    pub(crate) fn differs(&self, found: &[u8]) -> Option<String> {
        if found.len() as u64 != self.len {
            return Some(format!("{} bytes, not {}", found.len(), self.len));
        }
        let stamps = self.pages.iter().flat_map(|page| page.current);
        let mut sectors = found.chunks(SECTOR).map(stamp_of).zip(stamps).enumerate();
        let wrong = sectors.find(|(_, (found, stamp))| !is_same(*found, *stamp))?;
        Some(format!("sector {}: {:?}, not {}", wrong.0, wrong.1.0, wrong.1.1))
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
            let stamps: Vec<Option<u64>> = page.chunks(SECTOR).map(stamp_of).collect();
            let is = |version: &Version| stamps.iter().zip(version).all(|(is, stamp)| is_same(*is, *stamp));
            let is_none = spec.left == Left::VersionOrNone && is(&[0; SECTORS]);
            if spec.left != Left::Anything && !is_none && !spec.versions.iter().any(is) {
                return Some(format!(
                    "page {number} is {stamps:?}, not one of {:?}",
                    spec.versions
                ));
            }
        }
        None
    }

    /// The file as it was found after a crash. It is durable if `is_durable`; else what was allowed
    /// still is.
    pub(crate) fn found(&mut self, found: &[u8], is_durable: bool) {
        self.len = found.len() as u64;
        self.syncing = 0;
        self.pages.iter_mut().for_each(|page| page.syncing = None);
        self.len_min = if is_durable {
            self.len
        } else {
            self.len_min.min(self.len)
        };
        if is_durable {
            self.pages.truncate(found.len().div_ceil(PAGE));
        }
        self.pages.iter_mut().for_each(|page| page.current = [0; SECTORS]);
        for (number, page) in found.chunks(PAGE).enumerate() {
            let stamps = page
                .chunks(SECTOR)
                .map(|sector| stamp_of(sector).unwrap_or(ANYTHING));
            let mut stamps: Vec<u64> = stamps.collect();
            stamps.resize(SECTORS, 0);
            let spec = self.page(number);
            spec.current.copy_from_slice(&stamps);
            spec.versions.push(spec.current);
            if is_durable {
                spec.versions = vec![spec.current];
                spec.left = Left::Version;
            }
        }
    }
}

fn is_same(found: Option<u64>, stamp: u64) -> bool {
    stamp == ANYTHING || found == Some(stamp)
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
            file.sync_ends();
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
