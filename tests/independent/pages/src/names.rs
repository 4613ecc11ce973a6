//! Which file may have which name after a crash.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{End, File};

/// Names of relations, which the mount keeps in pages.
pub const RELATIONS: [&str; 8] = [
    "16384",
    "16384.1",
    "16384.2",
    "16384_fsm",
    "16384_vm.1",
    "16385",
    "16386",
    "16387_init",
];
/// Names of other files.
pub const PLAIN: [&str; 3] = ["pg_filenode.map", "t3_16384", "old"];
/// A file has so many pages at most.
pub const PAGES: u64 = 120;

/// Of one name: the files that had it, first the one that a sync covered, last the one that has it.
type History = Vec<Option<u64>>;

/// What was found: bytes and inode number by path.
pub type Found = BTreeMap<String, (Vec<u8>, u64)>;

#[derive(Default)]
pub struct Names {
    paths: BTreeMap<String, History>,
    pub files: BTreeMap<u64, File>,
    pub dirs: BTreeSet<String>,
    next: u64,
}

pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Whether a path is a relation's, by PostgreSQL's names: digits, a fork, a segment.
pub fn is_relation(path: &str) -> bool {
    path.rsplit('/')
        .next()
        .is_some_and(|name| name.starts_with(|c: char| c.is_ascii_digit()))
}

impl Names {
    pub fn new(first: u64) -> Self {
        Self {
            next: first,
            ..Self::default()
        }
    }

    pub fn now(&self, path: &str) -> Option<u64> {
        self.paths.get(path)?.last().copied().flatten()
    }

    pub fn live(&self) -> Vec<(String, u64)> {
        self.paths
            .keys()
            .filter_map(|path| Some((path.clone(), self.now(path)?)))
            .collect()
    }

    fn set(&mut self, path: &str, to: Option<u64>) {
        if let Some(old) = self.now(path)
            && let Some(file) = self.files.get_mut(&old)
        {
            file.gone = true;
        }
        self.paths
            .entry(path.to_owned())
            .or_insert_with(|| vec![None])
            .push(to);
    }

    pub fn create(&mut self, path: &str, page: usize) -> u64 {
        self.next += 1;
        let id = self.next;
        self.files.insert(id, File::new(id, page, !is_relation(path)));
        self.set(path, Some(id));
        id
    }

    pub fn remove(&mut self, path: &str) {
        self.set(path, None);
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        let id = self.now(from);
        let was_gone = id
            .and_then(|id| self.files.get(&id))
            .is_some_and(|file| file.gone);
        self.set(to, id);
        self.set(from, None);
        if let Some(file) = id.and_then(|id| self.files.get_mut(&id)) {
            file.gone = was_gone;
            file.plain |= !is_relation(to);
        }
    }

    pub fn rename_dir(&mut self, from: &str, to: &str) {
        let paths: Vec<String> = self
            .paths
            .keys()
            .filter(|path| parent(path) == from)
            .cloned()
            .collect();
        for path in paths {
            let new = format!("{to}/{}", &path[from.len() + 1..]);
            // What is still undecided of the old name is so of the new one.
            let (mut history, last) = (self.paths[&path].clone(), self.now(&path));
            history.pop();
            self.paths
                .entry(new.clone())
                .or_insert_with(|| vec![None])
                .extend(history);
            match last {
                Some(_) => self.rename(&path, &new),
                None => self.set(&new, None),
            }
        }
        self.dirs.remove(from);
        self.dirs.insert(to.to_owned());
    }

    /// A sync of the file covers its name.
    pub fn name_synced(&mut self, path: &str) {
        if let Some(history) = self.paths.get_mut(path)
            && let Some(last) = history.last().copied()
        {
            *history = vec![last];
            if let Some(file) = last.and_then(|id| self.files.get_mut(&id)) {
                file.named = true;
            }
        }
    }

    pub fn dir_synced(&mut self, dir: &str) {
        let paths: Vec<String> = self
            .paths
            .keys()
            .filter(|path| parent(path) == dir)
            .cloned()
            .collect();
        paths.iter().for_each(|path| self.name_synced(path));
    }

