//! A plot of a measurement: for each mix a bar for each place of logs, throughput above and writes' mean latency below.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{LogPlace, PartitionsResult};
use crate::error::BenchError;
use crate::front::write;

const SIZE: (u32, u32) = (960, 620);
/// Heights of the title with the legend, and of each of the two charts.
const TITLE: u32 = 60;
const CHART: u32 = 280;
/// Room on the left for an axis' figures, and below for the mixes' names.
const LEFT: i32 = 70;
const BELOW: i32 = 40;
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// What a chart shows of a result.
type Figure = fn(&PartitionsResult) -> Option<f64>;

/// Writes `partitions.svg` to a directory: `results` has one for each place and mix.
///
/// # Errors
/// It cannot be drawn or written.
pub fn draw_partitions(dir: &Path, results: &[PartitionsResult]) -> Result<(), BenchError> {
    let path = dir.join("partitions.svg");
    let drawn = plot(results).map_err(|error| BenchError::Plot {
        path: path.clone(),
        cause: error.to_string(),
    })?;
    write(&path, &drawn)
}

/// A place's colour, of those by Okabe and Ito, which differ for all eyes.
fn colour(place: LogPlace) -> RGBColor {
    match place {
        LogPlace::Dual => RGBColor(90, 90, 90),
        LogPlace::Shared => RGBColor(0, 100, 200),
        LogPlace::Home => RGBColor(213, 94, 0),
        LogPlace::Data => RGBColor(230, 159, 0),
        LogPlace::PerDisk => RGBColor(0, 158, 115),
    }
}

fn plot(results: &[PartitionsResult]) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, rest) = root.split_vertically(TITLE);
        let (throughput, latency) = rest.split_vertically(CHART);
        draw_title(&title, results)?;
        draw_chart(&throughput, results, "operations per second", |result| {
            Some(result.per_sec)
        })?;
        draw_chart(&latency, results, "writes: mean, ms", |result| {
            Some(result.writes?.avg_us / 1000.0)
        })?;
        root.present()?;
    }
    Ok(svg)
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

fn draw_title(area: &Area<'_>, results: &[PartitionsResult]) -> Drawn {
    let Some(first) = results.first() else {
        return Ok(());
    };
    let limit = first.limit.map_or_else(String::new, |limit| {
        format!(" of {:.0} MB/s each", limit as f64 / 1e6)
    });
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let text = format!(
        "Partitions on {} node{}, {} disk{}{limit}, {}",
        first.nodes,
        plural(first.nodes),
        first.disks,
        plural(first.disks),
        if first.sync {
            "writes synced"
        } else {
            "nothing synced"
        }
    );
    area.draw_text(&text, &(FONT, 18).into_font().color(&BLACK), (LEFT, 8))?;
    for (at, place) in (0..).zip(distinct(results.iter().map(|result| result.place))) {
        let x = LEFT + at * 110;
        area.draw(&Rectangle::new([(x, 38), (x + 12, 50)], colour(place).filled()))?;
        area.draw_text(place.name(), &(FONT, 13).into_font().color(&BLACK), (x + 18, 37))?;
    }
    Ok(())
}

fn draw_chart(area: &Area<'_>, results: &[PartitionsResult], name: &str, of: Figure) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let (width, bottom) = (width as i32 - LEFT - 20, height as i32 - BELOW);
    let top = 26;
    let most = results.iter().filter_map(of).fold(0.0, f64::max).max(1e-9);
    let scale = f64::from(bottom - top) / most;
    let y = |figure: f64| bottom - (figure * scale) as i32;
    let small = (FONT, 12).into_font().color(&BLACK);
    area.draw_text(name, &(FONT, 13).into_font().color(&BLACK), (LEFT, 4))?;
    for part in 0..=4 {
        let figure = most * f64::from(part) / 4.0;
        area.draw(&PathElement::new(
            vec![(LEFT, y(figure)), (LEFT + width, y(figure))],
            RGBColor(220, 220, 220),
        ))?;
        let right = small.clone().pos(Pos::new(HPos::Right, VPos::Center));
        area.draw_text(&axis(figure), &right, (LEFT - 6, y(figure)))?;
    }
    let mixes = distinct(results.iter().map(|result| result.mix.as_str()));
    let group = width / (mixes.len().max(1) as i32);
    for (at, mix) in (0..).zip(&mixes) {
        let left = LEFT + at * group;
        let of_mix: Vec<_> = results.iter().filter(|result| result.mix == **mix).collect();
        let bar = (group - 12) / (of_mix.len().max(1) as i32);
        for (number, result) in (0..).zip(&of_mix) {
            let Some(figure) = of(result) else { continue };
            let x = left + 6 + number * bar;
            area.draw(&Rectangle::new(
                [(x, y(figure)), (x + bar - 2, bottom)],
                colour(result.place).filled(),
            ))?;
        }
        let middle = small.clone().pos(Pos::new(HPos::Center, VPos::Top));
        area.draw_text(&named(mix), &middle, (left + group / 2, bottom + 6))?;
    }
    Ok(())
}

/// A mix in words.
fn named(mix: &str) -> String {
    match mix.split_once('@') {
        Some((ratio, threads)) => format!("{ratio}, {threads} threads"),
        None => mix.to_owned(),
    }
}

fn axis(figure: f64) -> String {
    match figure {
        figure if figure >= 1000.0 => format!("{:.0} k", figure / 1000.0),
        figure if figure >= 10.0 => format!("{figure:.0}"),
        figure => format!("{figure:.1}"),
    }
}
