//! The README's example of the library runs, and runs again on the store that it left.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use collie_db::{Batch, Db, Durability, FamilyOptions, Options, TransactionOptions, WriteOptions};

const README: &str = include_str!("../../../../README.md");

/// As it stands in the README, but for the path.
#[rustfmt::skip]
#[expect(unused_variables, reason = "the example shows what is there")]
fn example(path: &std::path::Path) -> collie_db::Result<()> {
    // The README from here on.
    let db = Db::open(path, Options::default())?;
    let orders = db.open_family("orders", FamilyOptions::default())?;   // created where it is not there yet

    db.put("greeting", "hello")?;                              // on the device when this returns

    let mut batch = Batch::new();                              // atomic, across families
    batch.put(&orders, "order/1", "3 leashes")?;
    batch.put(&db.default_family(), "last order", "order/1")?;
    let end = db.write(batch, &WriteOptions::buffered())?;     // visible now ...
    db.wait(end, Durability::Disk)?;                           // ... and durable; or: db.wait_async(end, ..).await

    let snapshot = db.snapshot();                              // a prefix of the commit order
    for entry in snapshot.prefix(&orders, "order/")?.rev() { let (key, value) = entry?; }

    let tx = db.transaction(TransactionOptions::default())?;   // or ::optimistic(), ::serializable()
    let stock = tx.get_for_update(&orders, "order/1")?;        // the row is locked
    tx.put(&orders, "order/1", "2 leashes")?;
    tx.commit()?;                                              // durable; its locks went when it was visible
    // The README up to here.
    assert_eq!(stock.unwrap(), "3 leashes");
    assert_eq!(orders.get("order/1")?.unwrap(), "2 leashes");
    Ok(())
}

fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn the_readmes_example_runs_twice() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        example(dir.path()).unwrap();
    }
    let (_, code) = README.split_once("```rust\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    let shown = code.replace("\"/var/lib/shop\"", "path");
    let (_, own) = include_str!("readme.rs")
        .split_once("// The README from here on.\n")
        .unwrap();
    let (own, _) = own.split_once("// The README up to here.\n").unwrap();
    assert_eq!(
        lines(&shown)[1..],
        lines(own)[..],
        "the README shows what this test does not run"
    );
}
