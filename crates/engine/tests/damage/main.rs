//! Damage of every kind of file of a store: bits turned, blocks zeroed, files cut, missing, exchanged
//! between families, and replaced by what they were earlier. Each ends in an error that names the
//! file, or in a right answer, at the next opening and at the one after it.
//!
//! The openings run in child processes with little address space: one that dies, hangs or allocates
//! wildly is a case that failed, and the rest go on.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests damage files behind the store's back, and run programs"
)]

#[path = "../common/mod.rs"]
mod common;

mod cases;
mod store;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cases::{Case, Image};

/// Where a child finds what it is to do.
const DIR: &str = "COLLIE_DAMAGE_DIR";
/// Address space of a child, in bytes.
const ADDRESS_SPACE: u64 = 16 << 30;

fn child(run: &str, dir: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            run,
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIR, dir)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("stderr")).unwrap());
    command.spawn().unwrap()
}

fn asked() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

#[test]
#[ignore = "what a child runs"]
fn child_fills_a_store() {
    let Some(dir) = asked() else { return };
    store::fill(&dir);
    // As a process that is killed: nothing is closed.
    #[expect(unsafe_code, reason = "ends the process at once")]
    // SAFETY: nothing of it is used any more.
    unsafe {
        libc::_exit(0)
    }
}

#[test]
#[ignore = "what a child runs"]
fn child_opens_damaged_stores() {
    let Some(dir) = asked() else { return };
    let limit = libc::rlimit {
        rlim_cur: ADDRESS_SPACE,
        rlim_max: ADDRESS_SPACE,
    };
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: reads the structure alone.
    let limited = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(limited, 0);
    let image = Image::load(&dir);
    let from: usize = std::fs::read_to_string(dir.join("from"))
        .unwrap()
        .parse()
        .unwrap();
    let mut done = std::fs::OpenOptions::new()
        .append(true)
        .open(dir.join("done"))
        .unwrap();
    for (number, case) in image.cases().into_iter().enumerate().skip(from) {
        let outcome = run(&dir, &image, &case, number);
        let line = match outcome {
            Ok(what) => format!("{number} {what}\n"),
            Err(wrong) => format!("{number} wrong: {}\n", wrong.replace('\n', " ")),
        };
        done.write_all(line.as_bytes()).unwrap();
    }
}

/// Damages the store and opens it, twice: what the first opening leaves is judged by the second.
fn run(dir: &Path, image: &Image, case: &Case, number: usize) -> Result<&'static str, String> {
    image.restore(dir);
    case.damage(dir);
    let first = store::judge(dir, case, number)?;
    store::judge(dir, case, number).map_err(|wrong| format!("opened again after {first:?}: {wrong}"))?;
    Ok(first)
}

/// What became of each case; a child that dies or hangs is replaced.
fn outcomes(dir: &Path, cases: &[Case]) -> Vec<String> {
    let mut outcomes: Vec<String> = Vec::new();
    while outcomes.len() < cases.len() {
        let from = outcomes.len();
        std::fs::write(dir.join("from"), from.to_string()).unwrap();
        std::fs::write(dir.join("done"), "").unwrap();
        let mut child = child("child_opens_damaged_stores", dir);
        let (mut seen, mut idle) = (0, 0);
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break format!("the process ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(20));
            let now = std::fs::metadata(dir.join("done")).unwrap().len();
            idle = if now > seen { 0 } else { idle + 1 };
            seen = now;
            // Only a case that hangs takes a minute.
            if idle > 3_000 {
                child.kill().unwrap();
                child.wait().unwrap();
                break "it hangs".to_owned();
            }
        };
        let done = std::fs::read_to_string(dir.join("done")).unwrap();
        outcomes.extend(
            done.lines()
                .map(|line| line.split_once(' ').unwrap().1.to_owned()),
        );
        if outcomes.len() < cases.len() {
            let stderr = std::fs::read_to_string(dir.join("stderr")).unwrap_or_default();
            outcomes.push(format!("wrong: {ended}: {}", stderr.replace('\n', " ")));
        }
    }
    outcomes
}

#[test]
fn damage_of_any_file_is_an_error_that_names_it_or_no_harm() {
    let dir = common::fast_dir();
    let dir = dir.path();
    let filled = child("child_fills_a_store", dir).wait().unwrap();
    let stderr = std::fs::read_to_string(dir.join("stderr")).unwrap();
    assert!(
        filled.success() && dir.join("store/MANIFEST").exists(),
        "{stderr}"
    );
    Image::take(dir);
    let image = Image::load(dir);
    let cases = image.cases();
    let outcomes = outcomes(dir, &cases);
    let mut wrong = Vec::new();
    let mut counts = std::collections::BTreeMap::new();
    for (case, outcome) in cases.iter().zip(&outcomes) {
        let word = outcome.split(':').next().unwrap_or_default();
        *counts.entry((case.kind(), word)).or_insert(0) += 1;
        if outcome.starts_with("wrong") {
            wrong.push(format!("{case:?}: {outcome}"));
        }
    }
    println!("figures: {} cases of damage: {counts:?}", cases.len());
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    assert!(outcomes.iter().any(|outcome| outcome == "refused"));
    assert!(outcomes.iter().any(|outcome| outcome == "right"));
    assert!(cases.iter().any(Case::is_of_an_earlier_tree));
}
