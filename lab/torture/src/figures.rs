//! Figures and progress as a person reads them.

use collie_cli::output::target;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error for `total` steps, where that is a terminal; otherwise nothing is shown.
pub(crate) fn progress(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), target());
    // The template is a constant; a wrong one would only cost the bar its looks.
    if let Ok(style) = ProgressStyle::with_template("{prefix:>12} {bar:30} {pos}/{len} {msg} · {eta} left") {
        bar.set_style(style);
    }
    bar.set_prefix(what);
    bar
}

/// A line on standard error that is renewed, where that is a terminal; otherwise nothing is shown.
pub(crate) fn live() -> ProgressBar {
    let line = ProgressBar::with_draw_target(None, target());
    if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
        line.set_style(style);
    }
    line
}

/// A figure to three digits: 950, 12.3 k, 4.56 M.
pub(crate) fn count(figure: f64) -> String {
    let (scaled, unit) = match figure {
        f if f >= 999_500_000.0 => (f / 1e9, " G"),
        f if f >= 999_500.0 => (f / 1e6, " M"),
        f if f >= 999.5 => (f / 1e3, " k"),
        f => return format!("{f:.0}"),
    };
    let digits = if scaled < 9.995 {
        2
    } else if scaled < 99.95 {
        1
    } else {
        0
    };
    format!("{scaled:.digits$}{unit}")
}

/// Microseconds, with as many digits as say something.
pub(crate) fn micros(us: f64) -> String {
    if us < 9.995 {
        format!("{us:.2}")
    } else if us < 99.95 {
        format!("{us:.1}")
    } else {
        format!("{us:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown = [
            7.0,
            999.4,
            999.5,
            12_345.0,
            999_499.0,
            999_500.0,
            4_567_890.0,
            2.5e9,
        ]
        .map(count);
        assert_eq!(
            shown,
            [
                "7", "999", "1.00 k", "12.3 k", "999 k", "1.00 M", "4.57 M", "2.50 G"
            ]
        );
        assert_eq!([0.123, 12.34, 1234.5].map(micros), ["0.12", "12.3", "1234"]);
    }
}
