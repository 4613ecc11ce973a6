//! The configuration of `collie node`, which `packaging/collie-node.toml` describes: a section of its own, and what a
//! server has in common with it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use collie_cluster::{Begin, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::args::{
    AccessArgs, Address, EntriesOn, LOG_LIMIT_LEAST, LogLayout, NodeArgs, REPLACE_AFTER_LEAST, ReadsBy,
    ServingArgs,
};
use crate::serve::{Bytes, Config, Diagnostics, Limits, Listening, Number, Settings, Store};

/// The limits on what the server works on at once follow from a ring of this size: an entry has less than 8 MiB.
pub(super) const COMMAND_BYTES: usize = 16 << 20;
/// The longest value, as Redis has it: a log takes a third of its limit from a command.
const LONGEST_VALUE: usize = 512 << 20;

/// All settings of `collie node`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NodeConfig {
    pub(super) node: NodeSettings,
    #[serde(with = "super::clients")]
    server: Listening,
    limits: Limits,
    diagnostics: Diagnostics,
}

/// `[node]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NodeSettings {
    dir: Option<PathBuf>,
    pub(super) data: Vec<PathBuf>,
    listen: Option<Address>,
    advertise_client: Option<Address>,
    peer: Option<Address>,
    advertise_peer: Option<Address>,
    join: Vec<Address>,
    pub(super) zone: Option<String>,
    pub(super) layout: LogLayout,
    pub(super) reads: ReadsBy,
    pub(super) durability: EntriesOn,
    pub(super) log_limit: Option<Bytes<LOG_LIMIT_LEAST, { i64::MAX }>>,
    pub(super) replace_after: Number<{ REPLACE_AFTER_LEAST as i64 }, { u32::MAX as i64 }>,
    pub(super) transfer_rate: Bytes<0, { i64::MAX }>,
    peer_ca: Option<PathBuf>,
    peer_cert: Option<PathBuf>,
    peer_key: Option<PathBuf>,
    duplicate_password_file: Option<PathBuf>,
    duplicate_tls_ca_cert_file: Option<PathBuf>,
    duplicate_tls_cert_file: Option<PathBuf>,
    duplicate_tls_key_file: Option<PathBuf>,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            dir: None,
            data: Vec::new(),
            listen: None,
            advertise_client: None,
            peer: None,
            advertise_peer: None,
            join: Vec::new(),
            zone: None,
            layout: LogLayout::PerDisk,
            reads: ReadsBy::Index,
            durability: EntriesOn::Disk,
            log_limit: None,
            replace_after: Number(300),
            transfer_rate: Bytes(100 << 20),
            peer_ca: None,
            peer_cert: None,
            peer_key: None,
            duplicate_password_file: None,
            duplicate_tls_ca_cert_file: None,
            duplicate_tls_cert_file: None,
            duplicate_tls_key_file: None,
        }
    }
}

/// Where a node is for others, by the addresses that the names stand for.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) peer: SocketAddr,
    pub(super) advertise_peer: SocketAddr,
    pub(super) advertise_client: SocketAddr,
    /// The name by which clients are sent to it; empty, if it has none.
    pub(super) client_host: String,
    /// Nodes of the cluster that it joins.
    pub(super) join: Vec<SocketAddr>,
}

impl NodeSettings {
    /// Looks up the hosts that are named. It listens for clients at `listen`.
    pub(super) fn places(&self, listen: SocketAddr) -> anyhow::Result<Places> {
        let resolve = |name, address: &Address| address.resolve().map_err(|why| anyhow!("{name}: {why}"));
        let or = |name, asked: &Option<Address>, default| {
            let asked = asked.as_ref().map(|at| resolve(name, at)).transpose()?;
            anyhow::Ok(asked.unwrap_or(default))
        };
        let peer = self.peer.as_ref().context("expected peer, found none")?;
        let peer = resolve("peer", peer)?;
        let client_host = self.advertise_client.as_ref().and_then(Address::host);
        Ok(Places {
            peer,
            advertise_peer: or("advertise-peer", &self.advertise_peer, peer)?,
            advertise_client: or("advertise-client", &self.advertise_client, listen)?,
            client_host: client_host.unwrap_or_default().to_owned(),
            join: self
                .join
                .iter()
                .map(|at| resolve("join", at))
                .collect::<anyhow::Result<_>>()?,
        })
    }

