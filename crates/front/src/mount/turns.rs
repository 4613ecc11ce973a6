//! The schedule of reads: those of one task before those of the next.
//!
//! Several scans that share a device evenly all end late. One after the other, each but the last ends
//! earlier, and the last no later. A task is a query: a server process with its parallel workers.

use std::collections::VecDeque;
use std::time::Duration;

use collie_io::Policy;

use super::tasks::{Class, Opener, TaskId};

/// A task without a read for so long is over.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// A task goes to the end of the line when it was first for so long.
const LEADS: Duration = Duration::from_secs(5);
/// A read waits no longer for those of other tasks.
const PATIENCE: Duration = Duration::from_millis(100);

/// As much as the kernel reads ahead at once.
const UNIT: u64 = 128 << 10;
/// Where a unit takes less, it comes from a cache or from a device that serves many at once: nothing
/// is gained by keeping it for one task.
const SLOW: Duration = Duration::from_micros(300);

/// A time, as the span since the start of the clock.
pub(super) type Time = Duration;

/// A read that waits.
#[derive(Debug)]
struct Waiting<J> {
    opener: Opener,
    asked: Time,
    bytes: u64,
    job: J,
}

/// A task that reads, or did a moment ago.
#[derive(Debug)]
struct Task {
    id: TaskId,
    class: Class,
    /// When it became the first one.
    leads_since: Option<Time>,
    /// When a read of it was requested or ended.
    seen: Time,
    in_flight: usize,
    /// Bytes that it was given, for the policy of equal shares.
    given: u64,
}

/// A read under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read {
    task: TaskId,
    bytes: u64,
}

/// What a thread is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<J> {
    Read(Read, J),
    /// Wait for another read, and no longer than this, if it is given.
    Wait(Option<Duration>),
}

/// Reads that wait, and the tasks that they are of.
#[derive(Debug)]
pub(super) struct Turns<J> {
    policy: Policy,
    /// How long the device waits for the next read of the first task.
    idle_slice: Duration,
    /// How long a unit takes, of late.
    pace: Duration,
    /// In the order in which they were requested.
    waiting: VecDeque<Waiting<J>>,
    /// In the order in which they are served.
    tasks: Vec<Task>,
}

impl<J> Turns<J> {
    pub(super) fn new(policy: Policy, idle_slice: Duration) -> Turns<J> {
        Turns {
            policy,
            idle_slice,
            pace: Duration::ZERO,
            waiting: VecDeque::new(),
            tasks: Vec::new(),
        }
    }

    /// Adds a requested read.
    pub(super) fn ask(&mut self, opener: Opener, bytes: u64, now: Time, job: J) {
        self.forget(now);
        match self.tasks.iter_mut().find(|task| task.id == opener.task) {
            Some(task) => task.seen = now,
            None => {
                // It owes nothing for the time before it came.
                let least = self.tasks.iter().map(|task| task.given).min();
                let task = Task {
                    id: opener.task,
                    class: opener.class,
                    leads_since: None,
                    seen: now,
                    in_flight: 0,
                    given: least.unwrap_or(0),
                };
                // Behind those of its class, and before those of the next.
                let at = self.tasks.partition_point(|other| other.class <= task.class);
                self.tasks.insert(at, task);
            }
        }
        self.waiting.push_back(Waiting {
            opener,
            asked: now,
            bytes,
            job,
        });
    }

    /// A read of this task has ended, which took so long.
    pub(super) fn ended(&mut self, read: &Read, took: Duration, now: Time) {
        let task = read.task;
        // Shorter ones take as long, nearly.
        let unit = took.mul_f64(UNIT as f64 / read.bytes.max(UNIT) as f64);
        // Over many reads: a limited device serves some at once, then none for a while.
        self.pace = (self.pace * 63 + unit) / 64;
        if let Some(task) = self.tasks.iter_mut().find(|other| other.id == task) {
            task.in_flight -= 1;
            task.seen = now;
        }
    }

    /// Forgets tasks that are over.
    fn forget(&mut self, now: Time) {
        let waiting = &self.waiting;
        self.tasks.retain(|task| {
            task.in_flight > 0
                || now.saturating_sub(task.seen) < FORGOTTEN
                || waiting.iter().any(|read| read.opener.task == task.id)
        });
    }

