//! Duplication to another cluster, which a map of rows stands for: the newest of each key, as the records say.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::map::{self, LEVEL_OF_DUPLICATION};
use collie_cluster::testing::wire::Target;
use collie_cluster::{Begin, TargetConnection, TargetNetwork, TargetReply};
use collie_io::{Clock, RealClock};
use collie_server::cluster::{DuplicationInfo, NodeRequest, Route, Settled, Walked, id_text, slot_of};
use collie_server::duplication::rows_of;

use super::moves::ask;
use super::rules::{founded, founding};
use super::sites::{Site, bootstrap, settled, sites, until};

/// The rows of the other cluster: of each key the stamp, and the value, unless it was removed.
type Rows = BTreeMap<Vec<u8>, State>;
type State = ([u64; 2], Option<Vec<u8>>);

/// Another cluster of two nodes, each with half of the slots.
#[derive(Debug, Default)]
struct Other {
    id: [u8; 16],
    rows: Mutex<Rows>,
    is_away: AtomicBool,
    /// Another cluster has its addresses.
    is_another: AtomicBool,
    /// Rows that have come, newer or not.
    came: AtomicU64,
    /// What it answers in place of its id.
    says: Mutex<Option<String>>,
}

#[derive(Debug, Clone)]
struct Way(Arc<Other>);

const NODES: [&str; 2] = ["one.example:7001", "two.example:7002"];

impl TargetNetwork for Way {
    fn connect(&self, address: &str) -> io::Result<Box<dyn TargetConnection>> {
        let at = NODES.iter().position(|node| *node == address);
        let at = at.ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Connection(Arc::clone(&self.0), at)))
    }
}

struct Connection(Arc<Other>, usize);

impl TargetConnection for Connection {
    fn call(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<Vec<TargetReply>> {
        let Self(other, at) = self;
        if other.is_away.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(commands.iter().map(|words| other.answer(*at, words)).collect())
    }
}

impl Other {
    fn answer(&self, at: usize, words: &[Vec<u8>]) -> TargetReply {
        if words[0] == b"COLLIE.DUPLICATE" {
            if self.is_another.load(Ordering::SeqCst) {
                return TargetReply::Text(id_text(b"a third one....."));
            }
            return match &*self.says.lock().unwrap() {
                Some(text) => TargetReply::Error(text.clone()),
                None => TargetReply::Text(id_text(&self.id)),
            };
        }
        assert_eq!(words[0], b"COLLIE.MERGE");
        let (rows, _) = words[1..].as_chunks::<3>();
        let slots: BTreeSet<_> = rows.iter().map(|[key, ..]| slot_of(key)).collect();
        assert_eq!(slots.len(), 1, "one slot in a command");
        let slot = *slots.first().unwrap();
        let owner = usize::from(slot >= 8192);
        if owner != at {
            return TargetReply::Error(format!("MOVED {slot} {}", NODES[owner]));
        }
        let mut there = self.rows.lock().unwrap();
        for [key, header, payload] in rows {
            let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
            let stamp = [number(2), number(10)];
            self.came.fetch_add(1, Ordering::SeqCst);
            if stamp >= there.get(key).map_or([0, 0], |(stamp, _)| *stamp) {
                let value = (header[1] == b'k').then(|| payload.clone());
                there.insert(key.clone(), (stamp, value));
            }
        }
        TargetReply::Number(1)
    }

