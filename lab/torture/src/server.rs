//! A server in this process.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use collie_db::{Db, Options};
use collie_server::{Addresses, Server, ServerConfig, termination};

/// Opens the store in `dir` and serves it until SIGTERM, SIGINT or SHUTDOWN. `listening` is called as
/// soon as clients can connect and signals are caught.
pub(crate) fn serve(
    dir: &Path,
    options: Options,
    config: ServerConfig,
    listening: impl FnOnce(SocketAddr),
) -> anyhow::Result<()> {
    let config = ServerConfig {
        ring_bytes: options.ring_bytes,
        ..config
    };
    // As `collie serve` has them: the limits on requests hold for what they lock and commit.
    let options = Options {
        max_row_locks: 1 << 26,
        max_commit_bytes: 0,
        ..options
    };
    let addresses = Addresses::take(config)?;
    let db = Db::open(dir, options).with_context(|| format!("cannot open the store in {}", dir.display()))?;
    let server = Server::listen(addresses, db)?;
    let addr = server.local_addr();
    let until_signalled = async move {
        tokio::join!(biased; termination(), async { listening(addr) });
    };
    Ok(server.run(until_signalled)?)
}
