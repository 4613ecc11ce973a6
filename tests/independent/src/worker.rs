//! A thread of the child: transactions, and everything else that goes on beside them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use collie_db::{Batch, Durability, Error, Family, RowOwner, Snapshot, Ticket, WriteOptions};
use rand::Rng;
use rand::rngs::SmallRng;

use crate::events::{Element, Event, ListId, Step, TxId, element};
use crate::forms::{Entries, Found, How, Reader, Tried, Trouble, encode, wrong};
use crate::plan::{Form, List, Rule, pick};
use crate::transact::{self, Ended};
use crate::world::{World, chance, is_expected, name_of};

type Shown = Vec<(Vec<u8>, Vec<u8>)>;

struct HeldSnapshot {
    snapshot: Snapshot,
    seen: Vec<(Family, List, Found)>,
    /// An iterator that has been begun, over which list, and what it has shown.
    begun: Option<(Family, List, Entries, Shown)>,
}

pub struct Worker<'a> {
    world: &'a World,
    thread: u32,
    rng: SmallRng,
    /// What the thread's own lists hold.
    own: BTreeMap<ListId, Vec<Element>>,
    held: VecDeque<HeldSnapshot>,
    tickets: VecDeque<(Ticket, TxId, bool)>,
    owner: RowOwner,
}

impl<'a> Worker<'a> {
    pub fn new(world: &'a World, thread: u32, rng: SmallRng, state: &BTreeMap<ListId, Vec<Element>>) -> Self {
        let mut own = BTreeMap::new();
        for list in world
            .owned_by(thread, false)
            .into_iter()
            .chain(world.owned_by(thread, true))
        {
            own.insert(list.id, state.get(&list.id).cloned().unwrap_or_default());
        }
        let owner = world.db.row_owner(&format!("thread {thread}"));
        Self {
            world,
            thread,
            rng,
            own,
            held: VecDeque::new(),
            tickets: VecDeque::new(),
            owner,
        }
    }

    pub fn run(mut self, turns: u32) {
        for _ in 0..turns {
            self.world.step();
            if let Err(trouble) = self.turn() {
                self.complain(&trouble, "a thread's turn");
            }
        }
        while let Some(held) = self.held.pop_front() {
            if let Err(trouble) = self.recheck(held) {
                self.complain(&trouble, "a snapshot that was held");
            }
        }
        while !self.tickets.is_empty() {
            self.wait_ticket();
        }
    }

    fn complain(&self, trouble: &Trouble, what: &str) {
        match trouble {
            Trouble::Wrong(text) => self.world.out.violation(format!("{what}: {text}")),
            Trouble::Store(error) => self.world.out.violation(format!("{what} fails: {error}")),
        }
    }

    fn turn(&mut self) -> Tried<()> {
        if self.tickets.len() > 3 || (!self.tickets.is_empty() && chance(&mut self.rng, 3)) {
            self.wait_ticket();
        }
        match self.rng.random_range(0..40) {
            0..=25 => {
                if let Ended::Waiting(ticket, id, survives) =
                    transact::run(self.world, &mut self.rng, self.thread)
                {
                    if chance(&mut self.rng, 4) {
                        drop(ticket);
                    } else {
                        self.tickets.push_back((ticket, id, survives));
                    }
                }
                Ok(())
            }
            26..=28 => self.write_own(false),
            29 => self.write_own(true),
            30..=31 => self.read_now(),
            32..=33 => self.take_snapshot(),
            34 => {
                let Some(held) = self.held.pop_front() else {
                    return Ok(());
                };
                self.recheck(held)
            }
            35..=37 => self.locked_append(),
            38 => self.passing(),
            _ => {
                if chance(&mut self.rng, 2) {
                    self.work()
                } else {
                    self.at_the_limit()
                }
            }
        }
    }

