//! A model of the commits, and what of them a store may show.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::{BARE, Family, Op};
use crate::rng::Print;

pub type Rows = BTreeMap<Print, Print>;

/// What a process read: families, and those that refused.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Found {
    pub families: BTreeMap<String, Rows>,
    pub unread: BTreeSet<String>,
}

pub struct Commit {
    pub writes: Vec<(Family, Print, Option<Print>)>,
    /// Acknowledged as: 0 buffered, 1 process, 2 disk.
    pub level: u8,
}

impl Commit {
    pub fn new(ops: &[Op], seed: u64, level: u8) -> Self {
        let writes = ops
            .iter()
            .map(|op| (op.family.clone(), op.key_print(), op.value_print(seed)));
        Self {
            writes: writes.collect(),
            level,
        }
    }
}

/// The commits in their order, those kept out of the log apart, and the families that there are.
#[derive(Default)]
pub struct History {
    pub logged: Vec<Commit>,
    pub bare: Vec<Commit>,
    pub families: Vec<Family>,
}

/// The prefixes that give what was found, by their lengths.
#[derive(Debug)]
pub struct Prefixes {
    pub logged: Vec<usize>,
    pub bare: Vec<usize>,
}

impl History {
    /// # Errors
    /// No prefix of the commits gives what was found: what is wrong with the nearest.
    pub fn prefixes(&self, found: &Found) -> Result<Prefixes, String> {
        let live: BTreeSet<&str> = self.families.iter().map(|(name, _)| &**name).collect();
        let there: BTreeSet<&str> = found.families.keys().map(|name| &**name).collect();
        if live != there {
            return Err(format!("families {there:?}, expected {live:?}"));
        }
        let logged = self.match_prefixes(&self.logged, found, |name| name != BARE)?;
        let bare = self.match_prefixes(&self.bare, found, |name| name == BARE)?;
        Ok(Prefixes { logged, bare })
    }

    fn match_prefixes(
        &self,
        commits: &[Commit],
        found: &Found,
        of: impl Fn(&str) -> bool,
    ) -> Result<Vec<usize>, String> {
        let judged = |name: &str| of(name) && !found.unread.contains(name);
        let live: BTreeSet<&Family> = self.families.iter().filter(|(name, _)| judged(name)).collect();
        let mut state: BTreeMap<(&str, Print), Print> = BTreeMap::new();
        let wanted = |name: &str, key: &Print| found.families.get(name).and_then(|rows| rows.get(key));
        let rows = found
            .families
            .iter()
            .filter(|(name, _)| judged(name))
            .map(|(_, rows)| rows.len());
        let mut wrong = rows.sum::<usize>();
        let mut matching = Vec::new();
        let mut nearest = (wrong, 0);
        for (at, commit) in std::iter::once(None).chain(commits.iter().map(Some)).enumerate() {
            for (family, key, value) in commit.iter().flat_map(|commit| &commit.writes) {
                if !live.contains(family) {
                    continue;
                }
                let (name, want) = (&*family.0, wanted(&family.0, key));
                wrong -= usize::from(state.get(&(name, *key)) != want);
                match value {
                    Some(value) => state.insert((name, *key), *value),
                    None => state.remove(&(name, *key)),
                };
                wrong += usize::from(state.get(&(name, *key)) != want);
            }
            if wrong == 0 {
                matching.push(at);
            }
            nearest = nearest.min((wrong, at));
        }
        if matching.is_empty() {
            let (wrong, at) = nearest;
            return Err(format!(
                "no prefix of {} commits gives what was found: after {at} of them {wrong} rows differ, {}",
                commits.len(),
                self.differences(&commits[..at], found, &judged)
            ));
        }
        Ok(matching)
    }

    fn differences(&self, commits: &[Commit], found: &Found, judged: &impl Fn(&str) -> bool) -> String {
        let mut state: BTreeMap<(&str, Print), Print> = BTreeMap::new();
        for (family, key, value) in commits.iter().flat_map(|commit| &commit.writes) {
            if self.families.contains(family) && judged(&family.0) {
                match value {
                    Some(value) => state.insert((&family.0, *key), *value),
                    None => state.remove(&(&*family.0, *key)),
                };
            }
        }
        let mut words = Vec::new();
        for (name, rows) in found.families.iter().filter(|(name, _)| judged(name)) {
            for (key, value) in rows {
                match state.remove(&(&**name, *key)) {
                    Some(right) if right == *value => {}
                    other => words.push(format!("{name}/{key:?} is {value:?}, should be {other:?}")),
                }
            }
        }
        words.extend(
            state
                .iter()
                .map(|((name, key), value)| format!("{name}/{key:?} lacks {value:?}")),
        );
        words.truncate(4);
        words.join("; ")
    }

