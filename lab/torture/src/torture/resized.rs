//! A server whose memtables, tables and segments are smaller than those of `collie serve`, so that
//! they are replaced often.

use std::net::{Ipv4Addr, SocketAddr};

use collie_cli::output::note;
use collie_db::{Options, RingMode};
use collie_server::ServerConfig;

use super::{power, soak};
use crate::args::{ServedArgs, Sizes};
use crate::server::serve;

pub(crate) fn run(args: &ServedArgs) -> anyhow::Result<()> {
    let options = Options {
        ring: match &args.rings {
            Some(dir) => RingMode::Shared { dir: dir.clone() },
            None => RingMode::Private,
        },
        ..Options::default()
    };
    let config = ServerConfig {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)),
        ack: args.ack,
        ..ServerConfig::default()
    };
    let (options, config) = match args.sizes {
        Sizes::Small => (power::small(options), config),
        Sizes::Moderate => (soak::sizes::options(options), soak::sizes::config(config)),
    };
    serve(&args.dir, options, config, |addr| {
        note(format_args!("listening on {addr}"))
    })
}
