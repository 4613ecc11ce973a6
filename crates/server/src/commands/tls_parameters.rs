//! The parameters of TLS that `CONFIG` shows and changes.
//!
//! A change of any of them reads all files anew, also one to the same value: so certificates are
//! replaced without a restart. Several in one command are one change.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::tls::{AuthClients, TlsSettings};

/// A parameter that is one of the settings of TLS.
pub(super) struct TlsParameter {
    pub(super) name: &'static str,
    pub(super) get: fn(&TlsSettings) -> Vec<u8>,
    pub(super) set: fn(&mut TlsSettings, &[u8]) -> Result<(), &'static str>,
}

pub(super) const TLS_PARAMETERS: &[TlsParameter] = &[
    TlsParameter {
        name: "tls-auth-clients",
        get: |tls| tls.auth_clients.name().into(),
        set: |tls, value| {
            let known = AuthClients::ALL.into_iter();
            let found = known
                .into_iter()
                .find(|word| value.eq_ignore_ascii_case(word.name().as_bytes()));
            tls.auth_clients = found.ok_or("argument(s) must be one of the following: no, yes, optional")?;
            Ok(())
        },
    },
    TlsParameter {
        name: "tls-ca-cert-file",
        get: |tls| tls.ca.as_deref().map_or_else(Vec::new, bytes),
        set: |tls, value| {
            let given = path(value)?;
            tls.ca = (!value.is_empty()).then(|| given.to_owned());
            Ok(())
        },
    },
    TlsParameter {
        name: "tls-cert-file",
        get: |tls| bytes(&tls.certificate),
        set: |tls, value| {
            path(value)?.clone_into(&mut tls.certificate);
            Ok(())
        },
    },
    TlsParameter {
        name: "tls-key-file",
        get: |tls| bytes(&tls.key),
        set: |tls, value| {
            path(value)?.clone_into(&mut tls.key);
            Ok(())
        },
    },
];

/// Bytes of a path, at most, as Linux has it.
const PATH_MAX: usize = 4096;

fn path(bytes: &[u8]) -> Result<&Path, &'static str> {
    if bytes.len() > PATH_MAX || bytes.iter().any(u8::is_ascii_control) {
        return Err("argument must be a path of at most 4096 bytes without control characters");
    }
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}