    /// What a thread that has nothing to do is to do.
    pub(super) fn next(&mut self, now: Time) -> Turn<J> {
        let Some(oldest) = self.waiting.front() else {
            return Turn::Wait(None);
        };
        let patience = PATIENCE.saturating_sub(now.saturating_sub(oldest.asked));
        if patience.is_zero() {
            return self.take(0);
        }
        match self.policy {
            Policy::None => self.take(0),
            Policy::Fair => {
                let given = |read: &Waiting<J>| {
                    let task = self.tasks.iter().find(|task| task.id == read.opener.task);
                    task.map_or(0, |task| task.given)
                };
                let reads = self.waiting.iter().enumerate();
                let least = reads.min_by_key(|(_, read)| given(read)).map(|(at, _)| at);
                self.take(least.unwrap_or(0))
            }
            Policy::Classes => {
                self.rotate(now);
                let is_slow = self.pace >= SLOW;
                // The first task that has a read, or may have one in a moment.
                for task in &self.tasks {
                    let its = |read: &Waiting<J>| read.opener.task == task.id;
                    if let Some(at) = self.waiting.iter().position(its) {
                        return self.take(at);
                    }
                    let idle = if task.in_flight > 0 {
                        Duration::ZERO
                    } else {
                        now.saturating_sub(task.seen)
                    };
                    if is_slow && idle < self.idle_slice && task.class == Class::Foreground {
                        return Turn::Wait(Some(patience.min(self.idle_slice - idle)));
                    }
                }
                self.take(0)
            }
        }
    }

    /// Notes which task is the first one; one that was for long goes behind the others of its class.
    fn rotate(&mut self, now: Time) {
        let Some(first) = self.tasks.first_mut() else {
            return;
        };
        let since = *first.leads_since.get_or_insert(now);
        if now.saturating_sub(since) < LEADS {
            return;
        }
        let class = first.class;
        first.leads_since = None;
        let end = self.tasks.partition_point(|task| task.class <= class);
        if let Some(of_class) = self.tasks.get_mut(..end) {
            of_class.rotate_left(1);
        }
    }

