//! A simulated raft group: its logs, terms and commits, and on each replica a table and the code
//! that is tested. Everything happens in steps, which the schedule chooses.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use collie_cluster::testing::proposals::{
    Decision, Effects, HEADER, Header, Leading, Outcome, Proposal, RECORDED, Recorded, Skip, Ticket, decide,
};
use collie_cluster::testing::{EntryId, LeaderId};
use collie_sim::Rng;

use crate::commands::{Row, Value};

/// What raft does wrong, or may do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Single proposals are refused, responders dropped, clients give up: once in so many.
    pub(crate) refuse: Option<u64>,
    pub(crate) drop: Option<u64>,
    pub(crate) give_up: Option<u64>,
    /// Proposals are taken under whichever leader id the replica has by then. Apply must notice.
    pub(crate) unchecked_leader: bool,
    /// A replica stands for election more seldom, by this factor.
    pub(crate) calmness: u64,
    /// A refusal is reported of what was appended. Clients are told that it is unknown; the leader
    /// is deceived, and apply must notice.
    pub(crate) lies: bool,
}

fn hit(rng: &mut Rng, odds: Option<u64>) -> bool {
    odds.is_some_and(|odds| rng.one_in(odds))
}

#[derive(Debug)]
pub(crate) enum Payload {
    Blank,
    Effects([u8; HEADER], Effects<Row, Value>),
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) id: EntryId,
    pub(crate) payload: Rc<Payload>,
}

#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) rows: BTreeMap<Row, Value>,
    pub(crate) recorded: Option<[u8; RECORDED]>,
    pub(crate) applied: EntryId,
}

impl Table {
    pub(crate) fn recorded(&self) -> Option<Recorded> {
        self.recorded
            .map(|bytes| Recorded::decode(&bytes).expect("what was recorded"))
    }
}

/// The entry at index 0, which all have: the group's first membership.
const FIRST: EntryId = EntryId {
    leader: LeaderId { term: 0, replica: 0 },
    index: 0,
};

pub(crate) struct Replica {
    id: u64,
    pub(crate) boot: u32,
    // Kept over a restart.
    pub(crate) term: u64,
    pub(crate) log: Vec<Entry>,
    purged: EntryId,
    flushed: Table,
    // Not kept.
    pub(crate) table: Table,
    pub(crate) commit: u64,
    pub(crate) leads: Option<LeaderId>,
    blank: u64,
    matched: Vec<u64>,
    channel: VecDeque<Proposal<Effects<Row, Value>>>,
    responders: Vec<(EntryId, Header)>,
    /// An entry that is in the table, of which the leader's side does not know yet.
    applying: Option<(Entry, Option<(Header, Decision)>)>,
    /// Outcomes that are on their way; the second is what clients are told.
    pub(crate) reports: VecDeque<(Ticket, Outcome, Outcome)>,
    pub(crate) leading: Rc<Leading<Row, Value, Effects<Row, Value>>>,
    pending_max: usize,
    pub(crate) locks: BTreeMap<Row, usize>,
}

impl Replica {
    fn new(id: u64, replicas: usize, pending_max: usize) -> Self {
        let table = Table {
            rows: BTreeMap::new(),
            recorded: None,
            applied: FIRST,
        };
        Self {
            id,
            boot: 0,
            term: 0,
            log: Vec::new(),
            purged: FIRST,
            flushed: table.clone(),
            table,
            commit: 0,
            leads: None,
            blank: 0,
            matched: vec![0; replicas],
            channel: VecDeque::new(),
            responders: Vec::new(),
            applying: None,
            reports: VecDeque::new(),
            leading: Rc::new(Leading::new(pending_max)),
            pending_max,
            locks: BTreeMap::new(),
        }
    }

    pub(crate) fn last(&self) -> EntryId {
        self.log.last().map_or(self.purged, |entry| entry.id)
    }

