//! Bytes that earlier versions wrote, as files in `tests/fixtures`.
//!
//! With `COLLIE_WRITE_FIXTURE=1` a test writes its files that are missing, once, when a format comes
//! into being. One that is there is never written again.

#![expect(clippy::disallowed_methods, reason = "reads and writes fixtures")]

use std::path::Path;

/// The bytes of a file. `now` is what this version writes: it is to be the same, as long as it writes
/// the same version of the format.
pub(crate) fn fixture(name: &str, now: &[u8]) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    if std::env::var_os("COLLIE_WRITE_FIXTURE").is_some() && !path.exists() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, now).unwrap();
    }
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(
        now.escape_ascii().to_string(),
        bytes.escape_ascii().to_string(),
        "{name}"
    );
    bytes
}
