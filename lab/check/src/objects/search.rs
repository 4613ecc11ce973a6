//! The search for an order: depth first, over configurations.
//!
//! A *configuration* is which operations are placed, and what the object is then. The next one to
//! be placed must have been called before the first return of those that are not placed. Five
//! rules keep the search small, and none of them hides an order:
//! * A configuration that was tried is not tried again.
//! * An operation that changes nothing wherever it fits, and fits, is placed at once, without another
//!   choice: it may stand in any order as early as it may stand at all. One that sets a key and takes
//!   it is no such operation, though it changes nothing where the key is absent: it may be needed
//!   after another.
//! * Of operations with unknown outcome that do the same, the one that was called first is placed
//!   first: two of them can change places in any order.
//! * An operation with unknown outcome is placed only where the next known one needs it: if that
//!   could come first, or without it, and the object were the same after both, the configuration is
//!   left to that order. This leaves out ways to a configuration and never the last one: operations
//!   with unknown outcome are placed without such a condition.
//! * A configuration is left where an operation that must come soon expects what cannot be any
//!   more: a value whose writers are all placed, or a counter that is past it.

use std::collections::{HashMap, HashSet};

use super::{Act, Answer, Judgement, Operation};
use crate::history::Moment;

/// Operations that have no place and are described.
const DESCRIBED_MAX: usize = 6;

type Object = Vec<Option<i64>>;

/// Which of some operations are placed.
#[derive(Debug, Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn has(&self, n: usize) -> bool {
        self.0[n / 64] >> (n % 64) & 1 == 1
    }

    fn flip(&mut self, n: usize) {
        self.0[n / 64] ^= 1 << (n % 64);
    }
}

/// An operation that can be placed next.
#[derive(Debug, Clone, Copy)]
enum Candidate {
    Known(usize),
    Open(usize),
}

/// A configuration that is being tried: what was placed last, and what may be next.
struct Frame {
    placed: Option<Candidate>,
    object: Object,
    /// The open operations placed since the last known one, and the object before them.
    chain: Vec<usize>,
    base: Object,
    /// All known operations before this one are placed.
    low: usize,
    candidates: Vec<Candidate>,
    next: usize,
}

/// What makes two configurations the same. Known operations before the first word of the bits are
/// all placed.
#[derive(PartialEq, Eq, Hash)]
struct Tried {
    low: usize,
    known: Box<[u64]>,
    open: Box<[u64]>,
    object: Box<[Option<i64>]>,
}

pub(super) struct Search<'a> {
    /// Those that returned, by their calls.
    known: Vec<&'a Operation>,
    /// Those of unknown outcome that could change something, by their calls.
    open: Vec<&'a Operation>,
    /// For each open one: the last before it that does the same.
    twins: Vec<Option<usize>>,
    /// For each known one: keys and what they must be before it.
    expected: Vec<Vec<(usize, Option<i64>)>>,
    /// For each known one: whether it changes nothing wherever it fits.
    only_read: Vec<bool>,
    writers: Writers,
    known_placed: Bits,
    open_placed: Bits,
}

impl<'a> Search<'a> {
    pub(super) fn new(operations: &'a [Operation]) -> Self {
        let (mut known, mut open): (Vec<_>, Vec<_>) = operations
            .iter()
            .partition(|operation| operation.returned.is_some());
        known.sort_by_key(|operation| operation.call);
        open.sort_by_key(|operation| operation.call);
        let expected = known.iter().map(|operation| expected_by(operation)).collect();
        let only_read = known.iter().map(|operation| only_reads(operation)).collect();
        let writers = Writers::of(&known, &open);
        let twin = |n: usize| (0..n).rev().find(|&earlier| open[earlier].steps == open[n].steps);
        Self {
            twins: (0..open.len()).map(twin).collect(),
            known_placed: Bits::new(known.len()),
            open_placed: Bits::new(open.len()),
            known,
            open,
            expected,
            only_read,
            writers,
        }
    }

