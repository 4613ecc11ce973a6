//! `collie cluster ca`: a CA for the nodes of a cluster, and the certificates that it signs.
//!
//! The name of a CA contains a hash of its key, so that two CAs have two names, and so that the
//! name, which a node's certificate repeats, follows from the key.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use collie_cli::Outcome;
use collie_cli::output::Results;
use collie_cluster::{TLS_NAME, TlsContents, TlsFiles, Validity};
use collie_io::{Clock, Device, OpenMode, RealClock, RealDevice, read_exact_at, write_all_at};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::args::CaCommand;

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const DAY: u64 = 86_400;
/// How long before it is made a certificate begins to hold: a node's clock may be late.
const EARLY: u64 = DAY;
/// Bytes of a file of the CA, at most.
const FILE_MAX: u64 = 1 << 20;
/// Bytes of the hash in a CA's name.
const HASH: usize = 8;
/// The most bytes of a name that files are given.
const NAME_MAX: usize = 64;

/// The permission bits of a certificate, which is no secret, and those of a key.
const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

/// Runs `collie cluster ca`.
pub(crate) fn run(command: &CaCommand) -> anyhow::Result<Outcome> {
    let maker = Maker {
        device: Arc::new(RealDevice::new()),
        clock: Arc::new(RealClock),
    };
    let made = match command {
        CaCommand::New { dir, days } => maker.ca(dir, *days)?,
        CaCommand::Node { dir, name, days } => maker.node(dir, name, *days)?,
    };
    let mut out = Results::new();
    out.line(made)?;
    out.flush()?;
    Ok(Outcome::Good)
}

/// Makes certificates, by a clock, on a device.
struct Maker {
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
}

