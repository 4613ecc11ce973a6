//! The node's own store, and the records in it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{Db, Error, Family, FamilyOptions, Options};
use collie_io::{Device, Reserve};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::identity::error::IdentityError;
use crate::ids::ReplicaId;
use crate::layouts::{Layout, Layouts};
use crate::raftlog::EntryDurability;
use crate::transport::wire::{ClusterId, NodeId};

/// Its directory, in the node's.
const DIR: &str = "node";
/// The family that the node's records are in.
const FAMILY: &str = "cluster";
const VERSION: u8 = 1;
const ASKED: &[u8] = b"asked";
const IDENTITY: &[u8] = b"identity";
/// Whether the clock of the machine was off when it was last compared.
const CLOCK_OFF: &[u8] = b"clock-off";
/// Which logs its replicas are to be in.
const LAYOUT: &[u8] = b"layout";
/// Which replicas may have lost entries.
const LOSSES: &[u8] = b"losses";
/// The disks that have nothing which the node needs.
const EMPTIED: &[u8] = b"emptied";
const REPLICA: &[u8] = b"replica/";
/// Room that is kept back for the opening of the store, in the node's directory and in bytes: what else is on the disk
/// may fill it, and goes only with a node that runs.
const RESERVE: &str = "node.reserve";
const RESERVE_BYTES: u64 = 4 << 20;

/// The store in `node/` of the node's directory, open. Its lock keeps other processes off. All of its
/// calls block, and what they write is durable when they return.
#[derive(Clone)]
pub(crate) struct IdentityStore {
    db: Db,
    family: Family,
    dir: PathBuf,
    reserve: Arc<Reserve>,
    device: Arc<dyn Device>,
    /// Held while the identity is read and written again.
    changing: Arc<Mutex<()>>,
}

impl IdentityStore {
    /// Opens the store, or makes an empty one.
    ///
    /// # Errors
    /// [`IdentityError::InUse`], [`IdentityError::Store`].
    pub(crate) fn open(dir: &Path, options: Options) -> Result<Self, IdentityError> {
        let path = dir.join(DIR);
        let wrong = |error| match error {
            Error::Locked { .. } => IdentityError::InUse { dir: dir.to_owned() },
            error => IdentityError::Store {
                dir: dir.join(DIR),
                error,
            },
        };
        let device = Arc::clone(&options.device);
        let reserve = Reserve::new(dir.join(RESERVE), RESERVE_BYTES);
        let db = match Db::open(&path, options.clone()) {
            Err(Error::StorageFull { .. }) if reserve.give_up(&*device).is_ok_and(|given| given) => {
                tracing::warn!(dir = %dir.display(), "the disk is full: the node's own store opens in what is kept back for it");
                Db::open(&path, options)
            }
            opened => opened,
        };
        let db = db.map_err(wrong)?;
        let family = db.open_family(FAMILY, FamilyOptions::default()).map_err(wrong)?;
        let dir = dir.to_owned();
        Ok(Self {
            db,
            family,
            dir,
            reserve: Arc::new(reserve),
            device,
            changing: Arc::default(),
        })
    }

    /// Keeps room back for the next opening, as far as the disk has it. Says whether all is there. A device that fails
    /// gives none.
    pub(crate) fn keep_room(&self) -> bool {
        self.reserve.fill(&*self.device).unwrap_or(true)
    }

    /// The store, for the server, which has other families of it.
    #[must_use]
    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    /// What the node has asked to join by.
    ///
    /// # Errors
    /// [`IdentityError::Store`], [`IdentityError::Record`].
    pub(crate) fn asked(&self) -> Result<Option<Asked>, IdentityError> {
        self.get("what it asked to join by", ASKED)
    }