    pub(super) fn run(mut self, keys: usize, configurations_max: usize) -> Judgement {
        let mut tried = HashSet::new();
        let mut stack = vec![self.first(vec![None; keys])];
        let (mut count, mut furthest, mut words) = (0, None, String::new());
        while let Some(top) = stack.last_mut() {
            if count == self.known.len() {
                return Judgement::Fits;
            }
            if furthest < Some(count) {
                furthest = Some(count);
                words = self.describe(count, top);
            }
            let Some(&candidate) = top.candidates.get(top.next) else {
                if let Some(placed) = stack.pop().and_then(|frame| frame.placed) {
                    count -= self.flip(placed);
                }
                continue;
            };
            top.next += 1;
            let mut object = top.object.clone();
            if !self.operation(candidate).apply(&mut object) || self.is_idle(candidate, top, &object) {
                continue;
            }
            let (low, chain, base) = match candidate {
                Candidate::Known(_) => (top.low, Vec::new(), object.clone()),
                Candidate::Open(n) => (top.low, [top.chain.as_slice(), &[n]].concat(), top.base.clone()),
            };
            let placed = self.flip(candidate);
            let low = self.placed_below(low);
            let frame = Frame {
                placed: Some(candidate),
                candidates: self.candidates(&object, low),
                object,
                chain,
                base,
                low,
                next: 0,
            };
            if tried.len() == configurations_max {
                return Judgement::Undecided;
            }
            if tried.insert(self.tried(&frame)) {
                count += placed;
                stack.push(frame);
            } else {
                self.flip(candidate);
            }
        }
        Judgement::Contradiction(words)
    }

    fn operation(&self, candidate: Candidate) -> &'a Operation {
        match candidate {
            Candidate::Known(n) => self.known[n],
            Candidate::Open(n) => self.open[n],
        }
    }

    /// Places an operation, or takes it back; how many known ones that are.
    fn flip(&mut self, candidate: Candidate) -> usize {
        match candidate {
            Candidate::Known(n) => self.known_placed.flip(n),
            Candidate::Open(n) => self.open_placed.flip(n),
        }
        usize::from(matches!(candidate, Candidate::Known(_)))
    }

    fn first(&self, object: Object) -> Frame {
        Frame {
            placed: None,
            candidates: self.candidates(&object, 0),
            base: object.clone(),
            object,
            chain: Vec::new(),
            low: 0,
            next: 0,
        }
    }

    fn placed_below(&self, mut low: usize) -> usize {
        while low < self.known.len() && self.known_placed.has(low) {
            low += 1;
        }
        low
    }

    /// Whether a candidate, after which the object is `after`, makes nothing possible: an open one
    /// that changes nothing, or a known one that does not need all of the open ones before it.
    fn is_idle(&self, candidate: Candidate, top: &Frame, after: &Object) -> bool {
        let Candidate::Known(known) = candidate else {
            return *after == top.object;
        };
        let chain = &top.chain;
        chain.iter().any(|&left_out| {
            let mut object = top.base.clone();
            for &open in chain.iter().filter(|&&open| open != left_out) {
                self.open[open].apply(&mut object);
            }
            if !self.known[known].apply(&mut object) {
                return false;
            }
            if object != *after {
                self.open[left_out].apply(&mut object);
            }
            object == *after
        })
    }

    /// The known operations that can be placed next, the one that must be placed soonest first, and
    /// the moment before which the others must have been called.
    fn near(&self, low: usize) -> (Vec<usize>, Moment) {
        let mut first_return = Moment::MAX;
        let mut near: Vec<usize> = Vec::new();
        for n in low..self.known.len() {
            if self.known[n].call > first_return {
                break;
            }
            if !self.known_placed.has(n) {
                first_return = first_return.min(returned(self.known[n]));
                near.push(n);
            }
        }
        near.sort_by_key(|&n| returned(self.known[n]));
        (near, first_return)
    }

    fn candidates(&self, object: &Object, low: usize) -> Vec<Candidate> {
        let (near, first_return) = self.near(low);
        if near.iter().any(|&n| self.is_past(n, object)) {
            return Vec::new();
        }
        let fits = |&n: &usize| self.only_read[n] && self.known[n].apply(&mut object.clone());
        if let Some(n) = near.iter().copied().find(fits) {
            return vec![Candidate::Known(n)];
        }
        let mut candidates: Vec<_> = near.into_iter().map(Candidate::Known).collect();
        let open = (0..self.open.len()).filter(|&n| {
            self.open[n].call <= first_return
                && !self.open_placed.has(n)
                && self.twins[n].is_none_or(|twin| self.open_placed.has(twin))
        });
        candidates.extend(open.map(Candidate::Open));
        candidates
    }

    /// Whether what a known operation expects cannot be any more: all that could make it so is placed,
    /// or was called after the operation returned.
    fn is_past(&self, known: usize, object: &Object) -> bool {
        let returned = returned(self.known[known]);
        self.expected[known].iter().any(|&(key, value)| {
            if object[key] == value {
                return false;
            }
            match self.writers.kinds.get(&key) {
                // It only grows, and is absent before it is anything.
                Some(Kind::Counter) => object[key] > value,
                Some(Kind::Register) => {
                    let writers = self.writers.of_values.get(&(key, value));
                    let could = |&writer: &Candidate| {
                        !self.is_placed(writer) && self.operation(writer).call <= returned
                    };
                    !writers.is_some_and(|writers| writers.iter().any(could))
                }
                Some(Kind::Other) | None => false,
            }
        })
    }

    fn is_placed(&self, candidate: Candidate) -> bool {
        match candidate {
            Candidate::Known(n) => self.known_placed.has(n),
            Candidate::Open(n) => self.open_placed.has(n),
        }
    }

    fn tried(&self, frame: &Frame) -> Tried {
        let from = (frame.low / 64).min(self.known_placed.0.len());
        Tried {
            low: frame.low,
            known: self.known_placed.0[from..].into(),
            open: self.open_placed.0.as_slice().into(),
            object: frame.object.as_slice().into(),
        }
    }

    fn describe(&self, count: usize, frame: &Frame) -> String {
        let mut words = format!(
            "{count} of {} operations fit an order, after which the keys are {:?}; then none of these does:",
            self.known.len(),
            frame.object
        );
        let (near, _) = self.near(frame.low);
        for &n in near.iter().take(DESCRIBED_MAX) {
            words.push_str(&format!("\n  {}", self.known[n]));
        }
        let more = near.len().saturating_sub(DESCRIBED_MAX);
        let open = self.open.len();
        words.push_str(&format!("\n  ({more} more, and {open} of unknown outcome)"));
        words
    }
}

