//! What a listener hears, in order, and that nothing waits for it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use collie_db::{Db, Error, Event, FamilyOptions, Listener, Options, Stall, WriteOptions};
use collie_sim::{Fault, FaultKind, SimDevice};

use crate::common;

/// Options with a listener, and what that hears.
fn heard(options: Options) -> (Options, Receiver<Event>) {
    let (to, events) = channel();
    let to = Mutex::new(to);
    let listener = Listener::new(move |event| drop(to.lock().unwrap().send(event.clone())));
    let options = Options {
        listener: Some(listener),
        ..options
    };
    (options, events)
}

#[test]
fn a_listener_hears_what_happens_in_order_and_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (options, events) = heard(common::small());
    let db = Db::open(dir.path(), options).unwrap();
    let rows = db.create_family("rows", FamilyOptions::default()).unwrap();
    rows.put("k", "v").unwrap();
    rows.flush().unwrap();
    rows.put("l", "v").unwrap();
    rows.compact().unwrap();
    let rows = rows.clear().unwrap();
    db.drop_family(&rows).unwrap();
    drop(rows);
    let stats = db.stats();
    db.close().unwrap();
    let mut names = Vec::new();
    for event in events.try_iter() {
        match event {
            Event::FamilyCreated { family } => names.push(format!("created {family}")),
            Event::FamilyCleared { family } => names.push(format!("cleared {family}")),
            Event::FamilyDropped { family } => names.push(format!("dropped {family}")),
            Event::Flushed { family, bytes, .. } if &*family == "rows" => {
                assert!(bytes > 0);
                names.push("flushed".to_owned());
            }
            Event::Compacted { family, .. } if &*family == "rows" => names.push("compacted".to_owned()),
            _ => {}
        }
    }
    names.dedup();
    let expected = [
        "created default",
        "created rows",
        "flushed",
        "compacted",
        "cleared rows",
        "dropped rows",
    ];
    assert_eq!(names, expected);
    assert_eq!(stats.lost_events, 0);
}

#[test]
fn a_listener_hears_of_stalls() {
    let dir = tempfile::tempdir().unwrap();
    let (options, events) = heard(Options {
        default_family: FamilyOptions {
            write_buffer_bytes: 64 << 10,
            max_write_buffers: 2,
            ..FamilyOptions::default()
        },
        ..common::small()
    });
    let db = Db::open(dir.path(), options).unwrap();
    for n in 0..2_000_u32 {
        db.put_with(n.to_be_bytes(), [7; 1_000], &WriteOptions::buffered())
            .unwrap();
    }
    let stalled = &db.stats().families["default"];
    assert!(stalled.stops + stalled.delays > 0, "{stalled:?}");
    db.close().unwrap();
    let mut now = Stall::None;
    let mut changes = 0;
    for event in events.try_iter() {
        if let Event::StallChanged { now: next, .. } = event {
            assert_ne!(now, next, "a change to what it was");
            (now, changes) = (next, changes + 1);
        }
    }
    assert!(changes >= 2, "{changes}");
}

#[test]
fn a_listener_hears_once_why_writes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(1);
    let (options, events) = heard(Options {
        device: Arc::new(device.clone()),
        ..common::small()
    });
    let db = Db::open(dir.path(), options).unwrap();
    db.put("k", "v").unwrap();
    device.inject(Fault::new(FaultKind::SyncFails));
    let error = (0..100).find_map(|_| db.put("k", "v").err()).unwrap();
    assert!(
        matches!(error, Error::Poisoned { .. } | Error::Background { .. }),
        "{error}"
    );
    drop(db.close());
    let refused = events
        .try_iter()
        .filter(|event| matches!(event, Event::WritesRefused { .. }))
        .count();
    assert_eq!(refused, 1);
}

/// One that never returns for a while: flushes go on, and what it misses is counted.
#[test]
fn nothing_waits_for_a_slow_listener() {
    let dir = tempfile::tempdir().unwrap();
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let options = Options {
        // Until the test lets it go; from then on it returns at once.
        listener: Some(Listener::new(move |_| {
            let _ = held.lock().unwrap().recv();
        })),
        ..common::small()
    };
    let db = Db::open(dir.path(), options).unwrap();
    for n in 0..1_200 {
        let family = db
            .create_family(&format!("{n}"), FamilyOptions::default())
            .unwrap();
        db.drop_family(&family).unwrap();
    }
    assert!(db.stats().lost_events > 1_000);
    drop(release);
    db.close().unwrap();
}

#[test]
fn a_listener_that_panics_hears_the_next_event() {
    let dir = tempfile::tempdir().unwrap();
    let count = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&count);
    let options = Options {
        listener: Some(Listener::new(move |_| {
            *counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += 1;
            panic!("on purpose");
        })),
        ..common::small()
    };
    let db = Db::open(dir.path(), options).unwrap();
    for name in ["a", "b", "c"] {
        db.create_family(name, FamilyOptions::default()).unwrap();
    }
    db.close().unwrap();
    assert!(*count.lock().unwrap_or_else(std::sync::PoisonError::into_inner) >= 3);
}
