//! Clients, and what a node does for their connections: it locks rows, evaluates, submits, waits.

use collie_cluster::testing::LeaderId;
use collie_cluster::testing::proposals::{
    Answer, Attempt, Effects, Evaluated, Leading, NotOpen, NotSubmitted, Outcome, PendingReply, Stale,
    Standing, Ticket, Todo,
};
use collie_sim::Rng;

use crate::commands::{Command, Reply, Row, Value, execute};
use crate::history::Op;
use crate::raft::{Faults, Group, Replica};

/// A command that was sent, and the number of it that makes it one of those executed once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) key: u8,
    pub(crate) command: Command,
    pub(crate) once: Option<u64>,
    pub(crate) call: u64,
}

#[derive(Debug)]
pub(crate) struct Client {
    id: usize,
    at: usize,
    boot: u32,
    numbered: u64,
    state: State,
    /// Answers of each kind that came: replies, `TRYAGAIN`, `UNKNOWN`.
    pub(crate) answers: [u64; 3],
}

#[derive(Debug)]
enum State {
    Idle,
    /// It will send this; a command that is executed once is sent again until it has its reply.
    Sending(Vec<Sent>),
    Evaluating(Vec<Sent>, Pipeline, Stage),
    Waiting(Vec<Sent>, Pipeline, Option<(LeaderId, u64)>),
    /// A lone GET, on a replica that leads under this id: it reads what is applied, without a lock.
    Reading(Sent, LeaderId),
}

/// What became of the commands of a pipeline so far.
type Pipeline = Vec<Part>;

#[derive(Debug)]
enum Part {
    Pending(Evaluated, PendingReply<Reply>),
    Answered(Answer<Reply>),
}

impl Part {
    fn pending(&mut self) -> Option<&mut PendingReply<Reply>> {
        match self {
            Self::Pending(_, pending) => Some(pending),
            Self::Answered(_) => None,
        }
    }
}

/// The answers of a pipeline that is waited for no longer.
fn given_up(pipeline: &Pipeline, leading: &Leading<Row, Value, Effects<Row, Value>>) -> Vec<Answer<Reply>> {
    let answer = |part: &Part| match part {
        Part::Pending(_, pending) => pending.give_up(leading),
        Part::Answered(answer) => answer.clone(),
    };
    pipeline.iter().map(answer).collect()
}

/// How far the evaluation of the next command is.
#[derive(Debug)]
enum Stage {
    Lock,
    Record(Attempt),
    Read(Attempt),
    Finish(Attempt, Reply, Effects<Row, Value>),
}

/// What a step of a client may use.
pub(crate) struct World<'a> {
    pub(crate) group: &'a mut Group,
    pub(crate) rng: &'a mut Rng,
    pub(crate) faults: &'a Faults,
    pub(crate) now: u64,
    pub(crate) history: &'a mut Vec<Op>,
}

/// Reads the table as a command does, with apply at work meanwhile.
fn read(replica: &mut Replica, rng: &mut Rng, faults: &Faults, row: Row) -> Result<Option<Value>, Stale> {
    let mut meanwhile = |replica: &mut Replica| {
        if rng.one_in(4) {
            replica.tell();
            replica.apply(faults);
        }
        if rng.one_in(4) {
            replica.tell();
        }
    };
    meanwhile(replica);
    let value = replica.table.rows.get(&row).copied();
    meanwhile(replica);
    Ok(value)
}

