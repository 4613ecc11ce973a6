//! A child that is forked from a process with an open store gets a typed error for whatever it
//! tries, and leaves its parent's store alone. (Both had been acknowledged at the same LSNs, into
//! the same files.)
//!
//! Shown with real processes. The child runs no destructor but those that are tested, and reports
//! by its exit status.

#![expect(clippy::disallowed_methods, reason = "looks at files from outside")]

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use collie_db::{Batch, Db, Durability, Error, FamilyOptions, Options, TransactionOptions, WriteOptions};

/// One at a time: a child holds, until it ends, the locks that any thread of its parent had.
static ONE: Mutex<()> = Mutex::new(());

/// Exit statuses of a child, beside 0.
const WRONG: i32 = 1;
const PANICKED: i32 = 2;

/// Runs `run` in a child process, which must end with `Ok`.
fn in_child(run: impl FnOnce() -> Result<(), String>) {
    #[expect(unsafe_code, reason = "the point of the test")]
    // SAFETY: what the child does is what is tested; it leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let status = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(Ok(())) => 0,
            Ok(Err(problem)) => {
                // Past what the test harness collects, which would be lost here.
                let _ = writeln!(std::io::stderr(), "in the child: {problem}");
                WRONG
            }
            Err(_) => PANICKED,
        };
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: ends the process at once.
        unsafe {
            libc::_exit(status)
        };
    }
    let mut status = 0;
    // Only a child that hangs takes so long.
    for _ in 0..6_000 {
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: waits for the child from above.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            assert_eq!(status, 0, "the child's status");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    #[expect(unsafe_code, reason = "ends the test's own child")]
    // SAFETY: it was not waited for, so its id is still its own.
    unsafe {
        libc::kill(child, libc::SIGKILL)
    };
    panic!("the child did not end within a minute");
}

fn refused<T>(what: &str, result: Result<T, Error>) -> Result<(), String> {
    match result {
        Err(Error::Forked { opener, .. }) if opener != std::process::id() => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
        Ok(_) => Err(format!("{what} was done")),
    }
}

fn files(dir: &Path) -> usize {
    let tables = dir.join("families/1/tables");
    std::fs::read_dir(tables).map_or(0, |entries| entries.count())
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    let orders = db.create_family("orders", FamilyOptions::default()).unwrap();
    for n in 0..100_u32 {
        orders.put(n.to_be_bytes(), "before").unwrap();
    }
    orders.flush().unwrap();
    // It alone keeps the first table, once that was merged with another one.
    let iter = orders.iter().unwrap();
    for n in 0..100_u32 {
        orders.put(n.to_be_bytes(), "after").unwrap();
    }
    orders.compact().unwrap();
    let tables = files(dir.path());
    assert!(tables >= 2, "{tables}");
    let snapshot = db.snapshot();
    let tx = db.transaction(TransactionOptions::default()).unwrap();
    tx.put(&orders, "tx", "1").unwrap();
    let end = orders
        .put_with("buffered", "1", &WriteOptions::buffered())
        .unwrap();

    // The child takes and drops its copies, and the parent has its own still.
    let mut copies = Some((iter, snapshot, tx, db.clone(), orders.clone()));
    in_child(|| {
        let Some((mut iter, snapshot, tx, child_db, child_orders)) = copies.take() else {
            return Err("nothing to take".into());
        };
        refused("a step", iter.next().unwrap_or(Err(Error::Closed)))?;
        iter.seek("0");
        if iter.next().is_some() {
            return Err("an iterator went on after an error".into());
        }
        refused("get of a transaction", tx.get(&child_orders, "0"))?;
        refused("put of a transaction", tx.put(&child_orders, "0", "1"))?;
        refused("put", child_orders.put("child", "1"))?;
        refused("put of the default family", child_db.put("child", "1"))?;
        refused("delete", child_orders.delete("tx"))?;
        let mut batch = Batch::new();
        batch
            .put(&child_orders, "child", "1")
            .map_err(|e| e.to_string())?;
        refused("write", child_db.write(batch, &WriteOptions::buffered()))?;
        refused(
            "an empty write",
            child_db.write(Batch::new(), &WriteOptions::default()),
        )?;
        refused("get", child_orders.get("0"))?;
        refused("get of the default family", child_db.get("0"))?;
        refused("iter", child_orders.iter())?;
        refused("get of a snapshot", snapshot.get(&child_orders, "0"))?;
        refused("flush", child_db.flush())?;
        refused("compact", child_orders.compact())?;
        refused(
            "a family",
            child_db.create_family("child", FamilyOptions::default()),
        )?;
        refused("drop of a family", child_db.drop_family(&child_orders))?;
        refused("transaction", child_db.transaction(TransactionOptions::default()))?;
        refused("commit", tx.commit())?;
        refused(
            "a family to open",
            child_db.open_family("orders", FamilyOptions::default()),
        )?;
        for level in [Durability::Buffered, Durability::Process, Durability::Disk] {
            refused("wait", child_db.wait(end, level))?;
            refused("flush of the log", child_db.flush_wal(level))?;
        }
        let mut owner = child_db.row_owner("child");
        let rows = [(&child_orders, &b"0"[..])];
        refused("row locks", child_db.lock_rows(&mut owner, rows, Duration::ZERO))?;
        refused(
            "owned row locks",
            child_db.lock_rows_owned(&mut owner, rows, Duration::ZERO),
        )?;
        refused(
            "family locks",
            child_db.lock_families(&mut owner, [&child_orders], Duration::ZERO),
        )?;
        refused("iter of a snapshot", snapshot.iter(&child_orders))?;
        let shown = child_db.stats().refusal.unwrap_or_default();
        if !shown.contains("fork") {
            return Err(format!("stats say {shown:?}"));
        }
        let found = (
            child_db.families().len(),
            child_db.transactions().len(),
            child_db.flushed(),
        );
        if found != (0, 0, 0) || child_db.family("orders").is_some() {
            return Err(format!("{found:?}"));
        }
        child_orders.throttle(1 << 20);
        refused("close", child_db.clone().close())?;
        drop((iter, snapshot, child_orders, child_db));
        Ok(())
    });
    let (iter, snapshot, tx, ..) = copies.unwrap();

    assert_eq!(files(dir.path()), tables, "the child removed its parent's files");
    assert!(iter.map(Result::unwrap).all(|(_, value)| *value == *b"before"));
    assert_eq!(
        snapshot.get(&orders, 0_u32.to_be_bytes()).unwrap().unwrap(),
        b"after"
    );
    tx.commit().unwrap();
    orders.put("parent", "1").unwrap();
    drop((snapshot, orders));
    db.close().unwrap();

    let db = Db::open(dir.path(), Options::default()).unwrap();
    let orders = db.family("orders").unwrap();
    for key in ["tx", "buffered", "parent"] {
        assert_eq!(orders.get(key).unwrap().as_deref(), Some(&b"1"[..]), "{key}");
    }
    assert_eq!(orders.iter().unwrap().count(), 103);
}

