//! The simulator against itself: what it loses, what it keeps, and that every fault fires.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use collie_io::{BLOCK, Device, File, OpenMode, read_exact_at, write_all_at};
use collie_sim::{Data, Fault, FaultKind, Keep, OpKind, Points, PowerCut, SECTOR, SimDevice};

const LOST: PowerCut = PowerCut::WAYS[0].1;
const KEPT: PowerCut = PowerCut::WAYS[1].1;

fn create(device: &SimDevice, path: &str) -> Arc<dyn File> {
    device.open(Path::new(path), OpenMode::CreateNew).unwrap()
}

fn synced_file(device: &SimDevice, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(device, path);
    write_all_at(&*file, bytes, 0).unwrap();
    file.sync_data().unwrap();
    device.sync_dir(Path::new(path).parent().unwrap()).unwrap();
    file
}

fn content(device: &SimDevice, path: &str) -> Option<Vec<u8>> {
    let file = device.open(Path::new(path), OpenMode::Read).ok()?;
    let mut bytes = vec![0; usize::try_from(file.stat().unwrap().len).unwrap()];
    read_exact_at(&*file, &mut bytes, 0).unwrap();
    Some(bytes)
}

#[test]
fn some_image_loses_unsynced_data_and_none_synced_data() {
    for syncs in [false, true] {
        let device = SimDevice::new(3);
        device.record(Points::Changes, 1_000);
        let mut written = Vec::new();
        let file = synced_file(&device, "/log", &[]);
        for i in 0..20_u8 {
            write_all_at(&*file, &[i + 1; 300], u64::from(i) * 300).unwrap();
            if syncs {
                file.sync_data().unwrap();
            }
            written.push((device.operations(), i));
        }
        let mut lost = 0;
        for snapshot in device.take_snapshots() {
            for (seed, (_, cut)) in PowerCut::WAYS.iter().enumerate() {
                let after = snapshot.power_cut(*cut, seed as u64).device();
                let bytes = content(&after, "/log").unwrap_or_default();
                let done = written.iter().filter(|&&(op, _)| op <= snapshot.op());
                lost += done
                    .filter(|&&(_, i)| bytes.get(usize::from(i) * 300 + 299) != Some(&(i + 1)))
                    .count();
            }
        }
        assert_eq!(lost == 0, syncs, "{lost} writes lost");
    }
}

#[test]
fn process_death_keeps_the_page_cache_and_frees_locks() {
    let device = SimDevice::new(1);
    let file = create(&device, "/data");
    write_all_at(&*file, b"unsynced", 0).unwrap();
    assert!(file.try_lock().unwrap());
    let ring = create(&device, "/dev/shm/ring");
    ring.allocate(8_192).unwrap();
    let mapping = ring.map(8_192).unwrap();
    poke(&mapping, 4_100, 7);
    let after = device.snapshot().process_death().device();
    poke(&mapping, 4_100, 9);
    assert_eq!(content(&after, "/data").unwrap(), b"unsynced");
    assert_eq!(content(&after, "/dev/shm/ring").unwrap()[4_100], 7);
    assert_eq!(content(&device, "/dev/shm/ring").unwrap()[4_100], 9);
    assert_eq!(after.boot_id().unwrap(), device.boot_id().unwrap());
    let again = after.open(Path::new("/data"), OpenMode::ReadWrite).unwrap();
    assert!(again.try_lock().unwrap());
    // What the dead process had not synced can still be lost, until the next one syncs it.
    let dark = after.snapshot().power_cut(LOST, 1).device();
    assert_eq!(content(&dark, "/data"), None);
    again.sync_data().unwrap();
    after.sync_dir(Path::new("/")).unwrap();
    let dark = after.snapshot().power_cut(LOST, 1).device();
    assert_eq!(content(&dark, "/data").unwrap(), b"unsynced");
}

fn poke(mapping: &collie_io::Mapping, at: usize, value: u8) {
    assert!(at < mapping.len());
    #[expect(unsafe_code, reason = "the point of a mapping")]
    // SAFETY: inside the mapping, and no other thread runs.
    unsafe {
        mapping.as_ptr().add(at).write(value);
    }
}

