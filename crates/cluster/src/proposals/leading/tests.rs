use super::*;

const LEADER: LeaderId = LeaderId { term: 5, replica: 7 };

fn effects() -> Effects<&'static str, u64> {
    Effects::from([("row", Some(1))])
}

fn leads() -> Leading<&'static str, u64, ()> {
    let leading = Leading::new(2);
    assert_eq!(leading.begin().err(), Some(NotOpen::Following));
    leading.lead(LEADER, None);
    leading
}

#[test]
fn no_more_entries_wait_than_may_and_reads_are_not_counted() -> Result<(), NotOpen> {
    let leading = leads();
    for _ in 0..2 {
        assert!(leading.finish(leading.begin()?, effects(), (), 0).is_ok());
    }
    assert_eq!(
        leading.finish(leading.begin()?, effects(), (), 0),
        Err(NotSubmitted::Full)
    );
    assert!(leading.finish(leading.begin()?, Effects::new(), (), 0).is_ok());
    Ok(())
}

#[test]
fn nothing_begins_until_an_ended_run_is_decided() -> Result<(), NotOpen> {
    let leading = leads();
    for _ in 0..2 {
        assert!(leading.finish(leading.begin()?, effects(), (), 0).is_ok());
    }
    let [one, other] = std::array::from_fn(|_| leading.next_proposal().map(|next| next.header));
    let (Some(one), Some(other)) = (one, other) else {
        panic!("two were submitted");
    };
    leading.outcome(&other.ticket, Outcome::TimedOut);
    assert!(leading.begin().is_ok(), "its client alone has given up");
    for unknown in [Outcome::Dropped, Outcome::Discarded, Outcome::Fatal] {
        leading.outcome(&other.ticket, unknown);
        assert_eq!(leading.begin().err(), Some(NotOpen::Ending), "{unknown:?}");
    }
    leading.outcome(&other.ticket, Outcome::Refused);
    assert_eq!(
        leading.begin().err(),
        Some(NotOpen::Ending),
        "the first is not decided"
    );
    let entry = EntryId {
        leader: LEADER,
        index: 9,
    };
    let taken = Decision::Taken(Recorded {
        ticket: one.ticket,
        index: 9,
        stamp_ms: 0,
    });
    leading.applied(&entry, &one, &taken, ["row"].iter());
    assert!(leading.finish(leading.begin()?, effects(), (), 0).is_ok());
    let next = leading.next_proposal().map(|next| next.header);
    let run = RunId {
        leader: LEADER,
        run: 2,
    };
    assert_eq!(next, Some(Header::of(Ticket { run, n: 1 }, 9, 0)));
    Ok(())
}

#[test]
fn all_proposals_of_an_entry_are_decided_with_it() -> Result<(), NotOpen> {
    let leading = leads();
    let submit = || {
        leading
            .begin()
            .map(|begun| leading.finish(begun, effects(), (), 0).is_ok())
    };
    assert!(submit()? && submit()? && !submit()?, "two may wait");
    let mut header = leading
        .next_proposal()
        .map(|next| next.header)
        .expect("the first");
    assert!(
        leading
            .next_proposal()
            .is_some_and(|next| header.join(&next.header))
    );
    let entry = EntryId {
        leader: LEADER,
        index: 9,
    };
    let recorded = Recorded {
        ticket: header.last(),
        index: 9,
        stamp_ms: 0,
    };
    leading.applied(&entry, &header, &Decision::Taken(recorded), ["row"].iter());
    assert_eq!(leading.settled(&header.last()), EntryFate::Taken);
    assert!(submit()? && submit()? && !submit()?, "two more may wait");
    // The row of what waits is not the table's.
    let (mut seen, mut asked) = (leading.begin()?, false);
    let found = leading.get(&mut seen, &"row", || {
        asked = true;
        Ok::<_, Stale>(None)
    });
    assert_eq!((found, asked), (Ok(Some(1)), false));
    for next in std::iter::from_fn(|| leading.next_proposal()) {
        leading.outcome(&next.header.ticket, Outcome::Refused);
    }
    assert!(submit()?, "the next run has begun");
    Ok(())
}

