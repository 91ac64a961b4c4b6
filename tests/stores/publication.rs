//! A store is published whole or not at all, and by one packer at a time, at whatever moment a program removes its
//! temporary files and ends.

use crate::common::{Kind, Tensor, exported, options, pack, values};
use blco::internals::error::Error;
use blco::internals::store::{Codec, Staging, Store, partial_path};
use blco::internals::sys::Sys;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn abandoned_at_any_moment_a_store_is_whole_or_not_there() {
    let tensor = Tensor::random(&[300, 300, 300], 60_000, 1, values::one);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("t.blco");
    let mut options = options(&target, Kind::Raw, 1 << 16);
    let packs = |sys: &Sys, options: &_| pack(sys, &mut { &tensor }, options);
    packs(&Sys::default(), &options).unwrap();
    let nonzeros = || exported(&Store::open(&Sys::default(), &target).unwrap()).unwrap().nnz();
    let wanted = nonzeros();
    options.replace = true;
    let start = Instant::now();
    packs(&Sys::default(), &options).unwrap();
    let whole = start.elapsed();
    std::fs::remove_dir_all(&target).unwrap();
    let mut published = 0;
    for round in 0..24 {
        // Without an earlier store, then in place of one.
        options.replace = round >= 12;
        if options.replace && round == 12 && !target.exists() {
            packs(&Sys::default(), &options).unwrap();
        }
        let sys = Sys::default();
        let done = std::thread::scope(|scope| {
            let packer = scope.spawn(|| packs(&sys, &options));
            std::thread::sleep(whole.mul_f64(0.3 + f64::from(round % 12) / 15.0));
            sys.abandon();
            packer.join().unwrap()
        });
        published += usize::from(done.is_ok());
        if target.exists() {
            assert_eq!(nonzeros(), wanted, "round {round}");
        }
        assert!(target.exists() == (options.replace || done.is_ok()), "round {round}: {done:?}");
        if !options.replace && target.exists() {
            std::fs::remove_dir_all(&target).unwrap();
        }
        // Files that the packer created again after the removal count as a killed packer's.
        drop(std::fs::remove_dir_all(partial_path(&target)));
    }
    println!("{published} of 24 were published before");
}

#[test]
fn nothing_gets_its_name_once_it_is_being_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (sys, named) = (Sys::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (inside, started) = std::sync::mpsc::channel();
        let (sys, named) = (&sys, &named);
        scope.spawn(move || {
            sys.publish(|| {
                inside.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                named.store(true, Ordering::SeqCst);
                Ok(())
            })
        });
        started.recv().unwrap();
        sys.abandon();
        assert!(named.load(Ordering::SeqCst), "removed while names are given");
    });
    let refused =
        sys.publish(|| std::fs::create_dir(dir.path().join("late")).map_err(Error::io("late", "create")));
    assert!(matches!(refused, Err(Error::Cancelled)), "{refused:?}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[test]
fn what_a_killed_packer_left_is_taken_over_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("t.blco");
    let (partial, busy) = (partial_path(&target), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let sys = Sys::default();
                    match Staging::create(&sys, &target, true, false, Codec::None) {
                        Ok(staging) => {
                            assert!(!busy.swap(true, Ordering::SeqCst), "two at a time");
                            std::fs::write(staging.partial().join("journal"), "mine").unwrap();
                            std::thread::yield_now();
                            assert!(partial.join("store").is_dir());
                            assert_eq!(std::fs::read(partial.join("journal")).unwrap(), b"mine");
                            busy.store(false, Ordering::SeqCst);
                        }
                        Err(e) => assert!(e.to_string().contains("another program writes this store"), "{e}"),
                    }
                }
            });
        }
    });
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}