    fn wait_ticket(&mut self) {
        let Some((ticket, id, survives)) = self.tickets.pop_front() else {
            return;
        };
        let end = ticket.end();
        let waited = if self.rng.random() {
            ticket.wait()
        } else {
            crate::wait::block_on(ticket)
        };
        match waited {
            Ok(_) if survives => self.world.out.send(&Event::Promise { end }),
            Ok(_) => {}
            Err(error) => self
                .world
                .out
                .violation(format!("the ticket of transaction {id} fails: {error}")),
        }
    }

    fn write_options(&mut self) -> WriteOptions {
        WriteOptions {
            durability: *pick(
                &mut self.rng,
                &[Durability::Buffered, Durability::Process, Durability::Disk],
            ),
            ..WriteOptions::default()
        }
    }

    /// Appends to lists that no other thread appends to, without a transaction and without
    /// reading them.
    fn write_own(&mut self, unlogged: bool) -> Tried<()> {
        let lists = self.world.owned_by(self.thread, unlogged);
        let mut options = self.write_options();
        options.disable_wal = unlogged;
        let id = self.world.tx();
        let count = self.rng.random_range(1..=lists.len());
        let mut batch = Batch::new();
        let mut appended = Vec::new();
        let limit = self.world.limit();
        let skip = !unlogged && chance(&mut self.rng, 4);
        for (list, nth) in lists[..count].iter().zip(0..) {
            let element = element(id, nth);
            let mut elements = self.own[&list.id].clone();
            elements.push(element);
            batch.put(
                &self.world.family_of(list),
                &list.key,
                encode(list, &elements, limit),
            )?;
            appended.push((list.id, element));
        }
        let steps: Vec<Step> = appended
            .iter()
            .map(|(list, element)| Step::Append(*list, *element))
            .collect();
        let kind = if unlogged { "unlogged write" } else { "plain write" };
        self.begin(id, kind, &steps);
        let list = &lists[0];
        let family = self.world.family_of(list);
        let written = if skip {
            options.skip_row_locks = true;
            let families: Vec<Family> = lists.iter().map(|list| self.world.family_of(list)).collect();
            let rows = lists[..count]
                .iter()
                .zip(&families)
                .map(|(list, family)| (family, &list.key[..]));
            match self
                .world
                .db
                .lock_rows(&mut self.owner, rows, Duration::from_millis(200))
            {
                Ok(locks) => {
                    let written = self.world.db.write(batch, &options);
                    drop(locks);
                    written
                }
                Err(error) => Err(error),
            }
        } else if count == 1 && self.rng.random() {
            let mut elements = self.own[&list.id].clone();
            elements.extend(appended.iter().map(|(_, element)| *element));
            family.put_with(&list.key, encode(list, &elements, limit), &options)
        } else {
            self.world.db.write(batch, &options)
        };
        let survives = !unlogged && self.world.survives(options.durability);
        if self.ended(id, kind, steps, written, survives) {
            for (list, element) in &appended {
                self.own.entry(*list).or_default().push(*element);
            }
            if unlogged && chance(&mut self.rng, 4) {
                family.flush()?;
                let (list, element) = appended[0];
                self.world.out.send(&Event::Flushed { list, element });
            }
        }
        Ok(())
    }

    fn begin(&self, id: TxId, kind: &str, steps: &[Step]) {
        let world = self.world;
        world.out.send(&Event::Begin {
            id,
            thread: self.thread,
            kind: kind.into(),
        });
        if !steps.is_empty() {
            world.out.send(&Event::Commit {
                id,
                steps: steps.to_vec(),
            });
        }
    }

    fn ended(&self, id: TxId, kind: &str, steps: Vec<Step>, end: Result<u64, Error>, promised: bool) -> bool {
        let world = self.world;
        match end {
            Ok(end) => {
                world.out.send(&Event::Ok {
                    id,
                    steps,
                    end,
                    promised,
                    back: 0,
                });
                true
            }
            Err(error) => {
                if !is_expected(&error) && !matches!(error, Error::BatchTooLarge { .. }) {
                    world.out.violation(format!("a {kind} fails: {error}"));
                }
                let appended = steps.iter().filter_map(|step| match step {
                    Step::Append(list, element) => Some((*list, *element)),
                    Step::Read(..) => None,
                });
                world.out.send(&Event::Fail {
                    id,
                    appended: appended.collect(),
                    why: name_of(&error).into(),
                });
                false
            }
        }
    }