    /// The files of TLS between nodes, if they are named.
    pub(super) fn peer_files(&self) -> anyhow::Result<Option<TlsFiles>> {
        match (&self.peer_ca, &self.peer_cert, &self.peer_key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(certificate), Some(key)) => Ok(Some(TlsFiles {
                ca: ca.clone(),
                certificate: certificate.clone(),
                key: key.clone(),
            })),
            _ => bail!("expected all of peer-ca, peer-cert and peer-key, or none: one lacks another"),
        }
    }

    /// What this node shows to the clusters that rows are duplicated to.
    pub(super) fn duplicate_access(&self) -> anyhow::Result<AccessArgs> {
        if self.duplicate_tls_cert_file.is_some() != self.duplicate_tls_key_file.is_some()
            || self.duplicate_tls_cert_file.is_some() && self.duplicate_tls_ca_cert_file.is_none()
        {
            bail!(
                "expected duplicate-tls-cert-file with duplicate-tls-key-file and duplicate-tls-ca-cert-file: one lacks \
                 another"
            );
        }
        Ok(AccessArgs {
            password_file: self.duplicate_password_file.clone(),
            tls_ca_cert_file: self.duplicate_tls_ca_cert_file.clone(),
            tls_cert_file: self.duplicate_tls_cert_file.clone(),
            tls_key_file: self.duplicate_tls_key_file.clone(),
            ..AccessArgs::default()
        })
    }

    /// What a node cannot be without, by its names.
    fn missing(&self) -> Vec<&'static str> {
        let needed = [
            ("dir", self.dir.is_none()),
            ("listen", self.listen.is_none()),
            ("peer", self.peer.is_none()),
        ];
        let missing = needed.into_iter().filter(|(_, is_missing)| *is_missing);
        missing.map(|(name, _)| name).collect()
    }
}

impl Settings for NodeConfig {
    type Args = NodeArgs;

    fn serving(args: &NodeArgs) -> &ServingArgs {
        &args.serving
    }

    fn server(&self) -> &Listening {
        &self.server
    }

    fn override_by(&mut self, args: &NodeArgs) {
        let node = &mut self.node;
        override_each(&mut node.dir, &args.dir);
        override_each(&mut node.listen, &args.listen);
        override_each(&mut node.advertise_client, &args.advertise_client);
        override_each(&mut node.peer, &args.peer);
        override_each(&mut node.advertise_peer, &args.advertise_peer);
        override_each(&mut node.zone, &args.zone);
        override_each(&mut node.log_limit, &args.log_limit.map(Bytes));
        override_each(&mut node.peer_ca, &args.peer_ca);
        override_each(&mut node.peer_cert, &args.peer_cert);
        override_each(&mut node.peer_key, &args.peer_key);
        override_each(&mut node.duplicate_password_file, &args.duplicate_password_file);
        override_each(
            &mut node.duplicate_tls_ca_cert_file,
            &args.duplicate_tls_ca_cert_file,
        );
        override_each(&mut node.duplicate_tls_cert_file, &args.duplicate_tls_cert_file);
        override_each(&mut node.duplicate_tls_key_file, &args.duplicate_tls_key_file);
        if !args.data.is_empty() {
            node.data.clone_from(&args.data);
        }
        if !args.join.is_empty() {
            node.join.clone_from(&args.join);
        }
        node.layout = args.layout.unwrap_or(node.layout);
        node.reads = args.reads.unwrap_or(node.reads);
        node.durability = args.durability.unwrap_or(node.durability);
        if let Some(seconds) = args.replace_after {
            node.replace_after = Number(seconds.into());
        }
        if let Some(rate) = args.transfer_rate {
            node.transfer_rate = Bytes(rate);
        }
        self.server.override_for_clients(&args.tls, &args.serving);
        self.diagnostics.override_by(&args.serving);
    }

    fn config(&self, file: Option<&Path>) -> anyhow::Result<Config> {
        let node = &self.node;
        let (Some(dir), Some(listen), Some(_)) = (&node.dir, &node.listen, &node.peer) else {
            let missing = node.missing();
            let (names, flags) = (missing.join(", "), missing.join(", --"));
            match file {
                Some(path) => bail!(
                    "{} lacks {names}: give that in its section [node], or by --{flags}",
                    path.display()
                ),
                None => bail!(
                    "the node lacks {names}: give that by --{flags}, or in the section [node] of a file that --config names"
                ),
            }
        };
        node.peer_files()?;
        node.duplicate_access()?;
        let mut diagnostics = self.diagnostics.clone();
        // It logs each of its steps. Its errors are returned, and logged by this program.
        diagnostics.log_level.quieten("openraft");
        Ok(Config {
            store: Store::elsewhere(dir.clone(), COMMAND_BYTES, LONGEST_VALUE),
            server: self.server.at_one(listen),
            limits: self.limits.clone(),
            diagnostics,
        })
    }

