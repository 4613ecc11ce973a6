//! A machine of its own for the daemon: a mount namespace with a disk, shared memory and a boot, which a
//! power cut takes or changes.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use collie_independent_cuts::rng::Rng;

/// What takes longer hangs.
pub const HANGS: Duration = Duration::from_secs(90);
const SHM: &str = "/dev/shm";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

pub struct Machine {
    pub base: PathBuf,
    collie: PathBuf,
    pub page: usize,
    pub shadow: usize,
}

fn c(text: impl AsRef<Path>) -> CString {
    CString::new(text.as_ref().as_os_str().as_encoded_bytes()).unwrap_or_default()
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn mount(from: &str, at: &str, kind: &str, flags: u64) -> io::Result<()> {
    let (from, at, kind) = (c(from), c(at), c(kind));
    done(unsafe { libc::mount(from.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) })
}

/// Takes a mount away, also while processes use it.
pub fn detach(at: &Path) -> io::Result<()> {
    let at = c(at);
    done(unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) })
}

/// All mounts from here on are this process's and go with it, however it ends. Before any thread.
pub fn enter() -> io::Result<()> {
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE)?;
    mount("none", SHM, "tmpfs", 0)
}

impl Machine {
    pub fn new(collie: &Path, base: &Path, page: usize, shadow: usize) -> io::Result<Self> {
        fs::create_dir_all(base.join("disk"))?;
        let (collie, base) = (collie.to_owned(), base.to_owned());
        Ok(Self {
            base,
            collie,
            page,
            shadow,
        })
    }

    pub fn disk(&self) -> PathBuf {
        self.base.join("disk")
    }

    pub fn data(&self) -> PathBuf {
        self.base.join("disk/data")
    }

    /// Shared memory is lost, and the boot is another.
    pub fn restart(&self, rng: &mut Rng) -> io::Result<()> {
        let _ = detach(Path::new(SHM));
        mount("none", SHM, "tmpfs", 0)?;
        let boot = self.base.join("boot");
        let _ = detach(Path::new(BOOT));
        let id = (rng.next(), rng.next());
        fs::write(
            &boot,
            format!(
                "{:08x}-0000-4000-8000-{:012x}\n",
                id.0 as u32,
                id.1 & ((1 << 48) - 1)
            ),
        )?;
        mount(&boot.to_string_lossy(), BOOT, "", libc::MS_BIND)
    }

    /// A cluster as far as the mount looks at it.
    pub fn make_cluster(&self, is_cluster: bool) -> io::Result<()> {
        let data = self.data();
        for dir in ["global", "base/9", "space/PG_15_202209061"] {
            fs::create_dir_all(data.join(dir))?;
        }
        if is_cluster {
            fs::write(data.join("PG_VERSION"), "15\n")?;
            let mut control = vec![0; 512];
            control[..8].copy_from_slice(&0x1234_5678_9abc_u64.to_le_bytes());
            control[64..72].copy_from_slice(&1_234_567.0_f64.to_le_bytes());
            control[72..76].copy_from_slice(&(self.page as u32).to_le_bytes());
            fs::write(data.join("global/pg_control"), control)?;
        }
        for name in [
            "PG_VERSION",
            "global/pg_control",
            "global",
            "base",
            "space/PG_15_202209061",
            "space",
            ".",
            "..",
        ] {
            if let Ok(file) = File::open(data.join(name)) {
                file.sync_all()?;
            }
        }
        Ok(())
    }

    pub fn start(&self) -> io::Result<Child> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.base.join("log"))?;
        let mut command = Command::new(&self.collie);
        command.args([
            "mount",
            "--shadow",
            &self.shadow.to_string(),
            "--page-size",
            &self.page.to_string(),
        ]);
        command
            .arg(self.data())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
    }

    pub fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let data = self.data().display().to_string();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(&data))
    }

    /// Another command of `collie`; `None` where it takes too long or `is_over` says so.
    pub fn ask(&self, args: &[&str], is_over: impl Fn() -> bool) -> io::Result<Option<(ExitStatus, String)>> {
        let said = self.base.join("said");
        let out = File::create(&said)?;
        let mut command = Command::new(&self.collie);
        command
            .args(args)
            .arg(self.data())
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        let mut child = command.spawn()?;
        let since = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some((status, fs::read_to_string(&said)?)));
            }
            if since.elapsed() > HANGS || is_over() {
                // It may wait for a daemon that is killed next: its end is not waited for.
                let _ = child.kill();
                std::thread::spawn(move || child.wait());
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}
