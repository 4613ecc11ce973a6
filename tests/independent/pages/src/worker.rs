//! A client of the mount: a thread with directories of its own, which knows what each of its files is to be.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_independent_cuts::rng::Rng;

use crate::model::{End, content};
use crate::names::{Found, Names, PAGES, PLAIN, RELATIONS, is_relation, parent};

/// Why a client stops.
#[derive(Debug)]
pub enum Stop {
    /// A call failed; no fault where the power went.
    Failed(String),
    Wrong(String),
}

type Done = Result<(), Stop>;

/// What all clients share with who watches them.
#[derive(Default)]
pub struct Watch {
    pub stop: AtomicBool,
    pub operations: AtomicU64,
    pub syncs: AtomicU64,
    pub read: AtomicU64,
    /// A full shadow file was answered by syncs.
    pub full: AtomicU64,
}

pub struct Worker {
    pub number: u64,
    root: PathBuf,
    page: usize,
    pub rng: Rng,
    names: Names,
    handles: BTreeMap<u64, File>,
    /// What was done last, for a report.
    pub trace: Vec<String>,
    writes: u64,
}

/// A buffer at a multiple of 4,096, as `O_DIRECT` wants it.
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096];
        let from = bytes.as_ptr().align_offset(4096);
        Self { bytes, from, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

fn failed(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Stop {
    move |error| Stop::Failed(format!("{what}: {error}"))
}

fn differs(found: &[u8], wanted: &[u8]) -> Option<String> {
    let at = found.iter().zip(wanted).position(|(a, b)| a != b);
    match at {
        Some(at) => {
            let show = |bytes: &[u8]| {
                String::from_utf8_lossy(&bytes[at / 512 * 512..][..24.min(bytes.len() - at / 512 * 512)])
                    .into_owned()
            };
            Some(format!(
                "at {at} {:?} in place of {:?}",
                show(found),
                show(wanted)
            ))
        }
        None => (found.len() != wanted.len())
            .then(|| format!("{} bytes in place of {}", found.len(), wanted.len())),
    }
}

impl Worker {
    pub fn new(number: u64, root: &Path, page: usize, rng: Rng) -> Self {
        Self {
            number,
            root: root.to_owned(),
            page,
            rng,
            names: Names::new(number * 1_000_000),
            handles: BTreeMap::new(),
            trace: Vec::new(),
            writes: 0,
        }
    }

    /// The directories that this client may have.
    fn own_dirs(&self) -> [String; 3] {
        let n = self.number + 1;
        [
            format!("base/{n}"),
            format!("base/{n}00"),
            format!("space/PG_15_202209061/{n}"),
        ]
    }

    fn note(&mut self, line: String) {
        if self.trace.len() > 4000 {
            self.trace.drain(..2000);
        }
        self.trace.push(line);
    }

    fn full(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn open(&self, path: &str, flags: i32) -> Result<File, Stop> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(self.full(path));
        opened.map_err(failed(format!("open {path}")))
    }

    /// The handle that is open, or a new one.
    fn handle(&mut self, path: &str, id: u64) -> Result<File, Stop> {
        if let Some(file) = self.handles.get(&id) {
            return file.try_clone().map_err(failed("dup"));
        }
        let file = self.open(path, 0)?;
        if self.rng.chance(40) {
            self.handles.insert(id, file.try_clone().map_err(failed("dup"))?);
        }
        Ok(file)
    }

    /// All that is there now.
    fn look(&self) -> Result<(Found, Vec<String>), Stop> {
        let (mut found, mut dirs) = (Found::new(), Vec::new());
        for dir in self.own_dirs() {
            let entries = match fs::read_dir(self.full(&dir)) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed(format!("list {dir}"))(e)),
            };
            for entry in entries {
                let entry = entry.map_err(failed(format!("list {dir}")))?;
                let path = format!("{dir}/{}", entry.file_name().to_string_lossy());
                let stat = fs::metadata(self.full(&path)).map_err(failed(format!("stat {path}")))?;
                let bytes = fs::read(self.full(&path)).map_err(failed(format!("read {path}")))?;
                if stat.len() != bytes.len() as u64 {
                    return Err(Stop::Wrong(format!(
                        "{path} has {} bytes, and {} are read",
                        stat.len(),
                        bytes.len()
                    )));
                }
                found.insert(path, (bytes, stat.ino()));
            }
            dirs.push(dir);
        }
        Ok((found, dirs))
    }

    /// After a crash: what is there is one of what may be, and is gone on with.
    pub fn recover(&mut self, end: End) -> Done {
        self.handles.clear();
        let (found, dirs) = self.look()?;
        let chosen = self
            .names
            .check(&found)
            .map_err(|wrong| Stop::Wrong(wrong.join("\n  ")))?;
        self.names.adopt(found, &chosen, end);
        self.names.dirs = dirs.into_iter().collect();
        self.note(format!("--- {end:?}; found {chosen:?}"));
        Ok(())
    }

    /// Everything is exactly as it was left, here or below the mount.
    pub fn compare(&mut self, root: Option<&Path>) -> Done {
        let own = self.root.clone();
        self.root = root.unwrap_or(&own).to_owned();
        let looked = self.look();
        self.root = own;
        let (found, _) = looked?;
        let live = self.names.live();
        for (path, id) in &live {
            let Some((bytes, _)) = found.get(path) else {
                return Err(Stop::Wrong(format!("{path} is not there")));
            };
            if let Some(wrong) = differs(bytes, &self.names.files[id].live) {
                return Err(Stop::Wrong(format!("{path}, file {id}: {wrong}")));
            }
        }
        match found.keys().find(|path| self.names.now(path).is_none()) {
            Some(path) => Err(Stop::Wrong(format!("{path} is there, and should not be"))),
            None => Ok(()),
        }
    }

    /// A sync of the disk failed, and the daemon ends: what is written in place may be lost though a later
    /// sync succeeds, as the kernel has it.
    pub fn suspect(&mut self) {
        self.names
            .files
            .values_mut()
            .for_each(|file| file.suspect |= file.plain);
    }

    /// A clean unmount makes what relations hold durable; an empty file is none that it looks at.
    pub fn unmounted(&mut self) {
        self.note("--- unmounted".into());
        for (path, id) in self.names.live() {
            if let Some(file) = self.names.files.get_mut(&id)
                && !file.plain
            {
                file.synced();
                if !file.live.is_empty() {
                    self.names.name_synced(&path);
                }
            }
        }
    }

    pub fn close(&mut self) {
        self.handles.clear();
    }

    pub fn run(&mut self, steps: u64, watch: &Watch) -> Done {
        for _ in 0..steps {
            if watch.stop.load(Ordering::Relaxed) {
                break;
            }
            self.step(watch)?;
            watch.operations.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn step(&mut self, watch: &Watch) -> Done {
        let live = self.names.live();
        let some = (!live.is_empty()).then(|| self.rng.pick(&live));
        let kind = self.rng.below(100);
        let Some((path, id)) = some.filter(|_| kind < 85) else {
            return self.change_names(kind, &live, watch);
        };
        match kind {
            0..30 => self.write(&path, id, watch),
            30..44 => self.sync(&path, id, watch),
            44..54 => self.set_len(&path, id),
            54..74 => self.read(&path, id, watch),
            74..76 => self.map(&path, id),
            76..78 => {
                self.handles.remove(&id);
                Ok(())
            }
            _ => self.change_names(85 + kind % 15, &live, watch),
        }
    }

    fn change_names(&mut self, kind: u64, live: &[(String, u64)], watch: &Watch) -> Done {
        match kind {
            0..91 => self.create(),
            91..93 if !live.is_empty() => self.unlink(live),
            93..96 if !live.is_empty() => self.rename(live, watch),
            96 => self.move_dir(),
            97 => self.copy(live),
            98 => self.orphans(watch),
            _ => {
                let dirs: Vec<String> = self.names.dirs.iter().cloned().collect();
                if dirs.is_empty() || self.rng.chance(10) {
                    std::thread::sleep(Duration::from_millis(self.rng.pick(&[1, 20, 400, 1500])));
                    return Ok(());
                }
                let dir = self.rng.pick(&dirs);
                let opened = File::open(self.full(&dir)).map_err(failed(format!("open {dir}")))?;
                opened.sync_all().map_err(failed(format!("sync {dir}")))?;
                self.note(format!("synced {dir}"));
                self.names.dir_synced(&dir);
                Ok(())
            }
        }
    }

    fn bytes(&mut self, id: u64, len: usize) -> Vec<u8> {
        self.writes += 1;
        match self.rng.chance(6) {
            true => vec![0; len],
            false => content(id, self.writes, len),
        }
    }

    fn write(&mut self, path: &str, id: u64, watch: &Watch) -> Done {
        let page = self.page as u64;
        let len = self.names.files[&id].live.len() as u64;
        let pages = len.div_ceil(page);
        let at = self.rng.below((pages + 2 + self.rng.clone().below(8)).min(PAGES));
        let count = self.rng.small(16.min(262_144 / page));
        let (at, size) = match self.rng.below(10) {
            // Some page, or several, or those at the end.
            0..6 => (at * page, count * page),
            6..8 => (len / page * page, count * page),
            // Bytes within a page, or across pages.
            8 => (at * page + self.rng.below(page), self.rng.small(page)),
            _ => ((at + 1) * page - self.rng.small(512), self.rng.small(page * 2)),
        };
        let bytes = self.bytes(id, size as usize);
        let way = self.rng.below(20);
        self.note(format!(
            "write {path} ({id}) #{} {at}+{size} of {len}, way {way}",
            self.writes
        ));
        let file = match way {
            0 => self.open(path, libc::O_DSYNC)?,
            1 => self.open(path, libc::O_DIRECT)?,
            _ => self.handle(path, id)?,
        };
        let mut aligned = Aligned::new(bytes.len());
        aligned.get().copy_from_slice(&bytes);
        if let Some(model) = self.names.files.get_mut(&id) {
            model.write(at as usize, &bytes, false);
        }
        let mut tries = 0;
        loop {
            match file.write_all_at(aligned.get(), at) {
                Ok(()) => break,
                // Half-written pages fill the shadow file: a sync commits them.
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) && tries < 200 => {
                    watch.full.fetch_add(1, Ordering::Relaxed);
                    tries += 1;
                    for (path, _) in self.names.live() {
                        self.open(&path, 0)?
                            .sync_all()
                            .map_err(failed(format!("sync {path}")))?;
                    }
                    self.handles
                        .values()
                        .try_for_each(|file| file.sync_all().map_err(failed("sync")))?;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => return Err(failed(format!("write {path} {at}+{size}"))(e)),
            }
        }
        if way == 0 {
            self.is_synced(path, id);
        }
        Ok(())
    }

    fn is_synced(&mut self, path: &str, id: u64) {
        if let Some(model) = self.names.files.get_mut(&id) {
            model.synced();
            // POSIX has no name of a file made durable by its sync, Collie that of a relation.
            if is_relation(path) {
                self.names.name_synced(path);
            }
        }
    }

    fn sync(&mut self, path: &str, id: u64, watch: &Watch) -> Done {
        let file = self.handle(path, id)?;
        let done = if self.rng.chance(25) {
            file.sync_data()
        } else {
            file.sync_all()
        };
        done.map_err(failed(format!("sync {path}")))?;
        self.note(format!("synced {path} ({id})"));
        watch.syncs.fetch_add(1, Ordering::Relaxed);
        self.is_synced(path, id);
        Ok(())
    }

    fn set_len(&mut self, path: &str, id: u64) -> Done {
        let page = self.page as u64;
        let old = self.names.files[&id].live.len() as u64;
        let len = match self.rng.below(6) {
            0 => 0,
            1 => self.rng.below(old / page + 1) * page,
            2 => self.rng.below(old + 1),
            3 => (old / page + self.rng.small(20)) * page,
            4 => old + self.rng.small(3 * page),
            _ => (old / page).saturating_sub(1) * page,
        };
        let len = len.min(PAGES * page);
        let file = self.handle(path, id)?;
        let allocates = len > old && self.rng.chance(50);
        self.note(format!(
            "length {path} ({id}) {old} to {len}, allocates {allocates}"
        ));
        if let Some(model) = self.names.files.get_mut(&id) {
            model.set_len(len as usize);
        }
        let from = old.saturating_sub(self.rng.below(page * 2));
        let done = match allocates {
            true if unsafe { libc::fallocate(file.as_raw_fd(), 0, from as i64, (len - from) as i64) }
                != 0 =>
            {
                Err(io::Error::last_os_error())
            }
            true => Ok(()),
            false => file.set_len(len),
        };
        done.map_err(failed(format!("set the length of {path} to {len}")))
    }

    fn read(&mut self, path: &str, id: u64, watch: &Watch) -> Done {
        let wanted = self.names.files[&id].live.clone();
        let way = self.rng.below(6);
        let file = match way {
            0 if self.names.now(path).is_some() => self.open(path, libc::O_DIRECT)?,
            _ => self.handle(path, id)?,
        };
        if way < 4 {
            // Not from the kernel's cache.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        let (from, len) = match way {
            0 | 1 => (0, wanted.len() + 5000),
            _ => (
                self.rng.below(wanted.len() as u64 + 1) as usize,
                self.rng.small(4 * self.page as u64) as usize,
            ),
        };
        let mut found = Aligned::new(len.next_multiple_of(4096));
        let (mut done, len) = (0, len.min(found.len));
        while done < len {
            match file.read_at(&mut found.get()[done..len], (from + done) as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) => return Err(failed(format!("read {path} {from}+{len}"))(e)),
            }
        }
        watch.read.fetch_add(done as u64, Ordering::Relaxed);
        let wanted = &wanted[from..(from + len).min(wanted.len())];
        match differs(&found.get()[..done], wanted) {
            Some(wrong) => Err(Stop::Wrong(format!(
                "read {path} ({id}) {from}+{len}, way {way}: {wrong}"
            ))),
            None => Ok(()),
        }
    }

    /// Reads and writes through a shared mapping; nothing is promised of such pages before it is synced.
    fn map(&mut self, path: &str, id: u64) -> Done {
        let len = self.names.files[&id].live.len();
        if len == 0 {
            return Ok(());
        }
        let at = self.rng.below(len as u64) as usize;
        let size = (self.rng.small(9000) as usize).min(len - at);
        let bytes = self.bytes(id, size);
        self.note(format!("map {path} ({id}) #{} {at}+{size} of {len}", self.writes));
        let file = self.handle(path, id)?;
        let Some(model) = self.names.files.get_mut(&id) else {
            return Ok(());
        };
        let before = model.live.clone();
        model.write(at, &bytes, true);
        let wrong = unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let mapped = libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0);
            if mapped == libc::MAP_FAILED {
                return Err(failed("mmap")(io::Error::last_os_error()));
            }
            // Read by calls: a mapping whose daemon is gone raises a signal.
            let copied = std::slice::from_raw_parts_mut(mapped.cast::<u8>(), len);
            let mut found = vec![0; len];
            let wrong = touch(copied, &mut found, &before, at, &bytes);
            let done = libc::msync(mapped, len, libc::MS_SYNC);
            let error = io::Error::last_os_error();
            libc::munmap(mapped, len);
            if done != 0 {
                return Err(failed(format!("msync {path}"))(error));
            }
            wrong?
        };
        // That was a sync of the file.
        self.is_synced(path, id);
        wrong.map_or(Ok(()), |wrong| {
            Err(Stop::Wrong(format!("{path} ({id}) mapped: {wrong}")))
        })
    }

    fn create(&mut self) -> Done {
        let dirs = self.own_dirs();
        let dir = self.rng.pick(&dirs);
        if !self.names.dirs.contains(&dir) {
            self.note(format!("mkdir {dir}"));
            fs::create_dir_all(self.full(&dir)).map_err(failed(format!("mkdir {dir}")))?;
            self.names.dirs.insert(dir.clone());
        }
        let name = if self.rng.chance(85) {
            self.rng.pick(&RELATIONS)
        } else {
            self.rng.pick(&PLAIN)
        };
        self.create_at(&format!("{dir}/{name}")).map(drop)
    }

    fn create_at(&mut self, path: &str) -> Result<Option<u64>, Stop> {
        if self.names.now(path).is_some() {
            return Ok(None);
        }
        let id = self.names.create(path, self.page);
        self.note(format!("create {path} ({id})"));
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.full(path));
        let made = made.map_err(failed(format!("create {path}")))?;
        if self.rng.chance(50) {
            self.handles.insert(id, made);
        }
        Ok(Some(id))
    }

    fn unlink(&mut self, live: &[(String, u64)]) -> Done {
        let (path, id) = self.rng.pick(live);
        self.note(format!("unlink {path} ({id})"));
        self.names.remove(&path);
        fs::remove_file(self.full(&path)).map_err(failed(format!("unlink {path}")))?;
        if self.rng.chance(50) {
            self.handles.remove(&id);
        }
        Ok(())
    }

    fn rename(&mut self, live: &[(String, u64)], watch: &Watch) -> Done {
        let (from, id) = self.rng.pick(live);
        let dirs: Vec<String> = self.names.dirs.iter().cloned().collect();
        let dir = if self.rng.chance(60) {
            parent(&from).to_owned()
        } else {
            self.rng.pick(&dirs)
        };
        let name = if self.rng.chance(85) {
            self.rng.pick(&RELATIONS)
        } else {
            self.rng.pick(&PLAIN)
        };
        let to = format!("{dir}/{name}");
        if from == to {
            return Ok(());
        }
        if self.rng.chance(50) {
            self.handles.remove(&id);
        }
        self.note(format!("rename {from} ({id}) to {to}"));
        self.names.rename(&from, &to);
        fs::rename(self.full(&from), self.full(&to)).map_err(failed(format!("rename {from} to {to}")))?;
        if self.rng.chance(30)
            && let Some(id) = self.create_at(&from)?
        {
            // The name's next file grows before anything is known of the renaming.
            self.write(&from, id, watch)?;
        }
        Ok(())
    }

    fn move_dir(&mut self) -> Done {
        let [one, other, _] = self.own_dirs();
        let has = |dir: &String| self.names.dirs.contains(dir);
        let (from, to) = match (has(&one), has(&other)) {
            (true, false) => (one, other),
            (false, true) => (other, one),
            _ => {
                // One of them is emptied and removed.
                let dir = if self.rng.chance(50) { one } else { other };
                for (path, _) in self
                    .names
                    .live()
                    .into_iter()
                    .filter(|(path, _)| parent(path) == dir)
                {
                    self.note(format!("unlink {path} for rmdir"));
                    self.names.remove(&path);
                    fs::remove_file(self.full(&path)).map_err(failed(format!("unlink {path}")))?;
                }
                if self.names.dirs.remove(&dir) {
                    self.note(format!("rmdir {dir}"));
                    fs::remove_dir(self.full(&dir)).map_err(failed(format!("rmdir {dir}")))?;
                }
                return Ok(());
            }
        };
        self.note(format!("rename {from}/ to {to}/"));
        self.names.rename_dir(&from, &to);
        fs::rename(self.full(&from), self.full(&to)).map_err(failed(format!("rename {from} to {to}")))
    }

    /// Copies a file to a name that is free.
    fn copy(&mut self, live: &[(String, u64)]) -> Done {
        let dirs: Vec<String> = self.names.dirs.iter().cloned().collect();
        let (Some((from, id)), false) = (live.first().map(|_| self.rng.pick(live)), dirs.is_empty()) else {
            return Ok(());
        };
        let to = format!("{}/{}", self.rng.pick(&dirs), self.rng.pick(&RELATIONS));
        if self.names.now(&to).is_some() {
            return Ok(());
        }
        let copy = self.names.create(&to, self.page);
        self.note(format!("copy {from} ({id}) to {to} ({copy})"));
        let bytes = fs::read(self.full(&from)).map_err(failed(format!("read {from}")))?;
        if let Some(wrong) = differs(&bytes, &self.names.files[&id].live) {
            return Err(Stop::Wrong(format!("copy of {from} ({id}): {wrong}")));
        }
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.full(&to));
        let made = made.map_err(failed(format!("create {to}")))?;
        for (number, some) in bytes.chunks(8 * self.page).enumerate() {
            let at = number * 8 * self.page;
            if let Some(model) = self.names.files.get_mut(&copy) {
                model.write(at, some, false);
            }
            made.write_all_at(some, at as u64)
                .map_err(failed(format!("write {to}")))?;
        }
        Ok(())
    }

    /// Files that are open and have no name: written, synced, read.
    fn orphans(&mut self, watch: &Watch) -> Done {
        let named: Vec<u64> = self.names.live().into_iter().map(|(_, id)| id).collect();
        let orphans: Vec<u64> = self
            .handles
            .keys()
            .copied()
            .filter(|id| !named.contains(id))
            .collect();
        for id in orphans {
            let name = format!("removed {id}");
            for _ in 0..3 {
                let at = self.rng.below(20) * self.page as u64;
                let bytes = self.bytes(id, self.page * 2);
                let Some(model) = self.names.files.get_mut(&id) else {
                    break;
                };
                model.write(at as usize, &bytes, false);
                self.note(format!("write {name} #{} at {at}", self.writes));
                self.handles[&id]
                    .write_all_at(&bytes, at)
                    .map_err(failed(&name))?;
            }
            self.handles[&id].sync_all().map_err(failed(&name))?;
            self.read(&name, id, watch)?;
            if self.rng.chance(30) {
                self.handles.remove(&id);
            }
        }
        Ok(())
    }
}

/// Compares a mapping, and writes to it. By the kernel, which says what a lost page is in place of a signal.
fn touch(
    mapped: &mut [u8],
    found: &mut [u8],
    before: &[u8],
    at: usize,
    bytes: &[u8],
) -> Result<Option<String>, Stop> {
    let pipe = |from: &[u8], to: &mut [u8]| -> io::Result<()> {
        let (mut ours, own) = (
            libc::iovec {
                iov_base: to.as_mut_ptr().cast(),
                iov_len: to.len(),
            },
            unsafe { libc::getpid() },
        );
        let theirs = libc::iovec {
            iov_base: from.as_ptr().cast_mut().cast(),
            iov_len: from.len(),
        };
        match unsafe { libc::process_vm_readv(own, &raw mut ours, 1, &raw const theirs, 1, 0) } {
            n if n == to.len() as isize => Ok(()),
            -1 => Err(io::Error::last_os_error()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    };
    pipe(mapped, found).map_err(failed("read a mapping"))?;
    let wrong = differs(found, before);
    pipe(bytes, &mut mapped[at..at + bytes.len()]).map_err(failed("write to a mapping"))?;
    Ok(wrong)
}
