//! Deferred destruction: memtables and the directories of dropped families are freed on a thread of
//! their own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use collie_io::Device;

use crate::memtable::chunks::{Chunks, IDLE};
use crate::{Error, Result};

/// Something to free.
pub(crate) enum Reclaim {
    /// A memtable that has no reader any more.
    Memory(Box<dyn Send>),
    /// The directory of a dropped family that has no reader any more.
    Directory(PathBuf),
}

/// Starts the thread that frees what is sent to it, and spare chunks of memtables when none is
/// taken for a while. It ends when the last sender is dropped.
pub(crate) fn start(
    device: Arc<dyn Device>,
    chunks: Arc<Chunks>,
) -> Result<(Sender<Reclaim>, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new()
        .name("collie-free".into())
        .spawn(move || collect(&receiver, &*device, &chunks))
        .map_err(|e| Error::io("start the thread", "collie-free", e))?;
    Ok((sender, thread))
}

fn collect(receiver: &Receiver<Reclaim>, device: &dyn Device, chunks: &Chunks) {
    let mut spare = false;
    loop {
        let reclaim = match spare {
            true => receiver.recv_timeout(IDLE),
            false => receiver.recv().map_err(RecvTimeoutError::from),
        };
        match reclaim {
            Ok(Reclaim::Memory(memory)) => {
                drop(memory);
                spare = true;
            }
            Ok(Reclaim::Directory(path)) => {
                // The next open removes what is left: the manifest does not name its id.
                if let Err(error) = device.remove_dir_all(&path) {
                    tracing::warn!(path = %path.display(), %error, "a dropped family's files stay for now");
                }
            }
            Err(RecvTimeoutError::Timeout) => spare = chunks.free_unwanted(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