#[test]
fn a_power_cut_empties_shared_memory_and_changes_the_boot_id() {
    let device = SimDevice::new(1);
    create(&device, "/dev/shm/ring").allocate(4_096).unwrap();
    device.sync_dir(Path::new("/dev/shm")).unwrap();
    let after = device.snapshot().power_cut(KEPT, 1).device();
    assert_eq!(after.list(Path::new("/dev/shm")).unwrap(), []);
    assert_ne!(after.boot_id().unwrap(), device.boot_id().unwrap());
}

#[test]
fn an_unsynced_rename_can_be_lost_or_come_without_data() {
    let device = SimDevice::new(1);
    synced_file(&device, "/CURRENT", b"old");
    let new = create(&device, "/CURRENT.tmp");
    write_all_at(&*new, b"new!", 0).unwrap();
    device
        .rename(Path::new("/CURRENT.tmp"), Path::new("/CURRENT"))
        .unwrap();
    let mut seen = BTreeSet::new();
    for (_, cut) in PowerCut::WAYS {
        for seed in 0..20 {
            let after = device.snapshot().power_cut(cut, seed).device();
            seen.insert(content(&after, "/CURRENT").expect("the name always leads somewhere"));
        }
    }
    let wanted: [&[u8]; 4] = [b"old", b"new!", b"", b"\0\0\0\0"];
    for state in wanted {
        assert!(seen.contains(state), "{state:?} is missing from {seen:?}");
    }
    new.sync_data().unwrap();
    device.sync_dir(Path::new("/")).unwrap();
    let after = device.snapshot().power_cut(LOST, 0).device();
    assert_eq!(content(&after, "/CURRENT").unwrap(), b"new!");
}

#[test]
fn tearing_cuts_at_its_unit_and_keeps_blocks_of_one_moment() {
    let device = SimDevice::new(1);
    let file = synced_file(&device, "/f", &[1; 4 * BLOCK]);
    for value in 2..=4 {
        write_all_at(&*file, &[value; 4 * BLOCK], 0).unwrap();
    }
    let way = |data| PowerCut {
        data,
        lengths: Keep::Kept,
        names: Keep::Kept,
    };
    let mut cuts = BTreeSet::new();
    let (mut mixed, mut garbage) = (0, 0);
    for seed in 0..200 {
        let image = |data| content(&device.snapshot().power_cut(way(data), seed).device(), "/f").unwrap();
        let torn = image(Data::TornSectors);
        let cut = torn.iter().position(|&b| b != 4).unwrap();
        assert!(torn[..cut].iter().all(|&b| b == 4) && torn[cut..].iter().all(|&b| b == 3));
        cuts.insert(cut);
        let cut = image(Data::TornBlocks).iter().position(|&b| b != 4).unwrap();
        assert_eq!(cut % BLOCK, 0);
        for block in image(Data::AnyBlocks).chunks(BLOCK) {
            assert!(block.iter().all(|b| b == &block[0]));
        }
        let any = image(Data::AnySectors);
        assert!(any.chunks(SECTOR).all(|s| s.iter().all(|b| b == &s[0])));
        mixed += usize::from(any.chunks(BLOCK).any(|b| b.iter().any(|x| x != &b[0])));
        let bad = image(Data::Garbage);
        garbage += bad
            .chunks(SECTOR)
            .filter(|s| s.iter().any(|b| b != &s[0]))
            .count();
    }
    assert!(
        cuts.iter().any(|c| c % BLOCK != 0),
        "cut inside blocks as well: {cuts:?}"
    );
    assert!(mixed > 0 && garbage > 0);
}

#[test]
fn a_truncation_happens_with_what_it_cuts_off_or_not_at_all() {
    let device = SimDevice::new(5);
    let file = synced_file(&device, "/table", &[1; 4 * BLOCK]);
    file.set_len(BLOCK as u64).unwrap();
    write_all_at(&*file, &[2; BLOCK], 2 * BLOCK as u64).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let cut = PowerCut {
            data: Data::AnySectors,
            lengths: Keep::Any,
            names: Keep::Kept,
        };
        let after = device.snapshot().power_cut(cut, seed).device();
        let bytes = content(&after, "/table").unwrap();
        seen.insert(bytes.len() / BLOCK);
        if bytes.len() == 4 * BLOCK {
            assert!(bytes.iter().all(|&b| b == 1), "seed {seed}: half a truncation");
        } else {
            let behind = bytes.get(BLOCK..).unwrap();
            assert!(
                !behind.contains(&1),
                "seed {seed}: cut off and there all the same"
            );
        }
    }
    assert_eq!(seen, BTreeSet::from([1, 3, 4]));
}

