//! `collie node`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use collie_cli::Outcome;
use collie_cluster::{
    Begin, ClusterNode, ClusterOptions, NodeLogOptions, NodeStoreOptions, PlainTcp, TlsFiles, TlsTcp,
};
use collie_db::{Options, Shared, SharedOptions};
use collie_io::{RealClock, RealDevice};
use collie_log::{LogOptions, LogSet, LogSetOptions, RingMode};
use collie_server::{Addresses, Server, ServerConfig, Verbosity, ignore_hangup, termination};
use rustix::thread::disable_transparent_huge_pages;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Address, LogLayout, NodeArgs, ServeArgs, ServingArgs};
use crate::serve::{Effective, LogFormat, Reload, announce, serve_until, start_diagnostics};

/// The ring of the node's own store, and a segment of its log: it holds little.
const OWN_BYTES: usize = 1 << 20;
/// The server's limits follow from a ring of this size: the effects of a command are below 8 MiB.
const COMMAND_BYTES: usize = 16 << 20;
/// Small logs, of which there is one for each partition. Half the ring takes the largest entry.
const SMALL_RING_BYTES: usize = COMMAND_BYTES;
const SMALL_SEGMENT_BYTES: u64 = 4 << 20;
/// Entries that small logs keep in memory.
const SMALL_CACHE_BYTES: u64 = 4 << 20;

pub(crate) fn run(args: &NodeArgs) -> anyhow::Result<Outcome> {
    // openraft keeps buffers of 1.8 MB ready for each group, and touches little of them. In huge pages a replica takes
    // 2.5 MB, and else 0.3 MB. An error: the kernel has none.
    _ = disable_transparent_huge_pages(true);
    let serving = serving(args);
    let effective = Effective::read(&serving)?;
    ignore_hangup().context("SIGHUP cannot be ignored")?;
    let settings = &effective.config.diagnostics;
    let format = settings.log_format;
    let diagnostics = start_diagnostics(&settings.log_level, format)?;
    for warning in &effective.warnings {
        tracing::warn!("{warning}");
    }
    let mut config = ServerConfig {
        verbosity: Some(Arc::clone(&diagnostics) as Arc<dyn Verbosity>),
        ring_bytes: COMMAND_BYTES,
        ..effective.server()
    };
    config.limits.bulk_len_max = config.value_len_max();
    let reload = Reload {
        args: serving,
        effective,
        diagnostics,
    };
    let served = serve(args, config, format, reload);
    match (served, format) {
        // A program that reads JSON objects finds the error among them.
        (Err(error), LogFormat::Json) => {
            tracing::error!("{error:#}");
            Ok(Outcome::Bad)
        }
        (served, _) => served,
    }
}

/// openraft logs each of its steps. Its errors are returned, and logged by this program.
const FILTER: &str = "info,openraft=error";

/// What a node has in common with a server of its own.
fn serving(args: &NodeArgs) -> ServeArgs {
    let is_tls = args.tls.tls_cert_file.is_some() || args.tls.tls_key_file.is_some();
    ServeArgs {
        dir: Some(args.dir.clone()),
        listen: Some(Address::At(args.listen)),
        // Other nodes send clients to one address, so that there is one kind of connection.
        tls_listen: is_tls.then_some(Address::At(args.listen)),
        tls_only: is_tls,
        tls: args.tls.clone(),
        serving: ServingArgs {
            log_level: args.serving.log_level.clone().or_else(|| FILTER.parse().ok()),
            ..args.serving.clone()
        },
        ..ServeArgs::default()
    }
}

/// Starts the node, waits until it is in the map, and serves until shutdown, or until a log fails.
fn serve(
    args: &NodeArgs,
    config: ServerConfig,
    format: LogFormat,
    reload: Reload,
) -> anyhow::Result<Outcome> {
    // Before the node is made: a refused start leaves nothing behind.
    let addresses = Addresses::take(config)?;
    let runtime = runtime()?;
    let dir = args.dir.display();
    announce(
        format,
        format_args!("collie {} · node in {dir}", env!("CARGO_PKG_VERSION")),
    );
    if let [first, ..] = &args.join[..] {
        announce(
            format,
            format_args!("asks {first} to join, unless it is a node already"),
        );
    }
    // One for all of the node's life: a signal between its start and its service is not lost.
    let mut terminated = Box::pin(termination());
    let node = runtime.block_on(async {
        tokio::select! {
            biased;
            () = &mut terminated => Ok(None),
            started = start(args) => {
                started.map(Some).with_context(|| format!("cannot start the node in {dir}"))
            }
        }
    })?;
    let Some(node) = node else {
        announce(format, "ended before it was a node");
        return Ok(Outcome::Good);
    };
    let identity = node.identity();
    announce(
        format,
        format_args!(
            "node {} of cluster {}, for other nodes at {}",
            identity.node,
            hex(&identity.cluster),
            args.peer
        ),
    );
    let ended = clients(&node, addresses, format, reload, terminated);
    let closed = runtime
        .block_on(node.close())
        .context("the node was not closed in order; what it acknowledged is safe");
    runtime.shutdown_background();
    if ended? {
        closed?;
        announce(format, "ended in order: everything is on disk");
    }
    Ok(Outcome::Good)
}

