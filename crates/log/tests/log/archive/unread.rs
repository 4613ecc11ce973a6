//! Segments that were not read at the opening: the archive says of them, too, where their first
//! frame begins.

use std::path::Path;
use std::sync::Arc;

use collie_io::{Device, RealDevice};
use collie_log::inspect::inspect;
use collie_log::{FIRST_LSN, Level, Log, LogError, LogOptions, Lsn, Span};

use super::{SEGMENT, append, archived, first_lsn, follow, options, release};

/// A log of one epoch, with frames that carry so many bytes each, that was closed, opened again
/// where its last frame begins, so that what lies before was not read, and then released as a
/// whole. Where its frames stand.
fn archive_unread(dir: &Path, lens: &[usize], between: impl FnOnce()) -> (Log, Vec<Span>) {
    let options = LogOptions {
        ring_bytes: 512 << 10,
        ..options()
    };
    let log = Log::open(dir, options.clone()).unwrap();
    let mut worker = log.worker().unwrap();
    let spans: Vec<_> = lens
        .iter()
        .enumerate()
        .map(|(n, len)| {
            let span = worker.append(1, 2, &numbered(n, *len)).unwrap();
            log.wait(span.end, Level::Disk).unwrap();
            span
        })
        .collect();
    drop(worker);
    log.close().unwrap();
    between();
    let resume_at = spans.last().map(|span| span.start);
    let log = Log::open(dir, LogOptions { resume_at, ..options }).unwrap();
    assert_eq!(
        log.recovery().first_frame,
        resume_at.unwrap(),
        "nothing before it is read"
    );
    append(&log, 0..2);
    release(&log);
    assert!(log.poisoned().is_none());
    (log, spans)
}

fn numbered(n: usize, len: usize) -> Vec<u8> {
    format!("{n:08}").bytes().cycle().take(len).collect()
}

/// How many bytes of frames a segment has room for, and the header of one.
const ROOM: usize = SEGMENT as usize - 8192;
const HEADER: usize = 32;

#[test]
fn unread_segments_say_in_the_archive_where_they_begin() {
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let small: Vec<_> = (0..200).map(|n| 8 + n * 131 % 3000).collect();
    // Each covers some segments from end to end.
    let large: Vec<_> = (0..8).map(|n| 8 + n * 37_777 % 200_000).collect();
    // A frame ends with a segment.
    let exact: Vec<_> = [ROOM - HEADER; 4].into_iter().chain([100; 300]).collect();
    // The header of a frame begins in one segment, and ends in the next.
    let across = [8, 16, 24].map(|rest| {
        let to_the_border = ROOM - rest - HEADER;
        let whole = ROOM - HEADER;
        [&[to_the_border, whole, whole][..], &[1000; 100]].concat()
    });
    for lens in [small, large, exact].into_iter().chain(across) {
        let dir = tempfile::tempdir().unwrap();
        let (_log, spans) = archive_unread(dir.path(), &lens, || {});
        let there = archived(dir.path());
        assert!(there.len() > 4, "{lens:?}");
        let archive = dir.path().join("archive");
        for (gone, path) in there.iter().enumerate() {
            let begins = first_lsn(path);
            let first = spans.partition_point(|span| span.start < begins);
            let mut frames = spans.iter().enumerate().skip(first);
            let found = inspect(&device, &archive, |frame| {
                if let Some((n, span)) = frames.next() {
                    assert_eq!((frame.lsn, frame.end), (span.start, span.end));
                    assert!(frame.payload == numbered(n, lens[n]));
                }
            });
            let found = found.unwrap_or_else(|error| panic!("without the first {gone}: {error}"));
            // What begins in the archive's last segment ends in the log.
            assert!(frames.len() <= 1, "{} frames are not shown", frames.len());
            assert_eq!(found.torn, None);
            let followed = follow(RealDevice::new(), dir.path(), None).unwrap();
            let starts = followed.iter().map(|frame| frame.start);
            assert!(
                starts
                    .take(spans.len() - first)
                    .eq(spans[first..].iter().map(|span| span.start)),
                "without the first {gone} another frame is followed"
            );
            // As a purge does.
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn damage_in_an_unread_segment_hides_the_next_beginning() {
    use std::os::unix::fs::FileExt;
    let first_frame =
        |path: &Path| u64::from_le_bytes(std::fs::read(path).unwrap()[378..386].try_into().unwrap());
    let lens = [1000; 150];
    let begin = |n: usize| FIRST_LSN + (n * (1000 + HEADER)) as u64;
    // The last frame that begins in the second segment.
    let last = (2 * ROOM - 1) / (1000 + HEADER);
    assert!(
        begin(last + 1) > FIRST_LSN + 2 * ROOM as u64,
        "it goes on in the third"
    );
    let in_second = |lsn: Lsn| 8192 + lsn - FIRST_LSN - ROOM as u64;
    // A frame's length, LSN and epoch, and its payload, of which only the last one's counts.
    let (len, lsn, epoch, payload) = (4, 8, 24, HEADER as u64);
    for (frame, at, known) in [
        (last - 3, len, false),
        (last - 3, lsn, false),
        (last - 3, epoch, false),
        (last - 3, payload, true),
        (last, len, false),
        (last, payload, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (log, spans) = archive_unread(dir.path(), &lens, || {
            let path = dir.path().join("0000000000000002.seg");
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap();
            let mut byte = [0];
            let at = in_second(begin(frame)) + at;
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 8], at).unwrap();
        });
        assert_eq!(spans[last].start, begin(last));
        let there = archived(dir.path());
        assert!(there.len() > 5, "it is released all the same");
        let begins: Vec<_> = there.iter().map(|path| first_frame(path)).collect();
        let context = format!("byte {at} of frame {frame}: {begins:?}");
        assert_eq!((begins[0], begins[1]), (0, begin(24)), "{context}");
        assert_eq!(begins[2], if known { begin(last + 1) } else { 0 }, "{context}");
        assert_eq!(begins[3] > 0, known, "{context}");
        // Where it is read, it is found.
        let error = follow(RealDevice::new(), dir.path(), None).unwrap_err();
        assert!(
            matches!(&error, LogError::Corrupt { path, .. } if *path == there[1]),
            "{error}"
        );
        drop(log);
    }
}
