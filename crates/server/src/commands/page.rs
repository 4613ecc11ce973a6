//! A page of `SCAN`: its options, its limits and its reply, whether its keys are those of a database or
//! those of the partitions that this node leads.

use collie_db::Value;
use collie_protocol::{ReplyBuffer, Request};

use super::numbers::{integer, is};
use crate::cost::{Aside, PASSED_MAX};
use crate::data::value;
use crate::exec::Exec;
use crate::failure::{Failure, text};
use crate::glob;

/// The most keys that one `SCAN` visits, whatever `COUNT` is: the count is a hint, and the thread
/// serves other connections too.
const SCAN_KEYS_MAX: usize = 10_000;
/// One `SCAN` ends after this many bytes of names.
const SCAN_BYTES_MAX: usize = 1024 * 1024;
/// The cost of one key without its value.
const SCAN_KEY: usize = 128;
/// How many bytes of keys and values one `SCAN` reads, and how many comparisons with its pattern it
/// makes, on a thread that may block; and after how many comparisons it moves there.
const SCAN_READ_MAX: usize = 16 * 1024 * 1024;
const SCAN_STEPS_MAX: u64 = 10_000_000;
const SCAN_STEPS_HERE: u64 = 200_000;

/// The options of a `SCAN`.
pub(super) struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    pub(super) only_other_types: bool,
}

impl<'a> ScanOptions<'a> {
    pub(super) fn read(request: Request<'a>) -> Result<ScanOptions<'a>, Failure> {
        let mut options = ScanOptions {
            pattern: None,
            count: 10,
            only_other_types: false,
        };
        let mut i = 2;
        while let Some(word) = request.get(i) {
            match request.get(i + 1) {
                Some(count) if is(word, "COUNT") => {
                    let count = integer(count)?;
                    if count < 1 {
                        return Err(text::SYNTAX.into());
                    }
                    options.count = usize::try_from(count).unwrap_or(SCAN_KEYS_MAX).min(SCAN_KEYS_MAX);
                }
                Some(pattern) if is(word, "MATCH") => options.pattern = Some(pattern).filter(|p| *p != b"*"),
                Some(kind) if is(word, "TYPE") => options.only_other_types = !is(kind, "string"),
                _ => return Err(text::SYNTAX.into()),
            }
            i += 2;
        }
        Ok(options)
    }
}

/// What one `SCAN` returns: the matching keys among those that it visits.
pub(super) struct Page<'o> {
    pattern: Option<&'o [u8]>,
    /// Keys that it visits at most, and that it has visited.
    count: usize,
    visited: usize,
    may_block: bool,
    /// Comparisons with the pattern that are left.
    steps: u64,
    /// Bytes of names, and of all that was read.
    bytes: usize,
    read: usize,
    /// Removed entries that it has passed over.
    passed: u64,
    names: ReplyBuffer,
    found: usize,
}

impl<'o> Page<'o> {
    pub(super) fn new(exec: &Exec<'_>, options: &ScanOptions<'o>) -> Page<'o> {
        Page {
            pattern: options.pattern,
            count: options.count,
            visited: 0,
            may_block: exec.may_block,
            steps: if exec.may_block {
                SCAN_STEPS_MAX
            } else {
                SCAN_STEPS_HERE
            },
            bytes: 0,
            read: 0,
            passed: 0,
            names: ReplyBuffer::new(),
            found: 0,
        }
    }

    /// What all keys that it returns start with.
    pub(super) fn prefix(&self) -> &'o [u8] {
        self.pattern.map_or(&b""[..], glob::literal_prefix)
    }

    /// Whether it ends before the next key.
    pub(super) fn is_full(&self) -> bool {
        self.visited == self.count
            || self.bytes > SCAN_BYTES_MAX
            || self.read > SCAN_READ_MAX
            || self.steps == 0
            || self.has_passed_most()
    }

    /// Whether it ends because of the removed entries that it has passed over.
    pub(super) fn has_passed_most(&self) -> bool {
        self.passed >= PASSED_MAX
    }

    /// Counts removed entries that were passed over.
    pub(super) fn pass(&mut self, entries: u64) {
        self.passed = self.passed.saturating_add(entries);
    }

    /// Visits a key; `false` if it has expired.
    pub(super) fn take(&mut self, exec: &mut Exec<'_>, name: &[u8], stored: &Value) -> Result<bool, Failure> {
        self.visited += 1;
        let weight = SCAN_KEY + name.len() + stored.len();
        self.read = self.read.saturating_add(weight);
        exec.weigh(weight)?;
        if value::read_header(stored)?.is_expired(exec.now_ms) {
            return Ok(false);
        }
        if self.is_match(name)? {
            self.bytes += name.len();
            self.names.bulk(name);
            self.found += 1;
        }
        Ok(true)
    }

    fn is_match(&mut self, name: &[u8]) -> Result<bool, Failure> {
        let Some(pattern) = self.pattern else {
            return Ok(true);
        };
        match glob::matches_within(pattern, name, false, &mut self.steps) {
            Some(is_match) => Ok(is_match),
            None if !self.may_block => Err(Failure::Aside(Aside::Searches)),
            // The last key of this call.
            None => {
                self.steps = 0;
                Ok(glob::matches(pattern, name, false))
            }
        }
    }

    /// Encodes the reply with the cursor of the next page.
    pub(super) fn encode(&self, reply: &mut ReplyBuffer, next: u64) {
        reply.array(2);
        let mut digits = itoa::Buffer::new();
        reply.bulk(digits.format(next).as_bytes());
        reply.array(self.found);
        reply.append(&self.names);
    }
}
