//! What `verified` says in the fixtures, and that the tables beside it are those.

use collie_io::RealDevice;

use super::*;

fn directory(family: u32) -> PathBuf {
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/store-v3-verified");
    store.join(format!("families/{family}"))
}

#[test]
fn verified_of_version_1_is_read() {
    let known = Known::read(&directory(0), &RealDevice::new());
    let first = Ending {
        checksum: 0x1248_388a_0e0d_5145_7d6c_9594_121c_d566,
        len: 8290,
        from: 7301,
        end_checksum: 0xa9bd_c5e6_1539_8287_de8f_c137_e5c5_d560,
    };
    let second = Ending {
        checksum: 0x8d43_5e12_f26c_b78a_99c3_9921_85cd_b7af,
        len: 2390,
        from: 1401,
        end_checksum: 0xb8d1_a0d7_3a32_08be_dd0d_ead1_f0e7_f273,
    };
    let expected = Known {
        version: 3,
        endings: [(0, first), (1, second)].into(),
    };
    assert_eq!(known, expected);
    let device = RealDevice::new();
    for (family, tables) in [(0, 2), (2, 3)] {
        let dir = directory(family);
        let known = Known::read(&dir, &device);
        assert_eq!(known.endings.len(), tables);
        for (id, ending) in &known.endings {
            ending.check(&table_path(&dir, *id), &device).unwrap();
        }
    }
}