    fn entry(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.purged.index + 1)?;
        self.log.get(usize::try_from(at).expect("an index"))
    }

    fn id_at(&self, index: u64) -> Option<EntryId> {
        if index == self.purged.index {
            return Some(self.purged);
        }
        self.entry(index).map(|entry| entry.id)
    }

    /// Of each proposal of an entry, which clients learn one after the other.
    fn report(&mut self, header: &Header, outcome: Outcome) {
        self.report_as(header, outcome, outcome);
    }

    fn report_as(&mut self, header: &Header, outcome: Outcome, said: Outcome) {
        let run = header.ticket.run;
        let tickets = (header.ticket.n..=header.last().n).map(|n| Ticket { run, n });
        self.reports.extend(tickets.map(|ticket| (ticket, outcome, said)));
    }

    fn append(&mut self, leader: LeaderId, payload: Payload) -> EntryId {
        let id = EntryId {
            leader,
            index: self.last().index + 1,
        };
        let payload = Rc::new(payload);
        self.log.push(Entry { id, payload });
        id
    }

    fn step_down(&mut self, rng: &mut Rng) {
        self.leads = None;
        // Some learn at once that nothing is known, others when their entry is applied or goes.
        let (gone, kept) = std::mem::take(&mut self.responders)
            .into_iter()
            .partition(|_| rng.one_in(3));
        self.responders = kept;
        self.discard(gone);
    }

    fn discard(&mut self, responders: Vec<(EntryId, Header)>) {
        for (_, header) in responders {
            self.report(&header, Outcome::Discarded);
        }
    }

    fn truncate(&mut self, last: u64) {
        let keep = last.saturating_sub(self.purged.index);
        self.log.truncate(usize::try_from(keep).expect("an index"));
        let (kept, gone) = std::mem::take(&mut self.responders)
            .into_iter()
            .partition(|(id, _)| id.index <= last);
        self.responders = kept;
        self.discard(gone);
    }

    /// Learns of a term; false if its own is later.
    fn follows(&mut self, term: u64, rng: &mut Rng) -> bool {
        if term > self.term {
            self.term = term;
            if self.leads.is_some() {
                self.step_down(rng);
            }
        }
        self.term == term
    }

    /// Applies the next committed entry to the table. The leader's side learns of it by
    /// [`tell`](Self::tell).
    pub(crate) fn apply(&mut self, faults: &Faults) {
        if self.applying.is_some() || self.table.applied.index >= self.commit {
            return;
        }
        let entry = self.entry(self.table.applied.index + 1);
        let entry = entry.expect("a committed entry is in the log").clone();
        self.table.applied = entry.id;
        let mut decided = None;
        if let Payload::Effects(header, effects) = &*entry.payload {
            let (header, rest) = Header::decode(header).expect("a header");
            assert!(rest.is_empty());
            let decision = decide(self.table.recorded().as_ref(), &entry.id, &header);
            // A run begins when all before it is decided. So apply finds fault with a first entry
            // only where the leader was deceived, or the entry came to another leader's term.
            let in_place = header.ticket.n > 1 || faults.lies || decision == Decision::Skipped(Skip::Leader);
            let taken = matches!(decision, Decision::Taken(_));
            assert!(
                taken || in_place,
                "the first entry of a run is skipped: {}, {decision:?}",
                header.ticket
            );
            if let Decision::Taken(recorded) = decision {
                let newest_ms = self.table.recorded().map_or(0, |last| last.stamp_ms);
                assert!(
                    header.stamp_ms >= newest_ms,
                    "time goes back from {newest_ms} to {} in {}",
                    header.stamp_ms,
                    header.ticket
                );
                self.table.recorded = Some(recorded.encode());
                for (row, value) in effects {
                    match value {
                        Some(value) => self.table.rows.insert(*row, *value),
                        None => self.table.rows.remove(row),
                    };
                }
            }
            decided = Some((header, decision));
        }
        self.applying = Some((entry, decided));
    }

    pub(crate) fn tell(&mut self) {
        let Some((entry, decided)) = self.applying.take() else {
            return;
        };
        let outcome = match (&*entry.payload, decided) {
            (Payload::Effects(_, effects), Some((header, decision))) => {
                self.leading
                    .applied(&entry.id, &header, &decision, effects.keys());
                match decision {
                    Decision::Taken(_) => Outcome::Taken,
                    Decision::Skipped(_) => Outcome::Skipped,
                }
            }
            _ if entry.id.leader.replica == self.id => {
                self.leading.lead(entry.id.leader, self.table.recorded().as_ref());
                return;
            }
            _ => return self.leading.follow(),
        };
        let at = self.responders.iter().position(|(id, _)| *id == entry.id);
        if let Some(at) = at {
            let (_, header) = self.responders.swap_remove(at);
            self.report(&header, outcome);
        }
    }

    /// Hands the next proposal to raft's queue: by an entry of its own, or with the one before it.
    pub(crate) fn propose(&mut self, rng: &mut Rng) {
        let Some(next) = self.leading.next_proposal() else {
            return;
        };
        if let Some(last) = self.channel.back_mut()
            && rng.one_in(2)
            && last.header.join(&next.header)
        {
            last.payload.extend(next.payload);
        } else {
            self.channel.push_back(next);
        }
    }

    /// Raft takes the next proposal of its queue, or refuses it.
    pub(crate) fn core(&mut self, rng: &mut Rng, faults: &Faults) {
        let Some(Proposal {
            header,
            payload: effects,
        }) = self.channel.pop_front()
        else {
            return;
        };
        let leader = self
            .leads
            .filter(|leader| *leader == header.ticket.run.leader || faults.unchecked_leader);
        let refused = hit(rng, faults.refuse);
        let Some(leader) = leader.filter(|_| !refused || faults.lies) else {
            return self.report(&header, Outcome::Refused);
        };
        let id = self.append(leader, Payload::Effects(header.encode(), effects));
        if refused {
            self.report_as(&header, Outcome::Refused, Outcome::Dropped);
        } else if hit(rng, faults.drop) {
            self.report(&header, Outcome::Dropped);
        } else {
            self.responders.push((id, header));
        }
    }

    pub(crate) fn flush(&mut self, purge: bool) {
        self.flushed = self.table.clone();
        if purge && self.purged.index < self.flushed.applied.index {
            self.log
                .retain(|entry| entry.id.index > self.flushed.applied.index);
            self.purged = self.flushed.applied;
        }
    }

    pub(crate) fn restart(&mut self) {
        let replicas = self.matched.len();
        let fresh = Self::new(self.id, replicas, self.pending_max);
        let old = std::mem::replace(self, fresh);
        self.boot = old.boot + 1;
        self.term = old.term;
        self.log = old.log;
        self.purged = old.purged;
        self.table = old.flushed.clone();
        self.commit = old.flushed.applied.index;
        self.flushed = old.flushed;
    }

    fn install(&mut self, snapshot: &Table) {
        self.tell();
        let end = snapshot.applied.index;
        for (id, header) in std::mem::take(&mut self.responders) {
            let outcome = if id.index <= end {
                Outcome::Dropped
            } else {
                Outcome::Discarded
            };
            self.report(&header, outcome);
        }
        self.log.clear();
        self.purged = snapshot.applied;
        self.table = snapshot.clone();
        self.flushed = snapshot.clone();
        self.commit = end;
    }
}

