//! What may become of a store with damage, as `docs/book/src/durability.md` says.

use crate::child::EXTRA;
use crate::damage::{Class, Damage, Image, Kind, class};
use crate::judge::{Found, History};
use crate::process::Answers;
use crate::rng::print;

/// The store before any damage.
pub struct Before<'a> {
    pub history: &'a History,
    pub image: &'a Image,
    /// How many commits an opening of it finds.
    pub logged: usize,
    pub bare: usize,
    /// The segment in which the log ends, and where in it.
    pub last: (String, usize),
    pub base: &'a str,
    /// The mode that it is opened in.
    pub mode: &'a str,
}

#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// So many commits at least.
    pub floor: usize,
    /// A loss may go unreported: nothing that is left shows it.
    pub silent: bool,
    pub may_refuse: bool,
    /// The list of families may be of an earlier time.
    pub older_families: bool,
    /// Later commits than one that is missing may be there, with a report.
    pub holes: bool,
    /// Tables may turn out damaged when they are read.
    pub tables: bool,
}

impl Expected {
    pub fn and(self, other: Self) -> Self {
        Self {
            floor: self.floor.min(other.floor),
            silent: self.silent || other.silent,
            may_refuse: self.may_refuse || other.may_refuse,
            older_families: self.older_families || other.older_families,
            holes: self.holes || other.holes,
            tables: self.tables || other.tables,
        }
    }
}