    /// Stores what the node asks to join by.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn set_asked(&self, asked: &Asked) -> Result<(), IdentityError> {
        self.put("what it asked to join by", ASKED, asked)
    }

    /// Who the node is.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn identity(&self) -> Result<Option<NodeIdentity>, IdentityError> {
        self.get("its identity", IDENTITY)
    }

    /// Stores who the node is.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn set_identity(&self, identity: &NodeIdentity) -> Result<(), IdentityError> {
        self.put("its identity", IDENTITY, identity)
    }

    /// Changes what is stored of who the node is.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn change_identity(
        &self,
        change: impl FnOnce(&mut NodeIdentity),
    ) -> Result<(), IdentityError> {
        let _others = self.changing.lock();
        match self.identity()? {
            Some(mut identity) => {
                change(&mut identity);
                self.set_identity(&identity)
            }
            None => Ok(()),
        }
    }

    /// Whether a replica was made on this node. One that was, and is not there any more, must not be
    /// made again under its id: it may have voted.
    ///
    /// # Errors
    /// [`IdentityError::Store`].
    pub(crate) fn was_made(&self, replica: ReplicaId) -> Result<bool, IdentityError> {
        let found = self.family.get(replica_key(replica));
        Ok(found.map_err(|error| self.wrong(error))?.is_some())
    }

    /// Stores that a replica was made on this node.
    ///
    /// # Errors
    /// [`IdentityError::Store`].
    pub(crate) fn set_made(&self, replica: ReplicaId) -> Result<(), IdentityError> {
        let options = collie_db::WriteOptions::disk();
        let put = self.family.put_with(replica_key(replica), [VERSION], &options);
        put.map(drop).map_err(|error| self.wrong(error))
    }

    /// Whether the clock of the machine was off when it was last compared with those of other nodes.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn clock_was_off(&self) -> Result<bool, IdentityError> {
        Ok(self.get("whether its clock was off", CLOCK_OFF)?.unwrap_or(false))
    }

    /// Stores whether it is.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn set_clock_off(&self, is_off: bool) -> Result<(), IdentityError> {
        self.put("whether its clock is off", CLOCK_OFF, &is_off)
    }

    /// Which logs the node's replicas are to be in.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn layout(&self) -> Result<Option<LayoutRecord>, IdentityError> {
        self.get("its layout", LAYOUT)
    }

    /// Stores which logs they are to be in.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn set_layout(&self, layout: &LayoutRecord) -> Result<(), IdentityError> {
        self.put("its layout", LAYOUT, layout)
    }

    /// What the node knows of entries that did not wait for the disk.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn losses(&self) -> Result<LossRecord, IdentityError> {
        Ok(self.get("what it may have lost", LOSSES)?.unwrap_or_default())
    }

    /// Stores what it knows of them.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn set_losses(&self, losses: &LossRecord) -> Result<(), IdentityError> {
        self.put("what it may have lost", LOSSES, losses)
    }

    /// The disks that have nothing which the node needs: it may be started without them.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn emptied(&self) -> Result<BTreeSet<u32>, IdentityError> {
        Ok(self.get("its empty disks", EMPTIED)?.unwrap_or_default())
    }

    /// Stores which disks have nothing that the node needs.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn set_emptied(&self, disks: &BTreeSet<u32>) -> Result<(), IdentityError> {
        self.put("its empty disks", EMPTIED, disks)
    }

    /// Closes the store, unless the server has closed it.
    ///
    /// # Errors
    /// [`IdentityError::Store`].
    pub(crate) fn close(self) -> Result<(), IdentityError> {
        let dir = self.dir.clone();
        match self.db.close() {
            Ok(()) | Err(Error::Closed) => Ok(()),
            Err(error) => Err(IdentityError::Store { dir, error }),
        }
    }

    fn wrong(&self, error: Error) -> IdentityError {
        let dir = self.dir.join(DIR);
        IdentityError::Store { dir, error }
    }

    fn record(&self, what: &'static str, problem: String) -> IdentityError {
        IdentityError::Record {
            dir: self.dir.join(DIR),
            what,
            problem,
        }
    }

    fn get<T: DeserializeOwned>(&self, what: &'static str, key: &[u8]) -> Result<Option<T>, IdentityError> {
        let Some(value) = self.family.get(key).map_err(|error| self.wrong(error))? else {
            return Ok(None);
        };
        let Some((&VERSION, record)) = value.split_first() else {
            let found = value
                .first()
                .map_or("nothing".to_owned(), |version| version.to_string());
            let problem = format!(
                "expected version {VERSION}, found {found}: run the version of the program that wrote it, or a later \
                 one"
            );
            return Err(self.record(what, problem));
        };
        match postcard::take_from_bytes(record) {
            Ok((record, [])) => Ok(Some(record)),
            Ok((_, more)) => {
                Err(self.record(what, format!("expected its end, found {} bytes more", more.len())))
            }
            Err(error) => Err(self.record(what, format!("it cannot be read: {error}"))),
        }
    }

    fn put<T: Serialize>(&self, what: &'static str, key: &[u8], record: &T) -> Result<(), IdentityError> {
        let value = postcard::to_extend(record, vec![VERSION]);
        let value = value.map_err(|error| self.record(what, error.to_string()))?;
        // A store whose options make writes less durable is asked for more.
        let put = self.family.put_with(key, value, &collie_db::WriteOptions::disk());
        put.map(drop).map_err(|error| self.wrong(error))
    }
}