#[test]
fn stamps_never_go_back_whatever_the_clock_does() -> Result<(), NotOpen> {
    let leading = Leading::<&str, u64, ()>::new(9);
    let run = RunId {
        leader: LEADER,
        run: 1,
    };
    let recorded = Recorded {
        ticket: Ticket { run, n: 1 },
        index: 9,
        stamp_ms: 100,
    };
    leading.lead(LEADER, Some(&recorded));
    let mut stamps = Vec::new();
    for clock in [50, 120, 110, 121] {
        let evaluation = leading.begin()?;
        let now = evaluation.now_ms(clock);
        assert!(leading.finish(evaluation, effects(), (), now).is_ok());
        let stamp = leading.next_proposal().map(|next| next.header.stamp_ms);
        assert_eq!(stamp, Some(now));
        stamps.push(now);
    }
    assert_eq!(stamps, [100, 120, 120, 121]);
    // One that began before another was submitted, and ends behind it.
    let early = leading.begin()?;
    let now = early.now_ms(130);
    assert!(leading.finish(leading.begin()?, effects(), (), 140).is_ok());
    assert!(leading.finish(early, effects(), (), now).is_ok());
    let stamps = [(); 2].map(|()| leading.next_proposal().map(|next| next.header.stamp_ms));
    assert_eq!(stamps, [Some(140); 2]);
    leading.follow();
    leading.lead(LEADER, Some(&recorded));
    assert_eq!(
        leading.begin()?.now_ms(0),
        140,
        "an older term's is known as well"
    );
    Ok(())
}

#[test]
fn one_entry_raises_the_time_for_all_that_found_keys_expired() -> Result<(), NotOpen> {
    let leading = leads();
    let read = |needed_ms: u64| {
        leading.begin().map(|mut evaluation| {
            evaluation.needs(needed_ms);
            leading.finish(evaluation, Effects::new(), (), 100)
        })
    };
    let seen = |seen| {
        let leader = LEADER;
        Ok(Evaluated::Read { leader, seen })
    };
    assert_eq!(read(0)?, seen(None), "a reply that does not depend on the time");
    let run = RunId {
        leader: LEADER,
        run: 1,
    };
    let first = Ticket { run, n: 1 };
    assert_eq!(read(50)?, Ok(Evaluated::Submitted(first)));
    for needed_ms in [50, 60, 100] {
        assert_eq!(read(needed_ms)?, seen(Some(first)), "it is on its way");
    }
    let header = leading.next_proposal().map(|next| next.header);
    let header = header.expect("it was submitted");
    assert_eq!(header.stamp_ms, 100, "the clock's, so that it lasts");
    assert_eq!(leading.next_proposal(), None);
    let recorded = Recorded {
        ticket: first,
        index: 9,
        stamp_ms: 100,
    };
    let entry = EntryId {
        leader: LEADER,
        index: 9,
    };
    leading.applied(&entry, &header, &Decision::Taken(recorded), [].iter());
    assert_eq!(read(100)?, seen(None), "all later leaders know it");
    assert_eq!(read(101)?, Ok(Evaluated::Submitted(Ticket { run, n: 2 })));
    // It is refused, and so it raises nothing.
    let refused = Ticket { run, n: 2 };
    leading.outcome(&refused, Outcome::Refused);
    assert!(matches!(read(101)?, Ok(Evaluated::Submitted(next)) if next.run.run == 2));
    // A later leader has what was taken.
    leading.lead(LEADER, Some(&recorded));
    assert_eq!(read(100)?, seen(None));
    assert!(matches!(read(101)?, Ok(Evaluated::Submitted(_))));
    Ok(())
}

#[test]
fn nothing_is_submitted_behind_an_entry_that_ends_its_run() -> Result<(), NotOpen> {
    let leading = leads();
    let (early, split) = (leading.begin()?, leading.begin()?);
    assert!(leading.finish(leading.begin()?, effects(), (), 0).is_ok());
    let run = RunId {
        leader: LEADER,
        run: 1,
    };
    let second = Evaluated::Submitted(Ticket { run, n: 2 });
    assert_eq!(leading.finish_run(&split, (), 0), Ok(second));
    assert_eq!(leading.standing(), Standing::Ending(run));
    assert_eq!(leading.finish(early, effects(), (), 0), Err(Stale.into()));
    for (n, index) in [(1, 8), (2, 9)] {
        assert!(leading.begin().is_err(), "{n} is not decided");
        let header = leading.next_proposal().map(|next| next.header).expect("it waits");
        assert_eq!(header.ticket, Ticket { run, n });
        let recorded = Recorded {
            ticket: header.ticket,
            index,
            stamp_ms: 0,
        };
        let entry = EntryId {
            leader: LEADER,
            index,
        };
        leading.applied(&entry, &header, &Decision::Taken(recorded), ["row"].iter());
        assert_eq!(leading.settled(&header.ticket), EntryFate::Taken);
    }
    assert!(matches!(leading.standing(), Standing::Open(next) if next.run == 2));
    Ok(())
}

