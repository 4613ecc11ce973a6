//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write as _};

/// A page of metrics.
#[derive(Debug, Default)]
pub(super) struct MetricsPage {
    text: String,
}

/// Prometheus' types of metrics.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Summary,
}

/// A metric whose samples follow.
#[derive(Debug)]
pub(super) struct Metric<'p> {
    text: &'p mut String,
    name: &'static str,
}

impl MetricsPage {
    /// Begins a metric.
    pub(super) fn metric(&mut self, name: &'static str, kind: Kind, help: &str) -> Metric<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Summary => "summary",
        };
        // Writing to a string cannot fail, here and below.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Metric {
            text: &mut self.text,
            name,
        }
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.metric(name, Kind::Counter, help).sample(&[], value);
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.metric(name, Kind::Gauge, help).sample(&[], value);
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

impl Metric<'_> {
    /// One value.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, value);
    }

    /// A distribution: the median, 99 %, 99.9 %, the sum of all values and their number. Values are
    /// multiplied by `unit`.
    pub(super) fn summary(
        &mut self,
        labels: &[(&str, &str)],
        quantiles: [u64; 3],
        sum: u64,
        count: u64,
        unit: f64,
    ) {
        for (quantile, value) in ["0.5", "0.99", "0.999"].into_iter().zip(quantiles) {
            let labels = [labels, &[("quantile", quantile)]].concat();
            self.line("", &labels, value as f64 * unit);
        }
        self.line("_sum", labels, sum as f64 * unit);
        self.line("_count", labels, count);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (i, (name, value)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{name}=\"", if i == 0 { '{' } else { ',' });
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_numbers_stay_plain() {
        let mut page = MetricsPage::default();
        let mut metric = page.metric("x_seconds", Kind::Gauge, "What it is.");
        metric.sample(&[("a", "q\"b\\n\n"), ("c", "")], 0.000_000_001);
        metric.sample(&[], 1e18);
        assert_eq!(
            page.into_text(),
            "# HELP x_seconds What it is.\n# TYPE x_seconds gauge\nx_seconds{a=\"q\\\"b\\\\n\\n\",c=\"\"} 0.000000001\n\
             x_seconds 1000000000000000000\n"
        );
    }
}
