//! Commands that are only containers of subcommands.

use collie_protocol::Request;

use super::row::Command;
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::text;

/// The handler of a container itself. It does nothing: without a subcommand the number of arguments
/// is wrong, which is checked before.
pub(super) fn container(_exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    Err(text::SYNTAX.into())
}

/// The `HELP` of a container: lists its subcommands with their summaries.
pub(super) fn help(exec: &mut Exec<'_>, container: &'static str, subcommands: &[Command]) -> Outcome {
    let title = container.to_ascii_uppercase();
    exec.reply.array(1 + 2 * subcommands.len());
    exec.reply.simple(&format!(
        "{title} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for sub in subcommands {
        exec.reply.simple(&sub.name.to_ascii_uppercase());
        exec.reply.simple(&format!("    {}", sub.summary));
    }
    Ok(Flow::Next)
}