#[test]
fn fresh_garbage_spares_what_held_data() {
    let device = SimDevice::new(1);
    let file = synced_file(&device, "/f", &[0; 2 * SECTOR]);
    write_all_at(&*file, &[1; SECTOR], 0).unwrap();
    file.sync_data().unwrap();
    write_all_at(&*file, &[2; 2 * SECTOR], 0).unwrap();
    let cut = PowerCut {
        data: Data::FreshGarbage,
        lengths: Keep::Kept,
        names: Keep::Kept,
    };
    let mut garbage = 0;
    for seed in 0..100 {
        let image = device.snapshot().power_cut(cut, seed);
        garbage += image.effects().garbage;
        let bytes = content(&image.device(), "/f").unwrap();
        assert!(bytes[..SECTOR].iter().all(|&b| b == bytes[0]) && [1, 2].contains(&bytes[0]));
    }
    assert!(garbage > 0);
    // A sector of zeros, one of data, and one of data on zeros that were synced.
    write_all_at(&*file, &[0; SECTOR], 4 * SECTOR as u64).unwrap();
    file.sync_data().unwrap();
    write_all_at(&*file, &[0; SECTOR], 2 * SECTOR as u64).unwrap();
    write_all_at(&*file, &[3; 2 * SECTOR], 3 * SECTOR as u64).unwrap();
    for (data, tears) in [(Data::FreshGarbage, true), (Data::FreshContentGarbage, false)] {
        let images = (0..100).map(|seed| device.snapshot().power_cut(PowerCut { data, ..cut }, seed));
        let images: Vec<_> = images
            .map(|image| content(&image.device(), "/f").unwrap())
            .collect();
        let is_torn = |sector: usize| {
            let bytes = |image: &Vec<u8>| image[sector * SECTOR..(sector + 1) * SECTOR].to_vec();
            images
                .iter()
                .map(bytes)
                .any(|bytes| bytes.iter().any(|&b| b != 0 && b != 3))
        };
        assert_eq!([2, 3, 4].map(is_torn), [tears, true, tears], "{data:?}");
    }
}

#[test]
fn a_sync_that_succeeds_after_a_failed_one_saves_nothing() {
    let device = SimDevice::new(5);
    let file = synced_file(&device, "/f", &[0; 64 * SECTOR]);
    write_all_at(&*file, &[1; 64 * SECTOR], 0).unwrap();
    device.inject(Fault::new(FaultKind::SyncFails).once());
    let error = file.sync_data().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    file.sync_data().unwrap();
    assert_eq!(device.fired(FaultKind::SyncFails), 1);
    let after = content(&device.snapshot().power_cut(KEPT, 1).device(), "/f").unwrap();
    let there = after.chunks(SECTOR).filter(|s| s[0] == 1).count();
    assert!((1..64).contains(&there), "{there} of 64 sectors");
    let process = device.snapshot().process_death().device();
    assert_eq!(content(&process, "/f").unwrap(), [1; 64 * SECTOR]);
}

#[test]
fn after_a_failed_directory_sync_a_name_may_be_lost_for_good() {
    let outcomes: BTreeSet<bool> = (0..50)
        .map(|seed| {
            let device = SimDevice::new(seed);
            create(&device, "/f");
            device.inject(Fault::new(FaultKind::SyncFails).on("/").once());
            device.sync_dir(Path::new("/")).unwrap_err();
            device.sync_dir(Path::new("/")).unwrap();
            content(&device.snapshot().power_cut(LOST, seed).device(), "/f").is_some()
        })
        .collect();
    assert_eq!(outcomes.len(), 2);
}

#[test]
fn a_directory_that_could_not_be_synced_is_not_left_behind() {
    let (parent, dir) = (Path::new("/a"), Path::new("/a/b"));
    for seed in 0..40 {
        for failing in 0..2 {
            let device = SimDevice::new(seed);
            device.inject(Fault::new(FaultKind::SyncFails).after(failing).once());
            let error = device.create_dir_all(dir).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
            assert!(device.stat(parent).is_err(), "what was made is left");
            device.create_dir_all(dir).unwrap();
            synced_file(&device, "/a/b/f", b"there");
            let after = device.snapshot().power_cut(LOST, seed).device();
            assert_eq!(content(&after, "/a/b/f").as_deref(), Some(&b"there"[..]));
        }
    }
}

