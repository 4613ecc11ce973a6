//! Histories of concurrent runs, and whether every key in them behaved as a single copy would.
//!
//! Threads note when they call and when they return ([`Recorder`]); afterwards [`check`] says
//! whether each key's operations can be put in one order that respects the times and in which every
//! read finds the last write: whether the key is *linearizable*. Every write of a key has a value
//! of its own, and for such histories there is an exact test that takes no longer than sorting (P.
//! B. Gibbons, E. Korach, "Testing shared memories", SIAM Journal on Computing 26(4), 1997): an
//! operation that did not return, as its process was killed, costs nothing there, and a history may
//! be as long as it likes. (The libraries that search for an order take exponential time for those
//! at worst; the one for Rust links a benchmark harness into its users.)

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

/// A moment of a history: later ones are larger, no two are the same.
pub type Moment = u64;

/// What was done to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It was given this value, which no other write of the key has.
    Write(u64),
    /// It had this value; `None`: it had never been written.
    Read(Option<u64>),
}

/// An operation of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Who did it.
    pub client: u32,
    /// To what.
    pub key: u32,
    /// What.
    pub action: Action,
    /// When it was begun.
    pub call: Moment,
    /// When its result was known; `None` where it never was: a write has then happened at any later
    /// time, or not at all.
    pub returned: Option<Moment>,
}

/// Notes what threads do. All methods may be called from any thread.
#[derive(Debug, Default)]
pub struct Recorder {
    clock: AtomicU64,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    /// The time, for a call or a return.
    pub fn now(&self) -> Moment {
        // SeqCst: the times of all threads are one order that agrees with what happens in them.
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Notes an operation.
    pub fn note(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(event);
    }

    /// All that was noted.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.clone()
    }
}

/// Operations that fit no order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: u32,
    /// What contradicts what.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}: {}", self.key, self.what)
    }
}

/// A write and the reads that found its value. Between the first return of any of them and the last
/// call, no other value can have been there.
#[derive(Debug, Clone, Copy)]
struct Cluster {
    value: Option<u64>,
    /// When its write was begun; the value of a key that was never written was there from the
    /// start.
    written: Moment,
    first_return: Moment,
    last_call: Moment,
}

/// Whether every key of the history is linearizable.
///
/// # Errors
/// The first contradiction.
///
/// # Panics
/// Where two writes of a key have the same value: there is no saying then whose a read found.
pub fn check(events: &[Event]) -> Result<(), Violation> {
    let mut keys: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
    for event in events {
        keys.entry(event.key).or_default().push(*event);
    }
    for (key, events) in keys {
        check_key(&events).map_err(|what| Violation { key, what })?;
    }
    Ok(())
}

fn check_key(events: &[Event]) -> Result<(), String> {
    let clusters = clusters(events)?;
    let mut forward: Vec<&Cluster> = clusters.iter().filter(|c| c.first_return < c.last_call).collect();
    forward.sort_by_key(|cluster| cluster.first_return);
    for pair in forward.windows(2) {
        if let [one, other] = pair
            && other.first_return < one.last_call
        {
            return Err(format!(
                "{} was there from {} to {}, and {} from {} to {}",
                named(one.value),
                one.first_return,
                one.last_call,
                named(other.value),
                other.first_return,
                other.last_call
            ));
        }
    }
    // What begins and ends while another value was there all the time has no place.
    for inner in clusters.iter().filter(|c| c.first_return > c.last_call) {
        let before = forward.partition_point(|outer| outer.first_return < inner.last_call);
        let outer = before.checked_sub(1).and_then(|before| forward.get(before));
        if let Some(outer) = outer.filter(|outer| inner.first_return < outer.last_call) {
            return Err(format!(
                "{} was there from {} to {}, and all that is known of {} lies within, from {} to {}",
                named(outer.value),
                outer.first_return,
                outer.last_call,
                named(inner.value),
                inner.last_call,
                inner.first_return
            ));
        }
    }
    Ok(())
}

fn named(value: Option<u64>) -> String {
    value.map_or_else(|| "no value".to_owned(), |value| format!("value {value}"))
}

