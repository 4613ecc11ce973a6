//! Starts a process, watches it, and takes its answers apart.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::judge::Found;

/// Without a line for so long a process hangs.
const HANGS: Duration = Duration::from_secs(90);
/// What opening and reading a store of a few MiB may take.
const MEMORY_KIB: i64 = 700 << 10;

#[derive(Default)]
pub struct Answers {
    pub dumps: Vec<Found>,
    /// Steps that were acknowledged.
    pub done: Vec<usize>,
    /// Words of failure, and what they said: `refused`, `unread` and so on.
    pub failures: Vec<(String, String)>,
    pub report: String,
    pub verified: Option<(String, usize)>,
    pub repaired: bool,
    /// Panics, aborts, hangs, answers that contradict each other.
    pub wrong: Option<String>,
}

impl Answers {
    pub fn failure(&self, word: &str) -> Option<&str> {
        self.failures
            .iter()
            .find(|(found, _)| found == word)
            .map(|(_, text)| &**text)
    }
}

/// # Errors
/// The process cannot be started.
pub fn run(args: &[&str], base: &Path, mut copy: impl FnMut()) -> std::io::Result<Answers> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(args[0])
        .arg(base)
        .args(&args[1..])
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (send, lines) = mpsc::channel();
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        for line in output
            .into_iter()
            .flat_map(|output| BufReader::new(output).lines().map_while(Result::ok))
        {
            let _ = send.send(line);
        }
    });
    let errors = child.stderr.take();
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = errors.map(|mut errors| errors.read_to_string(&mut text));
        text
    });
    let (mut answers, mut now) = (Answers::default(), Found::default());
    let mut ended = false;
    loop {
        match lines.recv_timeout(HANGS) {
            Ok(line) if line == "copy" => {
                copy();
                let _ = child.stdin.as_mut().map(|input| input.write_all(b"\n"));
            }
            Ok(line) => ended |= take(&line, &mut answers, &mut now).is_none(),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                answers.wrong = Some(format!("no answer for {HANGS:?}"));
                child.kill()?;
            }
        }
    }
    let status = child.wait()?;
    let _ = reader.join();
    let text = errors.join().unwrap_or_default();
    let panicked = text.contains("panicked at");
    if panicked || (args[0] == "probe" && !(ended && status.success())) {
        let text: String = text.chars().take(3000).collect();
        answers
            .wrong
            .get_or_insert(format!("the process ended with {status}: {text}"));
    }
    Ok(answers)
}

/// `None` for the last line.
fn take(line: &str, answers: &mut Answers, now: &mut Found) -> Option<()> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let numbers: Vec<u64> = rest.split(' ').map_while(|number| number.parse().ok()).collect();
    match word {
        "done" => return None,
        "row" => {
            let row = ((numbers[0], numbers[1]), (numbers[2], numbers[3]));
            let twice = now
                .families
                .last_entry()
                .and_then(|mut rows| rows.get_mut().insert(row.0, row.1));
            if twice.is_some() {
                answers.wrong.get_or_insert(format!("a key twice: {line}"));
            }
        }
        // In the order of their names: the last one is the one whose rows follow.
        "family" => drop(now.families.insert(rest.into(), BTreeMap::new())),
        "dumped" => answers.dumps.push(std::mem::take(now)),
        "did" => answers.done.extend(numbers.iter().map(|at| *at as usize)),
        "report" => answers.report = rest.into(),
        "repaired" => answers.repaired = rest.starts_with("Some"),
        "verified" => {
            let (name, end) = rest.split_once(' ').unwrap_or((rest, "0"));
            answers.verified = Some((name.into(), end.parse().unwrap_or(0)));
        }
        "peak" if numbers[0] as i64 > MEMORY_KIB => {
            answers
                .wrong
                .get_or_insert(format!("took {} KiB of memory", numbers[0]));
        }
        "differs" => drop(answers.wrong.get_or_insert(line.into())),
        "peak" | "closed" => {}
        _ => {
            if word == "unread" {
                now.unread.extend(rest.split(' ').next().map(str::to_owned));
            }
            answers.failures.push((word.into(), rest.into()));
        }
    }
    Some(())
}
