//! `collie log dump | tail | verify | repair` through the real binary, on intact and on damaged
//! logs.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{collie, json_lines, run, stderr};
use collie_log::{FIRST_LSN, Level, Log, LogOptions, Span};

const FRAMES: u64 = 100;

fn options() -> LogOptions {
    LogOptions {
        ring_bytes: 64 << 10,
        segment_bytes: 32 << 10,
        max_workers: 8,
        ..LogOptions::default()
    }
}

fn payload(n: u64) -> Vec<u8> {
    format!("frame {n} ").into_bytes().repeat(80)
}

/// A closed log of [`FRAMES`] frames over several segments, and where they lie.
fn make(dir: &Path) -> Vec<Span> {
    let log = Log::open(dir, options()).unwrap();
    let spans = fill(&log);
    log.close().unwrap();
    spans
}

/// Appends [`FRAMES`] frames and waits until each is durable; returns where they lie.
fn fill(log: &Log) -> Vec<Span> {
    let mut worker = log.worker().unwrap();
    let append = |n| {
        let span = worker.append(7, 3, &payload(n)).unwrap();
        log.wait(span.end, Level::Disk).unwrap();
        span
    };
    (0..FRAMES).map(append).collect()
}

fn args(command: &str, dir: &Path, flags: &[&str]) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["log".into(), command.into(), dir.into()];
    args.extend(flags.iter().map(OsString::from));
    args
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    paths.sort();
    paths
}

/// Flips a bit of the payload of frame `n`, in whichever file that lies.
fn damage(dir: &Path, n: u64) -> PathBuf {
    for path in segments(dir) {
        let mut bytes = std::fs::read(&path).unwrap();
        let text = format!("frame {n} frame {n} ").into_bytes();
        if let Some(at) = bytes.windows(text.len()).position(|w| w == text) {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            return path;
        }
    }
    panic!("frame {n} is in no segment");
}

#[test]
fn a_dump_shows_every_frame_with_its_place_and_payload() {
    let dir = tempfile::tempdir().unwrap();
    let spans = make(dir.path());
    let output = run(args("dump", dir.path(), &["--json", "--payload"]));
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = json_lines(&output);
    let data: Vec<_> = lines.iter().filter(|line| line["kind_name"] == "data").collect();
    assert_eq!(data.len() as u64, FRAMES);
    for (n, (line, span)) in data.iter().zip(&spans).enumerate() {
        assert_eq!(line["lsn"], span.start);
        assert_eq!(line["end"], span.end);
        assert_eq!(
            (line["stream"].as_u64(), line["kind"].as_u64()),
            (Some(7), Some(3))
        );
        let hex: String = payload(n as u64).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(line["payload"], hex);
        let segment = line["segment"].as_str().unwrap();
        assert!(
            segments(dir.path()).contains(&PathBuf::from(segment)),
            "{segment}"
        );
    }
    assert_eq!(lines.last().unwrap()["kind_name"], "close");

    let output = run(args("dump", dir.path(), &[]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), lines.len() + 1, "a heading and a line each");
    assert!(text.contains("frame 42 frame 42 frame "), "{text}");
    assert!(text.contains(&FIRST_LSN.to_string()), "{text}");
}

#[test]
fn a_whole_log_verifies_and_is_not_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let spans = make(dir.path());
    let before: Vec<_> = segments(dir.path())
        .iter()
        .map(|p| std::fs::read(p).unwrap())
        .collect();
    let output = run(args("verify", dir.path(), &["--json"]));
    assert!(output.status.success(), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert_eq!(line["ok"], true);
    assert_eq!(line["first_frame"], FIRST_LSN);
    assert!(line["end"].as_u64().unwrap() >= spans.last().unwrap().end);
    assert!(line["frames"].as_u64().unwrap() >= FRAMES);

    let output = run(args("repair", dir.path(), &["--json"]));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(json_lines(&output)[0]["repaired"], false);
    let after: Vec<_> = segments(dir.path())
        .iter()
        .map(|p| std::fs::read(p).unwrap())
        .collect();
    assert_eq!(before, after);
}

