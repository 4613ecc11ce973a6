//! Batches over several families.

use collie_db::{Batch, Error, FamilyOptions, WriteOptions};

use crate::common;

/// Operations of many families, by turns and in runs: each goes to its own, and of two writes of a
/// key the later one counts. The same batch, emptied, is as a new one.
#[test]
fn operations_go_to_their_families_however_they_are_mixed() {
    let dir = common::fast_dir();
    let db = common::open(dir.path(), &common::small());
    let mut batch = Batch::new();
    for count in [1, 2, 8, 9, 30] {
        let families: Vec<_> = (0..count)
            .map(|n| db.open_family(&format!("{n}"), FamilyOptions::default()).unwrap())
            .collect();
        batch.clear();
        for turn in 0..4 {
            for (n, family) in families.iter().enumerate() {
                for key in 0..=n % 3 {
                    batch
                        .put(family, format!("{key}"), format!("{count}/{n}/{turn}"))
                        .unwrap();
                }
                batch.put(family, format!("turn {turn}"), "").unwrap();
            }
            batch.delete(&families[turn % count], "0").unwrap();
        }
        let last_removed = 3 % count;
        db.write(batch.clone(), &WriteOptions::buffered()).unwrap();
        for (n, family) in families.iter().enumerate() {
            let found: Vec<_> = family.iter().unwrap().map(Result::unwrap).collect();
            let mut expected: Vec<(String, String)> = (0..=n % 3)
                .map(|key| (format!("{key}"), format!("{count}/{n}/3")))
                .filter(|(key, _)| key != "0" || n != last_removed)
                .collect();
            expected.extend((0..4).map(|turn| (format!("turn {turn}"), String::new())));
            let found: Vec<_> = found
                .iter()
                .map(|(key, value)| (key.escape_ascii().to_string(), value.escape_ascii().to_string()))
                .collect();
            assert_eq!(found, expected, "family {n} of {count}");
        }
    }
}

#[test]
fn a_batch_refuses_another_stores_family_however_many_it_has() {
    let (one, other) = (common::fast_dir(), common::fast_dir());
    let [one, other] = [&one, &other].map(|dir| common::open(dir.path(), &common::small()));
    for count in [1, 8, 9, 20] {
        let mut batch = Batch::new();
        for n in 0..count {
            let family = one
                .open_family(&format!("{n}"), FamilyOptions::default())
                .unwrap();
            batch.put(&family, "k", "v").unwrap();
        }
        // It has the same number as one of the batch.
        let foreign = other.open_family("0", FamilyOptions::default()).unwrap();
        let refused = batch.put(&foreign, "k", "v");
        assert!(
            matches!(refused, Err(Error::ForeignFamily { .. })),
            "{count}: {refused:?}"
        );
        assert_eq!(batch.len(), count);
    }
}