/// Whether a directory is that of a node: its store says which one. A directory that became one only
/// in part is none, whatever its disks are marked with. No process may have the directory open. Blocks.
///
/// # Errors
/// [`IdentityError::InUse`], [`IdentityError::Store`], [`IdentityError::Record`].
pub fn is_node(dir: &Path, options: Options) -> Result<bool, IdentityError> {
    let store = IdentityStore::open(dir, options)?;
    let identity = store.identity();
    store.close()?;
    Ok(identity?.is_some())
}

fn replica_key(replica: ReplicaId) -> Vec<u8> {
    [REPLICA, &replica.to_be_bytes()].concat()
}

impl std::fmt::Debug for IdentityStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentityStore")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// What a node asks to join by, or makes a cluster with: stored before the first attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Drawn at random.
    pub token: [u8; 16],
    /// Where other nodes reach it.
    pub peer: SocketAddr,
    /// Where clients reach it.
    pub client: SocketAddr,
    /// The identities of its disks, drawn at random, in their order.
    pub disks: Vec<[u8; 16]>,
}

/// Who a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its number.
    pub node: NodeId,
    /// Its replica of group 0.
    pub replica: ReplicaId,
    /// The newest feature level that the cluster may have, as far as was noted.
    pub level: u32,
    /// What it has joined by.
    pub asked: Asked,
    /// Of the node that made the cluster: replicas of each partition, partitions, and voters of group
    /// 0, for the first entry of the map.
    pub founded: Option<(u8, u16, u8)>,
}

/// Entries that replicas of a node acknowledged before they were on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossRecord {
    /// What entries wait for.
    pub entries: EntryDurability,
    /// Logs that have lost some, on a disk, and of one replica or of many: which replicas are in them is not stored yet.
    pub logs: BTreeSet<(u32, Option<ReplicaId>)>,
    /// The replicas that may have lost some, and do not vote.
    pub replicas: BTreeSet<ReplicaId>,
}

/// Which logs a node's replicas are to be in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayoutRecord {
    /// What the node was last started with.
    pub option: Layout,
    /// What was asked for since.
    pub layouts: Layouts,
}

