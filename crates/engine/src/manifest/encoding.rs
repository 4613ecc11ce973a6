//! How the payloads of bases and changes are encoded, in each version.
//!
//! From version 5 on each option of a family stands with its name, so that an option more breaks no
//! file: one that a file lacks has its default; one that a program does not know is kept as it is,
//! unless its writer marked it as needed: then the store is refused. Versions 2 to 4 have the options
//! in the order of the fields of [`OptionsInOrder`], which never change.

use serde::{Deserialize, Serialize};

use crate::manifest::{Edit, FamilyRecord, LogState, Manifest, Marks, NamedOption};
use crate::{Compression, FamilyOptions};

/// The format that is written.
pub(crate) const VERSION: u32 = 5;
/// The oldest that is read: a base alone, without a generation.
pub(crate) const OLDEST: u32 = 2;
/// The first in which options have names.
const NAMED: u32 = 5;

/// Why a payload is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadPayload {
    /// It is no encoding of this version.
    Malformed(String),
    /// So many bytes stand behind it.
    Rest(usize),
    /// The option of a family has a value that it cannot have.
    Value {
        family: String,
        option: String,
        value: Vec<u8>,
    },
    /// A later version's option of a family, without which the family must not be used.
    Unknown { family: String, option: String },
}

#[derive(Serialize, Deserialize)]
enum LogPayload {
    Off,
    On,
    External,
}

#[derive(Serialize, Deserialize)]
struct FamilyPayload<O> {
    id: u32,
    name: String,
    flushed: u64,
    options: O,
}

#[derive(Serialize, Deserialize)]
struct BasePayload<O> {
    next_family: u32,
    log_id: [u8; 16],
    log: LogPayload,
    floor: u64,
    families: Vec<FamilyPayload<O>>,
}

#[derive(Serialize, Deserialize)]
struct ChangePayload<O> {
    next_family: u32,
    floor: u64,
    created: Option<FamilyPayload<O>>,
    dropped: Option<u32>,
    flushed: Vec<(u32, u64)>,
}

/// The options of versions 2 to 4.
#[derive(Deserialize)]
struct OptionsInOrder {
    write_buffer_bytes: u64,
    max_write_buffers: u64,
    block_bytes: u32,
    bloom_bits: u8,
    compression: CompressionInOrder,
    table_bytes: u64,
    level0_compaction: u8,
    level0_slowdown: u64,
    level0_stop: u64,
}

#[derive(Deserialize)]
enum CompressionInOrder {
    None,
    Lz4,
}

/// The options of a family in one of the encodings.
trait EncodedOptions {
    /// The options, and those of later versions.
    fn known(self, family: &str) -> Result<(FamilyOptions, Vec<NamedOption>), BadPayload>;
}

impl EncodedOptions for OptionsInOrder {
    fn known(self, _: &str) -> Result<(FamilyOptions, Vec<NamedOption>), BadPayload> {
        let options = FamilyOptions {
            write_buffer_bytes: self.write_buffer_bytes,
            max_write_buffers: self.max_write_buffers as usize,
            block_bytes: self.block_bytes,
            bloom_bits: self.bloom_bits,
            compression: match self.compression {
                CompressionInOrder::None => Compression::None,
                CompressionInOrder::Lz4 => Compression::Lz4,
            },
            table_bytes: self.table_bytes,
            level0_compaction: self.level0_compaction,
            level0_slowdown: self.level0_slowdown as usize,
            level0_stop: self.level0_stop as usize,
        };
        Ok((options, Vec::new()))
    }
}

impl EncodedOptions for Vec<NamedOption> {
    fn known(self, family: &str) -> Result<(FamilyOptions, Vec<NamedOption>), BadPayload> {
        let (mut options, mut later) = (FamilyOptions::default(), Vec::new());
        for option in self {
            match set(&mut options, &option.name, &option.value) {
                Set::Done => {}
                Set::NoSuchValue => {
                    return Err(BadPayload::Value {
                        family: family.into(),
                        option: option.name,
                        value: option.value,
                    });
                }
                Set::NoSuchOption if option.needed => {
                    return Err(BadPayload::Unknown {
                        family: family.into(),
                        option: option.name,
                    });
                }
                Set::NoSuchOption => later.push(option),
            }
        }
        Ok((options, later))
    }
}

enum Set {
    Done,
    NoSuchValue,
    NoSuchOption,
}