    /// Reads one list without a transaction.
    fn read_now(&mut self) -> Tried<()> {
        let list = pick(&mut self.rng, &self.world.plan.lists).clone();
        // Two reads are not one.
        if list.form == Form::Moving {
            return Ok(());
        }
        let family = self.world.family_of(&list);
        let id = self.world.tx();
        self.begin(id, "plain read", &[]);
        let found = Reader::Now.list(&mut self.rng, &family, &list, How::Plain, self.world.limit())?;
        self.ended(
            id,
            "plain read",
            vec![Step::Read(list.id, found.elements(), true)],
            Ok(0),
            false,
        );
        Ok(())
    }

    fn take_snapshot(&mut self) -> Tried<()> {
        let id = self.world.tx();
        self.begin(id, "snapshot", &[]);
        let snapshot = self.world.db.snapshot();
        let (mut seen, mut steps) = (Vec::new(), Vec::new());
        let share = self.rng.random_range(1..=3);
        for list in &self.world.plan.lists {
            if self.rng.random_ratio(share, 3) {
                let family = self.world.family_of(list);
                let found = Reader::Snapshot(&snapshot).list(
                    &mut self.rng,
                    &family,
                    list,
                    How::Plain,
                    self.world.limit(),
                )?;
                steps.push(Step::Read(list.id, found.elements(), true));
                seen.push((family, list.clone(), found));
            }
        }
        self.world.out.send(&Event::Snapshot {
            id,
            lsn: snapshot.lsn(),
        });
        self.ended(id, "snapshot", steps, Ok(snapshot.lsn()), false);
        if self.rng.random() {
            let mut begun = None;
            if let Some((family, list, _)) = seen.iter().find(|(_, list, _)| list.form == Form::Rows) {
                let mut entries = Reader::Snapshot(&snapshot).prefix(family, &list.key)?;
                let mut shown = Vec::new();
                for _ in 0..self.rng.random_range(0..4) {
                    if let Some(entry) = entries.next() {
                        let (key, value) = entry?;
                        shown.push((key.to_vec(), value.to_vec()));
                    }
                }
                begun = Some((family.clone(), list.clone(), entries, shown));
            }
            self.held.push_back(HeldSnapshot {
                snapshot,
                seen,
                begun,
            });
            if self.held.len() > 4 {
                let held = self
                    .held
                    .pop_front()
                    .ok_or(Trouble::Wrong("nothing held".into()))?;
                self.recheck(held)?;
            }
        }
        Ok(())
    }

    /// A snapshot shows what it showed.
    fn recheck(&mut self, held: HeldSnapshot) -> Tried<()> {
        let HeldSnapshot {
            snapshot,
            seen,
            begun,
        } = held;
        for (family, list, then) in &seen {
            let now = Reader::Snapshot(&snapshot).list(
                &mut self.rng,
                family,
                list,
                How::Plain,
                self.world.limit(),
            )?;
            if now != *then {
                return wrong(format!(
                    "a snapshot at {} showed list {} as {then:?}, now {now:?}",
                    snapshot.lsn(),
                    list.id
                ));
            }
        }
        if let Some((family, list, entries, mut shown)) = begun {
            for entry in entries {
                let (key, value) = entry?;
                shown.push((key.to_vec(), value.to_vec()));
            }
            let whole = Reader::Snapshot(&snapshot).prefix(&family, &list.key)?;
            let whole = whole
                .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
                .collect::<Result<Vec<_>, Error>>()?;
            if whole != shown {
                return wrong(format!(
                    "an iterator over list {} that was held shows another state than its snapshot",
                    list.id
                ));
            }
        }
        Ok(())
    }

