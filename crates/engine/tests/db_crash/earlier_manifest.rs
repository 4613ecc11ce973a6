//! A manifest that was put back from an earlier time.

#![expect(
    clippy::disallowed_methods,
    reason = "tests exchange files behind the store's back"
)]

use collie_db::{Db, Error};

use crate::common;

/// The families that it does not have were removed, with all that was in them.
#[test]
fn a_manifest_of_an_earlier_time_is_refused_and_removes_nothing() {
    for flushed in [true, false] {
        let dir = common::fast_dir();
        let db = common::open(dir.path(), &common::small());
        db.put("k", "v").unwrap();
        let manifest = dir.path().join("MANIFEST");
        let earlier = std::fs::read(&manifest).unwrap();
        let family = db.create_family("new", common::small_family()).unwrap();
        family.put("k", "v").unwrap();
        if flushed {
            family.flush().unwrap();
        }
        drop(family);
        db.close().unwrap();
        let latest = std::fs::read(&manifest).unwrap();
        std::fs::write(&manifest, earlier).unwrap();
        for _ in 0..2 {
            let refused = Db::open(dir.path(), common::small());
            let Err(Error::Corrupt {
                path,
                expected,
                found,
                ..
            }) = refused
            else {
                panic!(
                    "flushed: {flushed}, opened with {:?}",
                    refused.map(|db| db.families())
                );
            };
            let place = if flushed {
                manifest.clone()
            } else {
                dir.path().join("log")
            };
            assert_eq!(path, place, "{expected}");
            assert!(
                format!("{expected} {found}").contains("of an earlier time"),
                "{expected} {found}"
            );
        }
        std::fs::write(&manifest, latest).unwrap();
        let db = common::open(dir.path(), &common::small());
        assert_eq!(db.family("new").unwrap().get("k").unwrap().unwrap(), "v");
    }
}
