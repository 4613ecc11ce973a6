//! The metrics and their values. docs/book/src/operations.md lists every name; `tests/server/metrics`
//! compares the two.
//!
//! Names of counters end in `_total`, those of gauges do not; units are base units; the help is a
//! sentence. A counter of this server is a field of `stats::Counters`, in three places there. What
//! `data` counts for a server by itself, `partitions` counts in a cluster. What a command counts goes by
//! way of `exec::Noted`, since a command may be executed again.

use collie_db::{LogStats, Stall, Stats};

use super::text::{Kind, MetricsPage};
use crate::commands;
use crate::partitions::walk::key_count;
use crate::process;
use crate::session::Shared;
use crate::stats::CommandCounter;

/// Nanoseconds as seconds, Prometheus' unit of time.
const NS: f64 = 1e-9;
/// The most labels of log holders that are shown; users of the log choose their names.
const HOLDERS_MAX: usize = 16;

fn seconds(ns: u64) -> f64 {
    ns as f64 * NS
}

/// All metrics. `engine`: the engine's latest statistics, and their age in nanoseconds.
pub(super) fn page(shared: &Shared, engine: Option<&(Stats, u64)>) -> String {
    let mut page = MetricsPage::default();
    server(shared, &mut page);
    page.gauge(
        "collie_writes_refused",
        "1 from the first write that is refused until one is taken, since the disk is full or the log failed.",
        u8::from(shared.store.health.refusal(engine.map(|(stats, _)| stats)).is_some()),
    );
    commands(shared, &mut page);
    keyspace(shared, &mut page);
    cluster(shared, &mut page);
    process(&mut page);
    if let Some((stats, age_ns)) = engine {
        page.gauge(
            "collie_engine_figures_age_seconds",
            "Age of the statistics of log and families, which wait for stalled writers.",
            seconds(*age_ns),
        );
        store(stats, &mut page);
        if let Some(log_stats) = &stats.log {
            log(log_stats, &mut page);
        }
        families(stats, &mut page);
    }
    page.into_text()
}

fn server(shared: &Shared, page: &mut MetricsPage) {
    let uptime_ms = shared.now_ms().saturating_sub(shared.started_ms);
    page.metric(
        "collie_build_info",
        Kind::Gauge,
        "Always 1; the version is a label.",
    )
    .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.gauge(
        "collie_uptime_seconds",
        "Time since the start.",
        uptime_ms as f64 / 1e3,
    );
    page.gauge("collie_connections", "Open connections.", shared.clients.len());
    page.gauge(
        "collie_connections_limit",
        "Connections at a time, at most.",
        shared.settings.clients_max(),
    );
    page.gauge(
        "collie_connection_buffer_bytes",
        "Bytes of requests, replies and watched keys of all connections, beyond 256 KiB of each.",
        shared.clients.charged_bytes().max(0),
    );
    let c = &shared.counters;
    for (name, help, counter) in [
        (
            "collie_connections_accepted_total",
            "Connections that were accepted.",
            &c.connections,
        ),
        (
            "collie_connections_refused_total",
            "Connections refused since there were too many.",
            &c.connections_refused,
        ),
        (
            "collie_connections_idle_closed_total",
            "Connections closed since they were silent.",
            &c.clients_timed_out,
        ),
        (
            "collie_connections_unauthenticated_closed_total",
            "Connections closed since they did not give the password in time.",
            &c.unauthenticated_timed_out,
        ),
        (
            "collie_connections_evicted_total",
            "Connections closed at maxmemory-clients.",
            &c.clients_evicted,
        ),
        (
            "collie_connections_request_limit_closed_total",
            "Connections closed at client-query-buffer-limit.",
            &c.request_limit_closed,
        ),
        (
            "collie_connections_reply_limit_closed_total",
            "Connections closed at client-output-buffer-limit.",
            &c.output_limit_closed,
        ),
        (
            "collie_protocol_errors_total",
            "Requests that broke the protocol.",
            &c.protocol_errors,
        ),
        (
            "collie_authentication_failures_total",
            "Wrong passwords.",
            &c.auth_failures,
        ),
        (
            "collie_received_bytes_total",
            "Bytes that clients sent.",
            &c.bytes_in,
        ),
        (
            "collie_sent_bytes_total",
            "Bytes that were sent to clients.",
            &c.bytes_out,
        ),
        (
            "collie_requests_total",
            "Commands that were executed, unknown ones included.",
            &c.commands,
        ),
        (
            "collie_request_errors_total",
            "Replies that are errors.",
            &c.commands_failed,
        ),
        (
            "collie_durability_waits_total",
            "Times that a connection waited for its replies to become durable.",
            &c.waits,
        ),
        (
            "collie_commands_aside_total",
            "Commands that ran on threads of their own, since they are heavy or had to wait.",
            &c.aside,
        ),
        (
            "collie_turns_given_total",
            "Times that a connection yielded its thread in the middle of a pipeline.",
            &c.yields,
        ),
        (
            "collie_keyspace_hits_total",
            "Reads that found their key.",
            &c.hits,
        ),
        (
            "collie_keyspace_misses_total",
            "Reads that did not find their key.",
            &c.misses,
        ),
        (
            "collie_expired_keys_total",
            "Keys that were removed since their time had passed.",
            &c.expired,
        ),
    ] {
        page.counter(name, help, counter.get());
    }
}

