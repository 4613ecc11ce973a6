//! Room that is kept back on each disk for what makes room there.
//!
//! What is removed is gone from a disk when it is in tables: the flush that brings the removals there lets
//! the logs go, and a merge removes what they hide. Both need some room first. So there is one reserve for
//! all stores on a disk, and while it is missing, the logs there take no more room, and refuse writes.

use std::path::Path;
use std::sync::{Arc, Weak};

use collie_db::{DiskReserve, Options, RoomUser};

use crate::node::router::Router;
use crate::raftlog::disk;

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
    let reserve = |(number, dir): (usize, &_)| reserve(router, number, AsRef::<Path>::as_ref(dir), db);
    disks.iter().enumerate().map(reserve).collect()
}

fn reserve(router: &Arc<Router>, number: usize, dir: &Path, db: &Options) -> Option<DiskReserve> {
    let bytes = db.reserve_bytes.unwrap_or_else(|| {
        let flush = db.default_family.write_buffer_bytes + SMALL_WORK;
        disk(&*db.device, dir).map_or(flush, |(size, _)| flush.min(size / OF_DISK))
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