#[test]
fn damage_is_reported_with_its_position_and_repair_truncates_it() {
    let dir = tempfile::tempdir().unwrap();
    let spans = make(dir.path());
    let segment = damage(dir.path(), 40);

    let output = run(args("verify", dir.path(), &[]));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("collie log repair"),
        "{}",
        stderr(&output)
    );
    let text = stderr(&output);
    assert!(
        text.contains("corruption") && text.contains(segment.to_str().unwrap()),
        "{text}"
    );
    assert!(text.contains(&format!("LSN {}", spans[40].start)), "{text}");
    let output = run(args("verify", dir.path(), &["--json"]));
    assert_eq!(output.status.code(), Some(1));
    let line = &json_lines(&output)[0];
    assert_eq!(line["ok"], false);
    assert!(line["error"].as_str().unwrap().contains("corruption"), "{line}");
    assert_eq!(run(args("dump", dir.path(), &[])).status.code(), Some(1));

    let output = run(args("repair", dir.path(), &["--json"]));
    assert!(output.status.success(), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert_eq!(line["repaired"], true);
    assert_eq!(line["end"], spans[40].start);
    let kept = line["kept"].as_array().unwrap();
    assert!(!kept.is_empty());
    assert!(kept.iter().all(|path| Path::new(path.as_str().unwrap()).exists()));

    assert!(run(args("verify", dir.path(), &[])).status.success());
    let log = Log::open(dir.path(), options()).unwrap();
    let frames: Vec<_> = log.read(FIRST_LSN).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(frames.len(), 40);
    assert_eq!(frames[39].payload, payload(39));
}

#[test]
fn a_log_in_use_is_refused_with_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let output = run(args("verify", dir.path(), &[]));
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    log.close().unwrap();
}