impl Maker {
    /// Makes a CA. Returns the message for the operator.
    fn ca(&self, dir: &Path, days: u32) -> anyhow::Result<String> {
        let device = &*self.device;
        device
            .create_dir_all(dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let key = KeyPair::generate().context("cannot make a key")?;
        let mut params = ca_params(&key);
        self.hold(&mut params, days);
        let pem = params
            .self_signed(&key)
            .context("cannot sign the CA's certificate")?
            .pem();
        let (pem_path, key_path) = (dir.join(CA), dir.join(CA_KEY));
        self.write_pair(dir, (&key_path, &key.serialize_pem()), (&pem_path, &pem))?;
        let holds = Validity::of_pem(pem.as_bytes()).context("the CA's certificate cannot be read")?;
        Ok(format!(
            "made the CA {} and its key {}, which hold {holds}; keep the key away from the nodes",
            pem_path.display(),
            key_path.display()
        ))
    }

    /// Makes the certificate of a node. Returns the message for the operator.
    fn node(&self, dir: &Path, name: &str, days: u32) -> anyhow::Result<String> {
        check_name(name)?;
        let files = TlsFiles {
            ca: dir.join(CA),
            certificate: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
        };
        let ca_key_path = dir.join(CA_KEY);
        let ca = self.read(&files.ca)?;
        let ca_key = String::from_utf8(self.read(&ca_key_path)?).ok();
        let ca_key = ca_key.as_deref().map(KeyPair::from_pem).and_then(Result::ok);
        let ca_key = ca_key.ok_or_else(|| {
            let path = ca_key_path.display();
            anyhow!(
                "{path}: expected a private key that `collie cluster ca new` has made, found something else"
            )
        })?;
        let key = KeyPair::generate().context("cannot make a key")?;
        let mut params = node_params(name)?;
        self.hold(&mut params, days);
        self.check_end(&files.ca, &ca, days)?;
        let issuer = Issuer::new(ca_params(&ca_key), ca_key);
        let signed = params.signed_by(&key, &issuer);
        let pem = signed.context("cannot sign the node's certificate")?.pem();
        let key = key.serialize_pem();
        // As the node will, before anything is written.
        let contents = TlsContents {
            ca: &ca,
            certificate: pem.as_bytes(),
            key: key.as_bytes(),
        };
        let holds = files.check(contents, Arc::clone(&self.clock)).with_context(|| {
            format!(
                "the CA in {} cannot sign for a node: expected {CA} and {CA_KEY} as one `collie cluster ca new` has \
                 made them",
                dir.display()
            )
        })?;
        self.write_pair(dir, (&files.key, &key), (&files.certificate, &pem))?;
        Ok(format!(
            "made {} and {}, which hold {holds}; copy both and {} to the node",
            files.certificate.display(),
            files.key.display(),
            files.ca.display()
        ))
    }

    /// Sets from when until when a certificate is to hold.
    fn hold(&self, params: &mut CertificateParams, days: u32) {
        let (now, epoch) = (self.clock.wall_ms() / 1000, date_time_ymd(1970, 1, 1));
        params.not_before = epoch + Duration::from_secs(now.saturating_sub(EARLY));
        params.not_after = epoch + Duration::from_secs(now + u64::from(days) * DAY);
    }

    /// Whether a certificate of so many days ends before its CA, without which it is worth nothing.
    fn check_end(&self, path: &Path, ca: &[u8], days: u32) -> anyhow::Result<()> {
        // What is no certificate is refused by the check of the files.
        let Some(holds) = Validity::of_pem(ca) else {
            return Ok(());
        };
        let left = holds.until.saturating_sub(self.clock.wall_ms() / 1000) / DAY;
        if u64::from(days) > left {
            bail!(
                "{}: the CA holds {holds}, for {left} more days: expected --days of at most that, found {days}",
                path.display()
            );
        }
        Ok(())
    }

    /// Writes a key, and then its certificate, both or none of them; durable when it returns.
    fn write_pair(&self, dir: &Path, key: (&Path, &str), certificate: (&Path, &str)) -> anyhow::Result<()> {
        let written = self.write(key.0, key.1, PRIVATE).and_then(|()| {
            let written = self.write(certificate.0, certificate.1, PUBLIC);
            written.inspect_err(|_| self.take_back(key.0))
        });
        written?;
        let synced = self.device.sync_dir(dir);
        synced.with_context(|| {
            format!(
                "the names in {} may not be durable: make them again",
                dir.display()
            )
        })
    }

    fn write(&self, path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
        let file = self.device.open(path, OpenMode::CreateNew).map_err(|error| {
            let problem = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    "is there already, and nothing is overwritten: take it away, or choose another name or directory"
                        .to_owned()
                }
                _ => format!("cannot be made: {error}"),
            };
            anyhow!("{}: {problem}", path.display())
        })?;
        let written = write_all_at(&*file, text.as_bytes(), 0)
            .and_then(|()| file.set_mode(mode))
            .and_then(|()| file.sync_all());
        written
            .inspect_err(|_| self.take_back(path))
            .with_context(|| format!("{}: cannot be written", path.display()))
    }

    /// Removes a file that has just been made.
    fn take_back(&self, path: &Path) {
        // Why it was to be removed is reported, and names the file or its certificate.
        let _stays = self.device.remove_file(path);
    }

    fn read(&self, path: &Path) -> anyhow::Result<Vec<u8>> {
        let read = || {
            let file = self.device.open(path, OpenMode::Read)?;
            let mut bytes = vec![0; file.stat()?.len.min(FILE_MAX) as usize];
            read_exact_at(&*file, &mut bytes, 0)?;
            io::Result::Ok(bytes)
        };
        read().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => anyhow!(
                "{}: there is no such file: make a CA with `collie cluster ca new`, or correct --dir",
                path.display()
            ),
            _ => anyhow!("{}: cannot be read: {error}", path.display()),
        })
    }
}

/// A CA's certificate, but for its dates.
fn ca_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let hash = params.key_identifier(key);
    let hash: String = hash.iter().take(HASH).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("Collie cluster CA {hash}"));
    // It signs for nodes, and for no other CAs.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// A node's certificate, but for its dates.
