//! Backpressure: writes are delayed, and then stopped, while background work lags behind.
//!
//! A family's writes are delayed when all but its last memtable wait to be flushed or level 0 has
//! `level0_slowdown` runs, the more the closer the stop is; they stop when all memtables are full or level
//! 0 has `level0_stop` runs. So memory is bounded by `max_write_buffers` memtables (and what the threads
//! that passed the gate before it closed still write).

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::core::{Core, FamilyState, GATE_OPEN, GATE_SLOW, GATE_STOP};
use crate::{Error, Result};

/// Delay per byte written right before the stop, in nanoseconds: about 20 MB/s.
const LONGEST_NS_PER_BYTE: f64 = 50.0;
/// Delays are slept in pieces of at least this; a shorter sleep takes longer than asked.
const SLEEP_NS: u64 = 1_000_000;
/// A stopped writer looks again after this long at the latest.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Sets the gate by what is the case now. Called whenever that may have changed.
pub(crate) fn update(core: &Core, family: &FamilyState) {
    let stalls = core.stalls.lock();
    let gate = gate(family);
    let before = family.gate.swap(gate, Ordering::Relaxed);
    drop(stalls);
    if gate < before {
        core.gates.notify_all();
    }
}

fn gate(family: &FamilyState) -> u8 {
    let view = family.view.load();
    let options = &family.options;
    let level0 = family.level0.load(Ordering::Relaxed);
    let buffers = view.sealed.len() + 1;
    let full = view.active.bytes() >= options.write_buffer_bytes;
    if level0 >= options.level0_stop || (buffers >= options.max_write_buffers && full) {
        GATE_STOP
    } else if level0 >= options.level0_slowdown || (buffers >= options.max_write_buffers && buffers > 2) {
        GATE_SLOW
    } else {
        GATE_OPEN
    }
}

/// How close the stop is, from 0 to 1.
fn pressure(family: &FamilyState) -> f64 {
    let options = &family.options;
    let view = family.view.load();
    let fill = view.active.bytes() as f64 / options.write_buffer_bytes as f64;
    let over = family
        .level0
        .load(Ordering::Relaxed)
        .saturating_sub(options.level0_slowdown);
    let span = (options.level0_stop - options.level0_slowdown).max(1);
    let memory = if view.sealed.len() + 1 >= options.max_write_buffers {
        fill
    } else {
        0.0
    };
    memory.max(over as f64 / span as f64).clamp(0.02, 1.0)
}

/// Called before a write of `bytes` when the family's gate is not open.
pub(crate) fn hold_up(core: &Core, family: &FamilyState, bytes: usize) -> Result<()> {
    match family.gate.load(Ordering::Relaxed) {
        GATE_SLOW => {
            delay(core, family, bytes);
            Ok(())
        }
        GATE_STOP => stop(core, family),
        _ => Ok(()),
    }
}

fn delay(core: &Core, family: &FamilyState, bytes: usize) {
    let counters = &family.counters;
    counters.delays.fetch_add(1, Ordering::Relaxed);
    let owed = (bytes as f64 * LONGEST_NS_PER_BYTE * pressure(family)) as u64;
    let debt = counters.debt_ns.fetch_add(owed, Ordering::Relaxed) + owed;
    if debt < SLEEP_NS {
        return;
    }
    // Whoever takes the debt sleeps for it; the others pass.
    let debt = counters.debt_ns.swap(0, Ordering::Relaxed);
    if debt > 0 {
        let started = core.device.clock().monotonic();
        std::thread::sleep(Duration::from_nanos(debt));
        let slept = core.device.clock().monotonic().saturating_sub(started);
        counters.delay_ns.fetch_add(slept, Ordering::Relaxed);
    }
}

/// Why what shut the gate does not get done.
fn lagging_error(family: &FamilyState) -> Option<Error> {
    let level0 = family.level0.load(Ordering::Relaxed);
    if level0 >= family.options.level0_stop {
        let failed = family.compaction_error.lock().clone();
        if failed.is_some() || !family.tables.has_unrecorded() {
            return failed;
        }
        // Compactions wait for the manifest: see below.
    }
    family.flush_error.lock().clone()
}

fn stop(core: &Core, family: &FamilyState) -> Result<()> {
    let counters = &family.counters;
    counters.stops.fetch_add(1, Ordering::Relaxed);
    let started = core.device.clock().monotonic();
    let mut stalls = core.stalls.lock();
    let passed = loop {
        if let Some(error) = core.refusal().or_else(|| core.journal.poisoned()) {
            break Err(error);
        }
        if family.is_dropped() {
            break Err(Error::FamilyDropped {
                name: family.name.to_string(),
            });
        }
        if family.gate.load(Ordering::Relaxed) != GATE_STOP {
            break Ok(());
        }
        // Memory is full and flushes fail: say why, instead of waiting for what may not come.
        if let Some(error) = lagging_error(family) {
            break Err(error);
        }
        core.gates.wait_for(&mut stalls, LOOK_AGAIN);
    };
    drop(stalls);
    let waited = core.device.clock().monotonic().saturating_sub(started);
    counters.stop_ns.fetch_add(waited, Ordering::Relaxed);
    passed
}
