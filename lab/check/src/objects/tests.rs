//! The checker against a search of all orders, and against histories of a simulated object in which
//! an anomaly was planted.

use collie_sim::Rng;
use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1_000_000;
/// Keys of the simulated object: registers, then counters.
const REGISTERS: usize = 2;
const KEYS: usize = 4;
/// Clients that are at work on one object at once.
const CLIENTS: usize = 4;

fn one(key: usize, act: Act, call: Moment, returned: Moment, answer: Answer) -> Operation {
    Operation {
        client: 0,
        call,
        returned: Some(returned),
        steps: vec![Step { key, act }],
        answers: vec![answer],
    }
}

fn unknown(key: usize, act: Act, call: Moment) -> Operation {
    Operation {
        returned: None,
        answers: Vec::new(),
        ..one(key, act, call, call, Answer::Done)
    }
}

fn fits(operations: &[Operation], keys: usize) -> bool {
    match check(operations, keys, LIMIT) {
        Judgement::Fits => true,
        Judgement::Contradiction(_) => false,
        Judgement::Undecided => panic!("undecided: {operations:#?}"),
    }
}

#[test]
fn violations_made_by_hand_are_found_and_what_is_sound_is_not() {
    use Act::{Add, Get, Set, SetIfAbsent, Take};
    use Answer::{Done, Flag, Value};
    let sound: [&[Operation]; 6] = [
        &[one(0, Set(1), 1, 2, Done), one(0, Get, 3, 4, Value(Some(1)))],
        // Two at once, in either order.
        &[
            one(0, Add(1), 1, 4, Value(Some(2))),
            one(0, Add(1), 2, 3, Value(Some(1))),
        ],
        // It happened late.
        &[
            unknown(0, Add(1), 1),
            one(0, Get, 2, 3, Value(None)),
            one(0, Get, 4, 5, Value(Some(1))),
        ],
        // It never happened.
        &[unknown(0, Add(1), 1), one(0, Add(1), 2, 3, Value(Some(1)))],
        // One of two took it.
        &[
            one(0, Set(5), 1, 2, Done),
            unknown(0, Take, 3),
            one(0, Take, 4, 5, Value(None)),
            one(0, SetIfAbsent(6), 6, 7, Flag(true)),
        ],
        // Of three unknown increments, two.
        &[
            unknown(0, Add(1), 1),
            unknown(0, Add(1), 2),
            unknown(0, Add(1), 3),
            one(0, Get, 4, 5, Value(Some(1))),
            one(0, Add(10), 6, 7, Value(Some(12))),
        ],
    ];
    for (n, operations) in sound.iter().enumerate() {
        assert!(fits(operations, 1), "sound history {n}");
    }
    let wrong: [(&str, &[Operation]); 8] = [
        (
            "lost write",
            &[one(0, Set(1), 1, 2, Done), one(0, Get, 3, 4, Value(None))],
        ),
        (
            "stale read",
            &[
                one(0, Set(1), 1, 2, Done),
                one(0, Set(2), 3, 4, Done),
                one(0, Get, 5, 6, Value(Some(1))),
            ],
        ),
        (
            "counted twice",
            &[
                one(0, Add(1), 1, 2, Value(Some(1))),
                one(0, Get, 3, 4, Value(Some(2))),
            ],
        ),
        // The refused one is not in the history.
        (
            "a refused one counted",
            &[
                one(0, Add(1), 1, 2, Value(Some(1))),
                one(0, Add(1), 5, 6, Value(Some(3))),
            ],
        ),
        (
            "two made it",
            &[
                one(0, SetIfAbsent(1), 1, 4, Flag(true)),
                one(0, SetIfAbsent(2), 2, 3, Flag(true)),
            ],
        ),
        (
            "two took it",
            &[
                one(0, Set(1), 1, 2, Done),
                one(0, Take, 3, 5, Value(Some(1))),
                one(0, Take, 4, 6, Value(Some(1))),
            ],
        ),
        (
            "from the future",
            &[unknown(0, Set(1), 3), one(0, Get, 1, 2, Value(Some(1)))],
        ),
        (
            "taken back",
            &[
                unknown(0, Set(1), 1),
                one(0, Get, 2, 3, Value(Some(1))),
                one(0, Get, 4, 5, Value(None)),
            ],
        ),
    ];
    for (name, operations) in wrong {
        assert!(!fits(operations, 1), "{name}");
    }
}

#[test]
fn what_changes_nothing_here_may_be_needed_later() {
    use Act::{Set, SetIfAbsent, Take};
    use Answer::{Done, Flag, Value};
    // The transaction fits before the first operation too, but then nothing removes what that set.
    let transaction = Operation {
        client: 1,
        call: 2,
        returned: Some(5),
        steps: [Set(2), Take].map(|act| Step { key: 0, act }).to_vec(),
        answers: vec![Done, Value(Some(2))],
    };
    let operations = [
        one(0, SetIfAbsent(1), 1, 4, Flag(true)),
        transaction,
        one(0, SetIfAbsent(3), 6, 7, Flag(true)),
    ];
    assert!(fits(&operations, 1));
}

