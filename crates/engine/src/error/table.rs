//! Errors of the table library, in sentences.

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Why the table library failed, and what to do. Its `source` is the system's error, where there is
/// one.
#[derive(Debug, Clone)]
pub struct TableError(Arc<lsm_tree::Error>);

impl TableError {
    pub(crate) fn new(error: lsm_tree::Error) -> Self {
        Self(Arc::new(error))
    }

    /// Whether the work was ended early, as closing the store does.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(&*self.0, lsm_tree::Error::Io(error) if error.kind() == ErrorKind::Interrupted)
    }
}

/// Whether something that was read is damaged, and no call to the system failed.
pub(crate) fn is_damage(error: &lsm_tree::Error) -> bool {
    match error {
        lsm_tree::Error::Io(error) => error.kind() == ErrorKind::UnexpectedEof,
        _ => true,
    }
}

const RESTORE: &str = "restore the store from a backup";

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use lsm_tree::Error;

        match &*self.0 {
            Error::Io(error) => write!(f, "{error}; {}", advice(error)),
            Error::ChecksumMismatch { got, expected } => write!(
                f,
                "a block has the checksum {:032x}, and its bytes have {:032x}; {RESTORE}",
                expected.into_u128(),
                got.into_u128()
            ),
            Error::Decompress(kind) => write!(f, "a block does not decompress ({kind}); {RESTORE}"),
            Error::Unrecoverable => {
                write!(f, "a file that they need is missing or is not theirs; {RESTORE}")
            }
            Error::InvalidVersion(version) => write!(
                f,
                "they have format version {version}, which this program does not read; open them with the program \
                 that wrote them"
            ),
            Error::InvalidTag((what, tag)) => {
                write!(f, "the byte {tag} does not stand for any {what}; {RESTORE}")
            }
            Error::InvalidTrailer => write!(f, "the end of a block is not one; {RESTORE}"),
            Error::InvalidHeader(what) => write!(f, "the header of a {what} is not one; {RESTORE}"),
            Error::Utf8(error) => write!(f, "a name in them is not text ({error}); {RESTORE}"),
            // Its kinds may become more.
            other => write!(f, "the table library answered {other:?}; open the store again"),
        }
    }
}

/// What to do about an error of the operating system.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => {
            "a file or directory of theirs is gone: put it back, or restore the store from a backup"
        }
        ErrorKind::UnexpectedEof | ErrorKind::InvalidData => RESTORE,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "let this process read and write there, then open the store again"
        }
        ErrorKind::AlreadyExists => "another program may write there: give the store a directory of its own",
        ErrorKind::Interrupted => "open the store again",
        // EMFILE and ENFILE.
        _ if matches!(error.raw_os_error(), Some(23 | 24)) => {
            "raise the limit of open files (`ulimit -n`), or lower `max_open_files`"
        }
        _ => "see what the system's log says about the device, then open the store again",
    }
}

impl StdError for TableError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.0 {
            lsm_tree::Error::Io(error) => Some(error),
            lsm_tree::Error::Utf8(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use lsm_tree::{Checksum, CompressionType};

    use super::*;

    fn shown(error: lsm_tree::Error) -> String {
        crate::Error::table("read", "/s/families/3", error).to_string()
    }

    #[test]
    fn each_table_error_says_the_path_and_what_to_do() {
        use lsm_tree::Error;

        let bad_text = String::from_utf8(vec![0xff]).unwrap_err().utf8_error();
        let system = |kind: ErrorKind| Error::Io(kind.into());
        let number = |errno| Error::Io(io::Error::from_raw_os_error(errno));
        let cases = [
            (system(ErrorKind::NotFound), "put it back"),
            (
                system(ErrorKind::UnexpectedEof),
                "unexpected end of file; restore",
            ),
            (
                system(ErrorKind::PermissionDenied),
                "permission denied; let this process",
            ),
            (system(ErrorKind::AlreadyExists), "a directory of its own"),
            (system(ErrorKind::Interrupted), "open the store again"),
            (
                number(24),
                "Too many open files (os error 24); raise the limit of open files",
            ),
            (
                number(5),
                "Input/output error (os error 5); see what the system's log says",
            ),
            (
                Error::ChecksumMismatch {
                    got: Checksum::from_raw(0xab),
                    expected: Checksum::from_raw(0xcd),
                },
                "checksum 000000000000000000000000000000cd, and its bytes have 000000000000000000000000000000ab; restore",
            ),
            (
                Error::Decompress(CompressionType::Lz4),
                "does not decompress (lz4); restore",
            ),
            (Error::Unrecoverable, "missing or is not theirs; restore"),
            (
                Error::InvalidVersion(9),
                "format version 9, which this program does not read",
            ),
            (
                Error::InvalidTag(("BlockType", 77)),
                "the byte 77 does not stand for any BlockType",
            ),
            (Error::InvalidTrailer, "the end of a block is not one; restore"),
            (
                Error::InvalidHeader("Block"),
                "the header of a Block is not one; restore",
            ),
            (Error::Utf8(bad_text), "is not text (invalid utf-8"),
        ];
        for (error, expected) in cases {
            let debug = format!("{error:?}");
            let shown = shown(error);
            assert!(
                shown.starts_with("cannot read the tables in /s/families/3: "),
                "{shown}"
            );
            assert!(shown.contains(expected), "{shown}");
            assert!(
                !shown.contains("LsmTreeError") && !shown.contains(&debug),
                "{shown}"
            );
        }
    }

    #[test]
    fn the_chain_of_sources_ends_with_the_systems_error() {
        let error = crate::Error::table("open", "/s", lsm_tree::Error::Io(ErrorKind::NotFound.into()));
        let table = error.source().unwrap();
        assert!(table.is::<TableError>() && error.to_string().contains(&table.to_string()));
        let system = table.source().unwrap().downcast_ref::<io::Error>();
        assert_eq!(system.map(io::Error::kind), Some(ErrorKind::NotFound));
        let damaged = crate::Error::table("open", "/s", lsm_tree::Error::Unrecoverable);
        assert!(damaged.source().unwrap().source().is_none());
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let full = crate::Error::table("write", "/s", lsm_tree::Error::Io(kind.into()));
            assert!(matches!(full, crate::Error::StorageFull { .. }), "{full}");
        }
    }
}
