//! How a command ends.

use std::process::ExitCode;

use crate::output;

/// The outcome of a command that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Good,
    /// It found a problem and has reported it.
    Bad,
    /// It has reported what this exit code says.
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
            Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
            Err(error) => {
                output::complain(&error);
                ExitCode::FAILURE
            }
        }
    }
}