/// Calls and handles that end in a child while threads of its parent, which the child does not have,
/// hold any lock of the store: none waits for one.
#[test]
fn a_child_waits_for_no_lock_that_its_parent_held() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    let orders = db.create_family("orders", FamilyOptions::default()).unwrap();
    for n in 0..1_000_u32 {
        orders
            .put_with(n.to_be_bytes(), "v", &WriteOptions::buffered())
            .unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // They hold what they can: the locks of figures, of rows, of memtables, of the manifest.
        type Busy<'a> = Box<dyn Fn() + Send + 'a>;
        let busy: [Busy<'_>; 5] = [
            Box::new(|| drop(db.stats())),
            Box::new(|| drop(orders.put_with("busy", "v", &WriteOptions::buffered()))),
            Box::new(|| drop(orders.iter().map(|iter| iter.take(100).count()))),
            Box::new(|| {
                let tx = db.transaction(TransactionOptions::default());
                drop(tx.map(|tx| tx.put(&orders, "row", "v")));
            }),
            Box::new(|| {
                let more = db.create_family("more", FamilyOptions::default());
                drop(more.map(|more| db.drop_family(&more)));
            }),
        ];
        for run in busy {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    run();
                }
            });
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..100 {
                let (mut iter, snapshot) = (orders.iter().unwrap(), db.snapshot());
                let tx = db.transaction(TransactionOptions::default()).unwrap();
                tx.put(&orders, "mine", "v").unwrap();
                let mut own = tx.iter(&orders).unwrap();
                own.next().unwrap().unwrap();
                let mut copies = Some((db.clone(), orders.clone(), tx));
                in_child(|| {
                    let Some((db, orders, tx)) = copies.take() else {
                        return Err("nothing to take".into());
                    };
                    refused("a step", iter.next().unwrap_or(Err(Error::Closed)))?;
                    refused(
                        "a step of a transaction's",
                        own.next().unwrap_or(Err(Error::Closed)),
                    )?;
                    refused("get", orders.get("0"))?;
                    refused("get of a snapshot", snapshot.get(&orders, "0"))?;
                    refused("put", orders.put("0", "v"))?;
                    refused("get for update", tx.get_for_update(&orders, "0"))?;
                    refused("flush", db.flush())?;
                    refused("flush of the log", db.flush_wal(Durability::Disk))?;
                    let _ = (db.stats(), db.families(), db.family("orders"), db.transactions());
                    let _ = (
                        db.visible(),
                        db.durable(),
                        db.stall(),
                        db.flushed(),
                        db.default_family(),
                    );
                    drop((tx, db, orders));
                    Ok(())
                });
            }
        }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        ended.unwrap();
    });
    db.close().unwrap();
}

/// A handle is dropped in a child that ends as programs end, not only in one that is made to be
/// careful.
#[test]
fn the_last_handle_of_a_child_does_not_close_its_parents_store() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let mut db = Some(Db::open(dir.path(), Options::default()).unwrap());
    in_child(|| {
        drop(db.take());
        Ok(())
    });
    let db = db.unwrap();
    db.put("parent", "1").unwrap();
    let in_use = Db::open(dir.path(), Options::default()).unwrap_err();
    assert!(matches!(in_use, Error::Locked { .. }), "{in_use}");
    db.close().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    assert_eq!(db.get("parent").unwrap().as_deref(), Some(&b"1"[..]));
}
