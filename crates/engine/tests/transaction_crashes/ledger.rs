//! What clients were told, kept outside of the store.

use std::collections::BTreeMap;

use collie_db::{Durability, Lsn};
use collie_sim::appends::Step;
use collie_sim::lives::{Attempt, Found, Life, Outcome};

/// What a client asks for, and what it is told; each by its transaction's mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// It asks to commit what it did.
    Asks(u64, Vec<Step>),
    /// Committed and visible, up to here. A reader that waits for what it saw is told only that that is safe.
    Visible(u64, Lsn),
    /// As safe as that, with all that it saw.
    Safe(u64, Durability),
    /// Nothing was written.
    Failed(u64),
}

/// For a pipe: a list, or one mark, that was found.
pub(crate) fn found_lines(found: &Found) -> impl Iterator<Item = String> {
    let lists = found.lists.iter().map(|(list, elements)| {
        let elements: Vec<String> = elements.iter().map(u64::to_string).collect();
        format!("found list {list} {} .", elements.join(" "))
    });
    lists.chain(found.marks.iter().map(|mark| format!("found mark {mark} .")))
}

/// Reads a line of [`found_lines`]; others' are passed over.
pub(crate) fn note_found(found: &mut Found, line: &str) {
    let Some(line) = line
        .strip_prefix("found ")
        .and_then(|line| line.strip_suffix(" ."))
    else {
        return;
    };
    let (what, numbers) = line.split_once(' ').unwrap();
    let mut numbers = numbers.split(' ').map(|number| number.parse::<u64>().unwrap());
    let first = numbers.next().unwrap();
    match what {
        "list" => drop(found.lists.insert(first, numbers.collect())),
        _ => drop(found.marks.insert(first)),
    }
}

/// For a pipe: one line, with a full stop that tells a whole one from the beginning of one.
impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Asks(mark, steps) => {
                write!(f, "told asks {mark}")?;
                for step in steps {
                    match step {
                        Step::Append(list, element) => write!(f, " append {list} {element}")?,
                        Step::Read(list, read) => {
                            write!(f, " read {list} {}", read.len())?;
                            read.iter().try_for_each(|element| write!(f, " {element}"))?;
                        }
                    }
                }
            }
            Self::Visible(mark, place) => write!(f, "told visible {mark} {place}")?,
            Self::Safe(mark, Durability::Disk) => write!(f, "told disk {mark}")?,
            Self::Safe(mark, Durability::Process) => write!(f, "told process {mark}")?,
            Self::Safe(mark, Durability::Buffered) => write!(f, "told buffered {mark}")?,
            Self::Failed(mark) => write!(f, "told failed {mark}")?,
        }
        write!(f, " .")
    }
}

impl Told {
    /// Reads a line; `None` where it is another's, or not all of it came.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("told ")?.strip_suffix(" .")?.split(' ');
        let what = words.next()?;
        let mut next = || words.next()?.parse::<u64>().ok();
        let mark = next()?;
        Some(match what {
            "visible" => Self::Visible(mark, next()?),
            "disk" => Self::Safe(mark, Durability::Disk),
            "process" => Self::Safe(mark, Durability::Process),
            "buffered" => Self::Safe(mark, Durability::Buffered),
            "failed" => Self::Failed(mark),
            "asks" => {
                let mut steps = Vec::new();
                while let Some(step) = words.next() {
                    let mut next = || words.next()?.parse::<u64>().ok();
                    let (list, number) = (next()?, next()?);
                    steps.push(match step {
                        "append" => Step::Append(list, number),
                        "read" => Step::Read(list, (0..number).map(|_| next()).collect::<Option<_>>()?),
                        _ => return None,
                    });
                }
                Self::Asks(mark, steps)
            }
            _ => return None,
        })
    }
}

/// The transactions that were told of, when what comes takes all that is less safe than `survives`.
pub(crate) fn attempts(told: &[Told], survives: Durability) -> Vec<Attempt> {
    let mut attempts = BTreeMap::new();
    for told in told {
        if let Told::Asks(mark, steps) = told {
            let asked = Attempt {
                mark: *mark,
                steps: steps.clone(),
                outcome: Outcome::Unknown,
                place: None,
            };
            assert_eq!(attempts.insert(*mark, asked), None, "a mark is one's own");
        }
        let (Told::Asks(mark, _) | Told::Visible(mark, _) | Told::Safe(mark, _) | Told::Failed(mark)) = told;
        let attempt = attempts.get_mut(mark).unwrap();
        let appends = |step: &Step| matches!(step, Step::Append(..));
        match told {
            Told::Asks(..) => {}
            Told::Visible(_, place) => {
                attempt.outcome = Outcome::Visible;
                attempt.place = attempt.steps.iter().any(appends).then_some(*place);
            }
            Told::Safe(_, level) if *level >= survives => attempt.outcome = Outcome::Safe,
            Told::Safe(..) => attempt.outcome = Outcome::Visible,
            Told::Failed(_) => attempt.outcome = Outcome::Failed,
        }
    }
    attempts.into_values().collect()
}

/// What came of histories.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    lives: u64,
    safe: u64,
    unknown: u64,
    gone: u64,
}

impl Figures {
    pub(crate) fn note(&mut self, life: &Life) {
        self.lives += 1;
        for attempt in &life.attempts {
            self.safe += u64::from(attempt.outcome == Outcome::Safe);
            self.unknown += u64::from(attempt.outcome == Outcome::Unknown);
            self.gone += u64::from(attempt.place.is_some() && !life.found.marks.contains(&attempt.mark));
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} lives; {} transactions that were promised, {} without an answer, {} commits gone that nobody was \
             promised; violations 0",
            self.lives, self.safe, self.unknown, self.gone
        )
    }
}

#[test]
fn what_was_found_is_read_as_it_was_written() {
    let found = Found {
        lists: BTreeMap::from([(1, vec![16, 17]), (4, vec![33])]),
        marks: [1, 2].into(),
    };
    let mut read = Found::default();
    found_lines(&found).for_each(|line| note_found(&mut read, &line));
    assert_eq!(read, found);
}

#[test]
fn a_line_of_the_ledger_is_read_as_it_was_written_or_not_at_all() {
    let steps = vec![
        Step::Read(1, vec![]),
        Step::Append(1, 17),
        Step::Read(1, vec![17]),
        Step::Read(2, vec![3, 4]),
    ];
    for told in [
        Told::Asks(1, steps),
        Told::Visible(12, 1 << 32),
        Told::Safe(3, Durability::Disk),
        Told::Safe(4, Durability::Process),
        Told::Safe(5, Durability::Buffered),
        Told::Failed(6),
    ] {
        let line = told.to_string();
        assert_eq!(Told::parse(&line), Some(told));
        assert!((0..line.len()).all(|cut| Told::parse(&line[..cut]).is_none()));
    }
}
