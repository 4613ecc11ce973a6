//! The processes of a cluster, and how they are started, ended and held.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use collie_cli::resp::Reply;
use collie_io::{Clock, Device, RealClock, RealDevice};
use collie_sim::{Effects, Rng};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};

use super::client::Ports;
use super::disks::Disks;
use super::links::Links;
use super::memory::SharedMemory;
use super::plan::{Entries, Fault, Plan, Product, Reads};
use super::sockets::Processes;
use crate::args::LEASHED;
use crate::client;
use crate::programs;
use crate::torture::ports;

/// How long a cluster may take until all slots are served, after whatever was done to it.
const READY: Duration = Duration::from_secs(120);
/// How often it is asked.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// How long a node may take for an answer about the cluster.
const ANSWER: Duration = Duration::from_secs(2);
/// Slots of a cluster, and how a node says that it knows a leader for each.
const SLOTS: usize = 16_384;
const ALL_SERVED: &str = "cluster_slots_ok:16384";
/// What a node says of a replica until it has what it had acknowledged before a power cut.
const LOST: &str = "may have lost what it had acknowledged";
const STATE: &str = "cluster_state:ok";
/// How a thread says that it panicked.
const PANICKED: &str = "panicked at";
/// How it says that a replica needs the node to be started again, as one of which a disk was full.
const NEEDS_A_START: &str = "is opened no more";
/// The least that a node takes: targets of duplication are soon away for longer.
const LOG_LIMIT: &str = "64mb";
/// Lines of what a node said that are shown.
const LINES_MAX: usize = 20;

/// A cluster of nodes with links between them. Dropped, all are killed.
pub(crate) struct Nodes {
    product: Product,
    program: PathBuf,
    /// The program of the version before, until none of the nodes goes back to it.
    before: Option<PathBuf>,
    pub(crate) replicas: usize,
    reads: Reads,
    pub(crate) entries: Entries,
    nodes: Vec<Node>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) links: Links,
    /// What stands before the ports that nodes name to clients, those of another cluster, if anything does.
    pub(crate) doors: Option<Links>,
    /// Where they have disks of their own.
    disks: Option<Disks>,
    /// Times that an excused node needed a start.
    pub(crate) restarts: u64,
}

struct Node {
    dir: PathBuf,
    log: PathBuf,
    /// Its port for clients, and the one that it names to them; for nodes; and the proxy before that.
    client: u16,
    named: u16,
    peer: u16,
    proxy: u16,
    /// Whether it is of the version before.
    is_older: bool,
    child: Option<Child>,
    memory: SharedMemory,
    /// The bytes that it had said when it was excused: since then it may end by itself, or say that it
    /// needs a start, and is started again, once.
    excused: Option<usize>,
}

/// The number of the node at an address, in the answer to `COLLIE.NODE LIST`.
fn number_of(list: &Reply, address: &str) -> Option<i64> {
    let Reply::Array(nodes) = list else { return None };
    nodes.iter().find_map(|node| {
        let Reply::Array(fields) = node else { return None };
        let field = |name: &str| {
            let mut pairs = fields.chunks_exact(2);
            pairs.find_map(|pair| (pair[0] == Reply::Bulk(name.into())).then(|| pair[1].clone()))
        };
        match (field("number"), field("address")) {
            (Some(Reply::Number(number)), Some(Reply::Bulk(at))) if at == address.as_bytes() => Some(number),
            _ => None,
        }
    })
}

/// Which start of a node it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    First,
    Later,
}