impl Client {
    pub(crate) fn new(id: usize) -> Self {
        Self {
            id,
            at: 0,
            boot: 0,
            numbered: 0,
            state: State::Idle,
            answers: [0; 3],
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn send(&mut self, commands: &[(u8, Command, bool)], now: u64) {
        let sent = commands.iter().map(|(key, command, once)| Sent {
            key: *key,
            command: *command,
            call: now,
            once: once.then(|| {
                self.numbered += 1;
                self.numbered
            }),
        });
        self.state = State::Sending(sent.collect());
    }

    /// Answers that are known: into the history, or to be sent again.
    fn answered(&mut self, sent: &[Sent], answers: Vec<Answer<Reply>>, world: &mut World<'_>) {
        self.state = State::Idle;
        let mut after = None;
        for (sent, answer) in sent.iter().zip(answers) {
            let returned = match answer {
                Answer::Reply(reply) => Some((world.now, reply)),
                Answer::TryAgain | Answer::Unknown => None,
            };
            let kind = match answer {
                Answer::Reply(_) => 0,
                Answer::TryAgain => 1,
                Answer::Unknown => 2,
            };
            self.answers[kind] += 1;
            if sent.once.is_some() && returned.is_none() {
                self.state = State::Sending(vec![*sent]);
                continue;
            }
            if answer == Answer::TryAgain {
                continue;
            }
            world.history.push(Op {
                key: sent.key,
                command: sent.command,
                call: sent.call,
                returned,
                after,
            });
            if returned.is_some() {
                after = Some(world.history.len() - 1);
            }
        }
    }

    /// The node is gone: what was submitted is unknown.
    fn cut(&mut self, world: &mut World<'_>) {
        let (sent, pipeline) = match std::mem::replace(&mut self.state, State::Idle) {
            State::Evaluating(sent, pipeline, _) | State::Waiting(sent, pipeline, _) => (sent, pipeline),
            State::Reading(..) | State::Idle => return,
            State::Sending(sent) => {
                self.state = State::Sending(sent);
                return;
            }
        };
        let unheard = |answer| match answer {
            Answer::Reply(_) => Answer::Unknown,
            answer => answer,
        };
        let answers = given_up(&pipeline, &world.group.replicas[self.at].leading);
        let mut answers: Vec<_> = answers.into_iter().map(unheard).collect();
        // Commands that were not evaluated were not executed.
        answers.resize(sent.len(), Answer::TryAgain);
        self.answered(&sent, answers, world);
    }

    /// The client closes its connection: nobody waits for what goes on.
    pub(crate) fn disconnect(&mut self, world: &mut World<'_>) {
        self.unlock(&mut world.group.replicas[self.at]);
        self.cut(world);
    }

    /// The server waits no longer.
    pub(crate) fn give_up(&mut self, world: &mut World<'_>) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Waiting(sent, mut pipeline, _) => {
                for part in &mut pipeline {
                    if let Part::Pending(Evaluated::Submitted(ticket), pending) = part {
                        pending.outcome(ticket, Outcome::TimedOut);
                    }
                }
                let answers = given_up(&pipeline, &world.group.replicas[self.at].leading);
                self.answered(&sent, answers, world);
            }
            State::Reading(..) => self.state = State::Idle,
            state => self.state = state,
        }
    }

    pub(crate) fn learns(&mut self, replica: usize, ticket: &Ticket, outcome: Outcome) {
        if let State::Evaluating(_, pipeline, _) | State::Waiting(_, pipeline, _) = &mut self.state
            && self.at == replica
        {
            for pending in pipeline.iter_mut().filter_map(Part::pending) {
                pending.outcome(ticket, outcome);
            }
        }
    }

    pub(crate) fn step(&mut self, world: &mut World<'_>) {
        if self.boot != world.group.replicas[self.at].boot {
            self.cut(world);
            self.boot = world.group.replicas[self.at].boot;
            return;
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => {}
            State::Sending(sent) => self.connect(sent, world),
            State::Evaluating(sent, pipeline, stage) => self.evaluate(sent, pipeline, stage, world),
            State::Waiting(sent, pipeline, asked) => self.wait(sent, pipeline, asked, world),
            State::Reading(sent, leader) => self.read_applied(sent, leader, world),
        }
    }

    fn connect(&mut self, sent: Vec<Sent>, world: &mut World<'_>) {
        // Most clients know who leads, or led.
        let leaders: Vec<_> = (0..world.group.replicas.len())
            .filter(|at| world.group.replicas[*at].leads.is_some())
            .collect();
        self.at = if leaders.is_empty() || world.rng.one_in(16) {
            world.rng.index(world.group.replicas.len())
        } else {
            leaders[world.rng.index(leaders.len())]
        };
        self.boot = world.group.replicas[self.at].boot;
        let get = sent[0].command == Command::Get && sent[0].once.is_none();
        self.state = match world.group.replicas[self.at].leading.standing() {
            Standing::Open(run) | Standing::Ending(run) if get && sent.len() == 1 => {
                State::Reading(sent[0], run.leader)
            }
            _ => State::Evaluating(sent, Pipeline::new(), Stage::Lock),
        };
    }

    fn unlock(&self, replica: &mut Replica) {
        replica.locks.retain(|_, owner| *owner != self.id);
    }

