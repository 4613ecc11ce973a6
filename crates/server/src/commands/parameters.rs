//! The parameters that `CONFIG` shows and changes.
//!
//! One that the configuration file has, too, also needs a field in `ServerConfig` and `Settings`
//! (`config.rs`), and in collie-cli's `serve/config.rs` a field, its default and a line in `server()` and
//! in `parameters()`: what is missing there counts as fixed at the start, and a reload does not change
//! it; and a line in `packaging/collie.toml`. The ranges are the same in both. collie-cli's tests `reload`
//! and `operations` say what was forgotten.

use std::borrow::Cow;
use std::str::FromStr;

use collie_protocol::number::parse_i64;

use crate::auth::{PASSWORD_LEN_MAX, Password};
use crate::config::{Ack, parse_bytes};
use crate::data::keyspace::DATABASES;
use crate::process;
use crate::session::Shared;

type Text = Cow<'static, str>;

/// A parameter: its getter, and its setter if it may be changed. The setter checks a value and
/// returns a closure that applies it, so that one bad value among several changes nothing.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) get: fn(&Shared) -> Text,
    pub(super) set: Option<Setter>,
}

/// The largest `slowlog-max-len`: about half a gigabyte if every entry has its maximal size (`ARGS_MAX` and
/// `ARG_LEN_MAX` in `slow_log`).
const SLOW_LOG_LEN_MAX: i64 = 100_000;

/// The level of acknowledgement, which the connection that sets it takes for itself too.
pub(super) const ACK: &str = "ack";
pub(super) const REQUIREPASS: &str = "requirepass";

type Setter = fn(&Shared, &[u8]) -> Result<Change, Text>;
pub(super) type Change = Box<dyn FnOnce(&Shared)>;

