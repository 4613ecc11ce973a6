//! Room on the disks of a node.
//!
//! Some is kept back on each disk for what makes room there. What is removed is gone from a disk when it is in
//! tables: the flush that brings the removals there lets the logs go, and a merge removes what they hide. Both
//! need some room first. So there is one reserve for all stores on a disk, and while it is missing, the logs
//! there take no more room, and refuse writes.
//!
//! Where a log's disk is full, or the log is too long for seconds, or tables have no room, leaders hand over to
//! members that have room. All that have their tables on that disk look for room there. And what was refused for
//! want of room learns that there may be some.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use collie_db::{DiskReserve, Options, RoomUser};
use collie_io::file_system_bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::beat::Beat;
use crate::blocking::blocking;
use crate::node::router::Router;
use crate::raft::{Replica, count};
use crate::raftlog::NodeLog;

/// From one look at the room of the logs to the next.
const LOOK: Duration = Duration::from_millis(500);
/// While a disk is short of it, or something was refused.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(200);
/// Leaders hand over once there was no room for so long: what frees some at once is worth a wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// A log that had no room within this time takes over no leadership, lest it goes to and fro.
const SETTLED: Duration = Duration::from_secs(10);
/// So many leaders hand over at a time.
const AT_A_TIME: usize = 16;

/// What was seen of a log.
#[derive(Default)]
struct LogSeen {
    /// Since when it takes no writes.
    since: Option<Instant>,
    /// When it was last seen to be.
    last: Option<Instant>,
    /// Whether that was said. On a nearly full disk there is room, and none, several times a second.
    is_said: bool,
}

/// Follows whether the logs find room on their disks, and below their limits, for as long as it is
/// polled. Each disk has its reserve.
pub(super) async fn watch_room(
    router: Arc<Router>,
    disks: Vec<(PathBuf, Option<DiskReserve>)>,
    changes: watch::Sender<u64>,
    beat: Beat,
) {
    let mut ticks = beat.every(LOOK);
    let mut seen = BTreeMap::<PathBuf, LogSeen>::new();
    let mut is_short = false;
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => {}
            () = sleep(LOOK_FOR_ROOM), if is_short => {}
        }
        let logs = router.store.logs().into_iter();
        let looks = logs.map(|log| {
            let before = seen.remove(log.dir()).unwrap_or_default();
            look(log, before, &router)
        });
        let looks: FuturesUnordered<_> = looks.collect();
        seen = looks.collect().await;
        is_short = seen.values().any(|seen| seen.since.is_some());
        for (number, (dir, reserve)) in disks.iter().enumerate() {
            if let Some(reserve) = reserve.clone().filter(DiskReserve::is_missing) {
                is_short = true;
                // The stores do it after their own work, and there may be none.
                blocking(move || reserve.fill()).await;
            }
            if router.store.is_short_of_room(number) {
                is_short = true;
                let replicas = router.replicas().into_iter();
                for replica in replicas.filter(|replica| replica.is_in(dir)) {
                    replica.look_for_room().await;
                }
            }
        }
        stream::iter(router.replicas())
            .for_each_concurrent(AT_A_TIME, async |replica| {
                _ = replica.withdraw_what_has_no_room().await;
            })
            .await;
        if router.store.has_refused() {
            is_short = true;
            // What was refused may be taken by now.
            count(&changes);
        }
    }
}

