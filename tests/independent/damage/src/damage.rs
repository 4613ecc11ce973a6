//! Copies of a store's files in memory, and damage to them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::rng::Rng;

/// All files below a directory by their relative paths; directories end in `/` and are empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Image(pub BTreeMap<String, Vec<u8>>);

impl Image {
    /// # Errors
    /// Those of reading. Files that vanish meanwhile are left out.
    pub fn read(base: &Path) -> io::Result<Self> {
        let mut image = Self::default();
        for part in ["store", "ring"] {
            image.add(base, part)?;
        }
        Ok(image)
    }

    fn add(&mut self, base: &Path, name: &str) -> io::Result<()> {
        for entry in fs::read_dir(base.join(name))? {
            let entry = entry?;
            let name = format!("{name}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.0.insert(format!("{name}/"), Vec::new());
                self.add(base, &name)?;
                continue;
            }
            match fs::read(entry.path()) {
                Ok(bytes) => drop(self.0.insert(name, bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes the files what they are here. The log's directory itself stays: its ring names its inode.
    ///
    /// # Errors
    /// Those of writing.
    pub fn restore(&self, base: &Path) -> io::Result<()> {
        clear(&base.join("ring"), &[])?;
        clear(&base.join("store"), &["log"])?;
        clear(&base.join("store/log"), &[])?;
        if !self.0.contains_key("store/log/") {
            fs::remove_dir(base.join("store/log"))?;
        }
        for (name, bytes) in &self.0 {
            let path = base.join(name);
            if name.ends_with('/') {
                fs::create_dir_all(path)?;
                continue;
            }
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)?;
            io::Write::write_all(&mut file, bytes)?;
        }
        Ok(())
    }

    pub fn add_below(&mut self, directory: &str, from: &Self) {
        let files = from.0.iter().filter(|(name, _)| name.starts_with(directory));
        self.0
            .extend(files.map(|(name, bytes)| (name.clone(), bytes.clone())));
    }

    /// The names of files that differ, but for those that an opening may always write.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let both = self.0.iter().chain(&other.0);
        let mut names: Vec<String> = both
            .filter(|(name, _)| self.0.get(*name) != other.0.get(*name))
            .map(|(name, _)| name.clone())
            .filter(|name| class(name) != Class::Side)
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

fn clear(dir: &Path, but: &[&str]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if but.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700))?;
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Class {
    Segment,
    Archive,
    Ring,
    Manifest,
    Current,
    Version,
    Table,
    Verified,
    /// Locks, reserves, what was cut off: nothing depends on what they hold.
    Side,
}

pub fn class(name: &str) -> Class {
    let last = name.rsplit('/').next().unwrap_or_default();
    match last {
        "MANIFEST" => Class::Manifest,
        "current" => Class::Current,
        "verified" => Class::Verified,
        _ if name.starts_with("ring/") => Class::Ring,
        _ if name.contains("/archive/") => Class::Archive,
        _ if last.ends_with(".seg") => Class::Segment,
        _ if name.contains("/tables/") => Class::Table,
        _ if name.starts_with("store/families/") => Class::Version,
        _ => Class::Side,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Flip {
        at: usize,
        bit: u8,
    },
    Zero {
        at: usize,
        len: usize,
    },
    Garbage {
        at: usize,
        len: usize,
    },
    Truncate {
        to: usize,
    },
    Extend {
        len: usize,
        zeros: bool,
    },
    Swap {
        with: String,
    },
    Older {
        copy: usize,
    },
    Foreign {
        from: String,
    },
    Remove,
    Duplicate {
        name: String,
    },
    Directory,
    /// A whole directory, whose name ends in `/`: its files of an older copy, or none.
    OlderFiles {
        copy: usize,
    },
    NoFiles,
}

#[derive(Clone, Debug)]
pub struct Damage {
    pub name: String,
    pub kind: Kind,
}

pub struct Source<'a> {
    pub now: &'a Image,
    pub older: &'a [Image],
    pub foreign: &'a Image,
    /// The segment in which the log ends, and where in it: most damage to the log is there.
    pub last: (String, usize),
    /// Damages no files but those of this class, by its name.
    pub class: Option<&'a str>,
}

impl Source<'_> {
    /// Draws damage that changes something: classes are equally frequent, whatever the number of files.
    pub fn draw(&self, rng: &mut Rng) -> Option<Damage> {
        for _ in 0..1000 {
            let wanted = |name: &String| self.class.is_none_or(|only| only == format!("{:?}", class(name)));
            let files = self
                .now
                .0
                .keys()
                .filter(|name| !name.ends_with('/') && wanted(name));
            let files: Vec<&String> = files.collect();
            if files.is_empty() {
                return None;
            }
            if self.class.is_none() && rng.chance(6) {
                return Some(self.draw_directory(rng));
            }
            let mut classes: Vec<Class> = files.iter().map(|name| class(name)).collect();
            classes.sort_unstable();
            classes.dedup();
            classes.extend(classes.iter().find(|class| **class == Class::Segment).copied());
            let of = *rng.pick(&classes);
            let files: Vec<&String> = files.into_iter().filter(|name| class(name) == of).collect();
            let mut name = (*rng.pick(&files)).clone();
            let last = format!("store/log/{}", self.last.0);
            if of == Class::Segment && self.now.0.contains_key(&last) && rng.chance(60) {
                name = last;
            }
            let Some(kind) = self.kind(rng, &name) else {
                continue;
            };
            let damage = Damage { name, kind };
            let mut after = self.now.clone();
            self.apply(&mut after, &damage);
            if after != *self.now {
                return Some(damage);
            }
        }
        None
    }

    fn draw_directory(&self, rng: &mut Rng) -> Damage {
        if rng.chance(60) && !self.older.is_empty() {
            let copy = rng.below(self.older.len() as u64) as usize;
            return Damage {
                name: "store/log/".into(),
                kind: Kind::OlderFiles { copy },
            };
        }
        let directories: Vec<&String> = self.now.0.keys().filter(|name| name.ends_with('/')).collect();
        Damage {
            name: (*rng.pick(&directories)).clone(),
            kind: Kind::NoFiles,
        }
    }

    fn kind(&self, rng: &mut Rng, name: &str) -> Option<Kind> {
        let bytes = &self.now.0[name];
        let mut used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        if name.ends_with(&*self.last.0) {
            used = used.min(self.last.1);
        }
        let place = |rng: &mut Rng| match rng.below(10) {
            0..2 => rng.below(512.min(bytes.len() as u64)) as usize,
            2..4 => used.saturating_sub(1 + rng.below(64) as usize),
            4 => rng.below(bytes.len() as u64) as usize,
            _ => rng.below(used as u64) as usize,
        };
        let alike = |image: &Image, rng: &mut Rng| {
            let alike = image
                .0
                .keys()
                .filter(|other| class(other) == class(name) && *other != name);
            let alike: Vec<&String> = alike.filter(|other| !other.ends_with('/')).collect();
            (!alike.is_empty()).then(|| (*rng.pick(&alike)).clone())
        };
        let len = *rng.pick(&[1, 8, 100, 512, 4096, 20_000, 1 << 20]);
        let kind = match rng.below(20) {
            0..6 if !bytes.is_empty() => Kind::Flip {
                at: place(rng),
                bit: rng.below(8) as u8,
            },
            6..8 if !bytes.is_empty() => Kind::Zero { at: place(rng), len },
            8 if !bytes.is_empty() => Kind::Garbage { at: place(rng), len },
            9..11 if !bytes.is_empty() => Kind::Truncate {
                to: if rng.chance(15) { 0 } else { place(rng) },
            },
            11 => Kind::Extend {
                len,
                zeros: rng.chance(50),
            },
            12..14 => Kind::Swap {
                with: alike(self.now, rng)?,
            },
            14..16 if !self.older.is_empty() => {
                let copy = rng.below(self.older.len() as u64) as usize;
                self.older[copy].0.get(name)?;
                Kind::Older { copy }
            }
            16 => Kind::Foreign {
                from: alike(self.foreign, rng)?,
            },
            17 => Kind::Remove,
            18 => Kind::Duplicate {
                name: self.other_name(rng, name)?,
            },
            19 => Kind::Directory,
            _ => return None,
        };
        Some(kind)
    }

    /// A name of a file of this kind that is not there.
    fn other_name(&self, rng: &mut Rng, name: &str) -> Option<String> {
        let (dir, last) = name.rsplit_once('/')?;
        let step = *rng.pick(&[1, 2, 50]);
        let other = match class(name) {
            Class::Segment | Class::Archive => {
                let (number, rest) = last.split_at_checked(16)?;
                format!("{:016x}{rest}", u64::from_str_radix(number, 16).ok()? + step)
            }
            Class::Table => (last.parse::<u64>().ok()? + step).to_string(),
            Class::Version => format!("v{}", last.strip_prefix('v')?.parse::<u64>().ok()? + step),
            Class::Manifest => "MANIFEST.tmp".into(),
            _ => format!("{last}.copy"),
        };
        let other = format!("{dir}/{other}");
        (!self.now.0.contains_key(&other)).then_some(other)
    }

    pub fn apply(&self, image: &mut Image, damage: &Damage) {
        let name = &damage.name;
        if name.ends_with('/') {
            image.0.retain(|file, _| !file.starts_with(name));
            if let Kind::OlderFiles { copy } = damage.kind {
                image.add_below(name, &self.older[copy]);
            }
            return;
        }
        let Some(mut bytes) = image.0.remove(name) else {
            return;
        };
        let end = |at: usize, len: usize, bytes: &[u8]| (at + len).min(bytes.len());
        match &damage.kind {
            Kind::Flip { at, bit } if *at < bytes.len() => bytes[*at] ^= 1 << bit,
            Kind::Zero { at, len } if *at < bytes.len() => {
                let end = end(*at, *len, &bytes);
                bytes[*at..end].fill(0);
            }
            Kind::Garbage { at, len } if *at < bytes.len() => {
                let end = end(*at, *len, &bytes);
                bytes[*at..end].copy_from_slice(&Rng::new(*at as u64, 9).bytes(end - at));
            }
            Kind::Flip { .. } | Kind::Zero { .. } | Kind::Garbage { .. } => {}
            Kind::Truncate { to } => bytes.truncate(*to),
            Kind::Extend { len, zeros: true } => bytes.resize(bytes.len() + len, 0),
            Kind::Extend { len, zeros: false } => bytes.extend(Rng::new(*len as u64, 9).bytes(*len)),
            Kind::Swap { with } => {
                if let Some(other) = image.0.get_mut(with) {
                    std::mem::swap(other, &mut bytes);
                }
            }
            Kind::Older { copy } => bytes = self.older[*copy].0.get(name).cloned().unwrap_or(bytes),
            Kind::Foreign { from } => bytes = self.foreign.0.get(from).cloned().unwrap_or(bytes),
            Kind::Remove | Kind::OlderFiles { .. } | Kind::NoFiles => return,
            Kind::Duplicate { name } => drop(image.0.insert(name.clone(), bytes.clone())),
            Kind::Directory => {
                image.0.insert(format!("{name}/"), Vec::new());
                return;
            }
        }
        image.0.insert(name.clone(), bytes);
    }
}
