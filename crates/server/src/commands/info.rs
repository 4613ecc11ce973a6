//! `INFO`: the state and the statistics of the server, by sections.

use std::fmt::Write as _;

use collie_protocol::Request;

use super::connection::{REDIS_VERSION, mode};
use super::row::Command;
use crate::exec::{Deferred, Exec, Flow, Outcome};
use crate::partitions::walk::key_count;
use crate::process;
use crate::session::Shared;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("info", -1, info)
    .about("1.0.0", "server", "Returns statistics of the server.")
    .flags(&["loading", "stale"])
    .categories(&["@slow", "@dangerous"])
    .tips(&[
        "nondeterministic_output",
        "request_policy:all_shards",
        "response_policy:special",
    ])
    .lasting()];

macro_rules! fields {
    ($text:expr, $($name:literal: $value:expr),* $(,)?) => {
        $(line($text, format_args!(concat!($name, ":{}"), $value));)*
    };
}

type Section = (&'static str, &'static str, fn(&Shared, &mut String));

/// Name, heading and fields. All sections are shown unless the request names some.
const SECTIONS: &[Section] = &[
    ("server", "Server", server),
    ("clients", "Clients", clients),
    ("memory", "Memory", memory),
    ("persistence", "Persistence", persistence),
    ("stats", "Stats", stats),
    ("replication", "Replication", replication),
    ("cpu", "CPU", cpu),
    ("cluster", "Cluster", cluster),
    ("log", "Log", log),
    ("keyspace", "Keyspace", keyspace),
];

fn info(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    // The numbers of keys and the LSNs that it shows are made as durable as any other reply.
    exec.note_all();
    let asked: Vec<String> = request
        .iter()
        .skip(1)
        .map(|name| String::from_utf8_lossy(name).to_ascii_lowercase())
        .collect();
    Ok(Flow::Deferred(Deferred::Info(asked)))
}

/// The text of the sections, which are named in lower case.
pub(crate) fn describe(shared: &Shared, asked: &[String]) -> String {
    let all = asked.is_empty()
        || asked
            .iter()
            .any(|name| ["all", "default", "everything"].contains(&&**name));
    let mut text = String::new();
    for (name, heading, fill) in SECTIONS {
        if all || asked.iter().any(|asked| asked == name) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            line(&mut text, format_args!("# {heading}"));
            fill(shared, &mut text);
        }
    }
    text
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(what);
    text.push_str("\r\n");
}

fn server(shared: &Shared, text: &mut String) {
    let uptime_s = shared.now_ms().saturating_sub(shared.started_ms) / 1000;
    fields!(text,
        "redis_version": REDIS_VERSION,
        "redis_mode": mode(shared),
        "collie_version": env!("CARGO_PKG_VERSION"),
        "os": std::env::consts::OS,
        "arch_bits": usize::BITS,
        "process_id": std::process::id(),
        "run_id": shared.run_id,
        "tcp_port": shared.listen.port(),
        "server_time_usec": shared.clock.wall_us(),
        "uptime_in_seconds": uptime_s,
        "uptime_in_days": uptime_s / 86_400,
        "io_threads_active": shared.threads,
    );
}

fn clients(shared: &Shared, text: &mut String) {
    fields!(text,
        "connected_clients": shared.clients.len(),
        "cluster_connections": 0,
        "maxclients": shared.settings.clients_max(),
        "blocked_clients": shared.client_pause.waiting(),
    );
}

fn memory(shared: &Shared, text: &mut String) {
    fields!(text,
        "used_memory_rss": process::resident_bytes(),
        "mem_clients_normal": shared.clients.charged_bytes(),
        "maxmemory": 0,
        "maxmemory_policy": "noeviction",
    );
}

fn persistence(shared: &Shared, text: &mut String) {
    fields!(text,
        "loading": 0,
        "aof_enabled": 1,
        "aof_rewrite_in_progress": 0,
        "rdb_bgsave_in_progress": 0,
        "aof_last_write_status": if shared.store.health.refusal(None).is_some() { "err" } else { "ok" },
        "ack": shared.settings.ack(),
    );
}

fn stats(shared: &Shared, text: &mut String) {
    let counters = &shared.counters;
    fields!(text,
        "total_connections_received": counters.connections.get(),
        "total_commands_processed": counters.commands.get(),
        "total_net_input_bytes": counters.bytes_in.get(),
        "total_net_output_bytes": counters.bytes_out.get(),
        "rejected_connections": counters.connections_refused.get(),
        "expired_keys": counters.expired.get(),
        "evicted_keys": 0,
        "evicted_clients": counters.clients_evicted.get(),
        "timed_out_clients": counters.clients_timed_out.get(),
        "keyspace_hits": counters.hits.get(),
        "keyspace_misses": counters.misses.get(),
        "total_error_replies": counters.commands_failed.get(),
        "protocol_errors": counters.protocol_errors.get(),
        "acl_access_denied_auth": counters.auth_failures.get(),
        "tls_handshakes_failed": counters.handshakes_failed.get(),
        "client_query_buffer_limit_disconnections": counters.request_limit_closed.get(),
        "client_output_buffer_limit_disconnections": counters.output_limit_closed.get(),
        "durability_waits": counters.waits.get(),
        "commands_aside": counters.aside.get(),
        "turns_given": counters.yields.get(),
    );
}

