//! What a replica writes for each byte that it is given: one time to the log, and one time to its
//! tables. Alone in its process, whose write calls are counted.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;

use collie_cluster::NodeLogOptions;
use collie_cluster::testing::proposals::{Header, RunId, Ticket};
use collie_cluster::testing::replica_store::effects::{Effect, EffectsBuf};
use collie_cluster::testing::replica_store::{Change, MachineOptions, Runs, data_key};
use collie_cluster::testing::{Entry, EntryId, LeaderId, NodeLog, open_machine};
use collie_log::{LogOptions, RingMode};
use collie_sim::SimDevice;

/// Bytes in write calls of this process so far.
fn written() -> u64 {
    let counted = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = counted.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.unwrap().parse().unwrap()
}

fn entry(index: u64) -> (Entry, u64) {
    let leader = LeaderId { term: 1, replica: 1 };
    let run = RunId { leader, run: 1 };
    let header = Header::of(Ticket { run, n: index as u32 }, 0, 0);
    let (key, value) = (index.to_be_bytes(), [index as u8; 1_000]);
    let mut effects = EffectsBuf::default();
    let put = Effect::Put {
        slot: 7,
        key: &key,
        value: &value,
    };
    effects.push(put).unwrap();
    let entry = Entry {
        id: EntryId { leader, index },
        payload: [&header.encode()[..], effects.bytes()].concat().into(),
    };
    (entry, (key.len() + value.len()) as u64)
}

#[test]
fn each_byte_is_written_once_to_the_log_and_once_to_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    // In memory: what a log writes beside its frames, such as zeros ahead of them, is not the subject.
    let log = LogOptions {
        device: Arc::new(SimDevice::new(1)),
        ring: RingMode::Private,
        ring_bytes: 4 << 20,
        segment_bytes: 64 << 20,
        reserve_bytes: Some(0),
        ..LogOptions::default()
    };
    let options = NodeLogOptions {
        log,
        ..NodeLogOptions::default()
    };
    let node = NodeLog::open("/log", options).unwrap();
    runtime.spawn(node.run());
    let replica = runtime.block_on(node.create(1, 1)).unwrap();
    let mut options = MachineOptions::new(Arc::new(Runs));
    options.db.reserve_bytes = Some(0);
    options.db.default_family.write_buffer_bytes = 4 << 20;
    // No merge: it would write again.
    options.db.default_family.level0_compaction = 20;
    let machine = open_machine(dir.path().join("replica"), replica.clone(), options);
    let machine = runtime.block_on(machine).unwrap();
    let (before, log_before, mut given) = (written(), node.log().appended(), 0);
    for index in 1..=16 << 10 {
        let (entry, bytes) = entry(index);
        given += bytes;
        runtime
            .block_on(replica.append(vec![entry.clone()], |_| {}))
            .unwrap();
        machine.apply(entry.id, Change::Effects(&entry.payload)).unwrap();
    }
    machine.flush().unwrap();
    let written = written() - before;
    let log = node.log().appended() - log_before;
    let tables = machine.db().stats().families["default"].table_bytes;
    println!("{given} bytes were given, {log} are in the log, {tables} in tables, the store wrote {written}");
    assert!(
        machine
            .db()
            .get(data_key(7, &9_u64.to_be_bytes()))
            .unwrap()
            .is_some()
    );
    assert!(
        log >= given && log * 100 <= given * 118,
        "{log} in the log, of {given}"
    );
    assert!(
        tables >= given && tables * 100 <= given * 108,
        "{tables} in tables, of {given}"
    );
    assert!(
        written * 100 <= (log + tables) * 105,
        "{written} for {log} and {tables}"
    );
}
