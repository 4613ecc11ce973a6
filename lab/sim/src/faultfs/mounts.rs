//! Mounts of this file system: whether one can be made, and those that dead processes have left.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use collie_io::{Device, OpenMode, RealDevice};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// How the sources of our mounts begin.
const SOURCE: &str = "collie-faultfs-";
/// Debian's package fuse3 has it.
const HELPER: &str = "fusermount3";

/// What is shown as a mount's source: which process it belongs to.
pub(super) fn source() -> String {
    format!("{SOURCE}{}", std::process::id())
}

/// Whether a file system can be mounted here; the error says what is missing.
///
/// # Errors
/// `/dev/fuse` cannot be opened, or this process is not root's and there is no `fusermount3`.
pub fn available() -> io::Result<()> {
    let device = RealDevice::new();
    let named = |e: io::Error| io::Error::new(e.kind(), format!("/dev/fuse cannot be opened: {e}"));
    device
        .open(Path::new("/dev/fuse"), OpenMode::ReadWrite)
        .map_err(named)?;
    if device.uid() != 0 && helper(&["-V"]).is_err() {
        let text = format!("only root may mount without {HELPER} (Debian: fuse3)");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

fn helper(args: &[&str]) -> io::Result<()> {
    let status = Command::new(HELPER)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{HELPER} {args:?} failed: {status}")))
    }
}

/// Takes a mount away at once. Who still uses it keeps it until they end, and gets errors from it.
pub(super) fn detach(at: &Path) -> io::Result<()> {
    match unmount(at, UnmountFlags::FORCE | UnmountFlags::DETACH) {
        Err(Errno::PERM) => helper(&["-u", "-z", "--", &at.to_string_lossy()]),
        done => Ok(done?),
    }
}

/// Unmounts what processes have left that are dead, and returns where that was.
///
/// # Errors
/// The list of mounts cannot be read, or one of them cannot be taken away.
pub fn unmount_abandoned() -> io::Result<Vec<PathBuf>> {
    let alive = |pid: u32| RealDevice::new().stat(Path::new(&format!("/proc/{pid}"))).is_ok();
    unmount_where(|mount| !alive(mount.pid))
}

/// Unmounts what is mounted below `dir`, by any process.
///
/// # Errors
/// As [`unmount_abandoned`].
pub fn unmount_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    unmount_where(|mount| mount.at.starts_with(dir))
}

fn unmount_where(wanted: impl Fn(&Mount) -> bool) -> io::Result<Vec<PathBuf>> {
    let ours = mounts(&read_mounts()?);
    let gone: Vec<PathBuf> = ours.into_iter().filter(wanted).map(|mount| mount.at).collect();
    gone.iter().try_for_each(|at| detach(at))?;
    Ok(gone)
}

/// A mount of this file system.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    at: PathBuf,
    pid: u32,
}

fn read_mounts() -> io::Result<Vec<u8>> {
    let file = RealDevice::new().open(Path::new("/proc/self/mountinfo"), OpenMode::Read)?;
    let (mut text, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match file.read_at(&mut piece, text.len() as u64)? {
            0 => return Ok(text),
            len => text.extend_from_slice(piece.get(..len).unwrap_or_default()),
        }
    }
}

/// Of the kernel's list those that are of this file system.
fn mounts(list: &[u8]) -> Vec<Mount> {
    let lines = list.split(|&b| b == b'\n');
    lines.filter_map(parse).collect()
}

/// A line: numbers, a root, the place, options, a hyphen, type, source, options.
fn parse(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let hyphen = fields.iter().position(|field| field == b"-")?;
    let (kind, source) = (fields.get(hyphen + 1)?, fields.get(hyphen + 2)?);
    let pid = std::str::from_utf8(source).ok()?.strip_prefix(SOURCE)?;
    if *kind != b"fuse" {
        return None;
    }
    let at = std::ffi::OsString::from_vec(unescape(fields.get(4)?));
    Some(Mount {
        at: at.into(),
        pid: pid.parse().ok()?,
    })
}

/// Blanks, backslashes and their like are shown as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let digits = behind
            .first_chunk::<3>()
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.map(|digits| u8::from_str_radix(digits, 8)) {
            Some(Ok(byte)) if *first == b'\\' => {
                plain.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            _ => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_in_the_kernels_list() {
        let list = b"22 1 254:0 / / rw shared:1 - ext4 /dev/root rw\n\
            90 22 0:50 / /tmp/a\\040b\\134 rw,noatime - fuse collie-faultfs-77 rw,user_id=0\n\
            91 22 0:51 / /mnt rw - fuse.sshfs collie-faultfs-78 rw\n";
        let found = mounts(list);
        let expected = Mount {
            at: PathBuf::from("/tmp/a b\\"),
            pid: 77,
        };
        assert_eq!(found, [expected]);
    }
}
