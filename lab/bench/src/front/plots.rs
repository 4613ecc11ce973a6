//! Plots of a measurement: transactions per second and the longest latency, second by second, and
//! the checkpoints of each mode below.

use std::path::Path;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::measure::FrontResult;
use super::mode::FrontMode;
use crate::error::BenchError;

const SIZE: (u32, u32) = (960, 600);
/// Heights of the title, the curves, and each mode's row of checkpoints.
const TITLE: u32 = 34;
const CURVES: u32 = 430;
/// Room on the left, in which rows have their names and axes their figures.
const LEFT: u32 = 150;
/// The part of it that is left empty beside a curve.
const MARGIN: u32 = 62;
const RIGHT: u32 = 24;
const FONT: &str = "sans-serif";

/// What a plot shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Throughput,
    LongestLatency,
}

/// Writes `tps.svg` and `latency.svg` to a directory.
///
/// # Errors
/// They cannot be drawn or written.
pub fn draw_plots(dir: &Path, results: &[&FrontResult]) -> Result<(), BenchError> {
    for (name, shown) in [
        ("tps.svg", Shown::Throughput),
        ("latency.svg", Shown::LongestLatency),
    ] {
        let path = dir.join(name);
        let drawn = plot(results, shown).map_err(|cause| BenchError::Plot {
            path: path.clone(),
            cause,
        })?;
        super::write(&path, &drawn)?;
    }
    Ok(())
}

/// A mode's colour, of those by Okabe and Ito, which differ for all eyes; and the length of its
/// dashes and gaps, so that it differs in print.
fn look(mode: FrontMode) -> (RGBColor, i32, i32) {
    match mode {
        FrontMode::Default => (RGBColor(0, 0, 0), 1, 0),
        FrontMode::Compressed => (RGBColor(213, 94, 0), 7, 3),
        FrontMode::Off => (RGBColor(130, 130, 130), 1, 0),
        FrontMode::Btrfs => (RGBColor(0, 158, 115), 3, 3),
        FrontMode::Collie => (RGBColor(0, 100, 200), 1, 0),
    }
}

/// A figure on an axis: 20,000, 1,000, 0.1.
fn grouped(figure: f64) -> String {
    match (figure / 1e3).trunc() as u64 {
        0 => format!("{figure}"),
        thousands => format!("{thousands},{:03.0}", figure % 1e3),
    }
}

fn width(mode: FrontMode) -> u32 {
    match mode {
        FrontMode::Collie => 3,
        _ => 2,
    }
}

/// A curve's points: the middle of each second, and its figure. A second in which nothing ended has
/// no latency.
fn points(result: &FrontResult, shown: Shown) -> Vec<(f64, f64)> {
    let seconds = result.series.iter().enumerate();
    let at = |second: usize| second as f64 + 0.5;
    match shown {
        Shown::Throughput => seconds.map(|(n, second)| (at(n), second.tps as f64)).collect(),
        Shown::LongestLatency => seconds
            .filter(|(_, second)| second.tps > 0)
            .map(|(n, second)| (at(n), second.max_ms))
            .collect(),
    }
}

fn plot(results: &[&FrontResult], shown: Shown) -> Result<String, String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|e| e.to_string())?;
        let (title, rest) = root.split_vertically(TITLE);
        draw_title(&title, results).map_err(|e| e.to_string())?;
        let (curves, rows) = rest.split_vertically(CURVES);
        match shown {
            Shown::Throughput => draw_throughput(&curves, results),
            Shown::LongestLatency => draw_latency(&curves, results),
        }
        .map_err(|e| e.to_string())?;
        draw_checkpoints(&rows, results).map_err(|e| e.to_string())?;
        root.present().map_err(|e| e.to_string())?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw_title(area: &Area<'_>, results: &[&FrontResult]) -> Drawn {
    let Some(first) = results.first() else {
        return Ok(());
    };
    let limit = first.limit.map_or_else(String::new, |rate| {
        format!(", disk limited to {:.0} MB/s of writes", rate as f64 / 1e6)
    });
    let text = format!(
        "PostgreSQL 15, {} at scale {}, {} clients{limit}",
        first.load.name(),
        first.scale,
        first.clients
    );
    let style = (FONT, 17)
        .into_font()
        .color(&BLACK)
        .pos(Pos::new(HPos::Center, VPos::Center));
    area.draw(&Text::new(text, (SIZE.0 as i32 / 2, TITLE as i32 / 2), style))?;
    Ok(())
}

/// How far the axis of time goes.
fn end_s(results: &[&FrontResult]) -> f64 {
    results.iter().map(|result| result.seconds).fold(1.0, f64::max)
}