    fn take(&mut self, at: usize) -> Turn<J> {
        let Some(read) = self.waiting.remove(at) else {
            return Turn::Wait(None);
        };
        let id = read.opener.task;
        if let Some(task) = self.tasks.iter_mut().find(|task| task.id == id) {
            task.in_flight += 1;
            task.given += read.bytes;
        }
        let under_way = Read {
            task: id,
            bytes: read.bytes,
        };
        Turn::Read(under_way, read.job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Duration::from_secs(7);
    const READ: Duration = Duration::from_millis(1);

    fn opener(task: u32, class: Class) -> Opener {
        Opener {
            task: TaskId(task),
            class,
        }
    }

    /// Scans by `tasks` tasks of `reads` reads each, which begin `apart` one after the other and have
    /// two reads asked for at once; between a read and the next the task computes for `thinks`. The
    /// device does one read at a time. Returns when each ends.
    fn scans(
        policy: Policy,
        idle: Duration,
        tasks: u32,
        reads: u32,
        apart: Duration,
        thinks: Duration,
    ) -> Vec<Duration> {
        let start = START;
        let mut turns = Turns::new(policy, idle);
        let mut now = start;
        let mut asks: Vec<(Time, u32)> = Vec::new();
        for task in 0..tasks {
            for _ in 0..2 {
                asks.push((start + apart * task, task));
            }
        }
        let mut left = vec![reads; tasks as usize];
        let mut asked = vec![2; tasks as usize];
        let mut ends = vec![Duration::ZERO; tasks as usize];
        while left.iter().any(|left| *left > 0) {
            asks.sort();
            while let Some(&(at, task)) = asks.first().filter(|(at, _)| *at <= now) {
                asks.remove(0);
                turns.ask(opener(task, Class::Foreground), UNIT, at, task);
            }
            match turns.next(now) {
                Turn::Read(read, task) => {
                    assert_eq!(read.task, TaskId(task));
                    now += READ;
                    turns.ended(&read, READ, now);
                    let index = task as usize;
                    left[index] -= 1;
                    ends[index] = now - start;
                    if asked[index] < reads {
                        asked[index] += 1;
                        asks.push((now + thinks, task));
                    }
                }
                Turn::Wait(rest) => {
                    let next = asks.first().map(|(at, _)| *at);
                    let until = rest.map(|rest| now + rest);
                    now = next.into_iter().chain(until).min().expect("nothing ever happens");
                }
            }
        }
        ends
    }

    fn taken<J>(turn: Turn<J>) -> (Read, J) {
        match turn {
            Turn::Read(read, job) => (read, job),
            Turn::Wait(_) => panic!("a read waits and the device is idle"),
        }
    }

    fn mean(ends: &[Duration]) -> Duration {
        ends.iter().sum::<Duration>() / ends.len() as u32
    }

    #[test]
    fn one_task_after_the_other_is_earlier_for_all_but_the_last() {
        let (apart, thinks) = (Duration::from_millis(3), Duration::from_micros(800));
        for slice in [0, 1, 10] {
            let slice = Duration::from_millis(slice);
            let fair = scans(Policy::Fair, slice, 4, 1000, apart, thinks);
            let classes = scans(Policy::Classes, slice, 4, 1000, apart, thinks);
            assert!(fair.iter().min() > Some(&Duration::from_millis(3900)), "{fair:?}");
            assert!(
                mean(&classes) < mean(&fair).mul_f64(0.7),
                "{classes:?} of {fair:?}"
            );
            for (one, other) in classes.iter().zip(&fair) {
                assert!(*one < other.mul_f64(1.05), "{classes:?} of {fair:?}");
            }
        }
    }

    #[test]
    fn a_slow_device_waits_for_the_next_read_of_the_first_task() {
        let next = |slice: Duration, took: Duration, later: Duration| {
            let mut turns = Turns::new(Policy::Classes, slice);
            let mut now = START;
            for _ in 0..100 {
                turns.ask(opener(1, Class::Foreground), UNIT, now, "first");
                let (read, _) = taken(turns.next(now));
                now += took;
                turns.ended(&read, took, now);
            }
            turns.ask(opener(2, Class::Foreground), UNIT, now, "second");
            match turns.next(now + later) {
                Turn::Read(_, job) => Ok(job),
                Turn::Wait(rest) => Err(rest),
            }
        };
        let (none, slice) = (Duration::ZERO, Duration::from_millis(4));
        assert_eq!(next(none, READ, none), Ok("second"));
        assert_eq!(next(slice, READ, none), Err(Some(slice)));
        assert_eq!(next(slice, READ, slice), Ok("second"));
        assert_eq!(next(slice, READ / 10, none), Ok("second"), "a fast one does not");
    }

    #[test]
    fn no_read_waits_for_ever_and_no_task_leads_for_ever() {
        let mut now = START;
        let mut turns = Turns::new(Policy::Classes, Duration::ZERO);
        let mut served = [0_u32; 2];
        let mut longest = Duration::ZERO;
        let mut asked = [now; 2];
        // Each always has a read that waits.
        turns.ask(opener(1, Class::Foreground), 1, now, 0);
        turns.ask(opener(2, Class::Foreground), 1, now, 1);
        for _ in 0..20_000 {
            let (read, job) = taken(turns.next(now));
            served[job] += 1;
            now += READ;
            turns.ended(&read, READ, now);
            longest = longest.max(now - asked[job]);
            asked[job] = now;
            turns.ask(opener(job as u32 + 1, Class::Foreground), 1, now, job);
        }
        assert!(longest <= Duration::from_millis(102), "{longest:?}");
        // Each leads half of the time.
        assert!(served.iter().all(|served| *served > 8000), "{served:?}");
    }

    #[test]
    fn background_reads_come_last_but_they_come() {
        let now = START;
        let mut turns = Turns::new(Policy::Classes, Duration::from_millis(2));
        turns.ask(opener(9, Class::Background), 1, now, "vacuum");
        turns.ask(opener(1, Class::Foreground), 1, now, "query");
        assert_eq!(taken(turns.next(now)).1, "query");
        turns.ask(opener(1, Class::Foreground), 1, now, "query");
        let later = now + PATIENCE;
        assert_eq!(taken(turns.next(later)).1, "vacuum");
    }

    #[test]
    fn equal_shares_are_of_bytes() {
        let mut now = START;
        let mut turns = Turns::new(Policy::Fair, Duration::ZERO);
        let mut bytes = [0, 0];
        for task in [0, 1] {
            turns.ask(opener(task, Class::Foreground), 1, now, task as usize);
        }
        for _ in 0..3000 {
            let (read, job) = taken(turns.next(now));
            let size = [1, 4][job];
            bytes[job] += size;
            now += READ;
            turns.ended(&read, READ, now);
            turns.ask(opener(job as u32, Class::Foreground), size, now, job);
        }
        let (one, other) = (bytes[0].min(bytes[1]), bytes[0].max(bytes[1]));
        assert!(other - one <= 8, "{bytes:?}");
    }

    #[test]
    fn tasks_that_are_over_are_forgotten() {
        let now = START;
        let mut turns = Turns::new(Policy::Classes, Duration::ZERO);
        for task in 0..1000 {
            let at = now + FORGOTTEN * task;
            turns.ask(opener(task, Class::Foreground), 1, at, ());
            let (read, ()) = taken(turns.next(at));
            turns.ended(&read, READ, at);
            assert_eq!(turns.tasks.len(), 1);
        }
    }
}
