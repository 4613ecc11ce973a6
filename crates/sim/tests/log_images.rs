//! Crash images of the log: random programs, and every short one. `COLLIE_IMAGES` sets their number,
//! `COLLIE_SEED` where the random ones begin.

#![expect(clippy::print_stdout, reason = "figures for whoever reads the test's output")]

use collie_sim::images::{self, ImagesConfig, ImagesReport};

fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

fn images() -> u64 {
    from_env("COLLIE_IMAGES", 2_000)
}

fn assert_sound(report: &ImagesReport) {
    println!("figures: {report}");
    assert_eq!(
        (report.failed, report.lost, report.partial, report.reordered),
        (0, 0, 0, 0),
        "{report}"
    );
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
    assert!(report.acknowledged > 0 && report.recovered > report.acknowledged);
    for fault in images::FAULTS {
        assert!(
            report.faults.get(fault).is_some_and(|&n| n > 0),
            "{fault} never struck: {report}"
        );
    }
}

#[test]
fn every_short_program_keeps_what_was_acknowledged_at_every_sync_point() {
    let report = images::enumerate(3, images() / 2, |_| {});
    assert_sound(&report);
    assert!(report.acknowledged > 0);
}