impl Nodes {
    /// Starts a new cluster in `dir` and waits until it serves.
    pub(crate) fn start(plan: &Plan, dir: &Path, rng: &mut Rng) -> anyhow::Result<Self> {
        let (product, count) = (plan.product, plan.nodes);
        let program = match (&plan.program, product) {
            (Some(program), _) => program.clone(),
            (None, Product::Collie) => programs::collie()?,
            (None, Product::Redis) => "redis-server".into(),
        };
        let (clients, peers, proxies) = (ports::free(count)?, ports::free(count)?, ports::free(count)?);
        let processes = Arc::new(Processes::new(count));
        let links = Links::start(&proxies, &peers, Some(&processes)).context("cannot make the links")?;
        let (named, doors) = match plan.fault {
            Fault::Duplicate => {
                let named = ports::free(count)?;
                let doors = Links::start(&named, &clients, None).context("cannot make the links")?;
                (named, Some(doors))
            }
            _ => (clients.clone(), None),
        };
        let disks = plan.needs_disks()?.then(|| Disks::mount(dir, count, rng));
        let disks = disks
            .transpose()
            .with_context(|| format!("--fault {}", plan.fault.name()))?;
        let nodes = clients.iter().zip(named).zip(&peers).zip(&proxies).enumerate();
        let nodes = nodes.map(|(number, (((&client, named), &peer), &proxy))| Node {
            dir: dir.join(format!("node{number}")),
            log: dir.join(format!("node{number}.log")),
            client,
            named,
            peer,
            proxy,
            is_older: plan.before.is_some(),
            child: None,
            memory: SharedMemory::default(),
            excused: None,
        });
        let mut nodes = Self {
            product,
            program,
            before: plan.before.clone(),
            replicas: plan.replicas(),
            reads: plan.reads,
            entries: plan.entries,
            nodes: nodes.collect(),
            processes,
            links,
            doors,
            disks,
            restarts: 0,
        };
        for node in 0..count {
            if nodes.disks.is_none() {
                RealDevice::new().create_dir_all(&nodes.nodes[node].dir)?;
            }
            nodes.launch(node, Life::First)?;
        }
        if product == Product::Redis {
            nodes.introduce()?;
        }
        nodes.wait_until_served()?;
        Ok(nodes)
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The ports for clients.
    pub(crate) fn ports(&self) -> Ports {
        Ports {
            own: self.nodes.iter().map(|node| node.client).collect(),
            named: self.nodes.iter().map(|node| node.named).collect(),
        }
    }

    /// The program of a node and its arguments: the only place that knows them.
    fn command(&self, node: usize, life: Life) -> Vec<OsString> {
        let Node {
            dir,
            client,
            named,
            peer,
            proxy,
            ..
        } = &self.nodes[node];
        let text = match self.product {
            Product::Collie => {
                let first = self.nodes[0].proxy;
                let how = match (life, node) {
                    (Life::Later, _) => String::new(),
                    (Life::First, 0) => format!(" --bootstrap --replicas {}", self.replicas),
                    (Life::First, _) => format!(" --join 127.0.0.1:{first}"),
                };
                format!(
                    "node --log-level warn --listen 127.0.0.1:{client} --peer 127.0.0.1:{peer} \
                     --advertise-peer 127.0.0.1:{proxy}{how}"
                )
            }
            Product::Redis => format!(
                "--port {client} --bind 127.0.0.1 --cluster-enabled yes --cluster-port {peer} \
                 --cluster-announce-bus-port {proxy} \
                 --cluster-require-full-coverage no --cluster-node-timeout 2000 --appendonly no --loglevel warning"
            ),
        };
        let before = self.before.as_ref().filter(|_| self.nodes[node].is_older);
        let program = before.unwrap_or(&self.program).clone();
        let mut words = vec![program.into_os_string()];
        words.extend(text.split_whitespace().map(OsString::from));
        // The version before does not know it.
        if self.product == Product::Collie && before.is_none() {
            let options = ["--reads", self.reads.name(), "--durability", self.entries.name()];
            words.extend(options.map(OsString::from));
        }
        if self.doors.is_some() {
            let named = format!("--advertise-client 127.0.0.1:{named} --log-limit {LOG_LIMIT}");
            words.extend(named.split(' ').map(OsString::from));
        }
        let on_disks = self.disks.iter().flat_map(|disks| disks.paths(node));
        let on_disks: Vec<PathBuf> = on_disks.collect();
        words.push("--dir".into());
        words.push(match on_disks.first() {
            Some(disk) => disk.join("node").into(),
            None => dir.into(),
        });
        for disk in &on_disks {
            words.extend(["--data".into(), disk.join("data").into()]);
        }
        if self.product == Product::Redis {
            words.extend(["--save", ""].map(OsString::from));
        }
        words
    }

    fn launch(&mut self, node: usize, life: Life) -> anyhow::Result<()> {
        let words = self.command(node, life);
        let place = &mut self.nodes[node];
        let log = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
            let opened = rustix::fs::open(&place.log, flags, Mode::RUSR | Mode::WUSR);
            opened.with_context(|| format!("cannot open {}", place.log.display()))
        };
        let child = Command::new(programs::this()?)
            .arg(LEASHED)
            .args(&words)
            .stdin(Stdio::null())
            .stdout(Stdio::from(log()?))
            .stderr(Stdio::from(log()?))
            .spawn()
            .with_context(|| format!("cannot start {}", words[0].display()))?;
        self.processes.set(node, Some(child.id()));
        place.child = Some(child);
        Ok(())
    }