    /// Locks rows, reads, and writes, without a transaction.
    fn locked_append(&mut self) -> Tried<()> {
        let world = self.world;
        let shared = |list: &&List| list.rule == Rule::Shared && list.form == Form::Value;
        let lists: Vec<&List> = world.plan.lists.iter().filter(shared).collect();
        if lists.is_empty() {
            return Ok(());
        }
        let mut chosen: Vec<&List> = (0..self.rng.random_range(1..=2))
            .map(|_| *pick(&mut self.rng, &lists))
            .collect();
        chosen.dedup_by_key(|list| list.id);
        let whole = chance(&mut self.rng, 5);
        let id = world.tx();
        let kind = if whole {
            "with families locked"
        } else {
            "with rows locked"
        };
        self.begin(id, kind, &[]);
        let families: Vec<Family> = chosen.iter().map(|list| world.family_of(list)).collect();
        let timeout = *pick(&mut self.rng, &world.lock_timeouts);
        let locks = if whole {
            world.db.lock_families(&mut self.owner, &families, timeout)
        } else {
            let rows = chosen
                .iter()
                .zip(&families)
                .map(|(list, family)| (family, &list.key[..]));
            world.db.lock_rows(&mut self.owner, rows, timeout)
        };
        let locks = match locks {
            Ok(locks) => locks,
            Err(error) => {
                self.ended(id, kind, Vec::new(), Err(error), false);
                return Ok(());
            }
        };
        if chance(&mut self.rng, 6) {
            world.pause(10);
        }
        let (mut batch, mut steps) = (Batch::new(), Vec::new());
        for ((list, family), nth) in chosen.iter().zip(&families).zip(0..) {
            let found = Reader::Now.list(&mut self.rng, family, list, How::Plain, world.limit())?;
            let mut elements = found.elements();
            steps.push(Step::Read(list.id, elements.clone(), true));
            elements.push(element(id, nth));
            steps.push(Step::Append(list.id, element(id, nth)));
            batch.put(family, &list.key, encode(list, &elements, world.limit()))?;
        }
        world.out.send(&Event::Commit {
            id,
            steps: steps.clone(),
        });
        let mut options = self.write_options();
        options.skip_row_locks = true;
        let written = world.db.write(batch, &options);
        drop(locks);
        let survives = world.survives(options.durability);
        self.ended(id, kind, steps, written, survives);
        Ok(())
    }