/// Sets the option of this name.
fn set(options: &mut FamilyOptions, name: &str, value: &[u8]) -> Set {
    fn number<N: TryFrom<u64>>(into: &mut N, value: &[u8]) -> Option<()> {
        let value = u64::from_le_bytes(value.try_into().ok()?);
        *into = N::try_from(value).ok()?;
        Some(())
    }
    let done = match name {
        "write_buffer_bytes" => number(&mut options.write_buffer_bytes, value),
        "max_write_buffers" => number(&mut options.max_write_buffers, value),
        "block_bytes" => number(&mut options.block_bytes, value),
        "bloom_bits" => number(&mut options.bloom_bits, value),
        "compression" => {
            let known = match value {
                b"none" => Some(Compression::None),
                b"lz4" => Some(Compression::Lz4),
                _ => None,
            };
            known.map(|compression| options.compression = compression)
        }
        "table_bytes" => number(&mut options.table_bytes, value),
        "level0_compaction" => number(&mut options.level0_compaction, value),
        "level0_slowdown" => number(&mut options.level0_slowdown, value),
        "level0_stop" => number(&mut options.level0_stop, value),
        _ => return Set::NoSuchOption,
    };
    done.map_or(Set::NoSuchValue, |()| Set::Done)
}

/// All options of a family, and those of later versions.
fn named(record: &FamilyRecord) -> Vec<NamedOption> {
    // Every field, so that none is forgotten.
    let FamilyOptions {
        write_buffer_bytes,
        max_write_buffers,
        block_bytes,
        bloom_bits,
        compression,
        table_bytes,
        level0_compaction,
        level0_slowdown,
        level0_stop,
    } = record.options;
    // Each only changes speed and size: a program that does not know it can use the store.
    let option = |name: &str, value: &[u8]| NamedOption {
        name: name.into(),
        needed: false,
        value: value.into(),
    };
    let number = |name, value: u64| option(name, &value.to_le_bytes());
    let compression = match compression {
        Compression::None => "none",
        Compression::Lz4 => "lz4",
    };
    let mut options = vec![
        number("write_buffer_bytes", write_buffer_bytes),
        number("max_write_buffers", max_write_buffers as u64),
        number("block_bytes", block_bytes.into()),
        number("bloom_bits", bloom_bits.into()),
        option("compression", compression.as_bytes()),
        number("table_bytes", table_bytes),
        number("level0_compaction", level0_compaction.into()),
        number("level0_slowdown", level0_slowdown as u64),
        number("level0_stop", level0_stop as u64),
    ];
    options.extend_from_slice(&record.later);
    options
}

fn encoded_family(record: &FamilyRecord) -> FamilyPayload<Vec<NamedOption>> {
    FamilyPayload {
        id: record.id,
        name: record.name.clone(),
        flushed: record.flushed,
        options: named(record),
    }
}

fn family<O: EncodedOptions>(family: FamilyPayload<O>) -> Result<FamilyRecord, BadPayload> {
    let (options, later) = family.options.known(&family.name)?;
    Ok(FamilyRecord {
        id: family.id,
        name: family.name,
        flushed: family.flushed,
        options,
        later,
    })
}

/// The payload of a base.
pub(crate) fn encode_base(manifest: &Manifest, generation: u64) -> postcard::Result<Vec<u8>> {
    let base = BasePayload {
        next_family: manifest.next_family,
        log_id: manifest.log_id,
        log: match manifest.log {
            LogState::Off => LogPayload::Off,
            LogState::On => LogPayload::On,
            LogState::External => LogPayload::External,
        },
        floor: manifest.floor,
        families: manifest.families.iter().map(encoded_family).collect(),
    };
    postcard::to_stdvec(&(generation, base))
}

/// The payload of a change.
pub(crate) fn encode_edit(edit: &Edit) -> postcard::Result<Vec<u8>> {
    postcard::to_stdvec(&ChangePayload {
        next_family: edit.next_family,
        floor: edit.floor,
        created: edit.created.as_ref().map(encoded_family),
        dropped: edit.dropped,
        flushed: edit.flushed.0.clone(),
    })
}

/// The manifest and the generation of a base of this version, from [`OLDEST`] to [`VERSION`].
pub(crate) fn decode_base(version: u32, payload: &[u8]) -> Result<(Manifest, u64), BadPayload> {
    fn manifest<O: EncodedOptions>(base: BasePayload<O>) -> Result<Manifest, BadPayload> {
        Ok(Manifest {
            next_family: base.next_family,
            log_id: base.log_id,
            log: match base.log {
                LogPayload::Off => LogState::Off,
                LogPayload::On => LogState::On,
                LogPayload::External => LogState::External,
            },
            floor: base.floor,
            families: base.families.into_iter().map(family).collect::<Result<_, _>>()?,
        })
    }
    if version == OLDEST {
        return Ok((manifest(whole::<BasePayload<OptionsInOrder>>(payload)?)?, 0));
    }
    if version < NAMED {
        let (generation, base) = whole::<(u64, BasePayload<OptionsInOrder>)>(payload)?;
        return Ok((manifest(base)?, generation));
    }
    let (generation, base) = whole::<(u64, BasePayload<Vec<NamedOption>>)>(payload)?;
    Ok((manifest(base)?, generation))
}