fn commands(shared: &Shared, page: &mut MetricsPage) {
    let used: Vec<_> = commands::names()
        .zip(shared.calls.iter().map(CommandCounter::get))
        .filter(|(_, calls)| calls.calls > 0)
        .collect();
    let mut metric = page.metric(
        "collie_commands_total",
        Kind::Counter,
        "Calls of each command that was called.",
    );
    for (name, calls) in &used {
        metric.sample(&[("command", name)], calls.calls);
    }
    let mut metric = page.metric(
        "collie_command_errors_total",
        Kind::Counter,
        "Calls that were answered with an error.",
    );
    for (name, calls) in &used {
        metric.sample(&[("command", name)], calls.failures);
    }
    let mut metric = page.metric(
        "collie_command_seconds_total",
        Kind::Counter,
        "Time spent executing, without the wait for durability.",
    );
    for (name, calls) in &used {
        metric.sample(&[("command", name)], seconds(calls.ns));
    }
}

/// The metrics of this node of a cluster.
fn cluster(shared: &Shared, page: &mut MetricsPage) {
    let Some(partitions) = &shared.partitions else {
        return;
    };
    for figure in partitions.cluster.figures() {
        let kind = match figure.is_counter {
            true => Kind::Counter,
            false => Kind::Gauge,
        };
        let mut metric = page.metric(figure.name, kind, figure.help);
        for (labels, value) in &figure.samples {
            let labels: Vec<_> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
            metric.sample(&labels, value);
        }
    }
}

fn keyspace(shared: &Shared, page: &mut MetricsPage) {
    if let Some(partitions) = &shared.partitions {
        // Without the metric a scrape shows that the number is not known.
        if let Ok((keys, _)) = key_count(&*partitions.cluster) {
            let mut metric = page.metric("collie_keys", Kind::Gauge, "Keys that this node leads.");
            metric.sample(&[("db", "0")], keys);
        }
        return;
    }
    let sizes: Vec<_> = shared
        .store
        .keyspaces()
        .into_iter()
        .map(|(index, keyspace)| (index.to_string(), keyspace.size()))
        .collect();
    let mut metric = page.metric(
        "collie_keys",
        Kind::Gauge,
        "Keys of each database that was ever selected.",
    );
    for (db, (keys, _)) in &sizes {
        metric.sample(&[("db", db)], keys);
    }
    let mut metric = page.metric("collie_expiring_keys", Kind::Gauge, "Keys with an expiry.");
    for (db, (_, expiring)) in &sizes {
        metric.sample(&[("db", db)], expiring);
    }
}

fn process(page: &mut MetricsPage) {
    page.gauge(
        "process_resident_memory_bytes",
        "Resident memory.",
        process::resident_bytes(),
    );
    let (user, system) = process::cpu_seconds();
    page.counter(
        "process_cpu_seconds_total",
        "Processor time, user and system.",
        user + system,
    );
    page.gauge(
        "process_open_fds",
        "Open file descriptors.",
        process::open_descriptors(),
    );
    page.gauge(
        "process_max_fds",
        "Limit of open file descriptors.",
        process::descriptors_max(),
    );
}