    /// How many of the logged commits were acknowledged at this level at least.
    pub fn acknowledged(&self, level: u8) -> usize {
        self.logged
            .iter()
            .rposition(|commit| commit.level >= level)
            .map_or(0, |at| at + 1)
    }

    /// How many commits a later frame shows to have been durable: the log may not end below, whatever
    /// happens to the last one.
    pub fn shown_durable(&self) -> usize {
        if self.logged.last().is_some_and(|commit| commit.level == 3) {
            return self.logged.len();
        }
        let behind = self.logged.len().saturating_sub(1);
        self.logged[..behind]
            .iter()
            .rposition(|commit| commit.level >= 2)
            .map_or(0, |at| at + 1)
    }

    /// An opening found that many of the commits; the others never were.
    pub fn cut(&mut self, found: &Prefixes) {
        self.logged.truncate(found.logged.last().copied().unwrap_or(0));
        self.bare.truncate(found.bare.last().copied().unwrap_or(0));
    }

    /// What was recovered, or closed, is durable, and a header says so.
    pub fn settle(&mut self) {
        self.logged.iter_mut().for_each(|commit| commit.level = 3);
    }
}

/// Changes what was found in one way that is wrong. The judge must notice.
pub fn lie(found: &mut Found, at: u64) -> bool {
    let mut rows: Vec<(&String, &mut Rows)> = found.families.iter_mut().collect();
    rows.retain(|(_, rows)| !rows.is_empty());
    if rows.is_empty() {
        return false;
    }
    let len = rows.len() as u64;
    let rows = &mut rows[(at % len) as usize].1;
    let Some(key) = rows.keys().nth((at / 7) as usize % rows.len()).copied() else {
        return false;
    };
    match at % 3 {
        0 => drop(rows.remove(&key)),
        1 => drop(rows.insert(key, (1, at))),
        _ => drop(rows.insert((3, at), (0, 0))),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(family: &str, key: u64, value: Option<u64>) -> (Family, Print, Option<Print>) {
        ((family.into(), 0), (1, key), value.map(|value| (1, value)))
    }

    fn history() -> History {
        let commit = |writes| Commit { writes, level: 2 };
        History {
            logged: vec![
                commit(vec![put("a", 1, Some(10)), put("b", 1, Some(10))]),
                commit(vec![put("a", 1, Some(11)), put("gone", 1, Some(11))]),
                commit(vec![put("a", 1, None), put("b", 1, Some(12))]),
            ],
            bare: vec![commit(vec![put(BARE, 1, Some(20))])],
            families: ["a", "b", BARE].map(|name| (name.to_owned(), 0)).to_vec(),
        }
    }

    fn found(a: Option<u64>, b: Option<u64>, bare: Option<u64>) -> Found {
        let row = |value: Option<u64>| value.map(|value| ((1, 1), (1, value))).into_iter().collect();
        let rows = [("a", row(a)), ("b", row(b)), (BARE, row(bare))];
        Found {
            families: rows.map(|(name, rows)| (name.to_owned(), rows)).into(),
            ..Found::default()
        }
    }

    #[test]
    fn prefixes_pass() {
        let passes = |found| history().prefixes(&found).map(|p| (p.logged, p.bare));
        assert_eq!(passes(found(None, None, None)), Ok((vec![0], vec![0])));
        assert_eq!(
            passes(found(Some(11), Some(10), Some(20))),
            Ok((vec![2], vec![1]))
        );
        assert_eq!(passes(found(None, Some(12), None)), Ok((vec![3], vec![0])));
    }

    #[test]
    fn half_a_commit_a_hole_and_an_unwritten_value_do_not() {
        let refused = |found| history().prefixes(&found).is_err();
        assert!(refused(found(Some(10), None, None)), "half of a commit");
        assert!(refused(found(None, Some(10), None)), "half of the last one");
        assert!(refused(found(Some(11), Some(12), None)), "a later one, and half");
        assert!(refused(found(Some(13), Some(10), None)), "never written");
        assert!(
            refused(found(Some(11), Some(10), Some(21))),
            "never written, without a log"
        );
        let mut missing = found(None, None, None);
        missing.families.remove("b");
        assert!(refused(missing), "a family less");
    }
}
