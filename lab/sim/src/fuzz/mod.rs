//! Fuzzing by mutation: inputs that programs wrote are changed a little, and their readers
//! must take them for what they are or refuse them.
//!
//! A *case* follows from a seed and its number, so that a printed pair replays it. Nothing measures
//! what code a case reaches: the inputs that the mutations start from have to reach everything by
//! themselves.
//!
//! * `COLLIE_FUZZ_SECONDS`: how long each target runs, instead of its number of cases.
//! * `COLLIE_SEED`: the seed, 1 by default.
//! * `COLLIE_FUZZ_CASE`: the only case to run, to replay a failure.
//! * `COLLIE_FUZZ_CASE_SECONDS`: how long one case may run, 20 seconds by default.

mod mutate;
mod watch;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use collie_io::{Clock, Device, OpenMode, RealClock, RealDevice, read_exact_at, write_all_at};

use crate::rng::{Rng, mix};

use watch::{Case, Watch};

pub use mutate::mutate;

/// By how much the address space may grow while a target runs, in bytes. Corpora and mutated inputs
/// are far smaller; a length that was believed is not.
const GROWTH_MAX: u64 = 1 << 30;
/// So many cases run between two looks at the address space and the clock.
const LOOK_EVERY: u64 = 64;
/// No mutation makes an input longer than this, in bytes.
const INPUT_MAX: usize = 256 << 10;

/// How many cases of a target to run.
#[derive(Debug, Clone, Copy)]
enum Extent {
    Cases(u64),
    Nanos(u64),
    Only(u64),
}

/// The number in an environment variable.
///
/// # Panics
/// It holds something else, which is a mistake of the caller.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(error) => panic!("{name} is \"{text}\", a number was expected: {error}"),
    }
}

fn seed() -> u64 {
    variable("COLLIE_SEED").unwrap_or(1)
}

/// Runs cases of the target `name`: `cases` of them, or as the environment says. A case that runs
/// for too long ends the process, with a message as below.
///
/// # Panics
/// A case panicked, or the address space grew by more than a gibibyte. The message ends with the
/// way to replay it.
pub fn run(name: &str, cases: u64, case: impl FnMut(&mut Rng)) {
    run_watched(name, cases, &Watch::start(name, seed()), case);
}

fn run_watched(name: &str, cases: u64, watch: &Watch, mut case: impl FnMut(&mut Rng)) {
    let seed = seed();
    let extent = match (variable("COLLIE_FUZZ_CASE"), variable("COLLIE_FUZZ_SECONDS")) {
        (Some(only), _) => Extent::Only(only),
        (None, Some(seconds)) => Extent::Nanos(seconds.saturating_mul(1_000_000_000)),
        (None, None) => Extent::Cases(cases),
    };
    let clock = RealClock;
    let (began, space) = (clock.monotonic(), address_space());
    let mut number = if let Extent::Only(only) = extent { only } else { 0 };
    loop {
        let mut rng = Rng::new(mix(seed ^ mix(number)));
        watch.begin(Case::Number(number));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&mut rng))) {
            fail(name, seed, number, panic);
        }
        number += 1;
        let looks = number.is_multiple_of(LOOK_EVERY);
        if looks || matches!(extent, Extent::Only(_)) {
            let grown = address_space().saturating_sub(space);
            assert!(
                grown <= GROWTH_MAX,
                "{name}: the address space grew by {grown} bytes, at most {GROWTH_MAX} were expected, in one of \
                 the last {LOOK_EVERY} cases before {number} of seed {seed}"
            );
        }
        let done = match extent {
            Extent::Cases(cases) => number >= cases,
            Extent::Nanos(nanos) => looks && clock.monotonic().saturating_sub(began) >= nanos,
            Extent::Only(_) => true,
        };
        if done {
            break;
        }
    }
    #[expect(clippy::print_stdout, reason = "a test's figures, shown with --nocapture")]
    {
        println!("figures: {name}: {number} cases, seed {seed}");
    }
}

fn fail(name: &str, seed: u64, number: u64, panic: Box<dyn Any + Send>) -> ! {
    #[expect(clippy::print_stderr, reason = "a test's failure")]
    {
        eprintln!("{name} failed; replay: COLLIE_SEED={seed} COLLIE_FUZZ_CASE={number} and the same test");
    }
    resume_unwind(panic)
}