#[test]
fn only_directories_that_were_made_are_removed_on_failure() {
    let device = SimDevice::new(1);
    device.create_dir_all(Path::new("/a")).unwrap();
    device.inject(Fault::new(FaultKind::SyncFails).on("/a").once());
    device.create_dir_all(Path::new("/a/b/c")).unwrap_err();
    assert!(device.list(Path::new("/a")).unwrap().is_empty());
    // Nor is one that was there already.
    device.create_dir_all(Path::new("/a/b")).unwrap();
    device.inject(Fault::new(FaultKind::SyncFails).once());
    device.create_dir_all(Path::new("/a/b")).unwrap_err();
    assert!(device.stat(Path::new("/a/b")).unwrap().is_dir());
}

#[test]
fn a_directory_that_can_neither_be_synced_nor_removed_is_named() {
    let device = SimDevice::new(1);
    device.create_dir_all(Path::new("/a")).unwrap();
    device.inject(Fault::new(FaultKind::SyncFails).once());
    // Its creation is the first operation on it, its removal the second.
    device.inject(Fault::new(FaultKind::AnyFails).on("/a/b").after(1));
    let error = device.create_dir_all(Path::new("/a/b")).unwrap_err().to_string();
    assert!(
        error.contains("/a/b was created") && error.contains("remove it before the next try"),
        "{error}"
    );
}

#[test]
fn an_open_change_does_not_undo_a_later_settled_name() {
    for seed in 0..50 {
        let device = SimDevice::new(seed);
        create(&device, "/f");
        device.inject(Fault::new(FaultKind::SyncFails).once());
        device.sync_dir(Path::new("/")).unwrap_err();
        device.remove_file(Path::new("/f")).unwrap();
        synced_file(&device, "/f", b"second");
        for (_, cut) in PowerCut::WAYS {
            let after = device.snapshot().power_cut(cut, seed).device();
            assert_eq!(content(&after, "/f").unwrap(), b"second");
        }
    }
}

#[test]
fn errors_and_short_transfers_strike_as_they_are_told() {
    let device = SimDevice::new(1);
    let file = synced_file(&device, "/f", &[1; 8_192]);
    let mut buf = [0; 8_192];
    device.inject(Fault::new(FaultKind::ReadFails).after(1).once());
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8_192);
    assert_eq!(
        file.read_at(&mut buf, 0).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8_192);

    device.inject(Fault::new(FaultKind::ShortRead).times(3));
    device.inject(Fault::new(FaultKind::ShortWrite).times(3));
    device.inject(Fault::new(FaultKind::Interrupted).one_in(2).times(5));
    assert!(file.read_at(&mut buf, 0).unwrap() < 8_192);
    write_all_at(&*file, &[2; 8_192], 0).unwrap();
    for _ in 0..20 {
        read_exact_at(&*file, &mut buf, 0).unwrap();
        assert_eq!(buf, [2; 8_192]);
    }

    device.inject(Fault::new(FaultKind::WriteFails).on("/f").times(2));
    assert!(file.write_at(&[3; 8_192], 0).is_err());
    create(&device, "/other").write_at(&[3], 0).unwrap();
    device.heal();
    read_exact_at(&*file, &mut buf, 0).unwrap();
    let new = buf.iter().take_while(|&&b| b == 3).count();
    assert!(new.is_multiple_of(SECTOR) && buf[new..].iter().all(|&b| b == 2));
    for (kind, times) in [
        (FaultKind::ReadFails, 1),
        (FaultKind::ShortRead, 3),
        (FaultKind::ShortWrite, 3),
        (FaultKind::Interrupted, 5),
        (FaultKind::WriteFails, 1),
    ] {
        assert_eq!(device.fired(kind), times, "{kind:?}");
    }
}

#[test]
fn stale_and_misdirected_sectors_show_after_the_cache_is_gone() {
    for kind in [FaultKind::StaleSector, FaultKind::MisdirectedSector] {
        let mut wrong = 0;
        for seed in 0..20 {
            let device = SimDevice::new(seed);
            let file = synced_file(&device, "/f", &[1; 16 * SECTOR]);
            device.inject(Fault::new(kind).once());
            write_all_at(&*file, &[2; SECTOR], 5 * SECTOR as u64).unwrap();
            file.sync_data().unwrap();
            assert_eq!(device.fired(kind), 1);
            assert_eq!(content(&device, "/f").unwrap()[5 * SECTOR], 2);
            let after = content(&device.snapshot().power_cut(KEPT, 1).device(), "/f").unwrap();
            let sectors: Vec<u8> = after.chunks(SECTOR).map(|s| s[0]).collect();
            wrong += usize::from(sectors[5] == 1);
            let elsewhere = sectors.iter().filter(|&&s| s == 2).count();
            assert_eq!(elsewhere, usize::from(kind == FaultKind::MisdirectedSector));
        }
        assert!(wrong > 10, "{kind:?}: {wrong} of 20");
    }
}