pub(crate) struct Group {
    pub(crate) replicas: Vec<Replica>,
    /// A replica that reaches no other, and is reached by none.
    pub(crate) isolated: Option<usize>,
}

impl Group {
    pub(crate) fn new(replicas: usize, pending_max: usize) -> Self {
        let ids = 1..=replicas as u64;
        Self {
            replicas: ids.map(|id| Replica::new(id, replicas, pending_max)).collect(),
            isolated: None,
        }
    }

    fn quorum(&self) -> usize {
        self.replicas.len() / 2 + 1
    }

    /// Others that make a quorum with this one, by chance.
    fn others(&self, replica: usize, rng: &mut Rng) -> Vec<usize> {
        let mut others: Vec<usize> = (0..self.replicas.len())
            .filter(|other| *other != replica && Some(*other) != self.isolated)
            .collect();
        while others.len() + 1 > self.quorum() {
            others.swap_remove(rng.index(others.len()));
        }
        others
    }

    /// A replica asks a quorum for votes.
    pub(crate) fn elect(&mut self, candidate: usize, rng: &mut Rng) {
        if self.isolated == Some(candidate) {
            return;
        }
        let term = self
            .replicas
            .iter()
            .map(|replica| replica.term)
            .max()
            .unwrap_or(0)
            + 1;
        let last = self.replicas[candidate].last();
        let voters = self.others(candidate, rng);
        let newer = |replica: &Replica| {
            (replica.last().leader.term, replica.last().index) > (last.leader.term, last.index)
        };
        let refused = voters.iter().any(|voter| newer(&self.replicas[*voter]));
        for voter in voters.iter().chain([&candidate]) {
            self.replicas[*voter].follows(term, rng);
        }
        if refused {
            return;
        }
        let replica = &mut self.replicas[candidate];
        let leader = LeaderId {
            term,
            replica: replica.id,
        };
        replica.leads = Some(leader);
        replica.matched.fill(0);
        replica.blank = replica.append(leader, Payload::Blank).index;
    }

