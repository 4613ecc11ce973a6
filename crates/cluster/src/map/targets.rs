//! The clusters that this one duplicates its rows to, and whether its rows have the stamps that this needs: a row of
//! the map, and the parts of it.

use serde::{Deserialize, Serialize};

use crate::map::records::MapError;
use crate::transport::wire::ClusterId;

/// The version of the row.
const VERSION: u8 = 1;
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
    let (VERSION, bytes) = value
        .split_first()
        .map_or((0, value), |(first, rest)| (*first, rest))
    else {
        return Err(MapError::Version {
            row: name(),
            most: VERSION,
            found: value
                .first()
                .map_or("nothing".to_owned(), |found| found.to_string()),
        });
    };
    match postcard::take_from_bytes(bytes) {
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
    fn the_row_says_what_was_written() {
        let record = Duplications {
            stamps: true,
            last: 300,
            targets: vec![TargetRecord {
                number: 7,
                name: "second".to_owned(),
                cluster: *b"cluster of tests",
                addresses: vec!["192.0.2.1:7001".to_owned(), "a.host:7002".to_owned()],
            }],
        };
        let bytes = fixture("duplications-v1.bin", &encode(&record).unwrap());
        assert_eq!(decode(&bytes), Ok(record));
        for len in 0..bytes.len() {
            decode(&bytes[..len]).unwrap_err();
        }
        decode(&[&bytes[..], b"x"].concat()).unwrap_err();
        let newer = decode(&[&[2], &bytes[1..]].concat()).unwrap_err().to_string();
        assert!(newer.contains("expected version 1 to 1, found 2"), "{newer}");
    }
}
