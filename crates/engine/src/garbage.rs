//! What is freed off the hot path: memtables, and the directories of dropped families.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use collie_io::Device;

use crate::memtable::{Chunks, IDLE, Memtable};
use crate::{Error, Result};

/// Something to free.
pub(crate) enum Garbage {
    /// A memtable that nobody reads any more.
    Memtable(Box<dyn Memtable>),
    /// The directory of a dropped family that nobody reads any more.
    Directory(PathBuf),
}

/// Starts the thread that frees what is sent to it, and memtables' spare chunks when nobody wants them. It ends
/// when the last sender is gone.
pub(crate) fn start(
    device: Arc<dyn Device>,
    chunks: Arc<Chunks>,
) -> Result<(Sender<Garbage>, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new()
        .name("collie-free".into())
        .spawn(move || collect(&receiver, &*device, &chunks))
        .map_err(|e| Error::io("start the thread", "collie-free", e))?;
    Ok((sender, thread))
}

fn collect(receiver: &Receiver<Garbage>, device: &dyn Device, chunks: &Chunks) {
    let mut spare = false;
    loop {
        let garbage = match spare {
            true => receiver.recv_timeout(IDLE),
            false => receiver.recv().map_err(RecvTimeoutError::from),
        };
        match garbage {
            Ok(Garbage::Memtable(table)) => {
                drop(table);
                spare = true;
            }
            Ok(Garbage::Directory(path)) => {
                // What stays behind is removed at the next open: its id is in no manifest.
                if let Err(error) = device.remove_dir_all(&path) {
                    tracing::warn!(path = %path.display(), %error, "a dropped family's files stay for now");
                }
            }
            Err(RecvTimeoutError::Timeout) => spare = chunks.free_unwanted(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