    /// Makes a cluster of Redis nodes: a share of the slots for each.
    fn introduce(&self) -> anyhow::Result<()> {
        for node in 0..self.len() {
            self.wait_until_it_answers(node)?;
            let first = node * SLOTS / self.len();
            let last = (node + 1) * SLOTS / self.len() - 1;
            self.order(
                node,
                &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()],
            )?;
            self.order(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()])?;
        }
        for node in &self.nodes[1..] {
            let (port, bus) = (node.client.to_string(), node.proxy.to_string());
            self.order(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        Ok(())
    }

    pub(crate) fn order(&self, node: usize, words: &[&str]) -> anyhow::Result<()> {
        let reply = self.ask(node, words).and_then(Reply::good);
        reply
            .map(drop)
            .with_context(|| format!("{words:?} at node {node}"))
    }

    pub(crate) fn ask(&self, node: usize, words: &[&str]) -> io::Result<Reply> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        client::connect_for(self.nodes[node].client, ANSWER)?.call(&words)
    }

    /// Has the cluster change a node, through any node that says it is done.
    pub(crate) fn change(&mut self, node: usize, what: &str, how: &[&str]) -> anyhow::Result<()> {
        let address = format!("127.0.0.1:{}", self.nodes[node].named);
        let mut said = String::new();
        let done = wait(READY, || {
            self.look_for_ends()?;
            for any in 0..self.len() {
                let number = self
                    .ask(any, &["COLLIE.NODE", "LIST"])
                    .ok()
                    .and_then(|list| number_of(&list, &address));
                let Some(number) = number else { continue };
                let number = number.to_string();
                let words: Vec<_> = ["COLLIE.NODE", what, &number]
                    .into_iter()
                    .chain(how.iter().copied())
                    .collect();
                match self.ask(any, &words) {
                    Ok(Reply::Text(_)) => return Ok(true),
                    other => said = format!("{other:?}"),
                }
            }
            Ok(false)
        })?;
        ensure!(
            done,
            "no node does {what} for node {node} within {READY:?}: {said}"
        );
        Ok(())
    }

    /// Has the partition of a slot split there, through any node that says it is to be, or that it cannot.
    pub(crate) fn split(&mut self, slot: u64) -> anyhow::Result<()> {
        let slot = slot.to_string();
        let mut said = String::new();
        let done = wait(READY, || {
            self.look_for_ends()?;
            for any in 0..self.len() {
                match self.ask(any, &["COLLIE.NODE", "SPLIT", &slot]) {
                    Ok(Reply::Text(_)) => return Ok(true),
                    Ok(Reply::Error(text)) if text.contains("with slot") || text.contains("being split") => {
                        return Ok(true);
                    }
                    other => said = format!("{other:?}"),
                }
            }
            Ok(false)
        })?;
        ensure!(done, "no node splits at slot {slot} within {READY:?}: {said}");
        Ok(())
    }

    fn wait_until_it_answers(&self, node: usize) -> anyhow::Result<()> {
        wait(READY, || {
            Ok(matches!(self.ask(node, &["PING"]), Ok(Reply::Text(_))))
        })?
        .then_some(())
        .with_context(|| {
            format!(
                "node {node} does not answer after {READY:?}; it said:\n{}",
                self.said(node)
            )
        })
    }

    /// Waits until each node says that all slots are served.
    pub(crate) fn wait_until_served(&mut self) -> anyhow::Result<()> {
        let mut missing = String::new();
        for node in 0..self.len() {
            let served = wait(READY, || {
                self.look_for_ends()?;
                let info = match self.ask(node, &["CLUSTER", "INFO"]) {
                    Ok(Reply::Bulk(text)) => String::from_utf8_lossy(&text).into_owned(),
                    other => format!("{other:?}"),
                };
                let served = info.contains(ALL_SERVED) && info.contains(STATE);
                missing = info;
                Ok(served)
            })?;
            if !served {
                bail!(
                    "node {node} does not say {ALL_SERVED} and {STATE} after {READY:?}, but:\n{missing}\nit said:\n{}",
                    self.said(node)
                );
            }
        }
        Ok(())
    }

    /// Waits until no replica may lack an entry that it had acknowledged before its node lost power.
    pub(crate) fn wait_until_regained(&mut self) -> anyhow::Result<()> {
        let mut said = String::new();
        for node in 0..self.len() {
            let regained = wait(READY, || {
                self.look_for_ends()?;
                said = match self.ask(node, &["CLUSTER", "INFO"]) {
                    Ok(Reply::Bulk(text)) => String::from_utf8_lossy(&text).into_owned(),
                    other => format!("{other:?}"),
                };
                Ok(said.contains(STATE) && !said.contains(LOST))
            })?;
            ensure!(
                regained,
                "node {node} still has replicas that may have lost entries after {READY:?}, and says:\n{said}"
            );
        }
        Ok(())
    }

    /// From now on a node may end by itself, or say that it needs a start: it is started again by
    /// [`Nodes::look_for_ends`], once.
    pub(crate) fn excuse(&mut self, node: usize) -> anyhow::Result<()> {
        let said = self.log(node).context("cannot read what a node said")?.len();
        self.nodes[node].excused = Some(said);
        Ok(())
    }

    /// Starts a node again that is excused and needs it; whether it did.
    fn start_excused(&mut self, node: usize, ended: bool) -> anyhow::Result<bool> {
        let Some(said) = self.nodes[node].excused else {
            return Ok(false);
        };
        if !ended {
            let log = self.log(node).context("cannot read what a node said")?;
            if !log.get(said..).unwrap_or_default().contains(NEEDS_A_START) {
                return Ok(false);
            }
        }
        self.nodes[node].excused = None;
        self.kill(node)?;
        self.restart(node)?;
        self.restarts += 1;
        Ok(true)
    }

    /// That no node has ended by itself.
    pub(crate) fn look_for_ends(&mut self) -> anyhow::Result<()> {
        for number in 0..self.len() {
            let Some(child) = &mut self.nodes[number].child else {
                continue;
            };
            let ended = child.try_wait().context("cannot wait for a node")?;
            if self.start_excused(number, ended.is_some())? {
                continue;
            }
            if let Some(status) = ended {
                bail!(
                    "node {number} ended by itself ({status}); it said:\n{}",
                    self.said(number)
                );
            }
        }
        Ok(())
    }

    /// The node that leads a slot, as the first node says that answers.
    pub(crate) fn leader(&self, slot: u16) -> Option<usize> {
        let slots = (0..self.len()).find_map(|node| match self.ask(node, &["CLUSTER", "SLOTS"]) {
            Ok(Reply::Array(ranges)) => Some(ranges),
            _ => None,
        })?;
        let port = slots.iter().find_map(|range| port_of(range, slot))?;
        self.nodes.iter().position(|node| i64::from(node.named) == port)
    }

    /// Kills a node with SIGKILL.
    pub(crate) fn kill(&mut self, node: usize) -> anyhow::Result<()> {
        self.processes.set(node, None);
        let Some(mut child) = self.nodes[node].child.take() else {
            return Ok(());
        };
        child.kill().context("cannot kill a node")?;
        child.wait().map(drop).context("cannot wait for a node")
    }

    /// Whether a node is of the version before.
    pub(crate) fn is_older(&self, node: usize) -> bool {
        self.nodes[node].is_older
    }

    /// A node has the other version at its next start, unless there is but one any more; whether it has.
    pub(crate) fn changes_version(&mut self, node: usize) -> bool {
        let is_older = !self.nodes[node].is_older && self.before.is_some();
        std::mem::replace(&mut self.nodes[node].is_older, is_older) != is_older
    }

    /// Has the cluster use what all nodes know, through any node that says it is done. None goes back then.
    pub(crate) fn finalize(&mut self) -> anyhow::Result<()> {
        let mut said = String::new();
        let done = wait(READY, || {
            self.look_for_ends()?;
            for any in 0..self.len() {
                match self.ask(any, &["COLLIE.NODE", "FINALIZE"]) {
                    Ok(Reply::Text(_)) => return Ok(true),
                    other => said = format!("{other:?}"),
                }
            }
            Ok(false)
        })?;
        ensure!(done, "no node finalizes within {READY:?}: {said}");
        self.before = None;
        Ok(())
    }

    /// Starts a node again that was killed.
    pub(crate) fn restart(&mut self, node: usize) -> anyhow::Result<()> {
        self.launch(node, Life::Later)
    }

    /// The disks of the nodes.
    pub(crate) fn disks(&self) -> anyhow::Result<&Disks> {
        self.disks
            .as_ref()
            .context("the nodes have no disks of their own")
    }

    /// Takes the power of nodes away: their disks stop at the same moment, as good as, and lose what
    /// was not synced as is drawn.
    pub(crate) fn cut_power(&mut self, victims: &[usize], rng: &mut Rng) -> anyhow::Result<Effects> {
        let disks = self
            .disks
            .as_mut()
            .context("the nodes have no disks of their own")?;
        victims.iter().try_for_each(|&node| disks.stop(node))?;
        for &node in victims {
            self.processes.set(node, None);
            let Node { child, memory, .. } = &mut self.nodes[node];
            if let Some(child) = child {
                memory.look(child.id())?;
                child.kill().context("cannot kill a node")?;
            }
        }
        let mut all = Effects::default();
        for &node in victims {
            // It ends when its calls have failed.
            disks.fail_calls(node)?;
            if let Some(mut child) = self.nodes[node].child.take() {
                child.wait().context("cannot wait for a node")?;
            }
            self.nodes[node].memory.lose()?;
            super::disks::add(&mut all, disks.power_cycle(node, rng)?);
        }
        Ok(all)
    }

    /// Kills all nodes, and copies what their disks have to directories in `dir`.
    pub(crate) fn keep(&mut self, dir: &Path) -> anyhow::Result<()> {
        let Some(disks) = self.disks.take() else {
            return Ok(());
        };
        self.kill_without(&disks)?;
        disks.keep(dir)
    }

    /// Kills all nodes, of which a disk may have stopped.
    fn kill_without(&mut self, disks: &Disks) -> anyhow::Result<()> {
        for node in 0..self.len() {
            if let Some(child) = &mut self.nodes[node].child {
                child.kill().context("cannot kill a node")?;
            }
            if disks.has_stopped(node)? {
                disks.fail_calls(node)?;
            }
            self.kill(node)?;
        }
        Ok(())
    }

    /// Holds a node, or has it go on: SIGSTOP or SIGCONT.
    pub(crate) fn signal(&self, node: usize, signal: Signal) -> anyhow::Result<()> {
        let child = self.nodes[node].child.as_ref().context("the node does not run")?;
        kill_process(Pid::from_child(child), signal).with_context(|| format!("cannot signal node {node}"))
    }

    /// What a node said last.
    fn said(&self, node: usize) -> String {
        let text = self.log(node).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES_MAX)..].join("\n")
    }

    fn log(&self, node: usize) -> io::Result<String> {
        std::fs::read_to_string(&self.nodes[node].log)
    }

    /// The lines by which threads of nodes said that they panicked.
    pub(crate) fn panics(&self) -> anyhow::Result<Vec<String>> {
        let mut panics = Vec::new();
        for node in 0..self.len() {
            let text = self.log(node).context("cannot read what a node said")?;
            let lines = text.lines().filter(|line| line.contains(PANICKED));
            panics.extend(lines.map(|line| format!("node {node}: {line}")));
        }
        Ok(panics)
    }

    /// Asks all nodes to end in order, and waits for that.
    pub(crate) fn end(&mut self) -> anyhow::Result<()> {
        for node in 0..self.len() {
            self.signal(node, Signal::TERM)?;
        }
        (0..self.len()).try_for_each(|node| self.ends(node))
    }

    /// Asks a node to end in order, once it has started, and waits for that.
    pub(crate) fn end_one(&mut self, node: usize) -> anyhow::Result<()> {
        // Until then the signal ends it as any process.
        self.wait_until_it_answers(node)?;
        self.signal(node, Signal::TERM)?;
        self.ends(node)
    }

    /// Waits until a node has ended that was asked to.
    fn ends(&mut self, node: usize) -> anyhow::Result<()> {
        self.processes.set(node, None);
        let Some(mut child) = self.nodes[node].child.take() else {
            return Ok(());
        };
        let mut status = None;
        wait(READY, || {
            status = child.try_wait().context("cannot wait for a node")?;
            Ok(status.is_some())
        })?;
        if status.is_none() {
            // Otherwise it would stay.
            child.kill().context("cannot kill a node")?;
        }
        ensure!(
            status.is_some_and(|status| status.success()),
            "node {node}, asked to end in order, came to {status:?} within {READY:?}; it said:\n{}",
            self.said(node)
        );
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(disks) = self.disks.take() {
            // Nothing more can be done for one that does not end.
            let _ = self.kill_without(&disks);
        }
        for node in 0..self.len() {
            let Node { child, memory, .. } = &mut self.nodes[node];
            // It may be dead already.
            let _ = child.as_ref().map_or(Ok(()), |child| memory.look(child.id()));
            let _ = self.kill(node);
            let _ = self.nodes[node].memory.lose();
        }
    }
}

/// The port of the leader in a range of `CLUSTER SLOTS`, if the slot is in it.
fn port_of(range: &Reply, slot: u16) -> Option<i64> {
    let Reply::Array(parts) = range else { return None };
    let [
        Reply::Number(first),
        Reply::Number(last),
        Reply::Array(leader),
        ..,
    ] = parts.as_slice()
    else {
        return None;
    };
    let Some(&Reply::Number(port)) = leader.get(1) else {
        return None;
    };
    (*first..=*last).contains(&i64::from(slot)).then_some(port)
}

/// Whether something comes about within `patience`.
pub(crate) fn wait(
    patience: Duration,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let clock = RealClock;
    let began = clock.monotonic();
    loop {
        if is_so()? {
            return Ok(true);
        }
        if u128::from(clock.monotonic().saturating_sub(began)) > patience.as_nanos() {
            return Ok(false);
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}