fn number(shared_value: impl Into<u64>) -> Text {
    shared_value.into().to_string().into()
}

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: ACK,
        get: |s| s.settings.ack().name().into(),
        set: Some(set_ack),
    },
    Parameter {
        name: "appendfsync",
        get: appendfsync,
        set: None,
    },
    Parameter {
        name: "appendonly",
        get: |_| "yes".into(),
        set: None,
    },
    Parameter {
        name: "authentication-timeout",
        get: |s| number(s.settings.authentication_timeout_s()),
        set: Some(|_, value| {
            let seconds = integer_between(value, 0, i32::MAX.into())?.unsigned_abs();
            Ok(Box::new(move |shared| {
                shared.settings.set_authentication_timeout_s(seconds)
            }))
        }),
    },
    Parameter {
        name: "bind",
        get: |s| s.listen.ip().to_string().into(),
        set: None,
    },
    Parameter {
        name: "client-output-buffer-limit",
        get: |s| {
            format!(
                "normal {} 0 0 slave 0 0 0 pubsub 0 0 0",
                s.settings.output_bytes_max()
            )
            .into()
        },
        set: Some(set_output_limit),
    },
    Parameter {
        name: "client-query-buffer-limit",
        get: |s| number(s.settings.request_len_max() as u64),
        set: Some(|_, value| {
            let bytes = memory_between(value, 1024 * 1024, i64::MAX)?;
            Ok(Box::new(move |shared| {
                shared.settings.set_request_len_max(to_usize(bytes))
            }))
        }),
    },
    Parameter {
        name: "databases",
        get: |_| number(DATABASES),
        set: None,
    },
    Parameter {
        name: "dir",
        get: |s| s.store.db.path().display().to_string().into(),
        set: None,
    },
    Parameter {
        name: "io-threads",
        get: |s| number(s.threads as u64),
        set: None,
    },
    Parameter {
        name: "latency-monitor-threshold",
        get: |_| "0".into(),
        set: None,
    },
    Parameter {
        name: "latency-tracking",
        get: |_| "no".into(),
        set: None,
    },
    Parameter {
        name: "loglevel",
        get: loglevel,
        set: Some(set_loglevel),
    },
    Parameter {
        name: "maxclients",
        get: |s| number(s.settings.clients_max() as u64),
        set: Some(|_, value| {
            let clients = integer_between(value, 1, u32::MAX.into())?;
            let possible = process::clients_possible(process::descriptors_max());
            if to_usize(clients) > possible {
                return Err(format!(
                    "The operating system is not able to handle the specified number of clients, try with {possible}"
                )
                .into());
            }
            Ok(Box::new(move |shared| {
                shared.settings.set_clients_max(to_usize(clients))
            }))
        }),
    },
    Parameter {
        name: "maxmemory",
        get: |_| "0".into(),
        set: None,
    },
    Parameter {
        name: "maxmemory-clients",
        get: |s| number(s.settings.in_flight_bytes_max() as u64),
        set: Some(|_, value| {
            let bytes = memory_between(value, 1024 * 1024, i64::MAX)?;
            Ok(Box::new(move |shared| {
                shared.settings.set_in_flight_bytes_max(to_usize(bytes))
            }))
        }),
    },
    Parameter {
        name: "maxmemory-policy",
        get: |_| "noeviction".into(),
        set: None,
    },
    Parameter {
        name: "port",
        get: |s| number(if s.is_plain { s.listen.port() } else { 0 }),
        set: None,
    },
    Parameter {
        name: "proto-max-bulk-len",
        get: |s| number(s.settings.bulk_len_max() as u64),
        set: Some(set_bulk_len),
    },
    Parameter {
        name: REQUIREPASS,
        get: requirepass,
        set: Some(set_requirepass),
    },
    Parameter {
        name: "save",
        get: |_| "".into(),
        set: None,
    },
    Parameter {
        name: "slowlog-log-slower-than",
        get: |s| s.settings.slow_us().to_string().into(),
        set: Some(|_, value| {
            let us = integer_between(value, -1, i64::MAX)?;
            Ok(Box::new(move |shared| shared.settings.set_slow_us(us)))
        }),
    },
    Parameter {
        name: "slowlog-max-len",
        get: |s| number(s.settings.slow_log_len_max() as u64),
        set: Some(|_, value| {
            let len = integer_between(value, 0, SLOW_LOG_LEN_MAX)?;
            Ok(Box::new(move |shared| {
                shared.settings.set_slow_log_len_max(to_usize(len))
            }))
        }),
    },
    Parameter {
        name: "tcp-keepalive",
        get: |s| number(s.settings.tcp_keepalive_s()),
        set: Some(|_, value| {
            let seconds = integer_between(value, 0, i32::MAX.into())?.unsigned_abs();
            Ok(Box::new(move |shared| {
                shared.settings.set_tcp_keepalive_s(seconds)
            }))
        }),
    },
    Parameter {
        name: "tls-port",
        get: |s| number(s.tls.as_ref().map_or(0, |tls| tls.addr.port())),
        set: None,
    },
    Parameter {
        name: "timeout",
        get: |s| number(s.settings.idle_timeout_s()),
        set: Some(|_, value| {
            let seconds = integer_between(value, 0, i32::MAX.into())?.unsigned_abs();
            Ok(Box::new(move |shared| {
                shared.settings.set_idle_timeout_s(seconds)
            }))
        }),
    },
];

/// The value of `appendfsync` with which Redis' replies would promise the same.
fn appendfsync(shared: &Shared) -> Text {
    match shared.settings.ack() {
        Ack::Disk => "always",
        Ack::Process => "everysec",
        Ack::Buffered => "no",
    }
    .into()
}

fn requirepass(shared: &Shared) -> Text {
    let password = shared.settings.password();
    password.map_or("".into(), |password| {
        String::from_utf8_lossy(password.text()).into_owned().into()
    })
}

/// Redis' names of log levels. Redis' debug logs everything, as trace does here; Redis has no level
/// for errors alone.
const LOG_LEVELS: &[(&str, tracing::Level)] = &[
    ("debug", tracing::Level::TRACE),
    ("verbose", tracing::Level::DEBUG),
    ("notice", tracing::Level::INFO),
    ("warning", tracing::Level::WARN),
    ("error", tracing::Level::ERROR),
];

