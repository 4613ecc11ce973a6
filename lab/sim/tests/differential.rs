//! Without faults the simulated device does what the real one does: the same random operations on
//! both, compared answer by answer.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where its assumptions do, and prints its figures"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use collie_io::{BLOCK, Device, File, Mapping, OpenMode, RealDevice};
use collie_sim::faultfs::{self, FaultFs, Names};
use collie_sim::{OpKind, Rng, SimDevice};

const NAMES: [&str; 7] = ["a", "b", "c", "d/a", "d/b", "e", "l/a"];
/// Where symbolic links lead; one that has the name `l` leads to the directory.
const TARGETS: [&str; 5] = ["a", "b", "d/a", "missing/a", "d/../c"];
const LEN_MAX: u64 = 20_000;

/// One device, the root of its tree, and the files open on it.
struct Side {
    device: Box<dyn Device>,
    root: PathBuf,
    open: Vec<Arc<dyn File>>,
    mappings: Vec<Mapping>,
}

/// What an operation answered, in a form that both sides share.
type Answer = Result<String, String>;

fn answer<T>(result: std::io::Result<T>, show: impl FnOnce(T) -> String) -> Answer {
    match result {
        Ok(value) => Ok(show(value)),
        // Both give the kernel's numbers, save where a check comes before the call.
        Err(e) => Err(e
            .raw_os_error()
            .map_or(format!("{:?}", e.kind()), |n| n.to_string())),
    }
}

/// What both sides say of a file or a link.
fn show(stat: &collie_io::Stat) -> String {
    format!("{} {:o} {} {:?}", stat.len, stat.mode, stat.links, stat.kind)
}

fn done(result: std::io::Result<()>) -> Answer {
    answer(result, |()| String::new())
}

impl Side {
    fn new(device: Box<dyn Device>, root: PathBuf) -> Self {
        Self {
            device,
            root,
            open: Vec::new(),
            mappings: Vec::new(),
        }
    }

    fn name(&self, rng: &mut Rng) -> PathBuf {
        self.root.join(NAMES[rng.index(NAMES.len())])
    }

    /// One random operation; equal generators lead to equal operations on both sides.
    fn step(&mut self, rng: &mut Rng) -> (String, Answer) {
        match rng.below(12) {
            0..5 => self.on_names(rng),
            5..7 => self.on_links(rng),
            _ if self.open.is_empty() => self.on_names(rng),
            _ => self.on_file(rng),
        }
    }

    fn on_names(&mut self, rng: &mut Rng) -> (String, Answer) {
        let (a, b) = (self.name(rng), self.name(rng));
        let dir = self.root.join("d");
        let what = rng.below(12);
        let label = format!("names {what} {} {}", a.display(), b.display());
        let result = match what {
            0..=4 => {
                let modes = [
                    OpenMode::Read,
                    OpenMode::ReadWrite,
                    OpenMode::CreateNew,
                    OpenMode::OpenOrCreate,
                ];
                let opened = self.device.open(&a, modes[rng.index(4)]);
                answer(opened, |file| {
                    if self.open.len() > 5 {
                        self.open.remove(0);
                    }
                    self.open.push(file);
                    String::new()
                })
            }
            5 => done(self.device.rename(&a, &b)),
            6 => done(self.device.remove_file(&a)),
            7 => done(self.device.create_dir_all(&dir)),
            8 => done(self.device.remove_dir_all(&dir)),
            9 => answer(self.device.list(&self.root), |entries| format!("{entries:?}")),
            10 => done(self.device.sync_dir(&dir)),
            _ => answer(self.device.stat(&a), |s| show(&s)),
        };
        (label, result)
    }

    /// What the daemon of a file system needs beside that.
    fn on_links(&mut self, rng: &mut Rng) -> (String, Answer) {
        let (a, b) = (self.name(rng), self.name(rng));
        let (dir, link) = (self.root.join("d"), self.root.join("l"));
        let (what, chosen) = (rng.below(16), rng.index(1 << 20));
        let label = format!("links {what} {} {} {chosen}", a.display(), b.display());
        let target = Path::new(TARGETS[chosen % TARGETS.len()]);
        let modes: &[u32] = match RealDevice::new().uid() {
            0 => &[0o600, 0o755, 0o6755, 0o2644, 0o4700],
            _ => &[0o600, 0o755],
        };
        let device = &self.device;
        let result = match what {
            0..=2 => done(device.symlink(target, &a)),
            3 => done(device.symlink(Path::new("d"), &link)),
            4 => done(device.remove_file(&link)),
            5 => answer(device.read_link(&a), |target| target.display().to_string()),
            6 | 7 => done(device.hard_link(&a, &b)),
            8 | 9 => answer(device.lstat(&a), |s| show(&s)),
            10 => done(device.rename_new(&a, &b)),
            11 => done(device.remove_dir(if chosen % 2 == 0 { &dir } else { &a })),
            12 => done(device.create_dir(&dir, 0o711)),
            13 => {
                let set = device.set_mode(&a, modes[chosen % modes.len()]);
                answer(set.and_then(|()| device.stat(&a)), |s| format!("{:o}", s.mode))
            }
            14 => {
                let set = device.set_owner(&a, Some(device.uid()), None);
                let owned = |s: collie_io::Stat| format!("{:o} {}", s.mode, s.uid == device.uid());
                answer(set.and_then(|()| device.lstat(&a)), owned)
            }
            _ => {
                // From 1970 on: the FUSE library takes the parts of a second before for parts
                // after.
                let time = chosen as i64 * 1_000_000_007;
                let set = device.set_times(&a, Some(time), Some(time + 1));
                answer(set.and_then(|()| device.lstat(&a)), |s| {
                    format!("{} {}", s.atime, s.mtime)
                })
            }
        };
        (label, result)
    }