impl LayoutRecord {
    /// With a node that is started with this option: one that is another than the last time counts for all.
    pub(crate) fn started(stored: Option<Self>, option: Layout) -> Self {
        let same = stored.filter(|stored| stored.option == option);
        same.unwrap_or_else(|| Self {
            option,
            layouts: option.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use collie_db::RingMode;
    use collie_sim::SimDevice;

    use super::*;
    use crate::fixtures::fixture;

    /// What is set is what the file has, and what the file has is read.
    fn check<T: Debug + PartialEq>(
        store: &IdentityStore,
        key: &[u8],
        value: T,
        set: impl Fn(&IdentityStore, &T) -> Result<(), IdentityError>,
        get: impl Fn(&IdentityStore) -> Result<T, IdentityError>,
    ) {
        set(store, &value).unwrap();
        let now = store.family.get(key).unwrap().unwrap();
        let name = key.split(|byte| *byte == b'/').next().unwrap().escape_ascii();
        let bytes = fixture(&format!("identity-v1/{name}.bin"), &now);
        store.family.delete(key).unwrap();
        store.family.put(key, bytes).unwrap();
        assert_eq!(get(store).unwrap(), value, "{name}");
    }

    /// Nothing makes room but a node that runs.
    #[test]
    fn it_opens_on_a_full_disk_again_and_again() {
        // The table library has its files there, whatever the device.
        let (dir, device) = (tempfile::tempdir().unwrap(), SimDevice::new(1));
        let dir = dir.path();
        device.create_dir_all(dir).unwrap();
        let open = || {
            let options = Options {
                device: Arc::new(device.clone()),
                ring: RingMode::Private,
                ring_bytes: 1 << 20,
                segment_bytes: 1 << 20,
                reserve_bytes: Some(0),
                ..Options::default()
            };
            IdentityStore::open(dir, options)
        };
        let store = open().unwrap();
        assert!(store.keep_room());
        store.close().unwrap();
        for restart in 0..4 {
            device.limit_space(Some(0));
            let store = open().unwrap();
            store.set_made(restart).unwrap();
            assert!(!store.keep_room());
            store.close().unwrap();
        }
        device.limit_space(None);
        assert!(open().unwrap().keep_room());
    }

    #[test]
    fn records_of_version_1_say_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            ring: RingMode::Private,
            reserve_bytes: Some(0),
            ..Options::default()
        };
        let store = IdentityStore::open(dir.path(), options).unwrap();
        let asked = Asked {
            token: *b"a token of tests",
            peer: "192.0.2.1:7001".parse().unwrap(),
            client: "[2001:db8::2]:6379".parse().unwrap(),
            disks: vec![*b"the first disk..", *b"the second disk."],
        };
        let identity = NodeIdentity {
            cluster: *b"cluster of tests",
            node: 300,
            replica: 70_000,
            level: 2,
            asked: asked.clone(),
            founded: Some((3, 400, 5)),
        };
        check(
            &store,
            b"asked",
            Some(asked),
            |store, asked| store.set_asked(asked.as_ref().unwrap()),
            IdentityStore::asked,
        );
        check(
            &store,
            b"identity",
            Some(identity),
            |store, identity| store.set_identity(identity.as_ref().unwrap()),
            IdentityStore::identity,
        );
        check(
            &store,
            b"clock-off",
            true,
            |store, is_off| store.set_clock_off(*is_off),
            IdentityStore::clock_was_off,
        );
        let mut layouts = Layouts::from(Layout::PerDisk);
        layouts.set_disk(1, Layout::Private, &[]);
        layouts.set_replica(70_001, 0, Layout::Shared);
        let layout = LayoutRecord {
            option: Layout::Shared,
            layouts,
        };
        check(
            &store,
            b"layout",
            Some(layout),
            |store, layout| store.set_layout(layout.as_ref().unwrap()),
            IdentityStore::layout,
        );
        let losses = LossRecord {
            entries: EntryDurability::Process,
            logs: BTreeSet::from([(1, None), (2, Some(400))]),
            replicas: BTreeSet::from([300, 70_000]),
        };
        check(
            &store,
            b"losses",
            losses,
            IdentityStore::set_losses,
            IdentityStore::losses,
        );
        check(
            &store,
            b"emptied",
            BTreeSet::from([1, 300]),
            IdentityStore::set_emptied,
            IdentityStore::emptied,
        );
        let key = b"replica/\0\0\0\0\0\0\x02\x01";
        check(
            &store,
            key,
            true,
            |store, _| store.set_made(513),
            |store| store.was_made(513),
        );
        store.close().unwrap();
    }
}
