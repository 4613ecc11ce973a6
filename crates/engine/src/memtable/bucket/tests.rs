use std::ops::Bound;

use super::*;
use crate::memtable::{Direction, End, Portion, Scan};

fn at(start: Lsn) -> At {
    At {
        start,
        end: start + 40,
    }
}

#[test]
fn cursor_past_the_end_of_a_leaf_moves_to_the_next() {
    let mut bucket = Bucket::new(Arc::default());
    for i in 0..1000_u32 {
        bucket.insert(
            format!("key{i:05}").as_bytes(),
            at(u64::from(i) + 1),
            Write::Delete,
        );
    }
    let sizes: usize = bucket.leaves.iter().map(|leaf| leaf.addresses().len()).sum();
    assert_eq!(sizes, 1000);
    assert!(bucket.leaves.iter().all(|leaf| !leaf.addresses().is_empty()));
    assert_eq!(bucket.common, b"key00");
    for i in 0..1000_u32 {
        let found = bucket.get(format!("key{i:05}").as_bytes(), u64::MAX).unwrap();
        assert_eq!(found.at.start, u64::from(i) + 1);
    }
}

#[test]
fn a_key_outside_the_common_prefix_is_found_on_its_side() {
    let mut bucket = Bucket::new(Arc::default());
    for key in ["mm1", "mm2"] {
        bucket.insert(key.as_bytes(), at(8), Write::Put(b"v"));
    }
    for (key, count) in [("a", 2), ("m", 2), ("mm2", 1), ("mm3", 0), ("z", 0)] {
        let mut seen = 0;
        let low = Bound::Included(key.as_bytes());
        let scan = Scan {
            low,
            high: Bound::Unbounded,
            below: u64::MAX,
        };
        let scanned = bucket.scan(scan, Direction::Forward, Portion::keys(10), |_| seen += 1);
        assert_eq!(scanned.end, End::Exhausted);
        assert_eq!(seen, count, "from {key}");
    }
}

#[test]
fn a_second_write_at_the_same_lsn_replaces_the_first() {
    // Enough keys that the repeated ones are at starts, in the middle and at ends of leaves.
    let mut bucket = Bucket::new(Arc::default());
    for _ in 0..2 {
        for i in 0..500_u32 {
            bucket.insert(&i.to_be_bytes(), at(8), Write::Put(b"first"));
            bucket.insert(&i.to_be_bytes(), at(8), Write::Put(&i.to_le_bytes()));
        }
    }
    let entries: usize = bucket.leaves.iter().map(|leaf| leaf.addresses().len()).sum();
    assert_eq!(entries, 500);
    for i in 0..500_u32 {
        let found = bucket.get(&i.to_be_bytes(), 9).unwrap();
        assert_eq!(found.value.unwrap(), &i.to_le_bytes());
    }
}

/// In any number of parts, and also where one keeps the arena: each entry is in one part, in
/// order, with its value, and all versions of a key are together.
#[test]
fn parts_of_a_split_bucket_have_what_it_had() {
    for (parts, hot, appended) in [(2, 0, false), (4, 0, false), (2, 900, false), (2, 0, true)] {
        let mut bucket = Bucket::new(Arc::default());
        let value = |n: u64| vec![n as u8; if n.is_multiple_of(3) { INLINE_VALUE + 1 } else { 10 }];
        let key = |n: u64| match n < hot {
            true => "key 50".to_owned(),
            false => format!("key {:02}", n * 37 % 97),
        };
        for n in 0..1000 {
            bucket.insert(key(n).as_bytes(), at(n + 1), Write::Put(&value(n)));
        }
        let split = bucket.split(parts, appended);
        assert!(split.len() > 1);
        let mut last: Option<Vec<u8>> = None;
        let mut entries = 0;
        for part in &split {
            assert!(last.as_deref() < part.first_key());
            last = part.last_key().map(<[u8]>::to_vec);
            entries += part.entries;
        }
        assert_eq!(entries, 1000);
        for n in 0..1000 {
            let key = key(n);
            let part = split
                .iter()
                .rfind(|part| part.first_key() <= Some(key.as_bytes()))
                .unwrap();
            let found = part.get(key.as_bytes(), n + 2).unwrap();
            assert_eq!(
                (found.at.start, found.value.unwrap()),
                (n + 1, Value::from(&value(n)[..]))
            );
        }
    }
}

#[test]
fn a_bucket_of_one_key_is_not_split() {
    let mut bucket = Bucket::new(Arc::default());
    for n in 0..MOST_ENTRIES as u64 + 1 {
        bucket.insert(b"key", at(n + 1), Write::Delete);
    }
    assert!(!bucket.is_full());
    assert_eq!(bucket.split(2, false).len(), 1);
}

#[test]
fn long_values_are_kept_outside_and_come_back_whole() {
    let mut bucket = Bucket::new(Arc::default());
    let long = vec![7; INLINE_VALUE + 1];
    bucket.insert(b"k", at(8), Write::Put(&long));
    bucket.insert(b"k", at(16), Write::Put(&[]));
    assert_eq!(bucket.get(b"k", 16).unwrap().value.unwrap(), &long[..]);
    assert_eq!(bucket.get(b"k", 17).unwrap().value.unwrap(), &[][..] as &[u8]);
    assert_eq!(bucket.get(b"k", 8), None);
}