    fn on_file(&mut self, rng: &mut Rng) -> (String, Answer) {
        let file = Arc::clone(&self.open[rng.index(self.open.len())]);
        let offset = rng.below(LEN_MAX);
        let len = rng.index(6_000);
        let what = rng.below(10);
        let label = format!("file {what} {offset}+{len}");
        let result = match what {
            0..=2 => {
                let mut buf = vec![0; len];
                rng.fill(&mut buf);
                answer(file.write_at(&buf, offset), |n| n.to_string())
            }
            3..=5 => {
                let mut buf = vec![0; len];
                answer(file.read_at(&mut buf, offset), |n| format!("{:?}", &buf[..n]))
            }
            6 => done(file.sync_data()),
            7 if self.mappings.is_empty() => done(file.set_len(offset)),
            7 | 8 => self.on_mapping(&*file, rng, len),
            _ => answer(file.stat(), |s| format!("{} {}", s.len, s.links)),
        };
        (label, result)
    }

    /// Maps a file, or writes and reads through the mapping that is there.
    fn on_mapping(&mut self, file: &dyn File, rng: &mut Rng, len: usize) -> Answer {
        if let Some(mapping) = self.mappings.first() {
            let (at, value) = (len % mapping.len(), rng.next_u64().to_le_bytes()[0]);
            #[expect(unsafe_code, reason = "the point of a mapping")]
            // SAFETY: inside the mapping, whose file is never made shorter, and no other thread
            // runs.
            let old = unsafe { mapping.as_ptr().add(at).replace(value) };
            return Ok(old.to_string());
        }
        let mapped = file.map(BLOCK);
        answer(mapped, |mapping| {
            self.mappings.push(mapping);
            String::new()
        })
    }
}

/// The seeds to run: one that is asked for, or these.
fn seeds(all: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let asked = std::env::var("COLLIE_SEED").ok().and_then(|s| s.parse().ok());
    asked.map_or(all, |seed| seed..seed + 1)
}

/// The same operations on both sides; how many answers were alike and no errors.
fn compare(seed: u64, mut real: Side, mut other: Side) -> u32 {
    let mut answers = 0;
    let mut rng = Rng::new(seed);
    for step in 0..150 {
        let mut same = rng.clone();
        let (label, expected) = real.step(&mut rng);
        let (_, found) = other.step(&mut same);
        assert_eq!(
            found, expected,
            "step {step}: {label}\nreplay: COLLIE_SEED={seed} cargo test -p collie-sim --test differential"
        );
        answers += u32::from(expected.is_ok());
    }
    answers
}

#[test]
fn random_operations_answer_alike_on_the_real_device() {
    let mut answers = 0;
    for seed in seeds(0..40) {
        let dir = tempfile::tempdir().unwrap();
        let sim = SimDevice::new(seed);
        sim.create_dir_all(Path::new("/root")).unwrap();
        let real = Side::new(Box::new(RealDevice::new()), dir.path().to_path_buf());
        answers += compare(seed, real, Side::new(Box::new(sim), PathBuf::from("/root")));
    }
    println!("figures: {answers} operations answered alike by both devices");
    assert!(answers > 50, "the operations reach something");
}

/// Where the child of the test below finds the file system.
const MOUNTED: &str = "COLLIE_FAULTFS_AT";

#[test]
fn random_operations_answer_alike_on_faultfs() {
    // The process that serves it must not map its files, so that another one uses it.
    if let Some(at) = std::env::var_os(MOUNTED) {
        return use_mounted(&PathBuf::from(at));
    }
    if let Err(missing) = faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let mounted = FaultFs::mount(at.path(), Names::Posix, 1).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("random_operations_answer_alike_on_faultfs")
        .env(MOUNTED, at.path())
        .status();
    assert!(child.unwrap().success());
    assert!(
        mounted.operations()[&OpKind::Write] > 100,
        "{:?}",
        mounted.operations()
    );
}

fn use_mounted(at: &Path) {
    let mut answers = 0;
    for seed in seeds(0..20) {
        let dirs = [std::env::temp_dir(), at.to_owned()].map(|dir| tempfile::tempdir_in(dir).unwrap());
        let [real, mounted] = dirs.each_ref().map(|dir| {
            let device = Box::new(RealDevice::new());
            Side::new(device, dir.path().to_path_buf())
        });
        answers += compare(seed, real, mounted);
    }
    println!("figures: {answers} operations answered alike by a disk and by the file system that forgets");
    assert!(answers > 50, "the operations reach something");
}
