//! `LCS`: the longest common subsequence of two strings, computed from the table of its lengths for
//! all prefixes.

use collie_protocol::Request;

use super::numbers::{integer, is};
use super::row::{Command, Keys};
use crate::exec::{Exec, Flow, Found, Outcome};
use crate::failure::{Failure, text};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("lcs", -3, lcs)
    .about(
        "7.0.0",
        "string",
        "Finds the longest common subsequence of two values.",
    )
    .flags(&["readonly"])
    .categories(&["@read", "@string", "@slow"])
    .keys(&[Keys::to(1, 1, 1, &["RO", "access"])])];

/// The options of `LCS`.
#[derive(Debug, Default, Clone, Copy)]
struct Wanted {
    length: bool,
    matches: bool,
    match_length: bool,
    match_length_min: u64,
}

impl Wanted {
    fn read(request: Request<'_>) -> Result<Wanted, Failure> {
        let mut wanted = Wanted::default();
        let mut i = 3;
        while let Some(word) = request.get(i) {
            match request.get(i + 1) {
                _ if is(word, "IDX") => wanted.matches = true,
                _ if is(word, "LEN") => wanted.length = true,
                _ if is(word, "WITHMATCHLEN") => wanted.match_length = true,
                Some(least) if is(word, "MINMATCHLEN") => {
                    wanted.match_length_min = u64::try_from(integer(least)?).unwrap_or(0);
                    i += 1;
                }
                _ => return Err(text::SYNTAX.into()),
            }
            i += 1;
        }
        if wanted.matches && wanted.length {
            return Err("ERR If you want both the length and indexes, please just use IDX.".into());
        }
        Ok(wanted)
    }
}

/// A run of bytes that both strings contain: its start in each, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    in_one: usize,
    in_other: usize,
    len: usize,
}

/// Lengths of the longest common subsequences of all prefixes of two strings.
struct Table<'a> {
    one: &'a [u8],
    other: &'a [u8],
    lengths: Vec<u32>,
}

impl<'a> Table<'a> {
    fn new(one: &'a [u8], other: &'a [u8]) -> Table<'a> {
        let width = other.len() + 1;
        let mut lengths = vec![0_u32; width * (one.len() + 1)];
        for (row, byte) in one.iter().enumerate() {
            let (above, below) = lengths.split_at_mut((row + 1) * width);
            let above = above.get(row * width..).unwrap_or_default();
            let mut left = 0;
            let cells = below.iter_mut().skip(1).zip(above.windows(2)).zip(other);
            for ((cell, pair), candidate) in cells {
                let &[diagonal, up] = pair else { continue };
                *cell = if byte == candidate {
                    diagonal + 1
                } else {
                    left.max(up)
                };
                left = *cell;
            }
        }
        Table { one, other, lengths }
    }

    fn at(&self, row: usize, column: usize) -> u32 {
        let index = row * (self.other.len() + 1) + column;
        self.lengths.get(index).copied().unwrap_or(0)
    }

    fn length(&self) -> u32 {
        self.at(self.one.len(), self.other.len())
    }

    /// The subsequence, and the runs that it consists of, the last one first.
    fn trace(&self) -> (Vec<u8>, Vec<Match>) {
        let (mut row, mut column) = (self.one.len(), self.other.len());
        let (mut sequence, mut runs) = (Vec::new(), Vec::<Match>::new());
        while row > 0 && column > 0 {
            let byte = self.one.get(row - 1);
            if byte == self.other.get(column - 1) {
                sequence.extend(byte);
                match runs.last_mut() {
                    Some(run) if run.in_one == row && run.in_other == column => {
                        run.in_one -= 1;
                        run.in_other -= 1;
                        run.len += 1;
                    }
                    _ => runs.push(Match {
                        in_one: row - 1,
                        in_other: column - 1,
                        len: 1,
                    }),
                }
                row -= 1;
                column -= 1;
            } else if self.at(row - 1, column) > self.at(row, column - 1) {
                row -= 1;
            } else {
                column -= 1;
            }
        }
        sequence.reverse();
        (sequence, runs)
    }
}

fn lcs(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let snapshot = exec.snapshot();
    let one = exec.find_at(snapshot.as_ref(), request.at(1))?;
    let other = exec.find_at(snapshot.as_ref(), request.at(2))?;
    let wanted = Wanted::read(request)?;
    let len = |found: &Option<Found>| found.as_ref().map_or(0, Found::len) as u64;
    let cells = (len(&one) + 1).saturating_mul(len(&other) + 1);
    if cells.saturating_mul(4) > exec.shared.settings.bulk_len_max() as u64 {
        return Err("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len".into());
    }
    exec.weigh(usize::try_from(cells.saturating_mul(4)).unwrap_or(usize::MAX))?;
    let one = exec.payload_or_empty(one.as_ref())?;
    let other = exec.payload_or_empty(other.as_ref())?;
    let table = Table::new(&one, &other);
    if wanted.length {
        exec.reply.integer(table.length().into());
        return Ok(Flow::Next);
    }
    let (sequence, runs) = table.trace();
    if wanted.matches {
        reply_matches(exec, &wanted, &runs, table.length());
    } else {
        exec.reply.bulk(&sequence);
    }
    Ok(Flow::Next)
}

fn reply_matches(exec: &mut Exec<'_>, wanted: &Wanted, runs: &[Match], length: u32) {
    let long: Vec<&Match> = runs
        .iter()
        .filter(|run| run.len as u64 >= wanted.match_length_min)
        .collect();
    let reply = &mut *exec.reply;
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(long.len());
    for run in long {
        reply.array(if wanted.match_length { 3 } else { 2 });
        for start in [run.in_one, run.in_other] {
            reply.array(2);
            reply.integer(to_i64(start));
            reply.integer(to_i64(start + run.len - 1));
        }
        if wanted.match_length {
            reply.integer(to_i64(run.len));
        }
    }
    reply.bulk(b"len");
    reply.integer(length.into());
}

fn to_i64(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_and_its_runs_are_those_of_the_manual() {
        let table = Table::new(b"ohmytext", b"mynewtext");
        let (sequence, runs) = table.trace();
        assert_eq!(sequence, b"mytext");
        assert_eq!(table.length(), 6);
        let run = |in_one, in_other, len| Match {
            in_one,
            in_other,
            len,
        };
        assert_eq!(runs, [run(4, 5, 4), run(2, 0, 2)]);
        assert_eq!(Table::new(b"", b"x").trace(), (Vec::new(), Vec::new()));
    }
}