fn store(stats: &Stats, page: &mut MetricsPage) {
    page.counter("collie_commits_total", "Commits.", stats.commits);
    page.counter(
        "collie_commit_bytes_total",
        "Bytes of commits as they are encoded for the log.",
        stats.commit_bytes,
    );
    page.gauge(
        "collie_visible_lsn",
        "Everything below is visible.",
        stats.visible,
    );
    page.gauge("collie_snapshots", "Snapshots that live.", stats.snapshots);
    page.gauge(
        "collie_memtable_bytes",
        "Bytes of memtables that wait to be flushed.",
        stats.memtable_bytes,
    );
    page.gauge(
        "collie_memtable_limit_bytes",
        "Where writes stop until some are flushed.",
        stats.max_memtable_bytes,
    );
    page.gauge(
        "collie_reserve_bytes",
        "Bytes that are kept back on the disk for what makes room.",
        stats.reserve_bytes,
    );
    page.gauge(
        "collie_reserve_complete",
        "Whether all of them are there: if not, writes that bring data are refused.",
        u8::from(stats.reserve_complete),
    );
    page.gauge("collie_log_live_bytes", "Bytes of live log.", stats.wal_bytes);
    page.gauge(
        "collie_log_live_limit_bytes",
        "From where on families are flushed that pin the log.",
        stats.max_total_wal_size,
    );
    page.counter(
        "collie_log_limit_flushes_total",
        "Times that families were flushed for that.",
        stats.wal_size_flushes,
    );
}

fn log(log: &LogStats, page: &mut MetricsPage) {
    for (name, help, lsn) in [
        ("collie_log_appended_lsn", "Reserved up to here.", log.appended),
        (
            "collie_log_boundary_lsn",
            "Complete without a hole up to here.",
            log.boundary,
        ),
        (
            "collie_log_written_lsn",
            "In the segment files up to here.",
            log.written,
        ),
        ("collie_log_durable_lsn", "On the device up to here.", log.durable),
        (
            "collie_log_oldest_lsn",
            "The oldest LSN that a segment contains.",
            log.oldest,
        ),
    ] {
        page.gauge(name, help, lsn);
    }
    for (name, help, count) in [
        (
            "collie_log_frames_total",
            "Frames that were appended.",
            log.frames,
        ),
        (
            "collie_log_frame_bytes_total",
            "Bytes of those frames.",
            log.frame_bytes,
        ),
        (
            "collie_log_filler_bytes_total",
            "Bytes of fillers between them, with pad-to-block.",
            log.filler_bytes,
        ),
        (
            "collie_log_written_bytes_total",
            "Bytes written to segments.",
            log.bytes_written,
        ),
        (
            "collie_log_syncs_total",
            "Syncs, or writes that were durable on return.",
            log.syncs,
        ),
        (
            "collie_log_refused_total",
            "Appends refused for want of space.",
            log.refused,
        ),
    ] {
        page.counter(name, help, count);
    }
    page.gauge("collie_log_segments", "Segments of the log.", log.segments);
    page.gauge(
        "collie_log_spare_segments",
        "Released segments kept for use as new ones.",
        log.spare_segments,
    );
    page.gauge(
        "collie_log_segment_bytes",
        "Bytes of all segment files, archived ones excluded.",
        log.segment_bytes,
    );
    page.gauge(
        "collie_log_archived_segments",
        "Released segments in the archive.",
        log.archived_segments,
    );
    page.gauge(
        "collie_log_archived_bytes",
        "Bytes of all archived segments.",
        log.archived_bytes,
    );
    page.gauge(
        "collie_log_ring_shared",
        "1 where the ring survives the process.",
        u8::from(log.ring_shared),
    );
    page.gauge(
        "collie_log_poisoned",
        "1 once the log has stopped for good.",
        u8::from(log.poisoned.is_some()),
    );
    let group = &log.group_frames;
    page.metric(
        "collie_log_group_frames",
        Kind::Summary,
        "Frames that shared a sync.",
    )
    .summary(
        &[],
        [group.p50, group.p99, group.p999],
        group.sum,
        group.count,
        1.0,
    );
    let mut metric = page.metric(
        "collie_log_stage_seconds",
        Kind::Summary,
        "Time of each stage of a commit; of reserve, copy and durable one in 64.",
    );
    let stages = &log.stages;
    for (stage, span) in [
        ("reserve", &stages.reserve_ns),
        ("copy", &stages.copy_ns),
        ("room", &stages.room_ns),
        ("prepare", &stages.prepare_ns),
        ("write", &stages.write_ns),
        ("sync", &stages.sync_ns),
        ("durable", &stages.durable_ns),
    ] {
        let quantiles = [span.p50, span.p99, span.p999];
        metric.summary(&[("stage", stage)], quantiles, span.sum, span.count, NS);
    }
    let mut metric = page.metric(
        "collie_log_pinned_bytes",
        Kind::Gauge,
        "Log that each holder keeps from being released; of the 16 that keep most.",
    );
    let mut holders: Vec<_> = log.holders.iter().collect();
    holders.sort_by_key(|(_, lsn)| *lsn);
    let mut shown: Vec<&str> = Vec::new();
    for (holder, lsn) in holders {
        // One name may pin several positions; the oldest counts.
        if shown.len() < HOLDERS_MAX && !shown.contains(&holder.as_str()) {
            shown.push(holder);
            metric.sample(&[("holder", holder)], log.appended.saturating_sub(*lsn));
        }
    }
}

