//! What is printed where: results to standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Standard output, buffered unless somebody watches.
pub(crate) struct Results {
    out: io::BufWriter<io::Stdout>,
}

impl Results {
    pub(crate) fn new() -> Self {
        Self {
            out: io::BufWriter::with_capacity(1 << 16, io::stdout()),
        }
    }

    /// Prints a line.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Prints an object, on a line of its own.
    pub(crate) fn json(&mut self, object: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, object)?;
        self.out.write_all(b"\n")
    }

    /// Hands everything to the system. What was printed is not there before.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Tells the user something beside the results.
pub(crate) fn note(text: impl std::fmt::Display) {
    // Nobody can be told that standard error is closed.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Tells why the command failed, causes included.
pub(crate) fn complain(error: &anyhow::Error) {
    note(format_args!("error: {}", sentence(error)));
}

/// An error with its causes, each said once: most of them tell their cause themselves.
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

/// Has warnings and errors that the crates below log written to standard error.
pub(crate) fn show_diagnostics() {
    // Nobody else sets a subscriber.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(|| Diagnostics)
        .with_target(false)
        .with_ansi(false)
        .try_init();
}

/// Whether diagnostics are expected, and say nothing to anybody.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Does `work`, whose logs fail as they are meant to, without diagnostics.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    // Relaxed, here and below: nothing else is ordered by it.
    QUIET.store(true, Ordering::Relaxed);
    let done = work();
    QUIET.store(false, Ordering::Relaxed);
    done
}

/// Where diagnostics go.
struct Diagnostics;

impl Write for Diagnostics {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if QUIET.load(Ordering::Relaxed) {
            return Ok(bytes.len());
        }
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Whether somebody closed the pipe that results went to, as `head` does.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// A bar on standard error for `total` steps, where that is a terminal; otherwise nothing is shown.
pub(crate) fn progress(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), target());
    // The template is a constant; a wrong one would only cost the bar its looks.
    if let Ok(style) = ProgressStyle::with_template("{prefix:>12} {bar:30} {pos}/{len} {msg} · {eta} left") {
        bar.set_style(style);
    }
    bar.set_prefix(what);
    bar
}

/// A counter on standard error for work whose length is not known, where that is a terminal; otherwise
/// nothing is shown.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target());
    if let Ok(style) = ProgressStyle::with_template("{prefix:>12} {spinner} {human_pos} {msg} · {elapsed}") {
        bar.set_style(style);
    }
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A line on standard error that is renewed, where that is a terminal; otherwise nothing is shown.
pub(crate) fn live() -> ProgressBar {
    let line = ProgressBar::with_draw_target(None, target());
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        line.set_style(style);
    }
    line
}

/// Standard error where it is a terminal, otherwise nowhere.
pub(crate) fn target() -> ProgressDrawTarget {
    if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// A number with its digits in groups of three: 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
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

/// A figure to three digits: 950, 12.3 k, 4.56 M.
pub(crate) fn count(figure: f64) -> String {
    let (scaled, unit) = match figure {
        f if f >= 999_500_000.0 => (f / 1e9, " G"),
        f if f >= 999_500.0 => (f / 1e6, " M"),
        f if f >= 999.5 => (f / 1e3, " k"),
        f => return format!("{f:.0}"),
    };
    let digits = if scaled < 9.995 {
        2
    } else if scaled < 99.95 {
        1
    } else {
        0
    };
    format!("{scaled:.digits$}{unit}")
}

/// Microseconds, with as many digits as say something.
pub(crate) fn micros(us: f64) -> String {
    if us < 9.995 {
        format!("{us:.2}")
    } else if us < 99.95 {
        format!("{us:.1}")
    } else {
        format!("{us:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_an_error_tells_itself_is_not_said_twice() {
        let cause = io::Error::other("the disk is gone");
        let error = anyhow::Error::new(cause).context("cannot open x: the disk is gone");
        assert_eq!(
            sentence(&error.context("no server")),
            "no server: cannot open x: the disk is gone"
        );
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [
            7.0,
            999.4,
            999.5,
            12_345.0,
            999_499.0,
            999_500.0,
            4_567_890.0,
            2.5e9,
        ]
        .map(count);
        assert_eq!(
            shown,
            [
                "7", "999", "1.00 k", "12.3 k", "999 k", "1.00 M", "4.57 M", "2.50 G"
            ]
        );
        assert_eq!(
            [7, 999, 1000, 1_234_567].map(grouped),
            ["7", "999", "1,000", "1,234,567"]
        );
        assert_eq!([0.123, 12.34, 1234.5].map(micros), ["0.12", "12.3", "1234"]);
    }
}
