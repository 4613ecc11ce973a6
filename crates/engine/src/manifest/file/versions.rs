//! What the manifests of the fixtures say, each field of it. `tests/db/formats.rs` tells which
//! version wrote them, and opens the stores.

#![expect(clippy::disallowed_methods, reason = "reads fixtures")]

use collie_io::RealDevice;

use super::*;
use crate::manifest::{FamilyRecord, LogState};
use crate::{Compression, FamilyOptions};

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(name)
}

fn read(name: &str) -> ManifestFile {
    let read = ManifestFile::read(&RealDevice::new(), &fixture(name));
    read.unwrap().unwrap()
}

/// The defaults when the fixtures were written.
const DEFAULTS: FamilyOptions = FamilyOptions {
    write_buffer_bytes: 64 << 20,
    max_write_buffers: 4,
    block_bytes: 4096,
    bloom_bits: 10,
    compression: Compression::None,
    table_bytes: 64 << 20,
    level0_compaction: 4,
    level0_slowdown: 20,
    level0_stop: 36,
};

/// Another value of every option.
const OTHERS: FamilyOptions = FamilyOptions {
    write_buffer_bytes: 1 << 20,
    max_write_buffers: 5,
    block_bytes: 2048,
    bloom_bits: 7,
    compression: Compression::Lz4,
    table_bytes: 8192,
    level0_compaction: 3,
    level0_slowdown: 9,
    level0_stop: 17,
};

/// The families of the stores with a log, which were flushed so far above 2³². Families 3, 4 and 8
/// were dropped.
fn families(flushed: [u64; 6]) -> Vec<FamilyRecord> {
    let options = [
        FamilyOptions {
            write_buffer_bytes: 256 << 10,
            max_write_buffers: 3,
            ..DEFAULTS
        },
        OTHERS,
        FamilyOptions {
            bloom_bits: 0,
            ..DEFAULTS
        },
        DEFAULTS,
        FamilyOptions {
            level0_stop: 41,
            ..DEFAULTS
        },
        FamilyOptions {
            compression: Compression::Lz4,
            table_bytes: 3 << 20,
            ..DEFAULTS
        },
    ];
    let names = ["default", "orders", "plain", "empty", "again", "second"];
    let records = names
        .into_iter()
        .zip([0, 1, 2, 5, 6, 7])
        .zip(options)
        .zip(flushed);
    let records = records.map(|(((name, id), options), flushed)| FamilyRecord {
        id,
        name: name.into(),
        flushed: (1 << 32) + flushed,
        options,
        later: Vec::new(),
    });
    records.collect()
}

fn check(name: &str, version: u32, generation: u64, manifest: &Manifest) {
    let bytes = std::fs::read(fixture(name).join(FILE)).unwrap();
    assert_eq!(bytes[8..12], version.to_le_bytes(), "{name}");
    let read = read(name);
    assert_eq!(&read.manifest, manifest, "{name}");
    assert_eq!(read.generation, generation, "{name}");
}

fn logged(log_id: u128, floor: u64, flushed: [u64; 6]) -> Manifest {
    Manifest {
        next_family: 9,
        log_id: log_id.to_be_bytes(),
        log: LogState::On,
        floor: (1 << 32) + floor,
        families: families(flushed),
    }
}

#[test]
fn manifests_of_every_version_say_what_was_written() {
    let log_id = 0xb230_010c_225a_144d_1faf_a9b9_e1a2_3791;
    let flushed = [55_272, 47_632, 48_792, 192, 51_352, 51_808];
    check("store-v2", 2, 0, &logged(log_id, 55_272, flushed));

    // A base, and changes behind it: a family created, one dropped, one flushed.
    let log_id = 0xc58f_644f_6db8_598c_12f4_bcfd_1b4b_cc54;
    let flushed = [55_304, 47_664, 48_824, 192, 51_384, 51_840];
    check("store-v3", 3, 3, &logged(log_id, 55_304, flushed));

    let log_id = 0x544e_b7ff_1f05_85a2_3966_3149_b7d1_6e4b;
    let flushed = [50_072, 43_136, 44_224, 192, 46_544, 46_976];
    check("store-v3-log3", 3, 4, &logged(log_id, 50_072, flushed));

    let log_id = 0x6727_421b_fe6e_2276_dd87_4a9a_f528_8d4d;
    let flushed = [50_072, 43_136, 52_616, 37_248, 46_544, 46_976];
    check("store-v3-verified", 3, 4, &logged(log_id, 52_616, flushed));

    // As that one, opened with the default options and flushed.
    let mut flushed = logged(log_id, 52_744, [52_744; 6]);
    flushed.families[0].options = DEFAULTS;
    check("store-v5", 5, 6, &flushed);

    // Its family replaced another of the same name.
    let flushed = (1 << 32) + (3029 << 16) + 1;
    let external = Manifest {
        next_family: 2,
        log_id: 0x7b8e_6b69_730f_4152_e41f_d4c3_cccc_78d4_u128.to_be_bytes(),
        log: LogState::External,
        floor: flushed,
        families: vec![FamilyRecord {
            id: 1,
            name: "default".into(),
            flushed,
            options: OTHERS,
            later: Vec::new(),
        }],
    };
    check("store-v4", 4, 2, &external);
}

/// A change is read from its second copy as from its first.
#[test]
fn changes_of_version_3_are_read_from_either_copy() {
    let path = fixture("store-v3").join(FILE);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 7 * SECTOR, "a base, and three changes twice");
    for lost in (1..7).step_by(2) {
        let mut damaged = bytes.clone();
        damaged[lost * SECTOR] ^= 1;
        let manifest = ManifestFile::decode(&damaged, &path).unwrap().manifest;
        assert_eq!(manifest, read("store-v3").manifest, "sector {lost}");
    }
    let base = ManifestFile::decode(&bytes[..SECTOR], &path).unwrap().manifest;
    assert_eq!(base.next_family, 8);
    assert_eq!(base.families[0].flushed, (1 << 32) + 10_784);
}

#[test]
fn a_manifest_of_version_1_is_refused_by_its_version() {
    let refused = ManifestFile::read(&RealDevice::new(), &fixture("store-v1"));
    let Err(Error::Version { found, supported, .. }) = refused else {
        panic!("a manifest of version 1 was read");
    };
    assert_eq!((found, supported), (1, VERSION));
}