#[test]
fn half_of_a_transaction_is_found() {
    let both = |act: fn(i64) -> Act, call, returned, answers: Vec<Answer>| Operation {
        client: 0,
        call,
        returned: Some(returned),
        steps: (0..2)
            .map(|key| Step {
                key,
                act: act(i64::try_from(key).unwrap_or(0) + 1),
            })
            .collect(),
        answers,
    };
    let get = |_| Act::Get;
    let set = both(Act::Set, 1, 4, vec![Answer::Done; 2]);
    let seen = |one, other| vec![Answer::Value(one), Answer::Value(other)];
    for (answers, whole) in [
        (seen(None, None), true),
        (seen(Some(1), Some(2)), true),
        (seen(Some(1), None), false),
        (seen(None, Some(2)), false),
    ] {
        let history = [set.clone(), both(get, 2, 3, answers.clone())];
        assert_eq!(fits(&history, 2), whole, "{answers:?}");
    }
}

/// Whether some order fits, by trying all.
fn brute(rest: &mut Vec<Operation>, object: &[Option<i64>]) -> bool {
    if rest.iter().all(|operation| operation.returned.is_none()) {
        return true;
    }
    let first = rest
        .iter()
        .filter_map(|o| o.returned)
        .min()
        .unwrap_or(Moment::MAX);
    for n in 0..rest.len() {
        let mut after = object.to_vec();
        if rest[n].call > first || !rest[n].apply(&mut after) {
            continue;
        }
        let operation = rest.swap_remove(n);
        let found = brute(rest, &after);
        rest.push(operation);
        let last = rest.len() - 1;
        rest.swap(n, last);
        if found {
            return true;
        }
    }
    false
}

/// What a simulated object does wrong, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Anomaly {
    /// An acknowledged operation changes nothing.
    Lost,
    /// A read answers what was there before the last completed write of another.
    Stale,
    /// An increment takes effect twice.
    Twice,
    /// An increment that was refused takes effect.
    Refused,
}

/// An operation under way.
struct Running {
    operation: Operation,
    /// It has had its effect.
    done: bool,
}

/// Draws an operation without answers.
fn draw(rng: &mut Rng, client: usize, call: Moment, fresh: &mut i64) -> Operation {
    *fresh += 1;
    let register = rng.index(REGISTERS);
    let counter = REGISTERS + rng.index(KEYS - REGISTERS);
    let value = *fresh;
    let by = 1 + i64::try_from(rng.below(3)).unwrap();
    let single = |key, act| vec![Step { key, act }];
    let steps = match rng.below(10) {
        0 | 1 => single(register, Act::Set(value)),
        2 | 3 => single(register, Act::Get),
        4 => single(register, Act::SetIfAbsent(value)),
        5 => single(register, Act::Take),
        6 => single(counter, Act::Add(by)),
        7 => (0..KEYS).map(|key| Step { key, act: Act::Get }).collect(),
        8 => (0..REGISTERS)
            .map(|key| Step {
                key,
                act: Act::Set(value),
            })
            .collect(),
        _ => vec![
            Step {
                key: register,
                act: Act::Set(value),
            },
            Step {
                key: counter,
                act: Act::Add(by),
            },
        ],
    };
    Operation {
        client: u32::try_from(client).unwrap(),
        call,
        returned: None,
        steps,
        answers: Vec::new(),
    }
}

/// A history of an object with several clients: each operation has its effect at some moment
/// between its call and its return, one in `unknown_one_in` loses its answer, of those half before
/// they had an effect. At the end everything is read.
fn simulate(rng: &mut Rng, length: usize, clients: usize, unknown_one_in: u64) -> Vec<Operation> {
    let mut object = vec![None; KEYS];
    let mut running: Vec<Option<Running>> = (0..clients).map(|_| None).collect();
    let (mut history, mut fresh) = (Vec::new(), 0);
    let mut now = 0;
    while history.len() < length {
        now += 1;
        let client = rng.index(clients);
        running[client] = match running[client].take() {
            None => Some(Running {
                operation: draw(rng, client, now, &mut fresh),
                done: false,
            }),
            Some(Running { operation, .. }) if rng.one_in(unknown_one_in) => {
                history.push(Operation {
                    answers: Vec::new(),
                    ..operation
                });
                None
            }
            Some(Running {
                mut operation,
                done: false,
            }) => {
                let steps = operation.steps.iter();
                operation.answers = steps.map(|step| step.act.apply(&mut object[step.key])).collect();
                Some(Running {
                    operation,
                    done: true,
                })
            }
            Some(Running { mut operation, .. }) => {
                operation.returned = Some(now);
                history.push(operation);
                None
            }
        };
    }
    // What is still under way is unknown.
    history.extend(running.into_iter().flatten().map(|running| Operation {
        answers: Vec::new(),
        ..running.operation
    }));
    history.push(read_all(&object, now + 1));
    history
}

fn read_all(object: &[Option<i64>], now: Moment) -> Operation {
    Operation {
        client: 99,
        call: now,
        returned: Some(now + 1),
        steps: (0..object.len()).map(|key| Step { key, act: Act::Get }).collect(),
        answers: object.iter().map(|value| Answer::Value(*value)).collect(),
    }
}

