//! How a command ends, and what it prints where: results to standard output, everything else to standard
//! error.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// The outcome of a command that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Good,
    /// It found a problem and has reported it.
    Bad,
    /// It has reported its result, which is also this exit code.
    Code(u8),
}

impl Outcome {
    /// The exit code of a command; prints why one failed. A command whose reader has closed the pipe
    /// has not failed.
    #[must_use]
    pub fn exit_code(ran: anyhow::Result<Self>) -> ExitCode {
        match ran {
            Ok(Self::Good) => ExitCode::SUCCESS,
            Ok(Self::Bad) => ExitCode::FAILURE,
            Ok(Self::Code(code)) => ExitCode::from(code),
            Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&error);
                ExitCode::FAILURE
            }
        }
    }
}

/// Standard output, buffered unless it is a terminal.
pub struct Results {
    out: io::BufWriter<io::Stdout>,
}

impl Results {
    /// With nothing in the buffer.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is not a value but standard output")]
    pub fn new() -> Self {
        Self {
            out: io::BufWriter::with_capacity(1 << 16, io::stdout()),
        }
    }

    /// Prints a line.
    ///
    /// # Errors
    /// Standard output is closed, or cannot be written to.
    pub fn line(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Prints an object, on a line of its own.
    ///
    /// # Errors
    /// Standard output is closed, or cannot be written to.
    pub fn json(&mut self, object: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, object)?;
        self.out.write_all(b"\n")
    }

    /// Writes the buffer to the system. Lines may not be visible before.
    ///
    /// # Errors
    /// Standard output is closed, or cannot be written to.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Prints a message beside the results.
pub fn note(text: impl std::fmt::Display) {
    // A closed standard error cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints why the command failed, causes included.
pub fn complain(error: &anyhow::Error) {
    note(format_args!("error: {}", sentence(error)));
}

/// An error with its causes, each once: most errors contain the text of their cause already.
fn sentence(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    causes.fold(String::new(), |said, cause| {
        if said.is_empty() {
            cause
        } else if said.contains(&cause) {
            said
        } else {
            format!("{said}: {cause}")
        }
    })
}

/// Whether the reader of the results' pipe has closed it, as `head` does.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// A counter on standard error for work whose length is not known, where that is a terminal;
/// otherwise nothing is shown.
#[must_use]
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target());
    if let Ok(style) = ProgressStyle::with_template("{prefix:>12} {spinner} {human_pos} {msg} · {elapsed}") {
        bar.set_style(style);
    }
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Standard error where it is a terminal, otherwise nowhere.
#[must_use]
pub fn target() -> ProgressDrawTarget {
    if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// A number with its digits in groups of three: 1,234,567.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_an_error_contains_is_not_repeated() {
        let cause = io::Error::other("the disk is gone");
        let error = anyhow::Error::new(cause).context("cannot open x: the disk is gone");
        assert_eq!(
            sentence(&error.context("no server")),
            "no server: cannot open x: the disk is gone"
        );
    }

    #[test]
    fn digits_stand_in_groups_of_three() {
        assert_eq!(
            [7, 999, 1000, 1_234_567].map(grouped),
            ["7", "999", "1,000", "1,234,567"]
        );
    }
}
