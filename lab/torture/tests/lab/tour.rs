//! The tour, shortened.

use crate::common::{run, stderr};

#[test]
fn the_tour_shows_every_part_and_loses_nothing() {
    // Standard output is no terminal here, so that it ends by itself.
    for flags in [&["--short", "--no-serve"][..], &["--short"]] {
        let output = run(flags);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        for part in [
            "1 · ",
            "mutex",
            "link-buffer",
            "2 · ",
            "acknowledged ",
            " · lost 0",
            "3 · ",
            " images recovered · acknowledged ",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!stderr(&output).contains("poisoned"), "{}", stderr(&output));
        assert!(!text.contains("The server"), "{text}");
    }
}