fn replication(_shared: &Shared, text: &mut String) {
    fields!(text, "role": "master", "connected_slaves": 0);
}

fn cluster(shared: &Shared, text: &mut String) {
    fields!(text, "cluster_enabled": u8::from(shared.partitions.is_some()));
}

fn cpu(_shared: &Shared, text: &mut String) {
    let (user, system) = process::cpu_seconds();
    let (user, system) = (format!("{user:.6}"), format!("{system:.6}"));
    fields!(text, "used_cpu_sys": system, "used_cpu_user": user);
}

fn log(shared: &Shared, text: &mut String) {
    let stats = shared.store.db.stats();
    let refusal = shared.store.health.refusal(Some(&stats));
    fields!(text,
        "visible": stats.visible,
        "commits": stats.commits,
        "commit_bytes": stats.commit_bytes,
        "memtable_bytes": stats.memtable_bytes,
        "wal_bytes": stats.wal_bytes,
        "reserve_bytes": stats.reserve_bytes,
        "reserve_complete": u8::from(stats.reserve_complete),
        "wal_size_flushes": stats.wal_size_flushes,
        "writes_refused_because": refusal.as_deref().unwrap_or("no"),
    );
    if let Some(log) = &stats.log {
        fields!(text,
            "durable": log.durable,
            "written": log.written,
            "boundary": log.boundary,
            "appended": log.appended,
            "oldest": log.oldest,
            "frames": log.frames,
            "frame_bytes": log.frame_bytes,
            "filler_bytes": log.filler_bytes,
            "bytes_written": log.bytes_written,
            "syncs": log.syncs,
            "refused": log.refused,
            "segments": log.segments,
            "spare_segments": log.spare_segments,
            "segment_bytes": log.segment_bytes,
            "archived_segments": log.archived_segments,
            "archived_bytes": log.archived_bytes,
            "ring_shared": u8::from(log.ring_shared),
            "poisoned": log.poisoned.as_deref().unwrap_or("no"),
        );
        let stages = &log.stages;
        for (name, summary) in [
            ("group_frames", &log.group_frames),
            ("reserve_ns", &stages.reserve_ns),
            ("copy_ns", &stages.copy_ns),
            ("room_ns", &stages.room_ns),
            ("prepare_ns", &stages.prepare_ns),
            ("durable_ns", &stages.durable_ns),
            ("write_ns", &stages.write_ns),
            ("sync_ns", &stages.sync_ns),
        ] {
            let (count, mean) = (summary.count, summary.mean());
            let (p50, p99, max) = (summary.p50, summary.p99, summary.max);
            line(
                text,
                format_args!("{name}:count={count},mean={mean:.1},p50={p50},p99={p99},max={max}"),
            );
        }
        // The holders that keep old segments from being released, the one that pins most first.
        let mut holders: Vec<_> = log.holders.iter().collect();
        holders.sort_by_key(|(_, lsn)| *lsn);
        for (i, (name, lsn)) in holders.into_iter().enumerate() {
            line(text, format_args!("holder{i}:name={name},lsn={lsn}"));
        }
    }
    for (name, family) in &stats.families {
        let flushes: u64 = family.flushes.iter().map(|(_, count)| count).sum();
        line(
            text,
            format_args!(
                "family_{name}:active_bytes={},sealed={},flushed={},pinned_wal_bytes={},flushes={flushes},\
                 compactions={},delays={},stops={},level0_runs={},tables={},table_bytes={}",
                family.active_bytes,
                family.sealed,
                family.flushed,
                family.pinned_wal_bytes,
                family.compactions,
                family.delays,
                family.stops,
                family.level0_runs,
                family.tables,
                family.table_bytes,
            ),
        );
    }
}

fn keyspace(shared: &Shared, text: &mut String) {
    if let Some(partitions) = &shared.partitions {
        // How many of them expire is not counted.
        match key_count(&*partitions.cluster) {
            Ok((0, _)) => {}
            Ok((keys, _)) => line(text, format_args!("db0:keys={keys}")),
            Err(error) => tracing::warn!(%error, "the keys cannot be counted"),
        }
        return;
    }
    for (index, keyspace) in shared.store.keyspaces() {
        let (keys, expires) = keyspace.size();
        if keys > 0 {
            let counting = if keyspace.is_counted() { "" } else { ",counting=1" };
            line(
                text,
                format_args!("db{index}:keys={keys},expires={expires},avg_ttl=0{counting}"),
            );
        }
    }
}