async fn start(args: &NodeArgs) -> anyhow::Result<ClusterNode> {
    let options = options(args)?;
    let (Some(ca), Some(certificate), Some(key)) = (&args.peer_ca, &args.peer_cert, &args.peer_key) else {
        return Ok(ClusterNode::start(PlainTcp, options, begin(args)).await?);
    };
    let files = TlsFiles {
        ca: ca.clone(),
        certificate: certificate.clone(),
        key: key.clone(),
    };
    let network = TlsTcp::new(files, Arc::new(RealDevice::new()), Arc::new(RealClock))?;
    tokio::spawn(reload(network.clone()));
    Ok(ClusterNode::start(network, options, begin(args)).await?)
}

/// Reads the certificates anew at each SIGHUP.
async fn reload(network: TlsTcp) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::error!(%error, "SIGHUP cannot be caught: new certificates need a restart");
            return;
        }
    };
    while hangups.recv().await.is_some() {
        let network = network.clone();
        match tokio::task::spawn_blocking(move || network.reload()).await {
            Ok(Ok(())) => tracing::info!("the certificates were read anew"),
            Ok(Err(error)) => tracing::error!(%error, "the node goes on with the certificates that it had"),
            Err(error) => tracing::error!(%error, "reading the certificates has failed"),
        }
    }
}

/// Serves clients until shutdown; whether that was in order.
fn clients(
    node: &ClusterNode,
    addresses: Addresses,
    format: LogFormat,
    reload: Reload,
    terminated: impl Future<Output = ()>,
) -> anyhow::Result<bool> {
    let addresses = addresses.in_cluster(node.cluster(), node.clock());
    let server = Server::listen(addresses, node.db().clone())?;
    let mut failed = None;
    let ended = async {
        tokio::select! {
            biased;
            error = node.failed() => failed = Some(error),
            () = terminated => {}
        }
    };
    serve_until(ended, server, format, reload, "")?;
    match failed {
        None => Ok(true),
        Some(error) => Err(error).context("a log of the node has failed, so that it can write no more"),
    }
}

fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .thread_name("collie-node")
        .enable_all()
        .build()
        .context("cannot start the node's threads")
}

fn begin(args: &NodeArgs) -> Begin {
    if args.bootstrap {
        // The command line takes no other numbers.
        let replicas = args.replicas.parse().unwrap_or(3);
        return Begin::Bootstrap {
            replicas,
            partitions: args.partitions,
            voters: replicas,
        };
    }
    match &args.join[..] {
        [] => Begin::Start,
        peers => Begin::Join(peers.to_vec()),
    }
}

/// How a node's own store is opened.
fn own_options() -> Options {
    Options {
        ring: RingMode::Private,
        ring_bytes: OWN_BYTES,
        segment_bytes: OWN_BYTES as u64,
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// Whether the directory is that of a node, which no process has: a stop while it became one may have
/// left less. Blocks.
pub(crate) fn is_node(dir: &Path) -> anyhow::Result<bool> {
    Ok(collie_cluster::is_node(dir, own_options())?)
}

fn options(args: &NodeArgs) -> anyhow::Result<ClusterOptions> {
    let shared = Shared::new(SharedOptions::default()).context("cannot start the threads of the stores")?;
    let set = match args.layout {
        LogLayout::Private => Some(LogSet::new(LogSetOptions::default())),
        LogLayout::PerDisk | LogLayout::Shared => None,
    };
    let set = set.transpose().context("cannot start the threads of the logs")?;
    let mut options = ClusterOptions::new(
        args.dir.clone(),
        args.advertise_peer.unwrap_or(args.peer),
        args.advertise_client
            .as_ref()
            .map_or(args.listen, |named| named.at),
    );
    options.listen = args.peer;
    options.replace_after = Duration::from_secs(args.replace_after.into());
    options.transfer_rate = args.transfer_rate;
    options.zone = args.zone.clone().unwrap_or_default();
    let named = args.advertise_client.as_ref();
    options.client_host = named.and_then(|named| named.host.clone()).unwrap_or_default();
    // It holds little: it needs no threads beside those that are there.
    options.own = Options {
        shared: Some(shared.clone()),
        log_set: set.clone(),
        ..own_options()
    };
    options.store = NodeStoreOptions {
        disks: args.data.clone(),
        layout: collie_cluster::Layout::from(args.layout).into(),
        shared: NodeLogOptions {
            log: LogOptions {
                // Entries are answered for once they are on disk: a ring that survives the process gains nothing.
                ring: RingMode::Private,
                ..LogOptions::default()
            },
            log_limit: args.log_limit,
            ..NodeLogOptions::default()
        },
        private: NodeLogOptions {
            log: LogOptions {
                ring: RingMode::Private,
                ring_bytes: SMALL_RING_BYTES,
                segment_bytes: SMALL_SEGMENT_BYTES,
                reserve_bytes: Some(0),
                ..LogOptions::default()
            },
            log_limit: args.log_limit,
            cache_bytes: SMALL_CACHE_BYTES,
            ..NodeLogOptions::default()
        },
        set,
        ..NodeStoreOptions::default()
    };
    options.machine.db = Options {
        shared: Some(shared),
        max_row_locks: 1 << 26,
        ..Options::default()
    };
    Ok(options)
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
