//! What clients do: pgbench's own transactions, or a load like TPC-C's.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::bed::Bed;
use crate::error::{At, BenchError};

const SCHEMA: &str = include_str!("tpcc/schema.sql");
const FILL: &str = include_str!("tpcc/fill.sql");
/// The load's transactions: names, how many of a hundred they are, and their scripts.
const TPCC: [(&str, u32, &str); 5] = [
    ("new-order", 45, include_str!("tpcc/new-order.sql")),
    ("payment", 43, include_str!("tpcc/payment.sql")),
    ("order-status", 4, include_str!("tpcc/order-status.sql")),
    ("delivery", 4, include_str!("tpcc/delivery.sql")),
    ("stock-level", 4, include_str!("tpcc/stock-level.sql")),
];
/// Which of them is the first.
pub(super) const NEW_ORDER: usize = 0;
/// How often a transaction is tried that met a deadlock.
const TRIES: u32 = 10;

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrontLoad {
    /// pgbench's `tpcb-like`; the scale counts 100,000 accounts.
    PgBench,
    /// A load like TPC-C's: its nine tables and five transactions in their proportions, without
    /// terminals that think; the scale counts warehouses. All lines of an order are of its own
    /// warehouse.
    Tpcc,
}

impl FrontLoad {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PgBench => "pgbench",
            Self::Tpcc => "tpcc",
        }
    }

    /// Makes and fills its tables.
    pub(super) fn fill(self, bed: &Bed<'_>, scale: u32) -> Result<(), BenchError> {
        match self {
            Self::PgBench => fill_accounts(bed, scale),
            Self::Tpcc => {
                bed.script("schema.sql", SCHEMA, &[])?;
                bed.script("fill.sql", FILL, &[format!("warehouses={scale}")])
            }
        }
    }

    /// pgbench with this load, for so many seconds.
    pub(super) fn command(
        self,
        bed: &Bed<'_>,
        scale: u32,
        clients: usize,
        seconds: u64,
    ) -> Result<Command, BenchError> {
        let mut pgbench = bed.cluster().program("pgbench");
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(clients);
        pgbench.args(["-n", "-l", "--log-prefix=done"]);
        pgbench
            .arg(format!("--client={clients}"))
            .arg(format!("--jobs={threads}"));
        pgbench.arg(format!("--time={seconds}"));
        if self == Self::Tpcc {
            pgbench.arg(format!("--define=warehouses={scale}"));
            pgbench.arg(format!("--max-tries={TRIES}"));
            for (name, weight, text) in TPCC {
                let name = format!("{name}.sql");
                let script = bed
                    .cluster()
                    .write_aside(&name, text)
                    .at("write", Path::new(&name))?;
                pgbench.arg(format!("--file={}@{weight}", script.display()));
            }
        }
        Ok(pgbench)
    }
}

/// Fills pgbench's tables.
pub(super) fn fill_accounts(bed: &Bed<'_>, scale: u32) -> Result<(), BenchError> {
    let mut fill = bed.cluster().program("pgbench");
    fill.args(["--initialize", "--quiet"])
        .arg(format!("--scale={scale}"));
    bed.run(&mut fill).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transactions_have_tpccs_proportions() {
        assert_eq!(TPCC.map(|(_, weight, _)| weight), [45, 43, 4, 4, 4]);
        assert_eq!(TPCC[NEW_ORDER].0, "new-order");
    }
}
