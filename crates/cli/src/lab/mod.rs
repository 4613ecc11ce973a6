//! What proves and measures, and the tour. A build without the feature `lab` has none of it.

pub(crate) mod args;
mod bench;
mod busy;
mod client;
pub(crate) mod diagnostics;
mod figures;
mod limits;
mod page;
mod temporary;
mod torture;
mod tour;

use collie_cli::Outcome;
use collie_db::Options;
use collie_server::ServerConfig;

use crate::serve;
use args::{LabCommand, Sizes};

pub(crate) use tour::run as tour;

pub(crate) fn run(command: LabCommand) -> anyhow::Result<Outcome> {
    match command {
        LabCommand::Torture(command) => torture::run(&command),
        LabCommand::Writer { dir, rings } => {
            torture::writer::run(&dir, rings.as_deref()).map(|()| Outcome::Good)
        }
        LabCommand::Leashed { program, arguments } => torture::leashed(&program, &arguments),
        LabCommand::Remover { code, places } => temporary::remove_and_exit(code, &places),
        LabCommand::Served { sizes, args } => {
            serve::run_resized(&args, |options, config| sizes.apply(options, config))
        }
        LabCommand::Bench(args) => bench::run(&args),
    }
}

impl Sizes {
    /// A server's options and configuration with these sizes.
    fn apply(self, options: Options, mut config: ServerConfig) -> (Options, ServerConfig) {
        match self {
            Self::Small => (torture::power::small(options), config),
            Self::Moderate => {
                config.databases = torture::soak::sizes::databases();
                (torture::soak::sizes::options(options), config)
            }
        }
    }
}
