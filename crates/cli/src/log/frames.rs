//! How a frame is shown: a line of text, or a JSON object.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use collie_log::inspect::FrameView;
use serde::Serialize;

/// How much of a frame's payload is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Preview,
    Payload,
}

/// The bytes of a payload that a line of a dump shows.
const PREVIEW: usize = 24;

#[derive(Serialize)]
pub(super) struct FrameLine<'a> {
    pub(super) lsn: u64,
    pub(super) end: u64,
    pub(super) epoch: u32,
    pub(super) durable_mark: u64,
    pub(super) stream: u32,
    pub(super) kind: u8,
    pub(super) kind_name: &'static str,
    pub(super) len: usize,
    /// The segment that contains it; none if it is only in the ring.
    pub(super) segment: Option<Cow<'a, str>>,
    pub(super) offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<String>,
}

pub(super) fn frame_line<'a>(frame: &FrameView<'a>, shown: Shown) -> FrameLine<'a> {
    FrameLine {
        lsn: frame.lsn,
        end: frame.end,
        epoch: frame.epoch,
        durable_mark: frame.durable_mark,
        stream: frame.stream,
        kind: frame.kind,
        kind_name: frame.kind_name(),
        len: frame.payload.len(),
        segment: frame.place.map(|(path, _)| path.to_string_lossy()),
        offset: frame.place.map(|(_, offset)| offset),
        payload: (shown == Shown::Payload).then(|| hex(frame.payload)),
    }
}

/// The heading of the lines of [`frame_text`].
pub(super) fn frame_heading() -> String {
    format!(
        "{:>14} {:>8} {:>5} {:>8} {:>4} {:<6} {:<28} payload",
        "lsn", "bytes", "epoch", "stream", "kind", "", "at"
    )
}

pub(super) fn frame_text(frame: &FrameLine<'_>, payload: &[u8], shown: Shown) -> String {
    let place = match (&frame.segment, frame.offset) {
        (Some(segment), Some(offset)) => format!("{}:{offset}", name_of(Path::new(&**segment))),
        _ => "ring".to_owned(),
    };
    let payload = match shown {
        Shown::Payload => hex(payload),
        Shown::Preview => preview(payload),
    };
    format!(
        "{:>14} {:>8} {:>5} {:>8} {:>4} {:<6} {:<28} {payload}",
        frame.lsn, frame.len, frame.epoch, frame.stream, frame.kind, frame.kind_name, place,
    )
}

pub(super) fn name_of(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn preview(payload: &[u8]) -> String {
    let head = payload.get(..PREVIEW.min(payload.len())).unwrap_or_default();
    let more = if payload.len() > PREVIEW { "…" } else { "" };
    format!("{}{more}", head.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_shown_short_and_printable() {
        assert_eq!(preview(b"plain"), "plain");
        assert_eq!(preview(b"\0\xff\n"), "\\x00\\xff\\n");
        assert!(preview(&[b'a'; 100]).ends_with("a…"));
        assert_eq!(hex(&[0, 0x1f, 0xff]), "001fff");
    }
}