/// A change behind a base of this version.
pub(crate) fn decode_edit(version: u32, payload: &[u8]) -> Result<Edit, BadPayload> {
    fn edit<O: EncodedOptions>(change: ChangePayload<O>) -> Result<Edit, BadPayload> {
        Ok(Edit {
            next_family: change.next_family,
            floor: change.floor,
            created: change.created.map(family).transpose()?,
            dropped: change.dropped,
            flushed: Marks(change.flushed),
        })
    }
    if version < NAMED {
        edit(whole::<ChangePayload<OptionsInOrder>>(payload)?)
    } else {
        edit(whole::<ChangePayload<Vec<NamedOption>>>(payload)?)
    }
}

/// What all of the payload encodes.
fn whole<'p, T: Deserialize<'p>>(payload: &'p [u8]) -> Result<T, BadPayload> {
    match postcard::take_from_bytes(payload) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(BadPayload::Rest(rest.len())),
        Err(e) => Err(BadPayload::Malformed(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No option has its default.
    fn record() -> FamilyRecord {
        FamilyRecord {
            id: 3,
            name: "orders".into(),
            flushed: 1 << 40,
            options: FamilyOptions {
                write_buffer_bytes: 1,
                max_write_buffers: 2,
                block_bytes: 3,
                bloom_bits: 5,
                compression: Compression::Lz4,
                table_bytes: 6,
                level0_compaction: 7,
                level0_slowdown: 8,
                level0_stop: 9,
            },
            later: Vec::new(),
        }
    }

    fn manifest(record: FamilyRecord) -> Manifest {
        Manifest {
            next_family: 4,
            families: vec![record],
            ..Manifest::new([7; 16])
        }
    }

    fn later(needed: bool) -> NamedOption {
        NamedOption {
            name: "merge_operator".into(),
            needed,
            value: b"counter".to_vec(),
        }
    }

    #[test]
    fn every_option_is_read_as_it_was_written() {
        let payload = encode_base(&manifest(record()), 8).unwrap();
        assert_eq!(decode_base(VERSION, &payload), Ok((manifest(record()), 8)));
        let edit = Edit {
            created: Some(record()),
            ..Edit::default()
        };
        let payload = encode_edit(&edit).unwrap();
        assert_eq!(decode_edit(VERSION, &payload), Ok(edit));
    }

    #[test]
    fn bytes_left_over_are_refused() {
        let mut base = encode_base(&manifest(record()), 8).unwrap();
        let mut edit = encode_edit(&Edit::default()).unwrap();
        base.push(0);
        edit.extend([0; 3]);
        assert_eq!(decode_base(VERSION, &base), Err(BadPayload::Rest(1)));
        assert_eq!(decode_edit(VERSION, &edit), Err(BadPayload::Rest(3)));
    }

    #[test]
    fn an_option_that_is_missing_has_its_default() {
        let bare = FamilyPayload {
            id: 3,
            name: "orders".into(),
            flushed: 1 << 40,
            options: Vec::<NamedOption>::new(),
        };
        assert_eq!(family(bare).unwrap().options, FamilyOptions::default());
    }

    /// A later program's store is used by this one, and later by that one again.
    #[test]
    fn an_unknown_option_is_kept_unless_it_is_needed() {
        let with = |needed| {
            manifest(FamilyRecord {
                later: vec![later(needed)],
                ..record()
            })
        };
        let payload = encode_base(&with(false), 8).unwrap();
        let (read, _) = decode_base(VERSION, &payload).unwrap();
        assert_eq!(read, with(false));
        let payload = encode_base(&with(true), 8).unwrap();
        let unknown = BadPayload::Unknown {
            family: "orders".into(),
            option: "merge_operator".into(),
        };
        assert_eq!(decode_base(VERSION, &payload), Err(unknown));
    }

    #[test]
    fn a_value_that_an_option_cannot_have_is_refused() {
        let values: [(&str, &[u8]); 4] = [
            ("bloom_bits", &256_u64.to_le_bytes()),
            ("level0_stop", b"36"),
            ("compression", b"zstd"),
            ("compression", b""),
        ];
        for (name, value) in values {
            let options = vec![NamedOption {
                name: name.into(),
                needed: false,
                value: value.into(),
            }];
            let refused = options.known("orders");
            assert!(matches!(refused, Err(BadPayload::Value { .. })), "{name}");
        }
    }
}