/// Runs `check` on every input of the corpus as it is, and then on mutations of them.
///
/// # Panics
/// As [`run`]. The input that `check` panicked on, or did not come to an end with, is left in the
/// directory for temporary files, from where it goes into the corpus.
pub fn mutations(name: &str, corpus: &[Vec<u8>], cases: u64, check: impl Fn(&mut Rng, &[u8])) {
    assert!(!corpus.is_empty(), "{name}: the corpus is empty");
    let watch = Watch::start(name, seed());
    for (n, input) in corpus.iter().enumerate() {
        watch.begin(Case::Corpus(n));
        watch.input(input);
        kept(name, n as u64, input, || check(&mut Rng::new(n as u64), input));
    }
    run_watched(name, cases, &watch, |rng| {
        let pick = |rng: &mut Rng| corpus.get(rng.index(corpus.len())).cloned().unwrap_or_default();
        let (mut input, other) = (pick(rng), pick(rng));
        mutate(rng, &mut input, &other, INPUT_MAX);
        watch.input(&input);
        kept(name, rng.clone().next_u64(), &input, || check(rng, &input));
    });
}

/// Keeps the input in a file where `check` panics.
fn kept(name: &str, number: u64, input: &[u8], check: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(check)) {
        keep(name, number, input);
        resume_unwind(panic);
    }
}

/// Writes an input to a file in the directory for temporary ones, and says where.
fn keep(name: &str, number: u64, input: &[u8]) {
    let path = std::env::temp_dir().join(format!("collie-fuzz-{name}-{number:016x}"));
    let written = RealDevice::new()
        .open(&path, OpenMode::OpenOrCreate)
        .and_then(|file| {
            file.set_len(0)?;
            write_all_at(&*file, input, 0)
        });
    #[expect(clippy::print_stderr, reason = "a test's failure")]
    match written {
        Ok(()) => eprintln!(
            "{name}: the input of {} bytes is in {}",
            input.len(),
            path.display()
        ),
        Err(error) => eprintln!("{name}: the input was not kept in {}: {error}", path.display()),
    }
}

/// The files of a corpus, `tests/fuzz/NAME` in the repository, in the order of their names.
///
/// # Panics
/// The directory cannot be read: then nothing would be tested.
#[must_use]
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz")).join(name);
    let device = RealDevice::new();
    let mut names: Vec<String> = match device.list(&dir) {
        Ok(entries) => entries.into_iter().map(|entry| entry.name).collect(),
        Err(error) => panic!("cannot list the corpus in {}: {error}", dir.display()),
    };
    names.sort_unstable();
    names
        .iter()
        .map(|name| match read(&device, &dir.join(name)) {
            Ok(bytes) => bytes,
            Err(error) => panic!("cannot read {} of the corpus {}: {error}", name, dir.display()),
        })
        .collect()
}

fn read(device: &dyn Device, path: &Path) -> std::io::Result<Vec<u8>> {
    let file = device.open(path, OpenMode::Read)?;
    let mut bytes = vec![0; usize::try_from(file.stat()?.len).unwrap_or(0)];
    read_exact_at(&*file, &mut bytes, 0)?;
    Ok(bytes)
}

/// The most that the process's address space ever took, in bytes; 0 where the system has no figure.
fn address_space() -> u64 {
    let mut status = [0; 4096];
    let read = RealDevice::new()
        .open(Path::new("/proc/self/status"), OpenMode::Read)
        .and_then(|file| file.read_at(&mut status, 0))
        .unwrap_or(0);
    let text = String::from_utf8_lossy(status.get(..read).unwrap_or_default());
    let peak = text.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_panics_fails_its_target() {
        let panics = |rng: &mut Rng| assert!(!rng.one_in(50), "one in fifty");
        assert!(catch_unwind(|| run("panics", 1_000, panics)).is_err());
    }

    #[test]
    fn a_length_that_is_believed_is_told() {
        let hoard = |_: &mut Rng| drop(std::hint::black_box(Vec::<u8>::with_capacity(3 << 29)));
        assert!(catch_unwind(|| run("hoards", 64, hoard)).is_err());
    }
}