    fn completed(&self, completed: Config) -> Self {
        Self {
            limits: completed.limits,
            ..self.clone()
        }
    }
}

fn override_each<T: Clone>(setting: &mut Option<T>, asked: &Option<T>) {
    if asked.is_some() {
        setting.clone_from(asked);
    }
}

/// How the node begins. The command line overrides the file: a new cluster is made although that says which to join.
pub(super) fn begin(args: &NodeArgs, places: &Places) -> Begin {
    if args.bootstrap {
        // The command line takes no other numbers.
        let replicas = args.replicas.parse().unwrap_or(3);
        return Begin::Bootstrap {
            replicas,
            partitions: args.partitions,
            voters: replicas,
        };
    }
    match &places.join[..] {
        [] => Begin::Start,
        peers => Begin::Join(peers.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};
    use crate::node::clients::OTHERS;
    use crate::serve::{Effective, examples, parse};

    const EXAMPLE: &str = include_str!("../../../../packaging/collie-node.toml");

    fn args(line: &str) -> NodeArgs {
        let words = ["collie", "node"].into_iter().chain(line.split_whitespace());
        match Args::try_parse_from(words).unwrap().command {
            Command::Node(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_example_shows_every_setting_with_its_default() {
        let mut expected = NodeConfig::default();
        expected.node.dir = Some(PathBuf::from("/var/lib/collie-node"));
        expected.node.listen = Some("127.0.0.1:6380".parse().unwrap());
        expected.node.peer = Some("127.0.0.1:16380".parse().unwrap());
        examples::check(EXAMPLE, &expected, &OTHERS.map(|(name, _)| name));
    }

    #[test]
    fn each_setting_of_a_node_is_overridden_by_its_flag() {
        let file = "[node]\ndir = \"/a\"\ndata = [\"/a1\", \"/a2\"]\nlisten = \"a.org:1\"\npeer = \"a.org:2\"\n\
                    advertise-client = \"a.org:3\"\nadvertise-peer = \"a.org:4\"\njoin = [\"a.org:5\", \"a.org:6\"]\n\
                    zone = \"a\"\nlayout = \"shared\"\nreads = \"lease\"\ndurability = \"process\"\nlog-limit = \"1gb\"\nreplace-after = 11\n\
                    transfer-rate = \"11mb\"\npeer-ca = \"/a.ca\"\npeer-cert = \"/a.pem\"\npeer-key = \"/a.key\"\n\
                    duplicate-password-file = \"/a.pw\"\nduplicate-tls-ca-cert-file = \"/a.ca\"\n\
                    duplicate-tls-cert-file = \"/a.pem\"\nduplicate-tls-key-file = \"/a.key\"\n";
        let of_file: NodeConfig = parse(file).unwrap();
        let mut settings = of_file.clone();
        settings.override_by(&args("--config f"));
        assert_eq!(settings, of_file, "what is not given overrides nothing");
        settings.override_by(&args(
            "--dir /b --data /b1 --listen 127.0.0.1:1 --peer 127.0.0.1:2 --advertise-client 127.0.0.1:3 \
             --advertise-peer 127.0.0.1:4 --join 127.0.0.1:5 --zone b --layout private --reads index --durability disk --log-limit 2gb --replace-after 12 \
             --transfer-rate 0 --peer-ca /b.ca --peer-cert /b.pem --peer-key /b.key --duplicate-password-file /b.pw \
             --duplicate-tls-ca-cert-file /b.ca --duplicate-tls-cert-file /b.pem --duplicate-tls-key-file /b.key",
        ));
        let table = |settings: &NodeSettings| toml::Table::try_from(settings).unwrap();
        let (before, after) = (table(&of_file.node), table(&settings.node));
        assert_eq!(before.len(), 21, "{before:?}");
        for (name, value) in &before {
            assert_ne!(after.get(name), Some(value), "{name}");
        }
        assert_eq!(settings.node.data, [Path::new("/b1")]);
        assert_eq!(settings.node.layout, LogLayout::Private);
    }

    #[test]
    fn what_a_node_has_not_is_refused_with_its_line() {
        for (name, why) in OTHERS {
            let error = parse::<NodeConfig>(&format!("[node]\n[server]\n\n{name} = 1")).unwrap_err();
            let expected = format!("line 4, server.{name}: unexpected field `{name}`: {why}");
            assert_eq!(error, expected);
        }
        for (text, parts) in [
            (
                "[node]\nbootstrap = true",
                &["line 2, node.bootstrap", "unknown field"][..],
            ),
            (
                "[node]\nreplicas = 1",
                &["line 2, node.replicas", "unknown field"],
            ),
            ("[store]\n", &["line 1", "unknown field `store`", "`node`"]),
            ("[server]\nthread = 1", &["line 2, server.thread", "`threads`"]),
            (
                "[server]\nthreads = -1",
                &["line 2, server.threads", "from 0 to 1024"],
            ),
            (
                "[node]\nreplace-after = 9",
                &["line 2, node.replace-after", "from 10 to"],
            ),
            (
                "[node]\nlog-limit = \"63mb\"",
                &["line 2, node.log-limit", "at least 67108864"],
            ),
            (
                "[node]\nlayout = \"round\"",
                &["line 2, node.layout", "`per-disk`"],
            ),
            ("[node]\njoin = [\"here\"]", &["line 2, node.join", "\"here\""]),
        ] {
            let error = parse::<NodeConfig>(text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{text}: {part} is not in: {error}");
            }
        }
    }

    #[test]
    fn what_a_node_lacks_is_named_and_both_ways_to_give_it() {
        let said = |settings: NodeConfig, file| settings.config(file).unwrap_err().to_string();
        let nothing = said(NodeConfig::default(), None);
        for part in [
            "lacks dir, listen, peer:",
            "--dir, --listen, --peer",
            "[node]",
            "--config",
        ] {
            assert!(nothing.contains(part), "{part} is not in: {nothing}");
        }
        let peer = said(
            parse("[node]\ndir = \"/x\"\nlisten = \"127.0.0.1:1\"").unwrap(),
            Some(Path::new("/etc/n.toml")),
        );
        for part in ["/etc/n.toml lacks peer:", "[node]", "by --peer"] {
            assert!(peer.contains(part), "{part} is not in: {peer}");
        }
        let mut halved: NodeConfig = parse(EXAMPLE).unwrap();
        halved.node.peer_cert = Some(PathBuf::from("/n1.pem"));
        assert!(said(halved, None).contains("all of peer-ca, peer-cert and peer-key"));
    }

    #[test]
    fn a_node_speaks_tls_alone_where_it_listens_if_it_has_files() {
        let line = "--dir /x --listen 127.0.0.1:7 --peer 127.0.0.1:8";
        let of = |more: &str| Effective::<NodeConfig>::read(&args(&format!("{line} {more}"))).unwrap();
        let plain = of("").server();
        assert!(plain.plain && plain.tls.is_none());
        assert_eq!(plain.ring_bytes, COMMAND_BYTES);
        assert_eq!(
            (plain.limits.bulk_len_max, plain.value_len_max()),
            (LONGEST_VALUE, LONGEST_VALUE)
        );
        let secured = of("--tls-cert-file /c.pem --tls-key-file /c.key --tls-ca-cert-file /ca.pem").server();
        assert!(!secured.plain);
        assert_eq!(secured.tls.unwrap().listen, "127.0.0.1:7".parse().unwrap());
    }

    #[test]
    fn a_print_out_reads_back_and_openraft_is_quiet_unless_named() {
        let line = "--dir /x --listen 127.0.0.1:7 --peer 127.0.0.1:8 --join 127.0.0.1:9 --log-level";
        for (asked, logged) in [
            ("warn", "warn,openraft=error"),
            ("info,openraft=debug", "info,openraft=debug"),
        ] {
            let effective = Effective::<NodeConfig>::read(&args(&format!("{line} {asked}"))).unwrap();
            assert_eq!(effective.config.diagnostics.log_level.to_string(), logged);
            let shown: NodeConfig = parse(&effective.shown().unwrap()).unwrap();
            assert_eq!(shown.node, effective.settings.node);
            assert_eq!(shown.diagnostics.log_level.to_string(), asked);
        }
    }

    #[test]
    fn a_mutated_configuration_is_refused_or_reads_back() {
        let corpus = [examples::uncommented(EXAMPLE).into_bytes()];
        collie_sim::fuzz::mutations("node-configurations", &corpus, 4_000, |_, bytes| {
            match std::str::from_utf8(bytes).map(parse::<NodeConfig>) {
                Ok(Ok(config)) => {
                    let shown = toml::to_string(&config).unwrap();
                    let again = parse::<NodeConfig>(&shown).map(|config| toml::to_string(&config).unwrap());
                    assert_eq!(again.as_ref(), Ok(&shown));
                }
                Ok(Err(problem)) => assert!(problem.starts_with("line "), "{problem}"),
                Err(_) => {}
            }
        });
    }
}
