//! Small volumes at `/volume` of a simulated device, and files of a few pages in them.

use std::path::Path;
use std::sync::Arc;

use collie_front::{PageFile, Volume, VolumeOptions};
use collie_io::Device;
use collie_sim::{PowerCut, SimDevice};

pub(crate) const PAGE: usize = 1024;

pub(crate) fn options(device: &SimDevice, slots: u32, ring_bytes: usize) -> VolumeOptions {
    crate::support::options(device, PAGE, slots, ring_bytes)
}

pub(crate) fn open_with(device: &SimDevice, slots: u32, ring_bytes: usize) -> Volume {
    Volume::open(Path::new("/volume"), options(device, slots, ring_bytes)).unwrap()
}

pub(crate) fn open(device: &SimDevice) -> Volume {
    open_with(device, 16, 1 << 15)
}

pub(crate) fn device() -> SimDevice {
    let device = SimDevice::new(5);
    device.create_dir_all(Path::new("/volume")).unwrap();
    device
}

/// The devices that power cuts of every sort leave, some often.
pub(crate) fn cuts(device: &SimDevice) -> impl Iterator<Item = (&'static str, SimDevice)> {
    let snapshot = device.snapshot();
    PowerCut::WAYS.into_iter().flat_map(move |(way, cut)| {
        let images: Vec<_> = (0..8).map(|seed| snapshot.power_cut(cut, seed)).collect();
        images.into_iter().map(move |mut image| {
            image.clear_volatile();
            (way, image.device())
        })
    })
}

pub(crate) fn write(volume: &Volume, file: &PageFile, page: usize, version: u8) {
    volume
        .write_at(file, &[version; PAGE], (page * PAGE) as u64)
        .unwrap();
}

/// The version of a page that is there whole.
pub(crate) fn version(volume: &Volume, name: &str, page: usize) -> u8 {
    let file = volume.file(Path::new(name)).unwrap();
    let mut found = [0; PAGE];
    let len = volume.read_at(&file, &mut found, (page * PAGE) as u64).unwrap();
    assert_eq!(len, PAGE);
    assert!(
        found.iter().all(|byte| *byte == found[0]),
        "page {page} is of more than one version"
    );
    found[0]
}

/// A file of four pages with version 1 at home and version 2, displaced, of the first two. Both are
/// synced.
pub(crate) fn mapped(volume: &Volume, name: &str) -> Arc<PageFile> {
    let file = volume.create(Path::new(name)).unwrap();
    for page in 0..4 {
        write(volume, &file, page, 1);
    }
    volume.sync(&file).unwrap();
    write(volume, &file, 0, 2);
    write(volume, &file, 1, 2);
    volume.sync(&file).unwrap();
    file
}

/// Begins a sync and does `meanwhile` while the device makes it wait.
pub(crate) fn sync_beside(device: &SimDevice, volume: &Volume, file: &PageFile, meanwhile: impl FnOnce()) {
    let gate = device.hold_syncs();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| volume.sync(file));
        gate.wait_for(1);
        meanwhile();
        gate.release();
        syncing.join().unwrap().unwrap();
    });
}