async fn look(log: NodeLog, seen: LogSeen, router: &Router) -> (PathBuf, LogSeen) {
    let LogSeen {
        mut since,
        mut last,
        mut is_said,
    } = seen;
    match (&log.takes_no_writes(), since) {
        (Some(full), None) => {
            if !std::mem::replace(&mut is_said, true) {
                tracing::error!(error = %full, "a log of this node has no room: its replicas take no writes");
            }
            since = Some(Instant::now());
        }
        (None, Some(_)) => {
            since = None;
            replicas(&log, router).for_each(|replica| replica.set_has_room_for_vote(true));
        }
        _ => {}
    }
    if since.is_some() {
        last = Some(Instant::now());
    }
    let is_settled = last.is_none_or(|last| last.elapsed() >= SETTLED);
    log.set_may_take_over(is_settled);
    if is_settled && std::mem::take(&mut is_said) {
        tracing::info!(log = ?log, "a log of this node has room again, and had it for {} s", SETTLED.as_secs());
    }
    if since.is_some() {
        replicas(&log, router).for_each(|replica| replica.look_for_room_for_vote());
    }
    let is_late = since.is_some_and(|since| since.elapsed() >= PATIENCE);
    // Who asked another replica to lead goes on until one does: raft takes no proposals meanwhile.
    let leave = replicas(&log, router)
        .filter(|replica| is_late || replica.waits_for_tables(PATIENCE) || replica.is_handing_over());
    let leave: Vec<_> = leave.collect();
    stream::iter(leave)
        .for_each_concurrent(AT_A_TIME, async |replica| _ = replica.hand_over().await)
        .await;
    let seen = LogSeen { since, last, is_said };
    (log.dir().to_owned(), seen)
}

/// The replicas of a log that are open.
fn replicas(log: &NodeLog, router: &Router) -> impl Iterator<Item = Arc<Replica>> {
    let all = log.replicas().into_iter();
    all.filter_map(|replica| router.replica(replica.replica()))
}

/// The directory of the state machines, on each disk.
pub(super) const MACHINES: &str = "replicas";
/// The reserve's file, among them.
const RESERVE: &str = "RESERVE";
/// By default it has room for the largest flush, and so much for changes of manifests; and no more than
/// such a part of its disk.
const SMALL_WORK: u64 = 4 << 20;
const OF_DISK: u64 = 8;

/// The logs on a disk, as users of its room.
struct Logs {
    /// It ends with the node, whose stores have the reserve for longer.
    router: Weak<Router>,
    disk: usize,
}

impl RoomUser for Logs {
    fn withhold_room(&self, withheld: bool) {
        if let Some(router) = self.router.upgrade() {
            router.store.withhold_room(self.disk, withheld);
        }
    }

    fn give_up_spares(&self) -> bool {
        let router = self.router.upgrade();
        router.is_some_and(|router| router.store.give_up_spares(self.disk))
    }
}

/// Takes the room of the reserve of each disk, as far as it is there. None has one where the options of the
/// stores say that nothing is kept back. Blocks.
pub(super) fn reserves(
    router: &Arc<Router>,
    disks: &[impl AsRef<Path>],
    db: &Options,
) -> Vec<Option<DiskReserve>> {
    let layouts = router.store.layouts();
    let is_absent = |number: usize| u32::try_from(number).is_ok_and(|disk| layouts.absent().contains(&disk));
    let reserve = |(number, dir): (usize, &_)| match is_absent(number) {
        true => None,
        false => reserve(router, number, AsRef::<Path>::as_ref(dir), db),
    };
    disks.iter().enumerate().map(reserve).collect()
}

fn reserve(router: &Arc<Router>, number: usize, dir: &Path, db: &Options) -> Option<DiskReserve> {
    let bytes = db.reserve_bytes.unwrap_or_else(|| {
        let flush = db.default_family.write_buffer_bytes + SMALL_WORK;
        flush.min(file_system_bytes(&*db.device, dir) / OF_DISK)
    });
    if bytes == 0 {
        return None;
    }
    let machines = dir.join(MACHINES);
    if let Err(error) = db.device.create_dir_all(&machines) {
        tracing::warn!(dir = %machines.display(), %error, "no room is kept back on a disk");
        return None;
    }
    let logs = Logs {
        router: Arc::downgrade(router),
        disk: number,
    };
    let reserve = DiskReserve::new(
        Arc::clone(&db.device),
        machines.join(RESERVE),
        bytes,
        Arc::new(logs),
    );
    reserve.fill();
    Some(reserve)
}
