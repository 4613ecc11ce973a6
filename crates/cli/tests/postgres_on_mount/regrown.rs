//! Tables that are cut, grow again, are emptied and make room for others, all between two
//! checkpoints and in few buffers, so that each page is written several times; then a power cut.
//! Recovery replays what was done to pages before their file was cut, too: it finds them whole or
//! not at all.
//!
//! `COLLIE_PG_REGROWN` sets how many seeds, `COLLIE_SEED` the first.

use collie_check::postgres::{reason, run};
use collie_sim::faultfs::{Moment, Names, Trap};
use collie_sim::{Data, Keep, PowerCut, Rng};
use std::time::Duration;

use crate::machine::Machine;
use crate::skipped;

/// No checkpoint but those that are asked for, and no page written but to make room for others.
const SETTINGS: [&str; 6] = [
    "full_page_writes=off",
    "max_wal_size=1GB",
    "checkpoint_timeout=1h",
    "autovacuum=off",
    "bgwriter_lru_maxpages=0",
    "synchronous_commit=on",
];
/// The fewest that a server takes: each page is written often; and so many that what a table was
/// before it is cut is not written at all.
const BUFFERS: [&str; 2] = ["shared_buffers=2MB", "shared_buffers=128kB"];

/// Tables of up to 2 MB, settled by a checkpoint, and one that no buffers hold.
const BEFORE: &str = "
CREATE EXTENSION amcheck;
CREATE TABLE large (n int PRIMARY KEY, filler text);
INSERT INTO large SELECT n, repeat('a', 1500) FROM generate_series(1, 2000) n;
CREATE TABLE shrunk (n int PRIMARY KEY, filler text);
CREATE TABLE emptied (n int PRIMARY KEY, filler text);
CREATE TABLE gone (n int PRIMARY KEY, filler text);
INSERT INTO shrunk SELECT n, repeat('a', 400) FROM generate_series(1, 3000) n;
INSERT INTO emptied SELECT n, repeat('a', 400) FROM generate_series(1, 500) n;
INSERT INTO gone SELECT n, repeat('a', 400) FROM generate_series(1, 500) n;
VACUUM large, shrunk, emptied, gone;
CHECKPOINT";

/// Has all other pages written.
const EVICT: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off;
    SELECT sum(length(filler)) FROM large WHERE n > 0";

/// What is done to tables before the power is cut. Each statement is acknowledged.
const BETWEEN: [&str; 7] = [
    "DELETE FROM shrunk WHERE n > 300;
     VACUUM shrunk;
     INSERT INTO shrunk SELECT n, repeat('b', 400) FROM generate_series(301, 2500) n",
    "UPDATE emptied SET filler = repeat('b', 400) WHERE n % 3 = 0;
     TRUNCATE emptied;
     INSERT INTO emptied SELECT n, repeat('c', 400) FROM generate_series(1, 400) n",
    "UPDATE gone SET filler = repeat('b', 400) WHERE n % 3 = 0;
     DROP TABLE gone;
     CREATE TABLE gone (n int PRIMARY KEY, filler text);
     INSERT INTO gone SELECT n, repeat('c', 400) FROM generate_series(1, 400) n",
    "UPDATE shrunk SET filler = repeat('d', 400) WHERE n % 2 = 0",
    "UPDATE emptied SET filler = repeat('d', 400) WHERE n % 2 = 0",
    "UPDATE gone SET filler = repeat('d', 400) WHERE n % 2 = 0",
    "UPDATE shrunk SET filler = repeat('e', 400) WHERE n % 5 = 0",
];

const CONTENTS: &str = "SELECT 'shrunk', count(*), sum(n), sum(ascii(filler)) FROM shrunk
    UNION ALL SELECT 'emptied', count(*), sum(n), sum(ascii(filler)) FROM emptied
    UNION ALL SELECT 'gone', count(*), sum(n), sum(ascii(filler)) FROM gone";

/// The settings of a life.
fn settings(seed: u64) -> Vec<&'static str> {
    SETTINGS.into_iter().chain([BUFFERS[seed as usize % 2]]).collect()
}

fn start(machine: &mut Machine, settings: &[&str]) -> Result<(), String> {
    machine.mount()?;
    let started = machine.cluster.start(settings);
    started.map_err(|said| format!("the server does not start: {}", reason(&said)))
}

/// Lets mount and server recover until the disk stops at some change, and cuts the power there.
fn cut_in_recovery(machine: &mut Machine, settings: &[&str], how: PowerCut, rng: &mut Rng) {
    let nth = 1 + rng.below(3_000);
    machine
        .fs
        .set_trap(Trap::new(nth, Moment::After, |_| true))
        .unwrap();
    // Both may find that the disk has stopped.
    if machine.mount().is_ok() && machine.cluster.spawn(settings).is_ok() {
        while matches!(machine.cluster.serves(), Ok(false))
            && machine.fs.wait_for_stop(Duration::ZERO).unwrap().is_none()
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    machine.cut(how, rng.next_u64());
}

/// One life.
fn live(seed: u64, names: Names, data: Data, has_checksums: bool) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut machine = Machine::new(rng.next_u64(), names, "16mb");
    machine.init_again();
    if !has_checksums {
        let mut disable = machine.cluster.program("pg_checksums");
        run(disable.args(["--disable", "-D"]).arg(machine.data()))?;
    }
    let settings = settings(seed);
    start(&mut machine, &settings)?;
    machine.cluster.sql("postgres", BEFORE)?;
    for statements in BETWEEN {
        machine.cluster.sql("postgres", statements)?;
        machine.cluster.sql("postgres", EVICT)?;
    }
    let expected = machine.cluster.sql("postgres", CONTENTS)?;
    let how = PowerCut {
        data,
        lengths: Keep::Any,
        names: Keep::Any,
    };
    machine.cut(how, rng.next_u64());
    for _ in 0..rng.below(3) {
        cut_in_recovery(&mut machine, &settings, how, &mut rng);
    }
    start(&mut machine, &settings)?;
    let found = machine.cluster.sql("postgres", CONTENTS)?;
    machine.cluster.amcheck()?;
    machine.cluster.stop()?;
    if has_checksums {
        machine.cluster.checksums()?;
    }
    match found == expected {
        true => Ok(()),
        false => Err(format!("{found} was found, not {expected}")),
    }
}

fn asked(name: &str, otherwise: u64) -> u64 {
    let asked = std::env::var(name).ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(otherwise)
}

fn lives(data: Data, has_checksums: bool) {
    if skipped() {
        return;
    }
    let first = asked("COLLIE_SEED", 1);
    let seeds = first..first + asked("COLLIE_PG_REGROWN", 1);
    let mut harm = Vec::new();
    for seed in seeds.clone() {
        let names = if seed / 2 % 2 == 0 {
            Names::Posix
        } else {
            Names::Journal
        };
        if let Err(what) = live(seed, names, data, has_checksums) {
            println!("seed {seed}, {data:?}, {names:?}: {what}");
            harm.push(what);
        }
    }
    println!(
        "figures: regrown, {data:?}, checksums {has_checksums}: {} of {} lives harmed",
        harm.len(),
        seeds.end - first
    );
    assert!(harm.is_empty(), "{}", harm.join("\n"));
}

#[test]
fn files_cut_and_grown_again_are_whole_with_checksums() {
    lives(Data::AnyBlocks, true);
}

#[test]
fn files_cut_and_grown_again_are_whole_without_checksums() {
    lives(Data::AnySectors, false);
}