fn loglevel(shared: &Shared) -> Text {
    let level = shared
        .verbosity
        .as_ref()
        .map_or(tracing::Level::INFO, |verbosity| verbosity.level());
    let known = LOG_LEVELS.iter().find(|(_, known)| *known == level);
    known.map_or("notice", |(name, _)| *name).into()
}

fn set_loglevel(shared: &Shared, value: &[u8]) -> Result<Change, Text> {
    if shared.verbosity.is_none() {
        return Err("this server's diagnostics are not its own to change".into());
    }
    let known = LOG_LEVELS
        .iter()
        .find(|(name, _)| value.eq_ignore_ascii_case(name.as_bytes()));
    let &(_, level) =
        known.ok_or("argument(s) must be one of the following: debug, verbose, notice, warning, error")?;
    Ok(Box::new(move |shared| {
        if let Some(verbosity) = &shared.verbosity
            && let Err(error) = verbosity.set_level(level)
        {
            tracing::error!(%error, "the level of diagnostics stays as it is");
        }
    }))
}

fn to_usize(value: i64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn integer_between(value: &[u8], min: i64, max: i64) -> Result<i64, Text> {
    let value = parse_i64(value).ok_or("argument couldn't be parsed into an integer")?;
    if !(min..=max).contains(&value) {
        return Err(format!("argument must be between {min} and {max} inclusive").into());
    }
    Ok(value)
}

/// A number of bytes with one of Redis' units.
fn memory_between(value: &[u8], min: i64, max: i64) -> Result<i64, Text> {
    let text = std::str::from_utf8(value).ok();
    let bytes = text
        .and_then(parse_bytes)
        .ok_or("argument must be a memory value")?;
    if !(min..=max).contains(&bytes) {
        return Err(format!("argument must be between {min} and {max} inclusive").into());
    }
    Ok(bytes)
}

/// Redis accepts any length. A value that the log cannot take in one commit must not be allowed.
fn set_bulk_len(shared: &Shared, value: &[u8]) -> Result<Change, Text> {
    let bytes = to_usize(memory_between(value, 1024 * 1024, i64::MAX)?);
    let most = shared.settings.value_len_max();
    if bytes > most {
        return Err(
            format!("argument must be at most {most}, half of the log's ring less room for keys").into(),
        );
    }
    Ok(Box::new(move |shared| shared.settings.set_bulk_len_max(bytes)))
}

fn set_ack(_: &Shared, value: &[u8]) -> Result<Change, Text> {
    let ack = std::str::from_utf8(value)
        .ok()
        .and_then(|word| Ack::from_str(word).ok());
    let ack = ack.ok_or("argument(s) must be one of the following: disk, process, buffered")?;
    Ok(Box::new(move |shared| shared.settings.set_ack(ack)))
}

fn set_requirepass(_: &Shared, value: &[u8]) -> Result<Change, Text> {
    if value.len() > PASSWORD_LEN_MAX {
        return Err(format!("argument must be at most {PASSWORD_LEN_MAX} bytes long").into());
    }
    let password = (!value.is_empty()).then(|| Password::new(value));
    Ok(Box::new(move |shared| shared.settings.set_password(password)))
}

fn set_output_limit(_: &Shared, value: &[u8]) -> Result<Change, Text> {
    let normal = output_limit(value)?;
    Ok(Box::new(move |shared| {
        if let Some(hard) = normal {
            shared.settings.set_output_bytes_max(to_usize(hard));
        }
    }))
}

/// Groups of class, hard limit, soft limit and seconds. This returns the hard limit of ordinary
/// clients; their soft limit, and the other classes, which do not exist here, are parsed and
/// ignored.
fn output_limit(value: &[u8]) -> Result<Option<i64>, Text> {
    let words: Vec<&[u8]> = value
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty())
        .collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut normal = None;
    for group in words.chunks_exact(4) {
        let [class, hard, soft, seconds] = group else {
            continue;
        };
        let known = ["normal", "slave", "replica", "pubsub"];
        if !known
            .iter()
            .any(|known| class.eq_ignore_ascii_case(known.as_bytes()))
        {
            return Err("Invalid client class specified in buffer limit configuration.".into());
        }
        let wrong = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
        let hard = memory_between(hard, 0, i64::MAX).map_err(|_| wrong)?;
        memory_between(soft, 0, i64::MAX).map_err(|_| wrong)?;
        integer_between(seconds, 0, i64::MAX).map_err(|_| wrong)?;
        if class.eq_ignore_ascii_case(b"normal") {
            normal = Some(hard);
        }
    }
    Ok(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_with_the_units_of_redis() {
        for (text, expected) in [
            ("0", 0),
            ("12b", 12),
            ("1k", 1_000),
            ("1KB", 1024),
            ("2mb", 2 << 20),
            ("1g", 1_000_000_000),
        ] {
            assert_eq!(
                memory_between(text.as_bytes(), 0, i64::MAX),
                Ok(expected),
                "{text}"
            );
        }
        for text in [
            "",
            "kb",
            "-1",
            "1tb",
            "1 kb",
            "99999999999999999999",
            "9999999999gb",
        ] {
            assert!(memory_between(text.as_bytes(), 0, i64::MAX).is_err(), "{text}");
        }
    }

    /// Parses a number with a unit in another way.
    fn reference(text: &str) -> Option<i128> {
        let lower = text.to_ascii_lowercase();
        let units = [
            ("kb", 1 << 10),
            ("mb", 1 << 20),
            ("gb", 1 << 30),
            ("k", 1_000),
            ("m", 1_000_000),
            ("g", 1_000_000_000),
            ("b", 1),
            ("", 1),
        ];
        let (digits, factor) = units.iter().find_map(|(unit, factor)| {
            let digits = lower.strip_suffix(unit)?;
            Some((digits, *factor))
        })?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| digits.parse::<i128>().ok()).flatten()?;
        number.checked_mul(factor)
    }

    /// Parses the limit of ordinary clients in another way.
    fn reference_limit(text: &str) -> Option<Option<i128>> {
        let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        let mut normal = None;
        for group in words.chunks(4) {
            let [class, hard, soft, seconds] = group else {
                return None;
            };
            let (hard, _) = (reference(hard)?, reference(soft)?);
            seconds.parse::<u64>().ok()?;
            match class.to_ascii_lowercase().as_str() {
                "normal" => normal = Some(hard),
                "slave" | "replica" | "pubsub" => {}
                _ => return None,
            }
        }
        (!words.is_empty()).then_some(normal)
    }

    fn check_memory(bytes: &[u8], text: Option<&str>, min: i64, max: i64) {
        let shown = text.and_then(reference);
        match memory_between(bytes, min, max) {
            Ok(value) => {
                assert_eq!(shown, Some(value.into()), "{}", bytes.escape_ascii());
                assert!((min..=max).contains(&value));
            }
            Err(why) => {
                let allowed = i128::from(min)..=i128::from(max);
                assert!(
                    !shown.is_some_and(|shown| allowed.contains(&shown)),
                    "{}: {why}",
                    bytes.escape_ascii()
                );
                assert!(why.starts_with("argument must be"), "{why}");
            }
        }
    }

    #[test]
    fn a_mutated_value_is_the_number_that_it_shows_or_refused() {
        let corpus = collie_sim::fuzz::corpus("values");
        collie_sim::fuzz::mutations("values", &corpus, 20_000, |rng, bytes| {
            let text = std::str::from_utf8(bytes).ok();
            let min = i64::try_from(rng.below(3)).unwrap_or(0) - 1;
            let max = if rng.coin() { i64::MAX } else { 1 << 30 };
            check_memory(bytes, text, min, max);
            if let Ok(value) = integer_between(bytes, min, max) {
                assert_eq!(value.to_string().as_bytes(), bytes);
                assert!((min..=max).contains(&value));
            }
            match output_limit(bytes) {
                Ok(normal) => assert_eq!(text.and_then(reference_limit), Some(normal.map(i128::from))),
                Err(why) => assert!(why.contains("buffer limit configuration"), "{why}"),
            }
        });
    }
}
