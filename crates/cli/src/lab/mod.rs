//! What proves and measures, and the tour. A build without the feature `lab` has none of it.

pub(crate) mod args;
mod bench;
mod figures;
mod limits;
mod temporary;
mod torture;
mod tour;

use collie_db::Options;
use collie_server::ServerConfig;

use crate::Outcome;
use crate::args::ServeArgs;
use args::LabCommand;

pub(crate) use tour::run as tour;

pub(crate) fn run(command: LabCommand) -> anyhow::Result<Outcome> {
    match command {
        LabCommand::Torture(command) => torture::run(&command),
        LabCommand::Writer { dir, rings } => {
            torture::writer::run(&dir, rings.as_deref()).map(|()| Outcome::Good)
        }
        LabCommand::Leashed { program, arguments } => torture::leashed(&program, &arguments),
        LabCommand::Remover { code, places } => temporary::remove_and_exit(code, &places),
        LabCommand::Bench(args) => bench::run(&args),
    }
}

/// As they are, or as small as a server under test is asked to keep them.
pub(crate) fn resized(
    args: &ServeArgs,
    mut options: Options,
    mut config: ServerConfig,
) -> (Options, ServerConfig) {
    if args.small {
        options = torture::power::small(options);
    }
    if args.moderate {
        options = torture::soak::sizes::options(options);
        config.databases = torture::soak::sizes::databases();
    }
    (options, config)
}
