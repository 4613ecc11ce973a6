//! Without faults the simulated device does what the real one does: the same random operations on
//! both, compared answer by answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{BLOCK, Device, File, Mapping, OpenMode, RealDevice};
use collie_sim::{Rng, SimDevice};

const NAMES: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "e"];
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
        match rng.below(10) {
            0..5 => self.on_names(rng),
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
            _ => answer(self.device.stat(&a), |s| {
                format!("{} {:o} {} {}", s.len, s.mode, s.links, s.is_dir)
            }),
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
            // SAFETY: inside the mapping, whose file is never made shorter, and no other thread runs.
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

#[test]
fn random_operations_answer_alike_on_the_real_device() {
    let seeds = std::env::var("COLLIE_SEED").ok().and_then(|s| s.parse().ok());
    let range = seeds.map_or(0..40, |seed| seed..seed + 1);
    let mut answers = 0;
    for seed in range {
        let dir = tempfile::tempdir().unwrap();
        let sim = SimDevice::new(seed);
        sim.create_dir_all(Path::new("/root")).unwrap();
        let mut real = Side::new(Box::new(RealDevice::new()), dir.path().to_path_buf());
        let mut sim = Side::new(Box::new(sim), PathBuf::from("/root"));
        let mut rng = Rng::new(seed);
        for step in 0..150 {
            let mut same = rng.clone();
            let (label, expected) = real.step(&mut rng);
            let (_, found) = sim.step(&mut same);
            assert_eq!(
                found, expected,
                "step {step}: {label}\nreplay: COLLIE_SEED={seed} cargo test -p collie-sim --test differential"
            );
            answers += u32::from(expected.is_ok());
        }
    }
    println!("figures: {answers} operations answered alike by both devices");
    assert!(answers > 50, "the operations reach something");
}