fn node_params(name: &str) -> anyhow::Result<CertificateParams> {
    let params = CertificateParams::new([TLS_NAME.to_owned()]);
    let mut params = params.context("cannot name the node in its certificate")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Whether files can be named so.
fn check_name(name: &str) -> anyhow::Result<()> {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins = |byte: &u8| byte.is_ascii_alphanumeric();
    let good = name.len() <= NAME_MAX
        && name.as_bytes().first().is_some_and(begins)
        && name.bytes().all(part)
        && name != "ca";
    if !good {
        bail!(
            "--name: expected at most {NAME_MAX} letters, digits, dots, underscores and hyphens, the first a letter \
             or a digit, and not ca, which is the CA's own; found {name:?}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use collie_cluster::TlsTcp;
    use tempfile::TempDir;

    use super::*;

    fn maker() -> Maker {
        Maker {
            device: Arc::new(RealDevice::new()),
            clock: Arc::new(RealClock),
        }
    }

    fn files(dir: &Path, name: &str) -> TlsFiles {
        TlsFiles {
            ca: dir.join(CA),
            certificate: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
        }
    }

    fn with_ca() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        maker().ca(dir.path(), 3650).unwrap();
        dir
    }

    /// The names in a directory and what is in them.
    fn all(dir: &Path) -> Vec<(String, Vec<u8>)> {
        let names = RealDevice::new().list(dir).unwrap();
        let read = |name: String| {
            let bytes = maker().read(&dir.join(&name)).unwrap();
            (name, bytes)
        };
        names.into_iter().map(|entry| read(entry.name)).collect()
    }

    #[test]
    fn a_node_starts_on_what_was_made_and_keys_are_private() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("of the cluster");
        let said = maker().ca(&dir, 3650).unwrap();
        assert!(said.contains("keep the key away from the nodes"), "{said}");
        for name in ["one", "node-2.b_c"] {
            let said = maker().node(&dir, name, 825).unwrap();
            assert!(said.contains("copy both and"), "{said}");
            let network = TlsTcp::new(
                files(&dir, name),
                Arc::new(RealDevice::new()),
                Arc::new(RealClock),
            )
            .unwrap();
            let (holds, now) = (network.validity(), RealClock.wall_ms() / 1000);
            assert!(
                holds.from <= now - DAY + 60 && holds.until.abs_diff(now + 825 * DAY) < 60,
                "{holds}"
            );
        }
        let mode = |name: &str| RealDevice::new().stat(&dir.join(name)).unwrap().mode;
        assert_eq!(
            ["ca.key", "one.key", "ca.pem", "one.pem"].map(mode),
            [0o600, 0o600, 0o644, 0o644]
        );
    }

    #[test]
    fn nothing_is_overwritten_and_nothing_left_of_what_is_refused() {
        let dir = with_ca();
        maker().node(dir.path(), "one", 825).unwrap();
        let before = all(dir.path());
        let refused = maker().ca(dir.path(), 3650).unwrap_err().to_string();
        assert!(
            refused.contains("ca.key: is there already, and nothing is overwritten"),
            "{refused}"
        );
        let refused = maker().node(dir.path(), "one", 825).unwrap_err().to_string();
        assert!(refused.contains("one.key: is there already"), "{refused}");
        assert_eq!(all(dir.path()), before);
        // Only the certificate is there: the key that was written first is taken back.
        for key in ["ca.key", "one.key"] {
            RealDevice::new().remove_file(&dir.path().join(key)).unwrap();
        }
        let before = all(dir.path());
        let refused = maker().ca(dir.path(), 3650).unwrap_err().to_string();
        assert!(refused.contains("ca.pem: is there already"), "{refused}");
        assert_eq!(all(dir.path()), before);
    }

    #[test]
    fn a_ca_whose_files_do_not_fit_together_signs_nothing() {
        let (dir, other) = (with_ca(), with_ca());
        RealDevice::new()
            .rename(&other.path().join(CA_KEY), &dir.path().join(CA_KEY))
            .unwrap();
        let before = all(dir.path());
        let refused = maker().node(dir.path(), "one", 825).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("cannot sign for a node: expected ca.pem and ca.key"),
            "{refused}"
        );
        assert_eq!(all(dir.path()), before);
        let refused = maker().node(other.path(), "one", 825).unwrap_err().to_string();
        assert!(
            refused.contains("ca.key: there is no such file: make a CA with"),
            "{refused}"
        );
        maker()
            .write(&other.path().join(CA_KEY), "nonsense", PRIVATE)
            .unwrap();
        let refused = maker().node(other.path(), "one", 825).unwrap_err().to_string();
        assert!(refused.contains("ca.key: expected a private key"), "{refused}");
    }

    #[test]
    fn a_certificate_does_not_outlive_its_ca() {
        let dir = tempfile::tempdir().unwrap();
        maker().ca(dir.path(), 100).unwrap();
        let refused = maker().node(dir.path(), "one", 101).unwrap_err().to_string();
        assert!(
            refused.contains("expected --days of at most that, found 101"),
            "{refused}"
        );
        maker().node(dir.path(), "one", 99).unwrap();
    }

    #[test]
    fn a_name_outside_of_the_directory_or_of_the_ca_is_refused() {
        let dir = with_ca();
        for name in [
            "",
            "ca",
            "../one",
            "a/b",
            ".hidden",
            "-x",
            "ö",
            "a b",
            &"x".repeat(65),
        ] {
            let refused = maker().node(dir.path(), name, 825).unwrap_err().to_string();
            assert!(refused.contains("--name: expected"), "{name:?}: {refused}");
        }
        maker().node(dir.path(), &"x".repeat(64), 825).unwrap();
    }
}
