//! The clusters that this one duplicates its rows to, and whether its rows have the stamps that this needs: a row of
//! the map, and the parts of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::map::records::MapError;
use crate::transport::wire::ClusterId;

/// The newest version of the row; all are read.
const VERSION: u8 = 2;
/// The fields that version 1 lacks at its end, as they are without it.
const AFTER_ONE: &[u8] = &[0];
const KEY: &[u8] = b"duplications";

/// What is duplicated, and to where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duplications {
    /// Rows get stamps: this cluster has targets, or had, or is one. It never ends.
    pub stamps: bool,
    /// The number of the last target. None is given twice.
    pub last: u64,
    /// The targets.
    pub targets: Vec<TargetRecord>,
    /// The numbers of those that get nothing until an operator has that resumed.
    pub paused: BTreeSet<u64>,
}

/// A cluster that gets the rows of this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Its number. How far it is, is noted under that.
    pub number: u64,
    /// Its name here.
    pub name: String,
    /// Its id.
    pub cluster: ClusterId,
    /// Where clients reach nodes of it, with ports: names of hosts, or IP addresses.
    pub addresses: Vec<String>,
}

/// What stamps say of the cluster that wrote a row.
#[must_use]
pub fn origin_of(cluster: &ClusterId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *cluster;
    // 0 is no origin.
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
}

pub(super) fn key() -> Vec<u8> {
    KEY.to_vec()
}

pub(super) fn encode(record: &Duplications) -> Result<Vec<u8>, MapError> {
    postcard::to_extend(record, vec![VERSION]).map_err(|error| wrong(error.to_string()))
}

pub(super) fn decode(value: &[u8]) -> Result<Duplications, MapError> {
    let bytes = match value.split_first() {
        Some((1, bytes)) => [bytes, AFTER_ONE].concat(),
        Some((&VERSION, bytes)) => bytes.to_vec(),
        other => {
            return Err(MapError::Version {
                row: name(),
                most: VERSION,
                found: other.map_or("nothing".to_owned(), |(found, _)| found.to_string()),
            });
        }
    };
    match postcard::take_from_bytes(&bytes) {
        Ok((record, [])) => Ok(record),
        Ok((_, more)) => Err(wrong(format!(
            "expected its end, found {} bytes more",
            more.len()
        ))),
        Err(error) => Err(wrong(format!(
            "{} bytes that cannot be read: {error}",
            bytes.len()
        ))),
    }
}

fn name() -> String {
    String::from_utf8_lossy(KEY).into_owned()
}

fn wrong(problem: String) -> MapError {
    MapError::Row { row: name(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::fixture;

    #[test]
    fn the_row_says_what_was_written_by_each_version() {
        let mut record = Duplications {
            stamps: true,
            last: 300,
            targets: vec![TargetRecord {
                number: 7,
                name: "second".to_owned(),
                cluster: *b"cluster of tests",
                addresses: vec!["192.0.2.1:7001".to_owned(), "a.host:7002".to_owned()],
            }],
            paused: BTreeSet::new(),
        };
        let one = include_bytes!("../../tests/fixtures/duplications-v1.bin");
        assert_eq!(decode(one).as_ref(), Ok(&record));
        record.paused = [7, 400].into();
        let two = fixture("duplications-v2.bin", &encode(&record).unwrap());
        assert_eq!(decode(&two), Ok(record));
        for bytes in [&one[..], &two] {
            for len in 0..bytes.len() {
                decode(&bytes[..len]).unwrap_err();
            }
            decode(&[bytes, b"x"].concat()).unwrap_err();
        }
        let newer = decode(&[&[3], &two[1..]].concat()).unwrap_err().to_string();
        assert!(newer.contains("expected version 1 to 2, found 3"), "{newer}");
    }
}