    fn evaluate(&mut self, sent: Vec<Sent>, mut pipeline: Pipeline, stage: Stage, world: &mut World<'_>) {
        let Some(command) = sent.get(pipeline.len()).copied() else {
            self.state = State::Waiting(sent, pipeline, None);
            return;
        };
        let replica = &mut world.group.replicas[self.at];
        let leading = replica.leading.clone();
        let key = Row::Key(command.key);
        let record = command.once.map(|number| Row::Record(self.id, number));
        let next = match stage {
            Stage::Lock => {
                if replica.locks.contains_key(&key) {
                    self.state = State::Evaluating(sent, pipeline, Stage::Lock);
                    return;
                }
                match leading.begin() {
                    Ok(evaluation) => {
                        replica.locks.insert(key, self.id);
                        if record.is_some() {
                            Ok(Stage::Record(evaluation))
                        } else {
                            Ok(Stage::Read(evaluation))
                        }
                    }
                    // Another replica is asked, if nothing was submitted here.
                    Err(NotOpen::Following) if pipeline.is_empty() => {
                        self.state = State::Sending(sent);
                        return;
                    }
                    Err(NotOpen::Following) => {
                        pipeline.push(Part::Answered(Answer::TryAgain));
                        self.state = State::Evaluating(sent, pipeline, Stage::Lock);
                        return;
                    }
                    Err(NotOpen::Ending) => Err(Stale),
                }
            }
            Stage::Record(mut evaluation) => {
                let row = record.expect("the number of a command that is executed once");
                let table = || read(replica, world.rng, world.faults, row);
                leading
                    .get(&mut evaluation, &row, table)
                    .map(|found| match found {
                        Some(Value::Record(reply)) => Stage::Finish(evaluation, reply, Effects::new()),
                        Some(Value::Int(_)) => panic!("a record has the value of a key"),
                        None => Stage::Read(evaluation),
                    })
            }
            Stage::Read(mut evaluation) => {
                let table = || read(replica, world.rng, world.faults, key);
                leading.get(&mut evaluation, &key, table).map(|value| {
                    let (reply, change) = execute(command.command, Value::int(value));
                    let mut effects = Effects::new();
                    if let Some(change) = change {
                        effects.insert(key, change.map(Value::Int));
                    }
                    if let Some(record) = record {
                        effects.insert(record, Some(Value::Record(reply)));
                    }
                    Stage::Finish(evaluation, reply, effects)
                })
            }
            Stage::Finish(evaluation, reply, effects) => match leading.finish(
                evaluation,
                effects.clone(),
                effects,
                // The clocks of replicas differ.
                world.now.saturating_sub(10 * self.at as u64),
            ) {
                Ok(evaluated) => {
                    self.unlock(replica);
                    pipeline.push(Part::Pending(evaluated, PendingReply::new(evaluated, reply)));
                    Ok(Stage::Lock)
                }
                Err(NotSubmitted::Stale(stale)) => Err(stale),
                Err(NotSubmitted::Full) => {
                    self.unlock(replica);
                    pipeline.push(Part::Answered(Answer::TryAgain));
                    Ok(Stage::Lock)
                }
            },
        };
        // What is stale is evaluated anew.
        let stage = next.unwrap_or_else(|Stale| {
            self.unlock(replica);
            Stage::Lock
        });
        self.state = State::Evaluating(sent, pipeline, stage);
    }

    fn wait(
        &mut self,
        sent: Vec<Sent>,
        mut pipeline: Pipeline,
        asked: Option<(LeaderId, u64)>,
        world: &mut World<'_>,
    ) {
        let mut confirmation = asked.map(|(leader, _)| {
            let confirmed = world.group.confirm(self.at, leader, world.rng);
            confirmed.then_some(leader)
        });
        loop {
            if let Some(confirmed) = confirmation {
                let all = pipeline.iter_mut().filter_map(Part::pending);
                all.for_each(|pending| pending.confirmed(confirmed));
            }
            let leading = &world.group.replicas[self.at].leading;
            let mut asks = false;
            let mut answers = Vec::new();
            for part in &mut pipeline {
                match part {
                    Part::Answered(answer) => answers.push(answer.clone()),
                    Part::Pending(_, pending) => match pending.next(leading) {
                        Todo::Answer(answer) => answers.push(answer),
                        Todo::ReadIndex => asks = true,
                        Todo::Wait => {}
                    },
                }
            }
            if answers.len() == pipeline.len() {
                return self.answered(&sent, answers, world);
            }
            let asked = asks.then(|| world.group.read_index(self.at));
            if asked == Some(None) {
                confirmation = Some(None);
                continue;
            }
            self.state = State::Waiting(sent, pipeline, asked.flatten());
            return;
        }
    }

    fn read_applied(&mut self, sent: Sent, leader: LeaderId, world: &mut World<'_>) {
        let replica = &mut world.group.replicas[self.at];
        let read = read(replica, world.rng, world.faults, Row::Key(sent.key));
        let value = read.expect("a table can be read");
        let read = Evaluated::Read { leader, seen: None };
        let pending = PendingReply::new(read, Reply(Value::int(value)));
        self.state = State::Waiting(vec![sent], vec![Part::Pending(read, pending)], None);
    }
}
