//! `collie node`.

mod clients;
mod config;
mod targets;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use collie_cli::Outcome;
use collie_cluster::{
    Begin, ClusterNode, ClusterOptions, EntryDurability, NodeLogOptions, NodeStoreOptions, PlainTcp, TlsTcp,
};
use collie_db::{Options, Shared, SharedOptions};
use collie_io::{RealClock, RealDevice};
use collie_log::{LogOptions, LogSet, LogSetOptions, RingMode};
use collie_server::cluster::id_text;
use collie_server::{Addresses, Server, ServerConfig, termination};
use rustix::thread::disable_transparent_huge_pages;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{LogLayout, NodeArgs};
use crate::serve::{Effective, Reload, announce, ended, prepare, serve_until, show};

use config::{COMMAND_BYTES, NodeConfig, NodeSettings, Places, begin};
use targets::Targets;

/// The ring of the node's own store, and a segment of its log: it holds little.
const OWN_BYTES: usize = 1 << 20;
/// Small logs, of which there is one for each partition. Half the ring takes the largest entry.
const SMALL_RING_BYTES: usize = COMMAND_BYTES;
const SMALL_SEGMENT_BYTES: u64 = 4 << 20;
/// Entries that small logs keep in memory.
const SMALL_CACHE_BYTES: u64 = 4 << 20;

pub(crate) fn run(args: &NodeArgs) -> anyhow::Result<Outcome> {
    // openraft keeps buffers of 1.8 MB ready for each group, and touches little of them. In huge pages a replica takes
    // 2.5 MB, and else 0.3 MB. An error: the kernel has none.
    _ = disable_transparent_huge_pages(true);
    let effective = Effective::<NodeConfig>::read(args)?;
    if args.serving.check_config {
        network(&effective.settings.node)?;
        return show(&effective);
    }
    let (settings, dir) = (effective.settings.node.clone(), effective.dir.clone());
    let (config, reload) = prepare(args, effective)?;
    let format = reload.format();
    let listen = config.tls.as_ref().map_or(config.listen, |tls| tls.listen);
    let served = settings.places(listen).and_then(|places| {
        let start = Start {
            begin: begin(args, &places),
            settings,
            places,
            dir,
        };
        serve(start, config, reload)
    });
    ended(served, format)
}

/// What a node is started with.
struct Start {
    dir: PathBuf,
    settings: NodeSettings,
    places: Places,
    begin: Begin,
}

/// Starts the node, waits until it is in the map, and serves until shutdown, or until a log fails.
fn serve(start: Start, config: ServerConfig, reload: Reload<NodeConfig>) -> anyhow::Result<Outcome> {
    // Before the node is made: a refused start leaves nothing behind.
    let addresses = Addresses::take(config)?;
    let runtime = runtime()?;
    let format = reload.format();
    let (dir, peer) = (start.dir.clone(), start.places.peer);
    let dir = dir.display();
    announce(
        format,
        format_args!("collie {} · node in {dir}", env!("CARGO_PKG_VERSION")),
    );
    if let Begin::Join(nodes) = &start.begin
        && let [first, ..] = &nodes[..]
    {
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
            started = start.run() => {
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
            id_text(&identity.cluster),
            peer
        ),
    );
    let ended = clients(&node, addresses, reload, terminated);
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

impl Start {
    async fn run(self) -> anyhow::Result<ClusterNode> {
        let options = options(&self)?;
        let Some(network) = network(&self.settings)? else {
            return Ok(ClusterNode::start(PlainTcp, options, self.begin).await?);
        };
        tokio::spawn(reload(network.clone()));
        Ok(ClusterNode::start(network, options, self.begin).await?)
    }
}

/// The network that is secured by TLS, if its files are named.
fn network(settings: &NodeSettings) -> anyhow::Result<Option<TlsTcp>> {
    let files = settings.peer_files()?;
    let secured = |files| TlsTcp::new(files, Arc::new(RealDevice::new()), Arc::new(RealClock));
    Ok(files.map(secured).transpose()?)
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
    reload: Reload<NodeConfig>,
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
    serve_until(ended, server, reload, "")?;
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

fn options(start: &Start) -> anyhow::Result<ClusterOptions> {
    let Start {
        dir,
        settings,
        places,
        ..
    } = start;
    let shared = Shared::new(SharedOptions::default()).context("cannot start the threads of the stores")?;
    let set = match settings.layout {
        LogLayout::Private => Some(LogSet::new(LogSetOptions::default())),
        LogLayout::PerDisk | LogLayout::Shared => None,
    };
    let set = set.transpose().context("cannot start the threads of the logs")?;
    let mut options = ClusterOptions::new(dir.clone(), places.advertise_peer, places.advertise_client);
    options.listen = places.peer;
    options.replace_after = Duration::from_secs(settings.replace_after.0.unsigned_abs());
    options.transfer_rate = settings.transfer_rate.0.unsigned_abs();
    options.reads = settings.reads.into();
    options.zone = settings.zone.clone().unwrap_or_default();
    options.targets = Some(Arc::new(Targets(settings.duplicate_access()?)));
    options.client_host.clone_from(&places.client_host);
    let entries = EntryDurability::from(settings.durability);
    let ring = match entries {
        // Entries are answered for once they are on disk: a ring that survives the process gains nothing.
        EntryDurability::Disk => RingMode::Private,
        EntryDurability::Process => RingMode::default(),
    };
    // What users wait for goes before flushes, merges and tables that come from other nodes.
    let scheduler = Some(Arc::clone(shared.scheduler()));
    let log_limit = settings.log_limit.map(|limit| limit.0.unsigned_abs());
    // It holds little: it needs no threads beside those that are there.
    options.own = Options {
        shared: Some(shared.clone()),
        log_set: set.clone(),
        ..own_options()
    };
    options.store = NodeStoreOptions {
        disks: settings.data.clone(),
        layout: collie_cluster::Layout::from(settings.layout).into(),
        shared: NodeLogOptions {
            log: LogOptions {
                ring: ring.clone(),
                scheduler: scheduler.clone(),
                ..LogOptions::default()
            },
            entries,
            log_limit,
            ..NodeLogOptions::default()
        },
        private: NodeLogOptions {
            log: LogOptions {
                ring,
                scheduler,
                ring_bytes: SMALL_RING_BYTES,
                segment_bytes: SMALL_SEGMENT_BYTES,
                reserve_bytes: Some(0),
                ..LogOptions::default()
            },
            entries,
            log_limit,
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
