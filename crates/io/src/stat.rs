//! What a device reports of files, names and room.

/// What kind of thing has a name or is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A device.
    Other,
}

/// What a name or an open file refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The device that holds the file.
    pub dev: u64,
    /// The file's number on that device; with `dev` it identifies the file.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Length in bytes; of a symbolic link, that of its target.
    pub len: u64,
    /// Room that it takes, in units of 512 bytes.
    pub blocks: u64,
    /// Permission bits (the lowest twelve of `st_mode`).
    pub mode: u32,
    /// The owner's user id.
    pub uid: u32,
    /// The owner's group id.
    pub gid: u32,
    /// Number of names; 0 once an open file was unlinked. Of a directory, up to the file system.
    pub links: u64,
    /// When it was last read, in nanoseconds since the Unix epoch. File systems may leave it
    /// behind.
    pub atime: i64,
    /// When its data, or a directory's names, changed last; in nanoseconds since the Unix epoch.
    pub mtime: i64,
    /// When anything of it changed last, its mode, owner and names included; in nanoseconds since
    /// the Unix epoch.
    pub ctime: i64,
}

impl Stat {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The last component of the path. Names that are not UTF-8 are shown with replacement
    /// characters.
    pub name: String,
    /// What has it; a symbolic link is not followed.
    pub kind: FileKind,
}

impl Entry {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// The room on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsStat {
    /// The unit of the next three, in bytes.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// Blocks that are free for processes that are not root's.
    pub available: u64,
    /// Files and directories that there can be; 0 where the file system sets no limit.
    pub files: u64,
    /// Of these, those that are free.
    pub free_files: u64,
}