fn families(stats: &Stats, page: &mut MetricsPage) {
    type Family = collie_db::FamilyStats;
    type Figure = fn(&Family) -> f64;
    let figures: &[(&'static str, Kind, &str, Figure)] = &[
        (
            "collie_family_memtable_bytes",
            Kind::Gauge,
            "Bytes in memtables, those that wait to be flushed included.",
            |f| (f.active_bytes + f.sealed_bytes) as f64,
        ),
        (
            "collie_family_sealed_memtables",
            Kind::Gauge,
            "Memtables that wait to be flushed.",
            |f| f.sealed as f64,
        ),
        (
            "collie_family_pinned_log_bytes",
            Kind::Gauge,
            "Log that the family keeps from being released.",
            |f| f.pinned_wal_bytes as f64,
        ),
        (
            "collie_family_flushed_bytes_total",
            Kind::Counter,
            "Bytes of memtables that were flushed.",
            |f| f.flushed_bytes as f64,
        ),
        (
            "collie_family_flush_seconds_total",
            Kind::Counter,
            "Time spent writing tables.",
            |f| seconds(f.flush_ns),
        ),
        (
            "collie_family_flush_failures_total",
            Kind::Counter,
            "Flushes that failed and are tried again.",
            |f| f.flush_failures as f64,
        ),
        (
            "collie_family_compactions_total",
            Kind::Counter,
            "Compactions that changed something.",
            |f| f.compactions as f64,
        ),
        (
            "collie_family_compaction_seconds_total",
            Kind::Counter,
            "Time spent in compactions.",
            |f| seconds(f.compaction_ns),
        ),
        (
            "collie_family_compaction_failures_total",
            Kind::Counter,
            "Compactions that failed.",
            |f| f.compaction_failures as f64,
        ),
        (
            "collie_family_whole_merges_total",
            Kind::Counter,
            "Compactions of all tables, since tombstones hid half of them.",
            |f| f.whole_merges as f64,
        ),
        (
            "collie_family_delayed_writes_total",
            Kind::Counter,
            "Writes that were delayed.",
            |f| f.delays as f64,
        ),
        (
            "collie_family_delay_seconds_total",
            Kind::Counter,
            "Time that they slept.",
            |f| seconds(f.delay_ns),
        ),
        (
            "collie_family_stopped_writes_total",
            Kind::Counter,
            "Writes that had to stop.",
            |f| f.stops as f64,
        ),
        (
            "collie_family_stop_seconds_total",
            Kind::Counter,
            "Time that they waited.",
            |f| seconds(f.stop_ns),
        ),
        (
            "collie_family_stalled",
            Kind::Gauge,
            "0: writes pass; 1: they are delayed; 2: they stop.",
            |f| match f.stall {
                Stall::None => 0.0,
                Stall::Delayed => 1.0,
                _ => 2.0,
            },
        ),
        (
            "collie_family_level0_runs",
            Kind::Gauge,
            "Runs in level 0.",
            |f| f.level0_runs as f64,
        ),
        ("collie_family_tables", Kind::Gauge, "Tables.", |f| {
            f.tables as f64
        }),
        (
            "collie_family_table_bytes",
            Kind::Gauge,
            "Bytes of tables on disk.",
            |f| f.table_bytes as f64,
        ),
        (
            "collie_family_hidden_bytes",
            Kind::Gauge,
            "Of the tables, what tombstones hide, as estimated.",
            |f| f.hidden_bytes as f64,
        ),
        (
            "collie_family_tombstones",
            Kind::Gauge,
            "Tombstones in tables, which scans walk over.",
            |f| f.tombstones as f64,
        ),
    ];
    for (name, kind, help, figure) in figures {
        let mut metric = page.metric(name, *kind, help);
        for (family, stats) in &stats.families {
            metric.sample(&[("family", family)], figure(stats));
        }
    }
    let mut metric = page.metric("collie_family_flushes_total", Kind::Counter, "Flushes by cause.");
    for (family, stats) in &stats.families {
        for (cause, count) in &stats.flushes {
            metric.sample(&[("family", family), ("cause", cause.name())], count);
        }
    }
}
