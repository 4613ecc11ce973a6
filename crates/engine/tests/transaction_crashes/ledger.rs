//! What clients asked for and the answers that they got, kept outside of the store.

use std::collections::BTreeMap;

use collie_check::appends::Step;
use collie_check::lives::{Attempt, Found, Life, Outcome};
use collie_db::{Durability, Lsn};

/// What a client asks for, and the answers that it gets; each by its transaction's mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// It asks to commit what it did.
    Asks(u64, Vec<Step>),
    /// Committed and visible, up to here. A reader that waits for what it saw gets only the answer
    /// that it is safe.
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

/// For a pipe: one line that ends in a full stop, so that a line that was cut off is recognised.
impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Asks(mark, steps) => {
                write!(f, "reported asks {mark}")?;
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
            Self::Visible(mark, place) => write!(f, "reported visible {mark} {place}")?,
            Self::Safe(mark, Durability::Disk) => write!(f, "reported disk {mark}")?,
            Self::Safe(mark, Durability::Process) => write!(f, "reported process {mark}")?,
            Self::Safe(mark, Durability::Buffered) => write!(f, "reported buffered {mark}")?,
            Self::Failed(mark) => write!(f, "reported failed {mark}")?,
        }
        write!(f, " .")
    }
}

impl Report {
    /// Reads a line; `None` where it is another's, or not all of it came.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("reported ")?.strip_suffix(" .")?.split(' ');
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

/// The transactions in the reports, for a crash that loses all that is less safe than `survives`.
pub(crate) fn attempts(reported: &[Report], survives: Durability) -> Vec<Attempt> {
    let mut attempts = BTreeMap::new();
    for reported in reported {
        if let Report::Asks(mark, steps) = reported {
            let asked = Attempt {
                mark: *mark,
                steps: steps.clone(),
                outcome: Outcome::Unknown,
                place: None,
            };
            assert_eq!(attempts.insert(*mark, asked), None, "a mark is one's own");
        }
        let (Report::Asks(mark, _) | Report::Visible(mark, _) | Report::Safe(mark, _) | Report::Failed(mark)) =
            reported;
        let attempt = attempts.get_mut(mark).unwrap();
        let appends = |step: &Step| matches!(step, Step::Append(..));
        match reported {
            Report::Asks(..) => {}
            Report::Visible(_, place) => {
                attempt.outcome = Outcome::Visible;
                attempt.place = attempt.steps.iter().any(appends).then_some(*place);
            }
            Report::Safe(_, level) if *level >= survives => attempt.outcome = Outcome::Safe,
            Report::Safe(..) => attempt.outcome = Outcome::Visible,
            Report::Failed(_) => attempt.outcome = Outcome::Failed,
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
            "{} lives; {} transactions that must survive, {} without an answer, {} commits lost that were not acknowledged; \
             violations 0",
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
    for reported in [
        Report::Asks(1, steps),
        Report::Visible(12, 1 << 32),
        Report::Safe(3, Durability::Disk),
        Report::Safe(4, Durability::Process),
        Report::Safe(5, Durability::Buffered),
        Report::Failed(6),
    ] {
        let line = reported.to_string();
        assert_eq!(Report::parse(&line), Some(reported));
        assert!((0..line.len()).all(|cut| Report::parse(&line[..cut]).is_none()));
    }
}
