//! Cases that do not end: a thread looks at how long the case that is running has run.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use collie_io::{Clock, RealClock};

use super::{keep, variable};

/// How long a case may run, in seconds, unless `COLLIE_FUZZ_CASE_SECONDS` says otherwise. Cases
/// take microseconds to milliseconds; this is for those that never end, or that take time as
/// nothing that was written does.
const CASE_SECONDS: u64 = 20;
/// How often the thread looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Ends the process when a case runs for too long: a thread that hangs cannot be ended otherwise.
pub(super) struct Watch(Arc<Shared>);

struct Shared {
    name: String,
    seed: u64,
    nanos_max: u64,
    running: Mutex<Running>,
    ended: Condvar,
}

struct Running {
    case: Case,
    /// By the monotonic clock, in nanoseconds.
    since: u64,
    input: Vec<u8>,
    ended: bool,
}

/// What is running.
#[derive(Debug, Clone, Copy)]
pub(super) enum Case {
    /// A file of the corpus, as it is.
    Corpus(usize),
    Number(u64),
}

impl Watch {
    /// # Panics
    /// The system has no thread for it.
    pub(super) fn start(name: &str, seed: u64) -> Self {
        let seconds = variable("COLLIE_FUZZ_CASE_SECONDS").unwrap_or(CASE_SECONDS);
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            seed,
            nanos_max: seconds.saturating_mul(1_000_000_000),
            running: Mutex::new(Running {
                case: Case::Corpus(0),
                since: RealClock.monotonic(),
                input: Vec::new(),
                ended: false,
            }),
            ended: Condvar::new(),
        });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fuzz-watch".to_owned());
        if let Err(error) = thread.spawn(move || watched.look()) {
            panic!("{name}: no thread to watch its cases: {error}");
        }
        Self(shared)
    }

    pub(super) fn begin(&self, case: Case) {
        let mut running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.case = case;
        running.since = RealClock.monotonic();
        running.input.clear();
    }

    /// What the case that runs is about, to be kept if it does not end.
    pub(super) fn input(&self, input: &[u8]) {
        let mut running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.input.clear();
        running.input.extend_from_slice(input);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ended = true;
        self.0.ended.notify_all();
    }
}

impl Shared {
    fn look(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while !running.ended {
            let ran = RealClock.monotonic().saturating_sub(running.since);
            if ran > self.nanos_max {
                self.give_up(&running, ran);
            }
            let waited = self.ended.wait_timeout(running, LOOK_EVERY);
            running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    #[expect(clippy::print_stderr, reason = "a test's failure")]
    fn give_up(&self, running: &Running, ran: u64) -> ! {
        let (name, seed) = (&self.name, self.seed);
        let (ran, most) = (ran / 1_000_000_000, self.nanos_max / 1_000_000_000);
        let (case, replay) = match running.case {
            Case::Corpus(file) => (format!("file {file} of the corpus"), "the same test".to_owned()),
            Case::Number(number) => (
                format!("case {number}"),
                format!("COLLIE_SEED={seed} COLLIE_FUZZ_CASE={number} and the same test"),
            ),
        };
        eprintln!("{name}: {case} has run for {ran} s, at most {most} were expected; replay: {replay}");
        if !running.input.is_empty() {
            keep(name, u64::from(std::process::id()), &running.input);
        }
        std::process::exit(101);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    const HANGS: &str = "COLLIE_FUZZ_HANGS";

    /// The test runs itself in a second process, which is ended by the watch.
    #[test]
    fn a_case_that_hangs_is_told_with_its_replay_and_its_input() {
        if std::env::var_os(HANGS).is_some() {
            let corpus = [b"abc".to_vec()];
            super::super::mutations("hangs", &corpus, 1_000, |rng, _| {
                while rng.one_in(20) {
                    std::thread::park();
                }
            });
            return;
        }
        let name = "fuzz::watch::tests::a_case_that_hangs_is_told_with_its_replay_and_its_input";
        let left = tempfile::tempdir().unwrap();
        let second = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("TMPDIR", left.path())
            .envs([
                (HANGS, "1"),
                ("COLLIE_FUZZ_CASE_SECONDS", "1"),
                ("COLLIE_SEED", "7"),
            ])
            .env_remove("COLLIE_FUZZ_CASE")
            .env_remove("COLLIE_FUZZ_SECONDS")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&second.stderr);
        assert_eq!(second.status.code(), Some(101), "{said}");
        assert!(said.contains("replay: COLLIE_SEED=7 COLLIE_FUZZ_CASE="), "{said}");
        assert!(said.contains("bytes is in "), "{said}");
    }
}
