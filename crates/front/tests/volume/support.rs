//! Volumes on a simulated device.

use std::sync::Arc;

use collie_front::VolumeOptions;
use collie_log::RingMode;
use collie_sim::{SimDevice, VOLATILE_DIR};

/// Options of a small volume, in which everything happens on the callers' threads.
pub(crate) fn options(device: &SimDevice, page_bytes: usize, slots: u32, ring_bytes: usize) -> VolumeOptions {
    VolumeOptions {
        device: Arc::new(device.clone()),
        page_bytes: page_bytes as u32,
        slots,
        ring: RingMode::Shared {
            dir: VOLATILE_DIR.into(),
        },
        ring_bytes,
        segment_bytes: (ring_bytes as u64).max(1 << 15),
        threads: false,
        shown_as: None,
        identity: None,
        plain_by: None,
        missing: collie_front::Missing::GiveUp,
        scheduler: std::sync::Arc::default(),
    }
}