    /// What it has of each key, removed ones apart.
    fn values(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let rows = self.rows.lock().unwrap();
        let value = |(key, (_, value)): (&Vec<u8>, &State)| Some((key.clone(), value.clone()?));
        rows.iter().filter_map(value).collect()
    }
}

/// A cluster, and another one that it may be duplicated to.
fn clusters(nodes: usize, replicas: u8, partitions: u16) -> (Vec<Site>, Arc<Other>) {
    let other = Arc::new(Other {
        id: *b"the other one...",
        ..Other::default()
    });
    let sites = sites(nodes);
    for (at, site) in sites.iter().enumerate() {
        let begin = match at {
            0 => bootstrap(replicas, partitions),
            _ => Begin::Join(vec![sites[0].peer]),
        };
        start(site, &other, begin);
    }
    settled(&sites, nodes, partitions);
    (sites, other)
}

fn start(site: &Site, other: &Arc<Other>, begin: Begin) {
    let mut options = site.options();
    options.targets = Some(Arc::new(Way(Arc::clone(other))));
    options.store.shared.log_limit = Some(8 << 20);
    site.try_start(options, begin).unwrap();
}

fn duplicate() -> NodeRequest {
    NodeRequest::Duplicate {
        name: "second".to_owned(),
        addresses: NODES.map(str::to_owned).to_vec(),
    }
}

/// Sets a key, or removes it, where it is led.
fn set(sites: &[Site], key: &[u8], payload: Option<&[u8]>) {
    until(sites, "a write", || {
        let mut alive = sites.iter().filter(|site| site.is_alive());
        alive.find_map(|site| try_set(site, key, payload).filter(|settled| *settled == Settled::Holds))
    });
}

fn try_set(site: &Site, key: &[u8], payload: Option<&[u8]>) -> Option<Settled> {
    let value = payload.map(|payload| [&[1, 0], payload].concat());
    set_row(site, key, value.as_deref())
}

/// The same of a value as it is stored.
pub(crate) fn set_row(site: &Site, key: &[u8], value: Option<&[u8]>) -> Option<Settled> {
    let slot = slot_of(key);
    let [row, _] = rows_of(key);
    let (partition, handle) = site.with(|node, runtime| {
        let partition = match node.cluster().route(slot) {
            Route::Here(partition) => Some(partition),
            _ => None,
        };
        (partition, runtime.handle().clone())
    });
    let partition = partition?;
    let _inside = handle.enter();
    let mut command = partition.begin(slot, &[&row], Duration::from_secs(1)).ok()?;
    let before = command.get(&row).ok()?.is_some();
    let keys = i64::from(value.is_some()) - i64::from(before);
    let value = value.map(Into::into);
    let settling = command.finish(vec![(row, value)], keys).ok()?;
    Some(handle.block_on(settling))
}

fn info(site: &Site) -> DuplicationInfo {
    let mut all = site.with(|node, _| node.cluster().duplications());
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Waits until the other cluster has just these keys.
fn until_has(sites: &[Site], other: &Other, expected: &BTreeMap<Vec<u8>, Vec<u8>>) {
    until(sites, "the rows at the other cluster", || {
        (other.values() == *expected).then_some(())
    });
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

#[test]
fn all_rows_reach_the_target_though_nodes_die() {
    let (sites, other) = clusters(3, 3, 2);
    let mut model = BTreeMap::new();
    let mut write = |sites: &[Site], number: usize, value: Option<&str>| {
        let key = key(number);
        set(sites, &key, value.map(str::as_bytes));
        match value {
            Some(value) => model.insert(key, value.as_bytes().to_vec()),
            None => model.remove(&key),
        };
        model.clone()
    };
    for number in 0..50 {
        write(&sites, number, Some("before"));
    }
    ask(&sites[1], duplicate()).unwrap();
    // Asked for again, it changes nothing.
    ask(&sites[2], duplicate()).unwrap();
    for number in 40..60 {
        write(&sites, number, Some("after"));
    }
    let mut last = BTreeMap::new();
    for number in 30..45 {
        last = write(&sites, number, None);
    }
    until_has(&sites, &other, &last);
    for dies in 0..3 {
        write(&sites, dies, Some("meanwhile"));
        sites[dies].kill();
        for number in 0..10 {
            write(&sites, 10 * dies + number, Some("with one node away"));
        }
        last = write(&sites, 70 + dies, Some("new"));
        start(&sites[dies], &other, Begin::Start);
        until_has(&sites, &other, &last);
        settled(&sites, 3, 2);
    }
    until(&sites, "that nothing is left to be sent", || {
        let all = sites.iter().map(info);
        let all: Vec<_> = all.collect();
        let following: u64 = all.iter().map(|one| one.following).sum();
        let left = all.iter().any(|one| one.lag + one.copying + one.waiting > 0);
        (following == 2 && !left).then_some(())
    });
    // Idle, it sends nothing.
    let came = other.came.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(other.came.load(Ordering::SeqCst), came);
}

/// No entry of the log has room for it.
#[test]
fn a_value_in_parts_reaches_the_target() {
    let (sites, other) = clusters(3, 3, 1);
    let sites = sites.as_slice();
    ask(&sites[0], duplicate()).unwrap();
    let mut expected = BTreeMap::new();
    for (number, bytes) in (0..).zip([3, 1_500_000, 10, 1_900_000, 1_600_000, 5]) {
        let value = vec![number; bytes];
        let key = key(usize::from(number));
        set(sites, &key, Some(&value));
        expected.insert(key, value);
    }
    until_has(sites, &other, &expected);
    // Another leader goes on behind its parts.
    let leader = sites
        .iter()
        .find(|site| site.with(|node, _| matches!(node.cluster().route(slot_of(&key(1))), Route::Here(_))));
    leader.unwrap().kill();
    for number in 1..3 {
        let value = vec![7; 1_700_000];
        set(sites, &key(number), Some(&value));
        expected.insert(key(number), value);
    }
    until_has(sites, &other, &expected);
}

#[test]
fn a_target_that_is_away_keeps_no_log_for_good() {
    let (sites, other) = clusters(1, 1, 1);
    let mut model = BTreeMap::new();
    ask(&sites[0], duplicate()).unwrap();
    for number in 0..20 {
        set(&sites, &key(number), Some(b"before"));
        model.insert(key(number), b"before".to_vec());
    }
    until_has(&sites, &other, &model);
    let came = other.came.load(Ordering::SeqCst);
    other.is_away.store(true, Ordering::SeqCst);
    set(&sites, &key(7), None);
    model.remove(&key(7));
    // Several times what the log may have.
    let large = vec![b'x'; 64 << 10];
    for number in 0..500 {
        set(&sites, &key(100 + number % 9), Some(&large));
        model.insert(key(100 + number % 9), large.clone());
    }
    until(&sites, "what keeps it", || {
        let problem = info(&sites[0]).problem?;
        problem.1.contains("example:700").then_some(())
    });
    other.is_away.store(false, Ordering::SeqCst);
    until_has(&sites, &other, &model);
    // What had not changed came again: the log was without the entries.
    assert!(
        other.came.load(Ordering::SeqCst) - came >= 19 + 9,
        "all rows were copied anew"
    );
}

#[test]
fn a_paused_target_gets_what_it_missed_once_resumed() {
    let (sites, other) = clusters(2, 2, 2);
    let mut model = BTreeMap::new();
    let pause = || NodeRequest::PauseDuplication("second".to_owned());
    let resume = || NodeRequest::ResumeDuplication("second".to_owned());
    let refused = |sites: &[Site], request: NodeRequest, text: &str| {
        let problem = ask(&sites[0], request).unwrap_err();
        assert!(problem.contains(text), "{text}: {problem}");
    };
    refused(&sites, pause(), "is duplicated to no other one");
    ask(&sites[0], duplicate()).unwrap();
    for number in 0..20 {
        set(&sites, &key(number), Some(b"before"));
        model.insert(key(number), b"before".to_vec());
    }
    until_has(&sites, &other, &model);
    refused(&sites, resume(), "to second is not paused");
    ask(&sites[1], pause()).unwrap();
    refused(&sites, pause(), "to second is paused already");
    let third = NodeRequest::PauseDuplication("third".to_owned());
    refused(&sites, third, "not duplicated to third, but to second");
    let all_know = |sites: &[Site]| {
        until(sites, "the pause at all nodes", || {
            let following: u64 = sites.iter().map(|site| info(site).following).sum();
            let know = sites.iter().all(|site| info(site).is_paused);
            (know && following == 2).then_some(())
        });
    };
    all_know(&sites);
    // Neither does a leader send that has just started.
    let came = other.came.load(Ordering::SeqCst);
    for restarts in 0..2 {
        let value = format!("while paused, {restarts}").into_bytes();
        for number in 10..30 {
            set(&sites, &key(number), Some(&value));
            model.insert(key(number), value.clone());
        }
        set(&sites, &key(restarts), None);
        model.remove(&key(restarts));
        sites[restarts].kill();
        start(&sites[restarts], &other, Begin::Start);
        settled(&sites, 2, 2);
        all_know(&sites);
    }
    until(&sites, "what it lacks", || {
        let lag: u64 = sites.iter().map(|site| info(site).lag).sum();
        (lag >= 40).then_some(())
    });
    // Longer than a sender would need, many times.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(other.came.load(Ordering::SeqCst), came, "nothing was sent");
    assert!(sites.iter().all(|site| info(site).problem.is_none()));
    ask(&sites[0], resume()).unwrap();
    until_has(&sites, &other, &model);
    let came = other.came.load(Ordering::SeqCst) - came;
    assert!((22..30).contains(&came), "what has changed alone came: {came}");
}

#[test]
fn a_target_paused_beyond_the_log_gets_all_again() {
    let (sites, other) = clusters(1, 1, 1);
    let mut model = BTreeMap::new();
    ask(&sites[0], duplicate()).unwrap();
    for number in 0..20 {
        set(&sites, &key(number), Some(b"before"));
        model.insert(key(number), b"before".to_vec());
    }
    until_has(&sites, &other, &model);
    ask(&sites[0], NodeRequest::PauseDuplication("second".to_owned())).unwrap();
    until(&sites, "the pause", || info(&sites[0]).is_paused.then_some(()));
    let came = other.came.load(Ordering::SeqCst);
    set(&sites, &key(7), None);
    model.remove(&key(7));
    // Several times what the log may have.
    let large = vec![b'x'; 64 << 10];
    for number in 0..500 {
        set(&sites, &key(100 + number % 9), Some(&large));
        model.insert(key(100 + number % 9), large.clone());
    }
    assert_eq!(other.came.load(Ordering::SeqCst), came, "nothing was sent");
    ask(&sites[0], NodeRequest::ResumeDuplication("second".to_owned())).unwrap();
    until_has(&sites, &other, &model);
    assert!(
        other.came.load(Ordering::SeqCst) - came >= 19 + 9,
        "all rows were copied anew"
    );
}

#[test]
fn what_the_target_wrote_itself_is_not_sent_back() {
    let (sites, other) = clusters(1, 1, 1);
    ask(&sites[0], duplicate()).unwrap();
    set(&sites, b"own", Some(b"1"));
    until_has(&sites, &other, &[(b"own".to_vec(), b"1".to_vec())].into());
    // As COLLIE.MERGE stores it: with a stamp, which has the other cluster's origin.
    let (time, origin) = (u64::to_le_bytes(1 << 50), &other.id[..8]);
    let value = [&[1, 0x40][..], &time, origin, b"2"].concat();
    until(&sites, "a write", || {
        (set_row(&sites[0], b"theirs", Some(&value)) == Some(Settled::Holds)).then_some(())
    });
    set(&sites, b"next", Some(b"3"));
    let both = [
        (b"own".to_vec(), b"1".to_vec()),
        (b"next".to_vec(), b"3".to_vec()),
    ];
    until_has(&sites, &other, &both.into());
    let came = other.came.load(Ordering::SeqCst);
    assert_eq!(came, 2, "not that of the other cluster, and each once");
}

#[test]
fn another_cluster_in_the_place_of_the_target_gets_nothing() {
    let (sites, other) = clusters(1, 1, 1);
    ask(&sites[0], duplicate()).unwrap();
    set(&sites, b"one", Some(b"1"));
    until_has(&sites, &other, &[(b"one".to_vec(), b"1".to_vec())].into());
    other.is_another.store(true, Ordering::SeqCst);
    // The connections that there are end.
    other.is_away.store(true, Ordering::SeqCst);
    set(&sites, b"two", Some(b"2"));
    until(&sites, "a failure", || info(&sites[0]).problem);
    other.is_away.store(false, Ordering::SeqCst);
    until(&sites, "what keeps it", || {
        let (_, problem) = info(&sites[0]).problem?;
        problem.contains("and not of").then_some(())
    });
    assert_eq!((other.values().len(), info(&sites[0]).lag > 0), (1, true));
    other.is_another.store(false, Ordering::SeqCst);
    let both = [(b"one".to_vec(), b"1".to_vec()), (b"two".to_vec(), b"2".to_vec())];
    until_has(&sites, &other, &both.into());
}

#[test]
fn marks_of_removed_rows_stay_until_all_targets_have_them() {
    let (sites, other) = clusters(1, 1, 1);
    ask(&sites[0], duplicate()).unwrap();
    let forgets = || {
        let partition = sites[0].with(|node, _| match node.cluster().route(0) {
            Route::Here(partition) => Some(partition),
            _ => None,
        });
        partition.map(|partition| partition.forgets_before_ms())
    };
    let first = until(&sites, "that all is sent", || forgets().filter(|time| *time > 0));
    let hour_ago = || RealClock.wall_ms() - 3_600_000;
    assert!(first <= hour_ago(), "they stay for an hour");
    other.is_away.store(true, Ordering::SeqCst);
    set(&sites, b"gone", Some(b"1"));
    set(&sites, b"gone", None);
    until(&sites, "what keeps it", || info(&sites[0]).problem);
    let while_away = forgets();
    // Several looks, which are 3 s apart here.
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(forgets(), while_away);
    other.is_away.store(false, Ordering::SeqCst);
    until(&sites, "that all is sent", || {
        forgets().filter(|time| Some(*time) > while_away)
    });
    assert_eq!(
        other.rows.lock().unwrap()[&b"gone"[..]].1,
        None,
        "it has the removal"
    );
}

#[test]
fn a_cluster_has_so_many_targets_and_no_more() {
    let (mut map, _) = founded(&founding(1, 1, 1));
    let target = |number: u8| Target {
        name: format!("target-{number}"),
        cluster: [number; 16],
        addresses: vec!["a.host:1".to_owned()],
    };
    for number in 1..=8 {
        let changes = map::duplicate(&map, &target(number)).unwrap();
        map = map.with(changes.unwrap());
    }
    let refused = map::duplicate(&map, &target(9)).unwrap_err();
    assert!(
        refused.contains("to 8 others, and can be to no more"),
        "{refused}"
    );
    let ended = map::end_duplication(&map, "target-3").unwrap();
    map = map.with(ended.unwrap());
    let changes = map::duplicate(&map, &target(9)).unwrap();
    map = map.with(changes.unwrap());
    let numbers: Vec<_> = map.duplications.targets.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [1, 2, 4, 5, 6, 7, 8, 9], "none is given twice");
}

#[test]
fn what_is_split_meanwhile_reaches_the_target() {
    let (sites, other) = clusters(1, 1, 1);
    let mut model = BTreeMap::new();
    ask(&sites[0], duplicate()).unwrap();
    for round in 0..4_u8 {
        for number in 0..40 {
            let value = vec![b'a' + round; 3];
            set(&sites, &key(number), Some(&value));
            model.insert(key(number), value);
        }
        set(&sites, &key(usize::from(round)), None);
        model.remove(&key(usize::from(round)));
        let slot = [8192, 4096, 12_288, 2048][usize::from(round)];
        until(&sites, "the split in the map", || {
            ask(&sites[0], NodeRequest::Split(slot)).ok()
        });
    }
    until_has(&sites, &other, &model);
    settled(&sites, 1, 5);
    set(&sites, &key(39), Some(b"last"));
    model.insert(key(39), b"last".to_vec());
    until_has(&sites, &other, &model);
}

#[test]
fn a_target_that_is_none_any_more_gets_nothing() {
    let (sites, other) = clusters(1, 1, 1);
    ask(&sites[0], duplicate()).unwrap();
    set(&sites, b"one", Some(b"1"));
    until_has(&sites, &other, &[(b"one".to_vec(), b"1".to_vec())].into());
    let noted = || {
        let partition = sites[0].with(|node, _| match node.cluster().route(0) {
            Route::Here(partition) => Some(partition),
            _ => None,
        })?;
        let rows = partition.rows_after(None).ok()?;
        let noted =
            rows.filter(|row| matches!(row, Ok(Walked::Row(row)) if row.slot == 0 && row.row[0] == b'p'));
        Some(noted.count())
    };
    until(&sites, "its position", || noted().filter(|count| *count == 1));
    ask(&sites[0], NodeRequest::EndDuplication("second".to_owned())).unwrap();
    until(&sites, "the end in the map", || {
        let none = sites[0].with(|node, _| node.cluster().duplications().is_empty());
        none.then_some(())
    });
    set(&sites, b"two", Some(b"2"));
    until(&sites, "the end of its position", || {
        noted().filter(|count| *count == 0)
    });
    assert_eq!(other.values().len(), 1);
    // Named again, it gets all that it lacks.
    ask(&sites[0], duplicate()).unwrap();
    let both = [(b"one".to_vec(), b"1".to_vec()), (b"two".to_vec(), b"2".to_vec())];
    until_has(&sites, &other, &both.into());
}

#[test]
fn duplications_that_cannot_be_are_refused() {
    let (sites, other) = clusters(1, 1, 1);
    let refused = |request: NodeRequest, text: &str| {
        let problem = ask(&sites[0], request).unwrap_err();
        assert!(problem.contains(text), "{text}: {problem}");
    };
    let add = |name: &str, addresses: &[&str]| NodeRequest::Duplicate {
        name: name.to_owned(),
        addresses: addresses.iter().map(|one| (*one).to_owned()).collect(),
    };
    refused(add("a b", &NODES), "letters, digits");
    refused(add("", &NODES), "letters, digits");
    refused(
        add("x", &["nowhere.example:1"]),
        "nowhere.example:1 cannot be asked",
    );
    refused(add("x", &[NODES[0], "two.example"]), "expected HOST:PORT");
    refused(add("x", &[NODES[0]; 17]), "1 to 16 addresses");
    let mut own = sites[0].map().unwrap().cluster.id;
    refused(NodeRequest::Receive(own), "to itself");
    own[15] ^= 1;
    refused(NodeRequest::Receive(own), "begin alike");
    refused(
        NodeRequest::EndDuplication("second".to_owned()),
        "is duplicated to no other one",
    );
    *other.says.lock().unwrap() = Some("ERR unknown command 'COLLIE.DUPLICATE'".to_owned());
    refused(duplicate(), "older version");
    *other.says.lock().unwrap() = Some("ERR the cluster has feature level 4".to_owned());
    refused(duplicate(), "has refused: ERR the cluster has feature level 4");
    *other.says.lock().unwrap() = None;
    ask(&sites[0], duplicate()).unwrap();
    refused(add("third", &NODES), "a target has one name");
    other.is_another.store(true, Ordering::SeqCst);
    refused(add("second", &NODES), "take another name");
    other.is_another.store(false, Ordering::SeqCst);
    refused(NodeRequest::EndDuplication("third".to_owned()), "but to second");
    // Other addresses of the same are taken.
    ask(&sites[0], add("second", &[NODES[1]])).unwrap();
    until(&sites, "the other address", || {
        (info(&sites[0]).addresses == [NODES[1]]).then_some(())
    });
    set(&sites, b"one", Some(b"1"));
    until_has(&sites, &other, &[(b"one".to_vec(), b"1".to_vec())].into());
}

#[test]
fn an_older_level_duplicates_nothing() {
    let sites = sites(1);
    let mut options = sites[0].options();
    options.spoken = 1..=LEVEL_OF_DUPLICATION - 1;
    sites[0].try_start(options, bootstrap(1, 1)).unwrap();
    settled(&sites, 1, 1);
    let name = || "x".to_owned();
    let (end, pause) = (
        NodeRequest::EndDuplication(name()),
        NodeRequest::PauseDuplication(name()),
    );
    let resume = NodeRequest::ResumeDuplication(name());
    for request in [duplicate(), NodeRequest::Receive([1; 16]), end, pause, resume] {
        let problem = ask(&sites[0], request).unwrap_err();
        assert!(problem.contains("from level 5 on"), "{problem}");
    }
}
