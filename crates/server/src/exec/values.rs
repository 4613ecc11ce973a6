//! The values of keys, whole and in parts: in the key's row, or in pieces.

use std::borrow::Cow;
use std::ops::Range;

use super::{Exec, Found, Prior, Transaction};
use crate::data::value::{self, Body, Pieces, Row};
use crate::failure::Failure;

/// What is going to be stored at a key.
pub(super) struct New<'v> {
    pub(super) row: Row<'v>,
    /// The pieces that are written, by number.
    pub(super) pieces: Vec<(usize, Cow<'v, [u8]>)>,
    rest: Rest,
}

/// What becomes of the pieces with the same number of the value that are not written.
enum Rest {
    /// They are parts of the value.
    Stays,
    /// They are of another value, whose number this one takes over.
    Goes,
}

impl<'v> New<'v> {
    /// A value that is stored already: its pieces stay as they are.
    fn as_it_is(found: &'v Found) -> New<'v> {
        let row = match found.header.body {
            Body::Inline { start } => Row::Inline(found.row.get(start..).unwrap_or_default()),
            Body::Pieces(pieces) => Row::Pieces(pieces),
        };
        New {
            row,
            pieces: Vec::new(),
            rest: Rest::Stays,
        }
    }

    /// The number of a value in pieces.
    pub(super) fn id(&self) -> Option<u64> {
        match self.row {
            Row::Inline(_) => None,
            Row::Pieces(pieces) => Some(pieces.id),
        }
    }

    /// How many bytes are written, keys not counted.
    pub(super) fn bytes(&self) -> usize {
        let row = match self.row {
            Row::Inline(payload) => payload.len(),
            Row::Pieces(_) => 0,
        };
        row + self.pieces.iter().map(|(_, piece)| piece.len()).sum::<usize>()
    }

    /// The pieces of what was stored before that are to be removed: the number of their value, and
    /// their own.
    pub(super) fn dropped(&self, prior: &Prior) -> Option<(u64, Range<usize>)> {
        let before = prior.stored_pieces()?;
        let all = before.all();
        let numbers = match (self.row, &self.rest) {
            (Row::Pieces(own), Rest::Stays) if own.id == before.id => return None,
            // All of its own are written.
            (Row::Pieces(own), Rest::Goes) if own.id == before.id => own.all().end.min(all.end)..all.end,
            _ => all,
        };
        Some((before.id, numbers))
    }
}

impl Exec<'_> {
    /// The user's value.
    pub(crate) fn payload<'f>(&mut self, found: &'f Found) -> Result<Cow<'f, [u8]>, Failure> {
        self.part(found, 0..found.len())
    }

    /// The value of a live key; of none, no bytes.
    pub(crate) fn payload_or_empty<'f>(
        &mut self,
        found: Option<&'f Found>,
    ) -> Result<Cow<'f, [u8]>, Failure> {
        match found {
            Some(found) => self.payload(found),
            None => Ok(Cow::Borrowed(&[])),
        }
    }

    /// A part of the user's value, as far as the value reaches. Of a value in pieces only that part
    /// is read.
    pub(crate) fn part<'f>(
        &mut self,
        found: &'f Found,
        part: Range<usize>,
    ) -> Result<Cow<'f, [u8]>, Failure> {
        let end = part.end.min(found.len());
        let part = part.start.min(end)..end;
        let pieces = match found.header.body {
            Body::Inline { start } => {
                let payload = found.row.get(start..).unwrap_or_default();
                return Ok(Cow::Borrowed(payload.get(part).unwrap_or_default()));
            }
            Body::Pieces(pieces) => pieces,
        };
        self.weigh(part.len())?;
        let mut bytes = Vec::with_capacity(part.len());
        self.each_piece(found, &pieces, part, |piece| bytes.extend_from_slice(piece))?;
        Ok(Cow::Owned(bytes))
    }

    /// Encodes the user's value as a reply.
    pub(crate) fn reply_with(&mut self, found: &Found) -> Result<(), Failure> {
        let Some(pieces) = found.pieces() else {
            let payload = self.payload(found)?;
            self.reply.bulk(&payload);
            return Ok(());
        };
        self.weigh(pieces.len)?;
        // In place of a copy of the value that is copied into the reply then.
        let mut reply = std::mem::take(self.reply);
        reply.reserve(pieces.len + 32);
        reply.raw(format!("${}\r\n", pieces.len).as_bytes());
        let read = self.each_piece(found, &pieces, 0..pieces.len, |piece| reply.raw(piece));
        reply.raw(b"\r\n");
        *self.reply = reply;
        read
    }

    /// As [`reply_with`](Exec::reply_with), or null where there is no key.
    pub(crate) fn reply_with_or_null(&mut self, found: Option<&Found>) -> Result<(), Failure> {
        match found {
            Some(found) => self.reply_with(found),
            None => {
                self.reply.null();
                Ok(())
            }
        }
    }

    /// Reads a part of a value in pieces and passes it on in order.
    fn each_piece(
        &mut self,
        found: &Found,
        pieces: &Pieces,
        part: Range<usize>,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), Failure> {
        for number in pieces.of(part.clone()) {
            let start = number << pieces.size_log2;
            let wanted = part.start.max(start) - start..part.end.min(start + pieces.size()) - start;
            let piece = self.piece(found, pieces, number)?;
            let piece = piece.as_deref().unwrap_or_default();
            let there = piece
                .get(wanted.start..wanted.end.min(piece.len()))
                .unwrap_or_default();
            take(there);
            let mut missing = wanted.len() - there.len();
            while missing > 0 {
                let zeros = ZEROS.get(..missing.min(ZEROS.len())).unwrap_or_default();
                take(zeros);
                missing -= zeros.len();
            }
        }
        Ok(())
    }

    /// One piece of a value, as it is stored.
    fn piece(
        &mut self,
        found: &Found,
        pieces: &Pieces,
        number: usize,
    ) -> Result<Option<collie_db::Value>, Failure> {
        value::piece_key(&mut self.session.scratch.key, pieces.id, number);
        let Some(at) = &found.at else {
            return self.read(None);
        };
        let read = at
            .snapshot
            .get_with(&at.keyspace.family, &self.session.scratch.key)?;
        self.session.note(read.seen);
        Ok(read.value)
    }

    /// Stores `payload` at a key whose lock is held.
    pub(crate) fn store(
        &mut self,
        key: &[u8],
        prior: &Prior,
        payload: &[u8],
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        let new = self.new_value(prior, payload)?;
        self.put(key, prior, new, expiry_ms)
    }

    /// How a value is stored that replaces `prior`.
    pub(super) fn new_value<'v>(&mut self, prior: &Prior, payload: &'v [u8]) -> Result<New<'v>, Failure> {
        if !self.is_for_pieces(payload.len()) {
            return Ok(New {
                row: Row::Inline(payload),
                pieces: Vec::new(),
                rest: Rest::Goes,
            });
        }
        let pieces = match prior.stored_pieces() {
            // What is written in place of other rows needs no tombstones for them.
            Some(before) => self.pieces(before.id, payload.len()),
            None => self.new_pieces(payload.len())?,
        };
        let parts = payload.chunks(pieces.size()).map(Cow::Borrowed);
        Ok(New {
            row: Row::Pieces(pieces),
            pieces: parts.enumerate().collect(),
            rest: Rest::Goes,
        })
    }

    /// Whether a value of that length is stored in pieces. In a cluster none is: there a command
    /// accesses the rows that it has named.
    fn is_for_pieces(&self, len: usize) -> bool {
        let is_in_cluster = matches!(self.transaction, Some(Transaction::Partition(_)));
        len > self.shared.settings.inline_max() && !is_in_cluster
    }

    fn new_pieces(&mut self, len: usize) -> Result<Pieces, Failure> {
        let id = match &self.transaction {
            Some(_) => match self.database() {
                Some(database) => database.keyspace.numbers.take(),
                None => return Err("ERR internal error: the database was not prepared".into()),
            },
            None => self.session.keyspace.numbers.take(),
        };
        Ok(self.pieces(id, len))
    }

    fn pieces(&self, id: u64, len: usize) -> Pieces {
        let size_log2 = self.shared.settings.piece_log2();
        Pieces { id, size_log2, len }
    }

    /// Changes only the expiry of a live key whose lock is held.
    pub(crate) fn store_expiry(
        &mut self,
        key: &[u8],
        prior: &Prior,
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        let Some(found) = prior.live() else {
            return Ok(());
        };
        self.put(key, prior, New::as_it_is(found), expiry_ms)
    }

    /// Writes `bytes` from `start` on into the value of a key whose lock is held; what lies between
    /// the end of the value and `start` becomes zeros. The expiry stays. Returns the length of the
    /// value. Of a value in pieces only those are written that change.
    pub(crate) fn store_part(
        &mut self,
        key: &[u8],
        prior: &Prior,
        start: usize,
        bytes: &[u8],
    ) -> Result<usize, Failure> {
        let before = prior.live().map_or(0, Found::len);
        let end = start.saturating_add(bytes.len());
        let len = before.max(end);
        let expiry_ms = prior.live_expiry();
        if let Some(found) = prior.live()
            && let Some(pieces) = found.pieces()
        {
            let pieces = Pieces { len, ..pieces };
            let mut written = Vec::new();
            for number in pieces.of(start..end) {
                let from = number << pieces.size_log2;
                let own = start.max(from) - from..end.min(from + pieces.size()) - from;
                let new = bytes.get(from + own.start - start..from + own.end - start);
                let new = new.unwrap_or_default();
                if own.len() == pieces.size() {
                    written.push((number, Cow::Borrowed(new)));
                    continue;
                }
                self.weigh(pieces.size())?;
                let old = self.piece(found, &pieces, number)?;
                let mut piece = old.as_deref().unwrap_or_default().to_vec();
                overwrite(&mut piece, own.start, new);
                written.push((number, Cow::Owned(piece)));
            }
            let new = New {
                row: Row::Pieces(pieces),
                pieces: written,
                rest: Rest::Stays,
            };
            self.put(key, prior, new, expiry_ms)?;
            return Ok(len);
        }
        let old = self.payload_or_empty(prior.live())?;
        if !self.is_for_pieces(len) {
            self.weigh(len)?;
            let mut whole = old.into_owned();
            overwrite(&mut whole, start, bytes);
            self.store(key, prior, &whole, expiry_ms)?;
            return Ok(len);
        }
        let pieces = self.new_pieces(len)?;
        let mut written: std::collections::BTreeMap<usize, Vec<u8>> = std::collections::BTreeMap::new();
        for (start, bytes) in [(0, &*old), (start, bytes)] {
            for number in pieces.of(start..start + bytes.len()) {
                let from = number << pieces.size_log2;
                let own = start.max(from)..(start + bytes.len()).min(from + pieces.size());
                let new = bytes.get(own.start - start..own.end - start).unwrap_or_default();
                overwrite(written.entry(number).or_default(), own.start - from, new);
            }
        }
        let new = New {
            row: Row::Pieces(pieces),
            pieces: written
                .into_iter()
                .map(|(number, piece)| (number, Cow::Owned(piece)))
                .collect(),
            rest: Rest::Stays,
        };
        self.put(key, prior, new, expiry_ms)?;
        Ok(len)
    }

    /// Moves a live key to another of the same database. Both locks are held, in a transaction.
    pub(crate) fn rename(
        &mut self,
        from: &[u8],
        prior: &Prior,
        to: &[u8],
        target: &Prior,
    ) -> Result<(), Failure> {
        let Some(found) = prior.live() else {
            return Ok(());
        };
        // Its pieces are now those of the other key.
        self.put(to, target, New::as_it_is(found), found.header.expiry_ms)?;
        self.leave(from, prior)
    }
}

/// What a value in pieces has where nothing was written.
const ZEROS: [u8; 4096] = [0; 4096];

/// Writes `bytes` into `target` from `start` on, which is extended with zeros as far as needed.
fn overwrite(target: &mut Vec<u8>, start: usize, bytes: &[u8]) {
    let end = start + bytes.len();
    if target.len() < end {
        target.resize(end, 0);
    }
    if let Some(place) = target.get_mut(start..end) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_before_what_is_written_becomes_zeros() {
        let mut target = b"ab".to_vec();
        overwrite(&mut target, 4, b"cd");
        assert_eq!(target, b"ab\0\0cd");
        overwrite(&mut target, 1, b"xyz");
        assert_eq!(target, b"axyzcd");
    }
}
