//! What was acknowledged: each key with the values that it may have.

use std::collections::{BTreeMap, BTreeSet};

use crate::resp::{Conn, Reply, Res};

/// The xorshift of values and choices.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A value stands for its bytes: [`Val::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Val {
    pub version: u64,
    pub len: usize,
}

impl Val {
    /// Bytes that nothing compresses, other ones for each key and version.
    pub fn bytes(self, key: &[u8]) -> Vec<u8> {
        let mut rng = Rng(key.iter().fold(self.version, |sum, b| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*b))
        }));
        let mut bytes = Vec::with_capacity(self.len + 8);
        while bytes.len() < self.len {
            bytes.extend_from_slice(&rng.next().to_le_bytes());
        }
        bytes.truncate(self.len);
        bytes
    }
}

#[derive(Clone, Default)]
pub struct Model {
    /// Nothing is `None`; a write without a reply leaves two.
    pub keys: BTreeMap<Vec<u8>, Vec<Option<Val>>>,
}

impl Model {
    pub fn set(&mut self, key: &[u8], value: Option<Val>) {
        match value {
            Some(_) => drop(self.keys.insert(key.to_vec(), vec![value])),
            None => drop(self.keys.remove(key)),
        }
    }

    /// Sent, and no reply.
    pub fn doubt(&mut self, key: &[u8], value: Option<Val>) {
        self.keys
            .entry(key.to_vec())
            .or_insert_with(|| vec![None])
            .push(value);
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn bytes(&self) -> usize {
        self.keys.values().flatten().flatten().map(|val| val.len).sum()
    }

    /// Takes what is there for the truth, where it is one of what may be.
    fn settle(&mut self, key: &[u8], found: &Reply) -> Res<()> {
        let may = self.keys.get(key).map_or(&[None][..], |may| may);
        let is = |val: &&Option<Val>| match (val, found) {
            (None, Reply::Null) => true,
            (Some(val), Reply::Bulk(bytes)) => val.len == bytes.len() && val.bytes(key) == *bytes,
            _ => false,
        };
        let Some(&value) = may.iter().find(is) else {
            let key = String::from_utf8_lossy(key);
            return Err(format!(
                "{key:?}: expected one of {may:?}, found {}",
                found.brief()
            ));
        };
        self.set(key, value);
        Ok(())
    }

    /// All keys by GET, all by SCAN, and their number.
    pub fn check(&mut self, conn: &mut Conn) -> Res<()> {
        let keys: Vec<(Vec<u8>, usize)> = self
            .keys
            .iter()
            .map(|(key, may)| {
                (
                    key.clone(),
                    may.iter().flatten().map(|val| val.len).max().unwrap_or(0),
                )
            })
            .collect();
        let mut rest = &keys[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(500).take_while(|(_, len)| {
                bytes += len;
                bytes < 4 << 20
            });
            let (now, then) = rest.split_at(fits.count().max(1));
            now.iter().for_each(|(key, _)| conn.push(&[b"GET", key]));
            conn.flush()?;
            for (key, _) in now {
                let reply = conn.reply()?;
                self.settle(key, &reply)?;
            }
            rest = then;
        }
        let keys: BTreeSet<Vec<u8>> = self.keys.keys().cloned().collect();
        judge_scan(&scan_all(conn, "COUNT 997")?, &keys, &keys)?;
        let size = conn.int("DBSIZE")?;
        if size == self.len() as i64 {
            Ok(())
        } else {
            Err(format!("DBSIZE {size} of {} keys", self.len()))
        }
    }
}

/// A whole scan from the beginning.
pub fn scan_all(conn: &mut Conn, options: &str) -> Res<Vec<Vec<u8>>> {
    let (mut cursor, mut all) = (b"0".to_vec(), Vec::new());
    loop {
        let (next, keys) = conn.scan(&cursor, options)?;
        all.extend(keys);
        if next == b"0" {
            return Ok(all);
        }
        cursor = next;
    }
}

/// In order of keys, nothing twice, all that was there throughout, and nothing that never was.
pub fn judge_scan(found: &[Vec<u8>], always: &BTreeSet<Vec<u8>>, ever: &BTreeSet<Vec<u8>>) -> Res<()> {
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    if let Some(two) = found.windows(2).find(|two| two[0] >= two[1]) {
        return Err(format!("SCAN: {:?} before {:?}", text(&two[0]), text(&two[1])));
    }
    let set: BTreeSet<&Vec<u8>> = found.iter().collect();
    if let Some(key) = always.iter().find(|key| !set.contains(key)) {
        return Err(format!("SCAN lacks {:?}, which was there throughout", text(key)));
    }
    match found.iter().find(|key| !ever.contains(*key)) {
        Some(key) => Err(format!("SCAN has {:?}, which never was", text(key))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_scans_are_found() {
        let keys = |list: &str| {
            list.split(' ')
                .map(|key| key.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let set = |list: &str| keys(list).into_iter().collect::<BTreeSet<_>>();
        let judge = |found: &str| judge_scan(&keys(found), &set("b d"), &set("a b c d"));
        assert_eq!(judge("a b d"), Ok(()));
        for wrong in ["a b c", "a b b d", "b a d", "b d e"] {
            assert!(judge(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_values_are_found() {
        let mut model = Model::default();
        let val = |version| Some(Val { version, len: 20 });
        let reply = |version| Reply::Bulk(Val { version, len: 20 }.bytes(b"k"));
        model.set(b"k", val(1));
        assert!(model.settle(b"k", &reply(2)).is_err());
        assert!(model.settle(b"k", &Reply::Null).is_err());
        model.doubt(b"k", val(2));
        let mut other = model.clone();
        assert!(other.settle(b"k", &reply(2)).is_ok() && other.settle(b"k", &reply(1)).is_err());
        assert!(model.settle(b"k", &reply(1)).is_ok() && model.settle(b"l", &reply(1)).is_err());
        model.set(b"k", None);
        assert!(model.settle(b"k", &Reply::Null).is_ok());
    }
}