#[test]
fn a_full_disk_has_room_again_after_a_removal() {
    let device = SimDevice::new(1);
    synced_file(&device, "/old", &[1; 4_096]);
    let file = create(&device, "/f");
    device.limit_space(Some(5_000));
    assert_eq!(file.write_at(&[2; 8_192], 0).unwrap(), 4_608);
    let error = file.write_at(&[2; 512], 4_608).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(
        file.allocate(16_384).unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
    assert_eq!(file.stat().unwrap().len, 4_608);
    device.remove_file(Path::new("/old")).unwrap();
    file.allocate(8_192).unwrap();
    write_all_at(&*file, &[3; 8_192], 0).unwrap();
    assert_eq!(device.fired(FaultKind::NoSpace), 3);
    device.limit_volatile_space(Some(4_096));
    let ring = create(&device, "/dev/shm/ring");
    assert_eq!(
        ring.allocate(8_192).unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
}

#[test]
fn any_operation_can_be_made_to_fail_once_or_for_good() {
    let work = |device: &SimDevice| -> io::Result<()> {
        let file = device.open(Path::new("/f"), OpenMode::OpenOrCreate)?;
        write_all_at(&*file, &[1; 100], 0)?;
        file.sync_data()?;
        device.sync_dir(Path::new("/"))?;
        device.stat(Path::new("/f"))?;
        Ok(())
    };
    for n in 0..5 {
        let device = SimDevice::new(1);
        device.inject(Fault::new(FaultKind::AnyFails).after(n).once());
        work(&device).unwrap_err();
        assert!(device.trace()[usize::try_from(n).unwrap()].failed);
        work(&device).unwrap();
        device.heal();
        device.inject(Fault::new(FaultKind::AnyFails).after(n));
        work(&device).unwrap_err();
        work(&device).unwrap_err();
        assert!(device.fired(FaultKind::AnyFails) >= 3);
    }
}

#[test]
fn a_held_sync_covers_what_came_before_it_only() {
    let device = SimDevice::new(1);
    let file = synced_file(&device, "/f", &[0; 2 * SECTOR]);
    write_all_at(&*file, &[1; SECTOR], 0).unwrap();
    let gate = device.hold_syncs();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync_data());
        gate.wait_for(1);
        write_all_at(&*file, &[2; SECTOR], SECTOR as u64).unwrap();
        let during = content(&device.snapshot().power_cut(LOST, 1).device(), "/f").unwrap();
        assert_eq!((during[0], during[SECTOR]), (0, 0));
        gate.release();
        sync.join().unwrap().unwrap();
    });
    let after = content(&device.snapshot().power_cut(LOST, 1).device(), "/f").unwrap();
    assert_eq!((after[0], after[SECTOR]), (1, 0));
    assert_eq!(device.fired(FaultKind::SlowSync), 1);
}

#[test]
fn a_gate_holds_reads_and_lets_through_those_that_stand_there() {
    let device = SimDevice::new(1);
    let file = synced_file(&device, "/f", b"a");
    let gate = device.hold_reads();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut found = [0; 2];
            for byte in found.chunks_mut(1) {
                read_exact_at(&*file, byte, 0).unwrap();
            }
            found
        });
        gate.wait_for(1);
        // Writes and syncs pass.
        write_all_at(&*file, b"b", 0).unwrap();
        gate.let_through();
        gate.wait_for(1);
        write_all_at(&*file, b"c", 0).unwrap();
        file.sync_data().unwrap();
        gate.release();
        assert_eq!(&reading.join().unwrap(), b"bc");
    });
}