/// The largest of all figures shown, and the smallest above 0.
fn extremes(results: &[&FrontResult], shown: Shown) -> (f64, f64) {
    let all = results
        .iter()
        .flat_map(|result| points(result, shown))
        .map(|(_, figure)| figure);
    all.filter(|figure| *figure > 0.0)
        .fold((0.0, f64::INFINITY), |(most, least), figure| {
            (f64::max(most, figure), f64::min(least, figure))
        })
}

fn draw_throughput(area: &Area<'_>, results: &[&FrontResult]) -> Drawn {
    let (most, _) = extremes(results, Shown::Throughput);
    let chart = axes(area).build_cartesian_2d(0.0..end_s(results), 0.0..most.max(1.0) * 1.05)?;
    draw_curves(chart, "transactions per second", results, Shown::Throughput)
}

fn draw_latency(area: &Area<'_>, results: &[&FrontResult]) -> Drawn {
    let (most, least) = extremes(results, Shown::LongestLatency);
    // Whole powers of ten, so that the axis has figures also where all are alike.
    let low = 10f64.powf(least.min(most.max(1.0)).log10().floor());
    let high = 10f64.powf(most.max(1.0).log10().ceil()).max(low * 10.0);
    let chart = axes(area).build_cartesian_2d(0.0..end_s(results), (low..high).log_scale())?;
    draw_curves(
        chart,
        "longest latency of each second, ms",
        results,
        Shown::LongestLatency,
    )
}

fn axes<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart
        .margin_left(MARGIN)
        .set_label_area_size(LabelAreaPosition::Left, LEFT - MARGIN)
        .set_label_area_size(LabelAreaPosition::Bottom, 48)
        .margin_right(RIGHT);
    chart
}

fn draw_curves<'a, Y>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Y>>,
    figure: &str,
    results: &[&FrontResult],
    shown: Shown,
) -> Drawn
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc("seconds after the warm-up")
        .y_desc(figure)
        .x_label_formatter(&|second| format!("{second:.0}"))
        .y_label_formatter(&|figure| grouped(*figure))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for result in results {
        let (colour, dash, gap) = look(result.mode);
        let style = colour.stroke_width(width(result.mode));
        let points = points(result, shown);
        match gap {
            0 => chart.draw_series(LineSeries::new(points, style))?,
            _ => chart.draw_series(DashedLineSeries::new(points, dash, gap, style))?,
        };
    }
    Ok(())
}

/// A row for each mode: its name, how its curve looks, and a bar for each checkpoint.
fn draw_checkpoints(area: &Area<'_>, results: &[&FrontResult]) -> Drawn {
    let (whole, high) = area.dim_in_pixel();
    let span = f64::from(whole.saturating_sub(LEFT + RIGHT)) / end_s(results);
    let pixel = |second: f64| LEFT as i32 + (second * span) as i32;
    let step = (high.saturating_sub(22) / results.len().max(1) as u32).min(22) as i32;
    let small = |colour: &RGBColor, across| {
        (FONT, 14)
            .into_font()
            .color(colour)
            .pos(Pos::new(across, VPos::Center))
    };
    area.draw(&Text::new(
        "checkpoints, each until it was complete",
        (LEFT as i32, 8),
        small(&BLACK, HPos::Left),
    ))?;
    for (row, result) in results.iter().enumerate() {
        let (colour, dash, gap) = look(result.mode);
        let middle = 22 + step * row as i32 + step / 2;
        area.draw(&Text::new(
            result.mode.name(),
            (LEFT as i32 - 52, middle),
            small(&BLACK, HPos::Right),
        ))?;
        let style = colour.stroke_width(width(result.mode));
        let mut at = LEFT as i32 - 44;
        let end = LEFT as i32 - 8;
        while at < end {
            let to = if gap == 0 { end } else { (at + dash).min(end) };
            area.draw(&PathElement::new(vec![(at, middle), (to, middle)], style))?;
            at = to + gap;
        }
        for span in &result.checkpoint_spans {
            let corners = [(pixel(span.start_s), middle - 5), (pixel(span.end_s), middle + 5)];
            area.draw(&Rectangle::new(corners, colour.mix(0.45).filled()))?;
            area.draw(&PathElement::new(
                vec![
                    (pixel(span.start_s), middle - 7),
                    (pixel(span.start_s), middle + 7),
                ],
                colour.stroke_width(2),
            ))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_on_axes_are_grouped() {
        let shown = [0.0, 0.1, 500.0, 1_000.0, 1_500.0, 20_000.0, 100_000.0].map(grouped);
        assert_eq!(shown, ["0", "0.1", "500", "1,000", "1,500", "20,000", "100,000"]);
    }
}
