//! A store's part in what it shares with others.

use crate::Error;
use crate::background::{compaction, flush, whole_merge};
use crate::shared::{Member, TaskKind};
use crate::store::Store;
use crate::store::view::FlushCause;

impl Member for Store {
    fn do_one(&self, kind: TaskKind) {
        match kind {
            TaskKind::Flush => {
                if let Some((task, _running)) = self.queue().try_flush() {
                    flush::run_task(self, task);
                }
            }
            TaskKind::Compaction => {
                if let Some((family, _running)) = self.queue().try_compaction() {
                    compaction::run_task(self, &family);
                }
            }
            TaskKind::WholeMerge => {
                if let Some((family, _running)) = self.queue().try_whole_merge() {
                    whole_merge::run_task(self, &family);
                }
            }
        }
    }

    fn panicked(&self, thread: &str) {
        self.fail(Error::Background {
            cause: format!("the thread {thread} panicked"),
        });
    }

    fn active_mems(&self) -> Vec<(u64, u32)> {
        // Replay seals by itself.
        if self.is_replaying() {
            return Vec::new();
        }
        let families = self.families();
        let sizes = families
            .iter()
            .map(|family| (family.view().active.bytes(), family.id()));
        sizes.collect()
    }

    fn waiting_mem_bytes(&self) -> u64 {
        if !self.waits_for_log() {
            return 0;
        }
        let families = self.families();
        let sealed = families.iter().map(|family| family.view().sealed_bytes());
        sealed.sum()
    }

    fn seal(&self, family: u32) -> bool {
        let families = self.families();
        let Some(family) = families.iter().find(|found| found.id() == family) else {
            return false;
        };
        let options = family.options();
        let rotated = self.rotate(family, FlushCause::Memory, |view| {
            view.active.bytes() > 0 && view.buffers(options) < options.max_write_buffers
        });
        match rotated {
            Ok(Some(_)) => {
                self.queue().flush(family);
                self.update_stall(family);
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(family = %family.name(), %error, "a large memtable is not sealed yet");
                false
            }
        }
    }
}