    /// Compares what is found with what may be; says all that is wrong.
    pub fn check(&self, found: &Found) -> Result<BTreeMap<String, u64>, Vec<String>> {
        let (mut wrong, mut chosen) = (Vec::new(), BTreeMap::new());
        let mut seen = BTreeSet::new();
        let mut inodes = BTreeMap::new();
        for (path, (bytes, inode)) in found {
            if let Some(other) = inodes.insert(inode, path) {
                wrong.push(format!("{path} and {other} are one file"));
            }
            let history = self.paths.get(path).map_or(&[][..], |history| history);
            let files = history.iter().rev().flatten().filter_map(|id| self.files.get(id));
            let (mut fits, mut why) = (None, Vec::new());
            for file in files {
                match file.check(bytes) {
                    Ok(()) => {
                        fits = fits.or(Some(file.id));
                        seen.insert(file.id);
                    }
                    Err(reason) => why.push(format!("as file {}: {reason}", file.id)),
                }
            }
            match fits {
                Some(id) => drop(chosen.insert(path.clone(), id)),
                None => wrong.push(format!(
                    "{path} is none of the files {history:?}: {}",
                    why.join("; ")
                )),
            }
        }
        for (path, history) in &self.paths {
            if !found.contains_key(path) && !history.contains(&None) {
                wrong.push(format!("{path} is missing; it was one of {history:?}"));
            }
        }
        for file in self.files.values() {
            if file.named && !file.gone && !seen.contains(&file.id) {
                let paths: Vec<_> = self
                    .paths
                    .iter()
                    .filter(|(_, h)| h.contains(&Some(file.id)))
                    .collect();
                wrong.push(format!(
                    "file {}, whose name was synced, is nowhere: {paths:?}",
                    file.id
                ));
            }
        }
        if wrong.is_empty() { Ok(chosen) } else { Err(wrong) }
    }

    /// Goes on with what was found.
    pub fn adopt(&mut self, found: Found, chosen: &BTreeMap<String, u64>, end: End) {
        let mut used = BTreeSet::new();
        let old = std::mem::take(&mut self.paths);
        for (path, history) in &old {
            if !found.contains_key(path) && end == End::Killed {
                let mut history = history.clone();
                if history.last() != Some(&None) {
                    history.push(None);
                }
                self.paths.insert(path.clone(), history);
            }
        }
        for (path, (bytes, _)) in found {
            let mut id = chosen[&path];
            if !used.insert(id) {
                // It looks as another does that may have been here: so it is a file of its own.
                let mut copy = self.files[&id].clone();
                self.next += 1;
                id = self.next;
                copy.id = id;
                self.files.insert(id, copy);
            }
            let mut history = old[&path].clone();
            if history.last() != Some(&Some(id)) {
                history.push(Some(id));
            }
            if end == End::Cut {
                history = vec![Some(id)];
            }
            if let Some(file) = self.files.get_mut(&id) {
                file.adopt(bytes, end);
                file.plain = !is_relation(&path);
            }
            self.paths.insert(path, history);
        }
        let known: BTreeSet<u64> = self.paths.values().flatten().flatten().copied().collect();
        self.files.retain(|id, _| known.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::content;

    fn with(names: &mut Names, path: &str) -> Vec<u8> {
        let id = names.create(path, 512);
        let bytes = content(id, 1, 1024);
        let file = names.files.get_mut(&id).unwrap();
        file.write(0, &bytes, false);
        file.synced();
        names.name_synced(path);
        bytes
    }

    fn found(paths: &[(&str, &[u8])]) -> Found {
        let each = paths.iter().enumerate();
        each.map(|(n, (path, bytes))| ((*path).to_owned(), (bytes.to_vec(), n as u64)))
            .collect()
    }

    #[test]
    fn a_renamed_file_has_one_name_and_replaces_another_whole() {
        let mut names = Names::new(0);
        let (a, b) = (with(&mut names, "d/1"), with(&mut names, "d/2"));
        names.rename("d/1", "d/2");
        assert!(
            names.check(&found(&[("d/1", &a), ("d/2", &b)])).is_ok(),
            "not yet"
        );
        assert!(names.check(&found(&[("d/2", &a)])).is_ok());
        assert!(names.check(&found(&[("d/2", &b)])).is_err(), "it is lost");
        assert!(
            names.check(&found(&[("d/1", &a)])).is_err(),
            "the other's name is nobody's"
        );
        assert!(names.check(&found(&[("d/1", &b), ("d/2", &a)])).is_err());
        assert!(
            names.check(&found(&[("d/2", &a), ("d/3", &b)])).is_err(),
            "a name that never was"
        );
        let mut twice = found(&[("d/1", &a), ("d/2", &a)]);
        assert!(names.check(&twice).is_ok());
        twice.get_mut("d/2").unwrap().1 = 0;
        assert!(names.check(&twice).is_err(), "two names");
        names.dir_synced("d");
        assert!(
            names.check(&found(&[("d/1", &a), ("d/2", &b)])).is_err(),
            "the sync is forgotten"
        );
        names.remove("d/2");
        assert!(names.check(&found(&[("d/2", &a)])).is_ok() && names.check(&found(&[])).is_ok());
        names.dir_synced("d");
        assert!(names.check(&found(&[("d/2", &a)])).is_err(), "it comes back");
    }

    #[test]
    fn files_of_a_renamed_directory_are_here_or_there() {
        let mut names = Names::new(0);
        let a = with(&mut names, "d/1");
        names.rename_dir("d", "e");
        assert!(names.check(&found(&[("d/1", &a)])).is_ok() && names.check(&found(&[("e/1", &a)])).is_ok());
        assert!(names.check(&found(&[])).is_err());
        let chosen = names.check(&found(&[("e/1", &a)])).unwrap();
        names.adopt(found(&[("e/1", &a)]), &chosen, End::Cut);
        assert!(names.check(&found(&[("d/1", &a)])).is_err());
    }
}