#[test]
fn a_direct_write_is_durable_when_it_returns_and_torn_before() {
    #[repr(align(4096))]
    struct Block([u8; 2 * BLOCK]);
    let device = SimDevice::new(1);
    synced_file(&device, "/f", &[0; 2 * BLOCK]);
    let file = device.open(Path::new("/f"), OpenMode::DirectSync).unwrap();
    device.record(Points::Changes, 100);
    assert!(file.write_at(&[1; 100], 0).is_err());
    let block = Block([1; 2 * BLOCK]);
    write_all_at(&*file, &block.0, 0).unwrap();
    let after = content(&device.snapshot().power_cut(LOST, 1).device(), "/f").unwrap();
    assert_eq!(after, [1; 2 * BLOCK]);
    let torn = device.take_snapshots().iter().any(|s| {
        let after = content(&s.power_cut(PowerCut::WAYS[2].1, 1).device(), "/f").unwrap();
        after.contains(&0) && after.contains(&1)
    });
    assert!(torn);
    device.support_direct(false);
    let error = device.open(Path::new("/f"), OpenMode::DirectSync).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn images_can_be_damaged_further() {
    let device = SimDevice::new(1);
    device.create_dir_all(Path::new("/log")).unwrap();
    synced_file(&device, "/log/a", &[1; 1_000]);
    create(&device, "/dev/shm/ring").write_at(b"early", 0).unwrap();
    let early = device.snapshot().process_death();
    let ring = device
        .open(Path::new("/dev/shm/ring"), OpenMode::ReadWrite)
        .unwrap();
    write_all_at(&*ring, b"later", 0).unwrap();
    let mut image = device.snapshot().process_death();
    let (path, at) = image.rot(Path::new("/log"), 9).unwrap();
    assert_eq!(path, Path::new("/log/a"));
    let rotten = content(&image.device(), "/log/a").unwrap();
    let ones = |b: &u8| (b ^ 1).count_ones();
    assert_eq!(rotten.iter().map(ones).sum::<u32>(), 1);
    assert_ne!(rotten[usize::try_from(at).unwrap()], 1);
    image.take_volatile_from(&early);
    assert_eq!(content(&image.device(), "/dev/shm/ring").unwrap(), b"early");
    let ino = |d: &SimDevice| d.stat(Path::new("/log")).unwrap().ino;
    let before = ino(&image.device());
    image.copy_dir(Path::new("/log"));
    assert_ne!(ino(&image.device()), before);
    assert_eq!(content(&image.device(), "/log/a").unwrap(), rotten);
    image.clear_volatile();
    assert_eq!(content(&image.device(), "/dev/shm/ring"), None);
    assert_eq!(image.device().boot_id().unwrap(), device.boot_id().unwrap());
    image.change_boot_id();
    assert_ne!(image.device().boot_id().unwrap(), device.boot_id().unwrap());
}

#[test]
fn a_killed_device_does_nothing_any_more() {
    let device = SimDevice::new(1);
    let file = synced_file(&device, "/f", b"x");
    device.kill();
    assert!(file.write_at(b"y", 0).is_err());
    assert!(device.list(Path::new("/")).is_err());
    let after = device.snapshot().process_death().device();
    assert_eq!(content(&after, "/f").unwrap(), b"x");
}

#[test]
fn one_seed_means_one_history() {
    let run = |seed| {
        let device = SimDevice::new(seed);
        device.record(Points::Changes, 4);
        device.inject(Fault::new(FaultKind::ShortWrite).one_in(2));
        let file = create(&device, "/f");
        for i in 0..20_u8 {
            write_all_at(&*file, &[i + 1; 700], u64::from(i) * 650).unwrap();
        }
        let mut random = [0; 16];
        device.random(&mut random).unwrap();
        let trace: Vec<String> = device.trace().iter().map(ToString::to_string).collect();
        let snapshots = device.take_snapshots();
        assert_eq!(snapshots.len(), 4);
        let images = snapshots.iter().map(|s| {
            let image = s.power_cut(PowerCut::WAYS[2].1, seed);
            (s.op(), image.effects(), content(&image.device(), "/f"))
        });
        (trace, random, images.collect::<Vec<_>>())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn the_trace_tells_what_was_asked_and_the_clock_obeys() {
    let device = SimDevice::new(1);
    synced_file(&device, "/f", b"abc");
    let kinds: Vec<OpKind> = device.trace().iter().map(|op| op.kind).collect();
    assert_eq!(
        kinds,
        [OpKind::Create, OpKind::Write, OpKind::SyncData, OpKind::SyncDir]
    );
    assert_eq!(device.operations(), 4);
    device.sim_clock().advance(17);
    assert_eq!(device.clock().monotonic(), 17);
}