/// How a key is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is read, and what is added to it is positive.
    Counter,
    /// Nothing is added to it.
    Register,
    Other,
}

/// Which operations give a register which value, or remove it.
struct Writers {
    kinds: HashMap<usize, Kind>,
    of_values: HashMap<(usize, Option<i64>), Vec<Candidate>>,
}

impl Writers {
    fn of(known: &[&Operation], open: &[&Operation]) -> Self {
        let mut writers = Self {
            kinds: HashMap::new(),
            of_values: HashMap::new(),
        };
        let known = (0..).map(Candidate::Known).zip(known);
        let open = (0..).map(Candidate::Open).zip(open);
        for (writer, operation) in known.chain(open) {
            for step in &operation.steps {
                let (kind, value) = match step.act {
                    Act::Get => continue,
                    Act::Add(by) if by > 0 => (Kind::Counter, None),
                    Act::Add(_) => (Kind::Other, None),
                    Act::Take => (Kind::Register, None),
                    Act::Set(value) | Act::SetIfAbsent(value) => (Kind::Register, Some(value)),
                };
                if kind == Kind::Register {
                    writers
                        .of_values
                        .entry((step.key, value))
                        .or_default()
                        .push(writer);
                }
                let before = writers.kinds.entry(step.key).or_insert(kind);
                if *before != kind {
                    *before = Kind::Other;
                }
            }
        }
        writers
    }
}

/// Keys and what they must be before an operation, as its answers say.
fn expected_by(operation: &Operation) -> Vec<(usize, Option<i64>)> {
    let mut touched = HashSet::new();
    let steps = operation.steps.iter().zip(&operation.answers);
    let first = steps.filter(|(step, _)| touched.insert(step.key));
    first
        .filter_map(|(step, answer)| match (step.act, answer) {
            (Act::Get | Act::Take, Answer::Value(value)) => Some((step.key, *value)),
            (Act::SetIfAbsent(_), Answer::Flag(true)) => Some((step.key, None)),
            (Act::Add(by), Answer::Value(Some(sum))) => Some((step.key, Some(sum.wrapping_sub(by)))),
            _ => None,
        })
        .collect()
}

/// Whether an operation's answers say that it changed nothing.
fn only_reads(operation: &Operation) -> bool {
    let mut both = operation.steps.iter().zip(&operation.answers);
    both.all(|(step, answer)| {
        matches!(
            (step.act, answer),
            (Act::Get, _) | (Act::Take, Answer::Value(None)) | (Act::SetIfAbsent(_), Answer::Flag(false))
        )
    })
}

fn returned(operation: &Operation) -> Moment {
    operation.returned.unwrap_or(Moment::MAX)
}
