//! What is printed where: results to standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write};
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
    note(format_args!("error: {error:#}"));
}

/// Whether somebody closed the pipe that results went to, as `head` does.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
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

fn target() -> ProgressDrawTarget {
    if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    }
}