#[test]
fn the_log_of_a_store_is_found_and_other_directories_are_not() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("log"));
    assert!(run(args("verify", dir.path(), &[])).status.success());

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("letter"), "dear reader").unwrap();
    let output = run(args("repair", other.path(), &[]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no log in"), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1);

    let output = run(args("verify", Path::new("/no/such/place"), &[]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/no/such/place"), "{}", stderr(&output));
}

/// For a store's directory, the same objects as those of the dump, except for the log's own.
#[test]
fn a_tail_shows_the_durable_frames_with_the_fields_of_a_dump() {
    let store = tempfile::tempdir().unwrap();
    let dir = store.path().join("log");
    let spans = make(&dir);
    let dumped = run(args("dump", store.path(), &["--json", "--payload"]));
    let dumped: Vec<_> = json_lines(&dumped)
        .into_iter()
        .filter(|line| line["kind_name"] == "data")
        .collect();
    let tailed = run(args("tail", store.path(), &["--json", "--payload"]));
    assert!(tailed.status.success(), "{}", stderr(&tailed));
    assert_eq!(json_lines(&tailed), dumped);

    let from = spans[70].start.to_string();
    let tailed = run(args("tail", &dir, &["--json", "--payload", "--from", &from]));
    assert_eq!(json_lines(&tailed), dumped[70..]);
    assert!(stderr(&tailed).contains("--from"), "{}", stderr(&tailed));
    let text = String::from_utf8(run(args("tail", &dir, &["--from", &from])).stdout).unwrap();
    assert_eq!(text.lines().count(), 31, "a heading and a line each");

    let between = (spans[70].start + 8).to_string();
    let refused = run(args("tail", &dir, &["--from", &between]));
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains(&between), "{}", stderr(&refused));
}

fn follower(dir: &Path) -> Child {
    collie()
        .args(args("tail", dir, &["--json", "--payload", "--follow"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_tail_follows_a_log_in_use_until_it_is_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let mut tail = follower(dir.path());
    let lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut lines = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut worker = log.worker().unwrap();
    for n in 0..FRAMES {
        let span = worker.append(1, 2, &payload(n)).unwrap();
        log.wait(span.end, Level::Disk).unwrap();
        // The idle log writes a mark that proves the frame durable.
        if n % 10 == 9 {
            for line in lines.by_ref().take(10) {
                assert_eq!(line["stream"], 1);
            }
        }
    }
    let pid = rustix::process::Pid::from_child(&tail);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(lines.next(), None);
    let output = tail.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stderr(&output).contains(&format!("{FRAMES} frames")),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_tail_whose_reader_is_gone_ends() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let mut tail = follower(dir.path());
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    for _ in 0..FRAMES {
        lines.next().unwrap().unwrap();
    }
    // It has nothing more to print, and notices all the same.
    drop(lines);
    let output = tail.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// An open log, most of whose frames are in its archive, and where they all lie.
fn make_archived(dir: &Path) -> (Log, Vec<Span>) {
    let options = LogOptions {
        archive_ttl: Duration::from_secs(3600),
        threads: false,
        ..options()
    };
    let log = Log::open(dir, options).unwrap();
    let spans = fill(&log);
    log.retain("test", log.durable());
    assert!(log.oldest() > spans[60].end && segments(&dir.join("archive")).len() >= 2);
    (log, spans)
}

#[test]
fn a_tail_from_an_archived_frame_continues_in_the_live_log() {
    let store = tempfile::tempdir().unwrap();
    let dir = store.path().join("log");
    let (log, spans) = make_archived(&dir);
    for (n, from) in [(5, spans[5].start), (6, spans[5].end)] {
        let tailed = run(args(
            "tail",
            store.path(),
            &["--json", "--payload", "--from", &from.to_string()],
        ));
        assert!(tailed.status.success(), "{}", stderr(&tailed));
        let lines = json_lines(&tailed);
        // No later frame proves the last one durable yet.
        assert_eq!(lines.len() as u64, FRAMES - 1 - n);
        for (line, span) in lines.iter().zip(&spans[n as usize..]) {
            assert_eq!(
                (line["lsn"].as_u64(), line["end"].as_u64()),
                (Some(span.start), Some(span.end))
            );
            let is_archived = span.start < log.oldest();
            let segment = Path::new(line["segment"].as_str().unwrap());
            assert_eq!(
                segment.parent().unwrap().ends_with("archive"),
                is_archived,
                "{line}"
            );
        }
    }
    let all = run(args("tail", &dir, &["--json"]));
    assert_eq!(
        json_lines(&all).len() as u64,
        FRAMES - 1,
        "the oldest frame is in the archive"
    );

    // If the archive was cleaned up, the error names what is left.
    std::fs::remove_file(&segments(&dir.join("archive"))[0]).unwrap();
    let from = spans[5].start.to_string();
    let gone = run(args("tail", &dir, &["--json", "--from", &from]));
    assert_eq!((gone.status.code(), gone.stdout.len()), (Some(1), 0));
    let oldest = FIRST_LSN + (32 << 10) - 8192;
    for part in [from, oldest.to_string()] {
        assert!(stderr(&gone).contains(&part), "{}", stderr(&gone));
    }
    log.close().unwrap();
}

#[test]
fn an_archive_is_dumped_and_verified_and_its_damage_named() {
    let dir = tempfile::tempdir().unwrap();
    let (log, spans) = make_archived(dir.path());
    let archive = dir.path().join("archive");
    let dumped = run(args("dump", &archive, &["--json"]));
    assert!(dumped.status.success(), "{}", stderr(&dumped));
    let lines = json_lines(&dumped);
    let archived = spans.iter().filter(|span| span.end <= log.oldest()).count();
    assert_eq!(lines.len(), archived);
    assert_eq!(lines[0]["lsn"], FIRST_LSN);
    let verified = run(args("verify", &archive, &["--json"]));
    assert!(verified.status.success(), "{}", stderr(&verified));
    let line = &json_lines(&verified)[0];
    assert_eq!(
        (line["ok"].as_bool(), line["frames"].as_u64()),
        (Some(true), Some(archived as u64))
    );
    let tailed = run(args("tail", &archive, &[]));
    assert_eq!(tailed.status.code(), Some(1));
    assert!(
        stderr(&tailed).contains("name the log's directory"),
        "{}",
        stderr(&tailed)
    );

    let last = segments(&archive).pop().unwrap();
    let aside = dir.path().join("aside");
    std::fs::rename(&last, &aside).unwrap();
    let verified = run(args("verify", &archive, &[]));
    assert_eq!(verified.status.code(), Some(1));
    assert!(
        stderr(&verified).contains("part of it is missing"),
        "{}",
        stderr(&verified)
    );
    std::fs::rename(&aside, &last).unwrap();

    let hit = damage(&archive, 40);
    let verified = run(args("verify", &archive, &[]));
    assert_eq!(verified.status.code(), Some(1));
    for part in [
        hit.to_str().unwrap(),
        &spans[40].start.to_string(),
        "not repaired",
    ] {
        assert!(stderr(&verified).contains(part), "{}", stderr(&verified));
    }
    let tailed = run(args("tail", dir.path(), &["--json"]));
    assert_eq!((tailed.status.code(), json_lines(&tailed).len()), (Some(1), 40));
    assert!(
        stderr(&tailed).contains(hit.to_str().unwrap()),
        "{}",
        stderr(&tailed)
    );
    let repaired = run(args("repair", &archive, &[]));
    assert_eq!(repaired.status.code(), Some(1));
    assert!(
        stderr(&repaired).contains("nothing was changed"),
        "{}",
        stderr(&repaired)
    );
    log.close().unwrap();
}