impl Before<'_> {
    pub fn expected(&self, damage: &Damage) -> Expected {
        let full = Expected {
            floor: self.logged,
            silent: false,
            may_refuse: true,
            older_families: false,
            holes: false,
            tables: false,
        };
        // A file of a name that a log does not have, or another family's `verified`, may be refused.
        let structural = match damage.kind {
            Kind::Directory => true,
            Kind::Duplicate { .. } => damage.name.contains("/log/"),
            Kind::Swap { .. } | Kind::Foreign { .. } => class(&damage.name) == Class::Verified,
            _ => false,
        };
        match damage.kind {
            Kind::OlderFiles { .. } => {
                return Expected {
                    floor: 0,
                    silent: true,
                    ..full
                };
            }
            Kind::NoFiles if damage.name.starts_with("store/families/") => {
                return Expected { tables: true, ..full };
            }
            Kind::NoFiles => return full,
            _ => {}
        }
        match class(&damage.name) {
            Class::Segment => self.expected_of_segment(damage, full),
            Class::Ring => {
                // What only the ring held is gone with it. A damaged frame in memory looks like one that a
                // dead process did not complete: nothing shows that it was acknowledged.
                let content = matches!(
                    damage.kind,
                    Kind::Flip { .. } | Kind::Zero { .. } | Kind::Garbage { .. } | Kind::Older { .. }
                );
                let all = self.mode == "absolute" && !content;
                let floor = if all {
                    self.logged
                } else {
                    self.history.acknowledged(2).min(self.logged)
                };
                Expected {
                    floor,
                    silent: content,
                    holes: content,
                    ..full
                }
            }
            Class::Manifest => {
                let of_a_stretch = !matches!(damage.kind, Kind::Flip { .. });
                Expected {
                    older_families: of_a_stretch,
                    ..full
                }
            }
            Class::Current | Class::Version | Class::Table => Expected { tables: true, ..full },
            Class::Archive => full,
            Class::Verified | Class::Side => Expected {
                may_refuse: structural,
                ..full
            },
        }
    }

    fn expected_of_segment(&self, damage: &Damage, full: Expected) -> Expected {
        let bytes = self.image.0.get(&damage.name).map_or(0, Vec::len);
        let is_last = damage.name.ends_with(&*self.last.0);
        let end = self.last.1.min(bytes);
        // Whether nothing is left behind the damage, and whether it could be the log's own end.
        let (at_end, own) = match damage.kind {
            Kind::Zero { at, len } => (is_last && at + len >= end, true),
            Kind::Garbage { at, len } => (is_last && at + len >= end, false),
            Kind::Truncate { to } => (is_last && to < end, to % 4096 == 0),
            Kind::Remove | Kind::Older { .. } => (is_last, true),
            Kind::Flip { .. } => (false, false),
            Kind::Swap { .. } | Kind::Foreign { .. } | Kind::Extend { .. } | Kind::Duplicate { .. } => {
                let floor = if self.mode == "point" { 0 } else { self.logged };
                return Expected { floor, ..full };
            }
            Kind::Directory | Kind::OlderFiles { .. } | Kind::NoFiles => return full,
        };
        let floor = match self.mode {
            "absolute" if at_end && own => 0,
            "absolute" => self.logged,
            "tolerate" if !at_end => self.history.shown_durable().min(self.logged),
            _ => 0,
        };
        Expected {
            floor,
            silent: at_end && own,
            ..full
        }
    }

    /// # Errors
    /// What is wrong.
    pub fn check(&self, found: &Found, expected: Expected, report: &str) -> Result<usize, String> {
        let lacks = |what: &str, least: usize, have: usize| {
            Err(format!(
                "{have} {what} are left, of {least} at least that must be; the report says {report:?}"
            ))
        };
        let prefixes = self.history.prefixes(found)?;
        let most = prefixes.logged.last().copied().unwrap_or(0);
        if most < expected.floor {
            return lacks("commits", expected.floor, most);
        }
        let bare = prefixes.bare.last().copied().unwrap_or(0);
        if bare < self.bare && !found.unread.contains(crate::plan::BARE) {
            return lacks("commits without the log", self.bare, bare);
        }
        if most < self.logged && !expected.silent && report.is_empty() {
            return Err(format!(
                "{most} commits of {} are left, and nothing is reported",
                self.logged
            ));
        }
        Ok(most)
    }

    /// Everything that a probe answered.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_answers(&self, answers: &Answers, expected: Expected) -> Result<Verdict, String> {
        if let Some(wrong) = &answers.wrong {
            return Err(wrong.clone());
        }
        for (word, text) in &answers.failures {
            if !text.contains(self.base) {
                return Err(format!("an error that names no file: {word} {text}"));
            }
        }
        if let Some(text) = answers.failure("refused") {
            let verdict = Verdict::Refused(text.to_owned());
            return if expected.may_refuse {
                Ok(verdict)
            } else {
                Err(format!("refused: {text}"))
            };
        }
        let first = answers.dumps.first().ok_or("opened, and not read")?;
        let later = ["unwritten", "unclosed", "refused-again", "unmerged"];
        let later = later
            .iter()
            .find_map(|word| answers.failure(word).map(|text| format!("{word} {text}")));
        if !expected.tables && (later.is_some() || !first.unread.is_empty()) {
            return Err(format!(
                "unread {:?}; {}",
                answers.failure("unread"),
                later.unwrap_or_default()
            ));
        }
        let left = match self.check(first, expected, &answers.report) {
            Err(_) if expected.holes && answers.report.contains("holes in the ring") => 0,
            left => left?,
        };
        for (at, dump) in answers.dumps.iter().enumerate().skip(1) {
            let right = with_extras(first, dump);
            if *dump != right {
                return Err(format!(
                    "dump {} differs from the first with what was written since",
                    at + 1
                ));
            }
        }
        Ok(if first.unread.is_empty() {
            Verdict::Opened(left)
        } else {
            Verdict::Unread
        })
    }
}

#[derive(PartialEq, Eq)]
pub enum Verdict {
    Refused(String),
    /// Opened, and a damaged table was refused by name when it was read.
    Unread,
    Opened(usize),
}

/// What was found, and what the probe wrote since, in the families that both times could be read.
fn with_extras(first: &Found, later: &Found) -> Found {
    let mut right = first.clone();
    for (name, rows) in &mut right.families {
        for (key, value) in EXTRA {
            rows.insert(print(key), print(value));
        }
        if first.unread.contains(name) || later.unread.contains(name) {
            *rows = later.families.get(name).cloned().unwrap_or_default();
        }
    }
    right.unread.clone_from(&later.unread);
    right
}