#[test]
fn sound_histories_fit_despite_unknown_outcomes() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let history = simulate(&mut rng, 300, CLIENTS, 40);
        let open = history.iter().filter(|o| o.returned.is_none()).count();
        assert!(open >= 5, "seed {seed}: {open} unknown");
        match check(&history, KEYS, LIMIT) {
            Judgement::Fits => {}
            other => panic!("seed {seed}: {other:?}"),
        }
        let end = history.last().unwrap();
        for key in REGISTERS..KEYS {
            let Answer::Value(value) = end.answers[key] else {
                panic!("a counter was read")
            };
            assert_eq!(sum(&history, key, value), Ok(()), "seed {seed}");
        }
    }
}

/// A history of increments and writes with one anomaly, and a quiet read of everything at the end.
fn planted(rng: &mut Rng, anomaly: Anomaly) -> Vec<Operation> {
    let mut object: Vec<Option<i64>> = vec![None; KEYS];
    let mut history = Vec::new();
    let at = 20 + rng.below(60);
    for n in 0..100 {
        // It may overlap the next one.
        let (call, returned) = (n * 20 + 1 + rng.below(5), n * 20 + 6 + rng.below(20));
        let fresh = i64::try_from(n).unwrap();
        let (key, mut act) = match rng.below(3) {
            0 => (rng.index(REGISTERS), Act::Set(fresh)),
            1 => (rng.index(KEYS), Act::Get),
            _ => (REGISTERS + rng.index(KEYS - REGISTERS), Act::Add(1)),
        };
        if n != at {
            let answer = act.apply(&mut object[key]);
            history.push(one(key, act, call, returned, answer));
            continue;
        }
        let counter = REGISTERS;
        act = Act::Add(1);
        match anomaly {
            Anomaly::Lost => {
                let answer = act.apply(&mut object[counter].clone());
                history.push(one(counter, act, call, returned, answer));
            }
            Anomaly::Twice => {
                let answer = act.apply(&mut object[counter]);
                act.apply(&mut object[counter]);
                history.push(one(counter, act, call, returned, answer));
            }
            Anomaly::Refused => drop(act.apply(&mut object[counter])),
            Anomaly::Stale => {
                // Behind all that comes before, so that nothing overlaps.
                let before = Act::Get.apply(&mut object[0]);
                let set = Act::Set(-1);
                let answer = set.apply(&mut object[0]);
                history.push(one(0, set, n * 20 + 12, n * 20 + 13, answer));
                history.push(one(0, Act::Get, n * 20 + 14, n * 20 + 15, before));
            }
        }
    }
    history.push(read_all(&object, 4_000));
    history
}

#[test]
fn planted_anomalies_are_found() {
    for anomaly in [Anomaly::Lost, Anomaly::Stale, Anomaly::Twice, Anomaly::Refused] {
        for seed in 0..100 {
            let history = planted(&mut Rng::new(seed), anomaly);
            let judged = check(&history, KEYS, LIMIT);
            assert!(
                matches!(judged, Judgement::Contradiction(_)),
                "{anomaly:?}, seed {seed}: {judged:?}"
            );
            if anomaly != Anomaly::Stale {
                let Some(Answer::Value(end)) = history.last().map(|o| o.answers[REGISTERS]) else {
                    panic!("the last operation reads everything")
                };
                assert!(sum(&history, REGISTERS, end).is_err(), "{anomaly:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn a_search_ends_at_its_limit() {
    // Nothing tells the unknown writes apart until the end, where a value is read that none wrote.
    let mut history: Vec<_> = (0..40).map(|n| unknown(0, Act::Set(n), 1)).collect();
    for n in 0..10 {
        history.push(one(
            1,
            Act::Add(1),
            2,
            50 + n,
            Answer::Value(Some(11 - i64::try_from(n).unwrap())),
        ));
    }
    assert_eq!(check(&history, 2, 1_000), Judgement::Undecided);
}

/// A small history: that of a simulation, in which some answers may have been exchanged for others.
fn small() -> impl Strategy<Value = Vec<Operation>> {
    (any::<u64>(), 1..7_usize, 1..4_usize, 0..3_usize).prop_map(|(seed, length, clients, wrong)| {
        let mut rng = Rng::new(seed);
        let mut history = simulate(&mut rng, length, clients, 6);
        for _ in 0..wrong {
            let n = rng.index(history.len());
            let m = rng.index(history[n].steps.len());
            if let Some(answer) = history[n].answers.get_mut(m) {
                *answer = match *answer {
                    Answer::Done => Answer::Done,
                    Answer::Flag(flag) => Answer::Flag(!flag),
                    Answer::Value(_) => {
                        Answer::Value(rng.coin().then(|| i64::try_from(rng.below(6)).unwrap()))
                    }
                };
            }
        }
        history
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_search_agrees_with_one_of_all_orders(history in small()) {
        let expected = brute(&mut history.clone(), &[None; KEYS]);
        prop_assert_eq!(fits(&history, KEYS), expected);
    }
}
