//! A log with its own threads: who waits for what, and on which thread.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use collie_cluster::NodeLogOptions;
use collie_cluster::testing::{Entry, EntryId, LeaderId, NodeLog, StoreError, Vote};
use collie_log::{LogOptions, RingMode, WritePath};
use collie_sim::{Fault, FaultKind, SimDevice};

const DIR: &str = "/data/log";

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn open(device: &SimDevice) -> NodeLog {
    let log = LogOptions {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 8,
        write_path: WritePath::FdataSync,
        ..LogOptions::default()
    };
    let options = NodeLogOptions {
        log,
        ..NodeLogOptions::default()
    };
    NodeLog::open(DIR, options).unwrap()
}

/// The task of a log, on a thread.
fn run(log: &NodeLog) -> std::thread::JoinHandle<StoreError> {
    let task = log.run();
    std::thread::spawn(move || block_on(task))
}

const LEADER: LeaderId = LeaderId { term: 1, replica: 1 };

fn entry(index: u64, len: usize) -> Vec<Entry> {
    let id = EntryId {
        leader: LEADER,
        index,
    };
    vec![Entry {
        id,
        payload: vec![index as u8; len].into(),
    }]
}

fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not within 10 s: {what}");
}

#[test]
fn entries_can_be_read_at_once_and_called_back_when_durable() {
    let device = SimDevice::new(1);
    let log = open(&device);
    let task = run(&log);
    let replica = block_on(log.create(1, 1)).unwrap();
    let gate = device.hold_syncs();
    let called = Arc::new(AtomicUsize::new(0));
    for index in 0..10 {
        let called = Arc::clone(&called);
        let done = move |answer: Result<(), StoreError>| {
            answer.unwrap();
            called.fetch_add(1, Ordering::SeqCst);
        };
        block_on(replica.append(entry(index, 10), done)).unwrap();
    }
    assert_eq!(replica.read(0..20).unwrap().len(), 10);
    gate.wait_for(1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(called.load(Ordering::SeqCst), 0, "called before the sync");
    // A vote is not saved either.
    let vote = Vote {
        leader: LEADER,
        committed: true,
    };
    let mut voted = pin!(replica.save_vote(vote));
    assert!(poll_once(voted.as_mut()).is_pending());
    gate.release();
    block_on(voted).unwrap();
    until("all are called", || called.load(Ordering::SeqCst) == 10);
    log.close().unwrap();
    task.join().unwrap();
}

/// The device stands still, and the ring is full: the thread that appends gets its future back.
#[test]
fn an_append_without_room_does_not_hold_its_thread() {
    let device = SimDevice::new(2);
    let log = open(&device);
    let task = run(&log);
    let replica = block_on(log.create(1, 1)).unwrap();
    let gate = device.hold_writes();
    let mut index = 0;
    let mut waiting = loop {
        assert!(index < 1_000, "the ring is never full");
        let mut append = Box::pin(replica.append(entry(index, 5_000), |_| {}));
        match poll_once(append.as_mut()) {
            Poll::Ready(done) => done.unwrap(),
            Poll::Pending => break append,
        }
        index += 1;
    };
    // What it waits with holds no lock.
    assert_eq!(replica.bounds().last.map(|last| last.index), index.checked_sub(1));
    gate.release();
    block_on(&mut waiting).unwrap();
    assert_eq!(replica.bounds().last.map(|last| last.index), Some(index));
    drop(waiting);
    log.close().unwrap();
    task.join().unwrap();
}

#[test]
fn many_replicas_append_at_once_and_come_back_whole() {
    let device = SimDevice::new(3);
    let log = open(&device);
    let task = run(&log);
    let called = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for id in 1..=6 {
            let (log, called) = (log.clone(), Arc::clone(&called));
            scope.spawn(move || {
                let replica = block_on(log.create(id, id)).unwrap();
                for index in 0..200 {
                    let called = Arc::clone(&called);
                    let done = move |answer: Result<(), StoreError>| {
                        answer.unwrap();
                        called.fetch_add(1, Ordering::SeqCst);
                    };
                    block_on(replica.append(entry(index, 50 * id as usize), done)).unwrap();
                    if index % 50 == 49 {
                        let through = EntryId {
                            leader: LEADER,
                            index: index - 30,
                        };
                        block_on(replica.purge(through)).unwrap();
                        block_on(replica.rewrite(true)).unwrap();
                    }
                }
            });
        }
    });
    until("all are called", || called.load(Ordering::SeqCst) == 1_200);
    log.close().unwrap();
    task.join().unwrap();
    let log = open(&device);
    assert!(log.quarantined().is_empty());
    for replica in log.replicas() {
        let id = replica.replica() as usize;
        let entries = replica.read(0..u64::MAX).unwrap();
        let indexes: Vec<_> = entries.iter().map(|entry| entry.id.index).collect();
        assert_eq!(indexes, (170..200).collect::<Vec<_>>());
        assert!(
            entries
                .iter()
                .all(|entry| *entry.payload == vec![entry.id.index as u8; 50 * id])
        );
    }
    assert_eq!(log.replicas().len(), 6);
}

/// A failed sync is final: all that waits hears of it, and nothing is called back as done.
#[test]
fn a_failed_log_tells_all_that_wait() {
    let device = SimDevice::new(4);
    let log = open(&device);
    let task = run(&log);
    let replica = block_on(log.create(1, 1)).unwrap();
    device.inject(Fault::new(FaultKind::SyncFails));
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = move |answer: Result<(), StoreError>| sender.send(answer.is_ok()).unwrap();
    block_on(replica.append(entry(0, 10), done)).unwrap();
    assert!(!receiver.recv_timeout(Duration::from_secs(10)).unwrap());
    assert!(matches!(task.join().unwrap(), StoreError::Log(_)));
    let late = block_on(replica.append(entry(1, 10), |_| {}));
    assert!(late.is_err());
}