fn clusters(events: &[Event]) -> Result<Vec<Cluster>, String> {
    let mut clusters = HashMap::new();
    let unwritten = Cluster {
        value: None,
        written: 0,
        first_return: 0,
        last_call: 0,
    };
    clusters.insert(None, (unwritten, false));
    for event in events {
        if let Action::Write(value) = event.action {
            let cluster = Cluster {
                value: Some(value),
                written: event.call,
                first_return: event.returned.unwrap_or(Moment::MAX),
                last_call: event.call,
            };
            let known = event.returned.is_some();
            let before = clusters.insert(Some(value), (cluster, known));
            assert!(before.is_none(), "value {value} was written twice");
        }
    }
    for event in events {
        let (Action::Read(value), Some(returned)) = (event.action, event.returned) else {
            continue;
        };
        let Some((cluster, known)) = clusters.get_mut(&value) else {
            return Err(format!("{} was read and never written", named(value)));
        };
        if returned < cluster.written {
            return Err(format!(
                "{} was read at {returned}, before it was written at {}",
                named(value),
                cluster.written
            ));
        }
        cluster.first_return = cluster.first_return.min(returned);
        cluster.last_call = cluster.last_call.max(event.call);
        *known = true;
    }
    // A write that no return and no read shows need not have happened.
    Ok(clusters
        .into_values()
        .filter(|(_, known)| *known)
        .map(|(c, _)| c)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use collie_sim::Rng;

    fn event(action: Action, call: Moment, returned: impl Into<Option<Moment>>) -> Event {
        Event {
            client: 0,
            key: 0,
            action,
            call,
            returned: returned.into(),
        }
    }

    fn write(value: u64, call: Moment, returned: impl Into<Option<Moment>>) -> Event {
        event(Action::Write(value), call, returned)
    }

    fn read(value: impl Into<Option<u64>>, call: Moment, returned: Moment) -> Event {
        event(Action::Read(value.into()), call, returned)
    }

    #[test]
    fn violations_made_by_hand_are_found_and_what_is_sound_is_not() {
        let sound: [&[Event]; 6] = [
            &[write(1, 1, 2), read(1, 3, 4)],
            // Two writes at once: either may be the last.
            &[write(1, 1, 4), write(2, 2, 3), read(1, 5, 6)],
            &[write(1, 1, 4), write(2, 2, 3), read(2, 5, 6)],
            // A write that did not return may have happened late, or never.
            &[write(1, 1, None), read(None, 2, 3), read(1, 4, 5)],
            &[write(1, 1, None), read(None, 2, 3), read(None, 4, 5)],
            // A read that overlaps a write finds it or not.
            &[write(1, 1, 4), read(None, 2, 3), read(1, 5, 6)],
        ];
        for (n, events) in sound.iter().enumerate() {
            assert_eq!(check(events), Ok(()), "sound history {n}");
        }
        let wrong: [(&str, &[Event]); 6] = [
            ("lost", &[write(1, 1, 2), read(None, 3, 4)]),
            ("stale", &[write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)]),
            (
                "back and forth",
                &[write(1, 1, 6), write(2, 2, 5), read(1, 7, 8), read(2, 9, 10)],
            ),
            ("out of thin air", &[write(1, 1, 2), read(7, 3, 4)]),
            ("from the future", &[read(1, 1, 2), write(1, 3, 4)]),
            // Read, and gone after the crash.
            (
                "taken back",
                &[write(1, 1, None), read(1, 2, 3), read(None, 4, 5)],
            ),
        ];
        for (name, events) in wrong {
            assert!(check(events).is_err(), "{name}");
        }
    }

    /// Whether some order fits, by trying all.
    fn fits(rest: &mut Vec<Event>, value: Option<u64>) -> bool {
        if rest.iter().all(|event| event.returned.is_none()) {
            return true;
        }
        let first = rest
            .iter()
            .filter_map(|event| event.returned)
            .min()
            .unwrap_or(Moment::MAX);
        for n in 0..rest.len() {
            let event = rest[n];
            let next = match event.action {
                _ if event.call > first => continue,
                Action::Read(found) if found != value => continue,
                Action::Read(_) => value,
                Action::Write(written) => Some(written),
            };
            let event = rest.swap_remove(n);
            let found = fits(rest, next);
            rest.push(event);
            let last = rest.len() - 1;
            rest.swap(n, last);
            if found {
                return true;
            }
        }
        false
    }

    #[test]
    fn the_checker_agrees_with_a_search_of_all_orders() {
        let mut rng = Rng::new(7);
        let mut sound = 0;
        for round in 0..20_000 {
            let mut moments: Vec<Moment> = (1..=12).collect();
            let mut events = Vec::new();
            for n in 0..2 + rng.below(5) {
                let mut one = moments.swap_remove(rng.index(moments.len()));
                let mut other = moments.swap_remove(rng.index(moments.len()));
                if one > other {
                    std::mem::swap(&mut one, &mut other);
                }
                let known = !rng.one_in(5);
                events.push(match rng.coin() {
                    true => write(n, one, known.then_some(other)),
                    false => read(rng.coin().then(|| rng.below(n + 1)), one, other),
                });
            }
            let written = |value| events.iter().any(|e| e.action == Action::Write(value));
            let thin_air = |e: &Event| matches!(e.action, Action::Read(Some(value)) if !written(value));
            let expected = !events.iter().any(thin_air) && fits(&mut events.clone(), None);
            sound += u32::from(expected);
            assert_eq!(check(&events).is_ok(), expected, "round {round}: {events:#?}");
        }
        assert!((2_000..18_000).contains(&sound), "{sound} of 20,000 are sound");
    }
}