    /// A leader sends entries, or a snapshot, to another replica.
    pub(crate) fn replicate(&mut self, from: usize, to: usize, most: usize, reply_lost: bool, rng: &mut Rng) {
        let Some(leader) = self.replicas[from].leads else {
            return;
        };
        if from == to || [Some(from), Some(to)].contains(&self.isolated) {
            return;
        }
        if !self.replicas[to].follows(leader.term, rng) {
            if !reply_lost {
                let term = self.replicas[to].term;
                self.replicas[from].follows(term, rng);
            }
            return;
        }
        let (source, target) = if from < to {
            let (head, tail) = self.replicas.split_at_mut(to);
            (&mut head[from], &mut tail[0])
        } else {
            let (head, tail) = self.replicas.split_at_mut(from);
            (&mut tail[0], &mut head[to])
        };
        let mut common = source.last().index.min(target.last().index);
        let lowest = source.purged.index.max(target.purged.index);
        while common > lowest && source.id_at(common) != target.id_at(common) {
            common -= 1;
        }
        if common < source.purged.index || source.id_at(common) != target.id_at(common) {
            // What the target has purged is committed, so the source has it.
            if source.flushed.applied.index <= target.commit {
                return;
            }
            target.install(&source.flushed);
            common = target.last().index;
        }
        for _ in 0..most {
            let Some(entry) = source.entry(common + 1) else {
                break;
            };
            if target.id_at(common + 1) != Some(entry.id) {
                assert!(target.commit <= common, "what is committed is overwritten");
                target.truncate(common);
                target.log.push(entry.clone());
            }
            common += 1;
        }
        target.commit = target.commit.max(source.commit.min(common));
        if reply_lost {
            return;
        }
        source.matched[to] = source.matched[to].max(common);
        source.matched[from] = source.last().index;
        let mut matched = source.matched.clone();
        matched.sort_unstable();
        let by_quorum = matched[matched.len() - (matched.len() / 2 + 1)];
        if by_quorum > source.commit && source.id_at(by_quorum).is_some_and(|id| id.leader == leader) {
            source.commit = by_quorum;
        }
    }

    /// Raft takes a read: under whom, and up to where the table must be applied.
    pub(crate) fn read_index(&self, replica: usize) -> Option<(LeaderId, u64)> {
        let replica = &self.replicas[replica];
        replica
            .leads
            .map(|leader| (leader, replica.commit.max(replica.blank)))
    }

    /// Asks a quorum whether the replica still leads.
    pub(crate) fn confirm(&mut self, replica: usize, leader: LeaderId, rng: &mut Rng) -> bool {
        if self.replicas[replica].leads != Some(leader) || self.isolated == Some(replica) {
            return false;
        }
        for other in self.others(replica, rng) {
            if !self.replicas[other].follows(leader.term, rng) {
                let term = self.replicas[other].term;
                self.replicas[replica].follows(term, rng);
                return false;
            }
        }
        true
    }
}