    /// Creates a family, or drops one.
    fn passing(&mut self) -> Tried<()> {
        let world = self.world;
        let name = format!("passing {}", self.rng.random_range(0..3));
        match world.db.family(&name) {
            None => {
                world.out.send(&Event::Creating { name: name.clone() });
                let options = world.plan.family_options.clone();
                match world.db.create_family(&name, options) {
                    Ok(family) => {
                        if let Some(entry) = family.iter()?.next() {
                            return wrong(format!("the new family {name:?} has {:?}", entry?.0));
                        }
                        let id = family.id();
                        let lists = crate::plan::passing_lists(id);
                        let mut passing = world.passing.write().unwrap_or_else(PoisonError::into_inner);
                        passing.push(crate::world::Passing { family, lists });
                        drop(passing);
                        world.out.send(&Event::Created { name, id });
                    }
                    Err(Error::FamilyExists { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Some(family) if chance(&mut self.rng, 2) => {
                let id = family.id();
                world.out.send(&Event::Dropping {
                    name: name.clone(),
                    id,
                });
                match world.db.drop_family(&family) {
                    Ok(()) => {
                        world.out.send(&Event::Dropped { name, id });
                        if !matches!(family.get(b"x"), Err(Error::FamilyDropped { .. })) {
                            return wrong(format!("the dropped family {id} can be read"));
                        }
                    }
                    Err(Error::FamilyDropped { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                let mut passing = world.passing.write().unwrap_or_else(PoisonError::into_inner);
                passing.retain(|one| one.family.id() != id);
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn work(&mut self) -> Tried<()> {
        work(self.world, &mut self.rng)
    }

    /// A commit as large as it may be, and one that is larger.
    fn at_the_limit(&mut self) -> Tried<()> {
        let world = self.world;
        let lists = world.owned_by(self.thread, false);
        let list = &lists[0];
        let family = world.family_of(list);
        let filler = |size: usize| -> Tried<Batch> {
            let mut batch = Batch::new();
            batch.put(&family, format!("filler {}", self.thread), vec![7; size])?;
            Ok(batch)
        };
        let too_large = 3 * world.plan.ring_bytes;
        let limit = match world.db.write(filler(too_large)?, &WriteOptions::buffered()) {
            Err(Error::BatchTooLarge { limit, .. }) => usize::try_from(limit).unwrap_or(usize::MAX),
            other => return wrong(format!("a batch of three rings ends in {other:?}")),
        };
        let over = self.rng.random_range(0..2);
        let id = world.tx();
        let appended = element(id, 0);
        let mut elements = self.own[&list.id].clone();
        elements.push(appended);
        let value = encode(list, &elements, world.limit());
        // The filler's size in the batch: found by trying.
        let mut size = limit / 2;
        let batch = loop {
            let mut batch = filler(size)?;
            batch.put(&family, &list.key, &value)?;
            if batch.size_bytes() == limit + over {
                break batch;
            }
            match (size + limit + over).checked_sub(batch.size_bytes()) {
                Some(next) => size = next,
                // The list alone is larger.
                None => return Ok(()),
            }
        };
        let steps = vec![Step::Append(list.id, appended)];
        self.begin(id, "largest write", &steps);
        let options = self.write_options();
        let written = world.db.write(batch, &options);
        if over > 0 && written.is_ok() {
            return wrong("a batch that is too large was taken".into());
        }
        if over == 0 && matches!(written, Err(Error::BatchTooLarge { .. })) {
            return wrong("a batch that is as large as may be was not taken".into());
        }
        let survives = world.survives(options.durability);
        if self.ended(id, "largest write", steps, written, survives) {
            self.own.entry(list.id).or_default().push(appended);
        }
        Ok(())
    }
}

/// Forces a flush, a compaction, or a sync.
pub fn work(world: &World, rng: &mut SmallRng) -> Tried<()> {
    let passing = world
        .passing
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let family = match passing.first() {
        Some(one) if chance(rng, 4) => one.family.clone(),
        _ => pick(rng, &world.families).clone(),
    };
    let what = rng.random_range(0..12);
    let name = match what {
        0..=5 => "flush",
        6..=7 => "compact",
        8 => "flush all",
        9 => "compact all",
        _ => "flush wal",
    };
    world.out.send(&Event::Work {
        what: name.into(),
        done: false,
    });
    let before = world.db.visible();
    let mut promise = None;
    let done = match what {
        0..=5 => family.flush(),
        6..=7 => family.compact(),
        8 => world.db.flush().map(|()| promise = Some(before)),
        9 => world.db.compact().map(|()| promise = Some(before)),
        10 => world
            .db
            .flush_wal(Durability::Disk)
            .map(|end| promise = Some(end)),
        _ => world
            .db
            .flush_wal(Durability::Process)
            .map(|end| promise = Some(end)),
    };
    match done {
        Ok(()) | Err(Error::FamilyDropped { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    world.out.send(&Event::Work {
        what: name.into(),
        done: true,
    });
    if let Some(end) = promise {
        world.out.send(&Event::Promise { end });
    }
    Ok(())
}

/// Forces work as long as others go on.
pub fn disturb(world: &Arc<World>, mut rng: SmallRng, running: &std::sync::atomic::AtomicU32) {
    while running.load(std::sync::atomic::Ordering::Acquire) > 0 {
        if let Err(trouble) = work(world, &mut rng) {
            match trouble {
                Trouble::Wrong(text) => world.out.violation(text),
                Trouble::Store(error) => world.out.violation(format!("forced work fails: {error}")),
            }
        }
        let stats = world.db.stats();
        drop(stats);
        let steps = rng.random_range(5..200);
        world.pause(steps);
    }
}
