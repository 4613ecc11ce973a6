//! Crash images of the log: random programs, and every short one. `COLLIE_IMAGES` sets their
//! number, `COLLIE_SEED` where the random ones begin.

#![expect(clippy::print_stdout, reason = "figures for the reader of the test's output")]

use collie_check::images::{self, DIR, ImagesConfig, ImagesReport, Setup, Writes, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::BLOCK;
use collie_log::{Level, Log};
use collie_sim::{PowerCut, SimDevice};

fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

fn images() -> u64 {
    from_env("COLLIE_IMAGES", 8_000)
}

fn assert_sound(report: &ImagesReport) {
    println!("figures: {report}");
    assert_eq!(report.failed, 0, "{report}");
    assert!(report.verdict.holds(), "{report}");
}

/// What users get who say nothing of how to write is among what crashed: the log tried both ways,
/// and took either.
fn assert_chosen(report: &ImagesReport) {
    for choice in images::CHOICES {
        assert!(
            report.faults.get(choice).is_some_and(|&n| n > 0),
            "no log found out how to write, with \"{choice}\": {report}"
        );
    }
}

#[test]
fn random_programs_keep_what_was_acknowledged_in_every_image() {
    let config = ImagesConfig {
        images: images(),
        seed: from_env("COLLIE_SEED", 1),
        ..ImagesConfig::default()
    };
    let report = images::run(&config, |_| {});
    assert_sound(&report);
    if config.images < 1_000 {
        return;
    }
    assert!(report.verdict.acknowledged > 0 && report.verdict.recovered > report.verdict.acknowledged);
    for fault in images::FAULTS {
        assert!(
            report.faults.get(fault).is_some_and(|&n| n > 0),
            "{fault} never struck: {report}"
        );
    }
    assert_chosen(&report);
}

#[test]
fn every_short_program_keeps_acknowledged_frames() {
    let report = images::enumerate(3, images() / 2, |_| {});
    assert_sound(&report);
    assert!(report.verdict.acknowledged > 0);
    if images() >= 1_000 {
        assert_chosen(&report);
    }
}

/// However much of a segment recovery fills with its copy: the blocks on which a log then tries how
/// to write are others.
#[test]
fn the_choice_of_write_path_spares_what_recovery_copied() {
    let mut chosen = [0; 2];
    for slow_direct in [false, true] {
        // In steps of half a block, beyond the end of a segment.
        for frames in 1..=20 {
            let setup = Setup {
                ring_bytes: 64 << 10,
                writes: Writes::Found { slow_direct },
                ..Setup::small(true, false)
            };
            let (device, ledger) = (SimDevice::new(frames), Ledger::new());
            let tags = ledger.clone();
            device.tag_snapshots(move || tags.now());
            let log = Log::open(DIR, setup.options(&device, false)).unwrap();
            let mut worker = log.worker().unwrap();
            for _ in 0..frames {
                let len = BLOCK / 2 - collie_log::FRAME_HEADER;
                commit(&log, &mut worker, &ledger, len, Some(Level::Process)).unwrap();
            }
            let death = device.snapshot();
            let check = |log: &Log, what: &str| {
                let found = find(log).unwrap_or_else(|error| panic!("{frames} frames, {what}: {error}"));
                let verdict = ledger.check(death.tag(), Survives::Process, &found);
                assert!(verdict.holds(), "{frames} frames, {what}: {verdict}");
            };
            let device = death.process_death().device();
            let log = Log::open(DIR, setup.options(&device, true)).unwrap();
            if log.recovery().probe.is_some() {
                assert_eq!(log.recovery().direct, !slow_direct, "{frames} frames");
                chosen[usize::from(log.recovery().direct)] += 1;
            }
            check(&log, "after a process death");
            let (_, lost) = PowerCut::WAYS[0];
            let cut = device.snapshot().power_cut(lost, frames);
            let log = Log::open(DIR, setup.options(&cut.device(), false)).unwrap();
            check(&log, "and a power cut");
        }
    }
    assert!(chosen.iter().all(|&times| times > 10), "{chosen:?}");
}