#[test]
fn a_run_whose_numbers_are_used_up_makes_way_for_the_next() -> Result<(), NotOpen> {
    let leading = leads();
    if let Phase::Open(progress, _) = &mut leading.state.lock().phase {
        progress.submitted = u32::MAX;
    }
    assert_eq!(
        leading.finish(leading.begin()?, effects(), (), 0),
        Err(Stale.into())
    );
    let run = RunId {
        leader: LEADER,
        run: 2,
    };
    assert_eq!(leading.standing(), Standing::Open(run));
    assert!(leading.takes_effects());
    assert!(leading.finish(leading.begin()?, effects(), (), 0).is_ok());
    Ok(())
}

#[test]
fn parts_have_numbers_of_their_own_and_rows_stay_until_the_last() -> Result<(), NotOpen> {
    let leading: Leading<&'static str, u64, u32> = Leading::new(2);
    leading.lead(LEADER, None);
    let evaluation = leading.begin()?;
    let submitted = leading.finish_in_parts(&evaluation, effects(), (vec![1, 2, 3], 4), 0);
    let Ok(Evaluated::Submitted(last)) = submitted else {
        panic!("{submitted:?}");
    };
    assert_eq!(last.n, 4, "more than wait at once otherwise");
    let second = leading.begin()?;
    assert_eq!(
        leading.finish_in_parts(&second, effects(), (vec![1], 2), 0),
        Err(NotSubmitted::Full)
    );
    let proposals: Vec<_> = std::iter::from_fn(|| leading.next_proposal()).collect();
    assert_eq!(
        proposals
            .iter()
            .map(|next| (next.header.ticket.n, next.payload))
            .collect::<Vec<_>>(),
        [(1, 1), (2, 2), (3, 3), (4, 4)]
    );
    let sees = || -> Result<_, NotOpen> {
        let mut evaluation = leading.begin()?;
        let found = leading.get::<Stale>(&mut evaluation, &"row", || Ok(None));
        Ok(found.map(|found| (found, evaluation.seen)))
    };
    for (index, next) in (9..).zip(&proposals) {
        assert_eq!(sees()?, Ok((Some(1), 4)), "before entry {index}");
        let entry = EntryId {
            leader: LEADER,
            index,
        };
        let taken = Decision::Taken(Recorded {
            ticket: next.header.ticket,
            index,
            stamp_ms: 0,
        });
        // The last entry does not name the rows.
        leading.applied(&entry, &next.header, &taken, [].iter());
    }
    assert_eq!(sees()?, Ok((None, 0)), "the table has it");
    assert_eq!(leading.settled(&last), EntryFate::Taken);
    Ok(())
}

#[test]
fn what_is_behind_a_lost_entry_need_not_be_proposed() -> Result<(), NotOpen> {
    let leading = leads();
    let mut tickets = Vec::new();
    for _ in 0..2 {
        let Ok(Evaluated::Submitted(ticket)) = leading.finish(leading.begin()?, effects(), (), 0) else {
            panic!("not submitted");
        };
        tickets.push(ticket);
    }
    let run = tickets[0].run;
    assert!(!leading.is_lost(&run));
    leading.outcome(&tickets[0], Outcome::Refused);
    assert!(leading.is_lost(&run));
    leading.outcome(&tickets[1], Outcome::Refused);
    // The last entry of a run ends it, and is proposed.
    let evaluation = leading.begin()?;
    let next = evaluation.run;
    assert!(leading.finish_run(&evaluation, (), 0).is_ok());
    assert!(!leading.is_lost(&run) && !leading.is_lost(&next));
    Ok(())
}
