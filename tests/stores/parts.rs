//! A tensor that is divided into parts: each is a store that verifies, together they hold every nonzero once, and they appear under their name
//! together.

use crate::common::{
    KINDS, KINDS_OF_SEVERAL, Kind, SMALL_CHUNKS, Tensor, exported, options, pack, tree, values,
};
use crate::covers::verified;
use blco::internals::engine::Engine;
use blco::internals::pack::{Duplicates, PackOptions, PackReport};
use blco::internals::store::{Manifest, PartOf, Store, digest_of, part_name};
use blco::internals::sys::Sys;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn divided(tensor: &Tensor, parts: u32, options: PackOptions) -> (PackReport, Vec<Store>) {
    let options = PackOptions { parts, ..options };
    let report = pack(&Sys::default(), &mut { tensor }, &options).unwrap();
    (report, (0..parts).map(|part| open(&options.target, part, parts)).collect())
}

fn open(dir: &Path, part: u32, parts: u32) -> Store {
    Store::open(&Sys::default(), &dir.join(part_name(part, parts))).unwrap()
}

fn place(store: &Store) -> &PartOf {
    store.manifest().part.as_ref().unwrap()
}

fn linear([low, high]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Files without their provenance.
fn files(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut files = tree(dir);
    files.retain(|path, _| path.file_name().is_some_and(|name| name != "provenance.json"));
    files
}

#[test]
fn parts_are_stores_that_hold_every_nonzero_once() {
    let dir = tempfile::tempdir().unwrap();
    // All places are different: 13 and their number have no common divisor.
    let rows: Vec<_> = (0..9_000u32)
        .map(|i| (i * 13 % 120_000, values::decimal(i.into())))
        .map(|(at, value)| ([at / 2000, at / 40 % 50, at % 40], value))
        .collect();
    let tensor = Tensor::of([60, 50, 40], &rows);
    for kind in KINDS {
        let whole = dir.path().join("whole");
        let one = PackOptions { replace: true, ..options(&whole, kind, SMALL_CHUNKS) };
        let report = pack(&Sys::default(), &mut &tensor, &one).unwrap();
        let whole = Store::open(&Sys::default(), &whole).unwrap();
        for parts in [2, 3, 7] {
            let target = dir.path().join(format!("{kind:?}-{parts}"));
            let (in_parts, stores) = divided(&tensor, parts, options(&target, kind, SMALL_CHUNKS));
            let what = format!("{kind:?} in {parts}");
            assert_eq!((in_parts.nnz, in_parts.parts), (report.nnz, parts as usize), "{what}");
            let ids: Vec<u64> = stores.iter().map(Store::id).collect();
            assert_eq!(in_parts.digest, format!("{:016x}", digest_of(&ids)), "{what}");
            let chunks: usize = stores.iter().map(|store| store.manifest().chunks.len()).sum();
            let bytes: u64 = stores.iter().map(|store| store.bytes().unwrap()).sum();
            assert_eq!((in_parts.chunks, in_parts.bytes), (chunks, bytes), "{what}");
            let hashes = stores.iter().filter_map(|store| store.manifest().hash()).fold(0, u64::wrapping_add);
            assert_eq!(Some(hashes), whole.manifest().hash(), "{what}");
            let mut rows = Vec::new();
            for (number, store) in (0..).zip(&stores) {
                verified(store).unwrap_or_else(|error| panic!("{what}: {error}"));
                let &PartOf { number: own, parts: of, nnz, hash, from, to } = place(store);
                assert_eq!((own, of, nnz), (number, parts, whole.nnz()), "{what}");
                assert_eq!(Some(hash), whole.manifest().hash(), "{what}");
                assert!(linear(from) <= linear(to), "{what}");
                let even = whole.nnz() / u64::from(parts);
                assert!(store.nnz().abs_diff(even) <= 1, "{what}: {} of {even}", store.nnz());
                rows.extend(exported(store).unwrap().sorted());
            }
            let follow = |pair: &[Store]| linear(place(&pair[0]).to) < linear(place(&pair[1]).from);
            assert!(stores.windows(2).all(follow), "{what}");
            rows.sort();
            assert_eq!(rows, tensor.sorted(), "{what}");
        }
    }
}

/// Neither on the order of rows, nor on what fits in memory.
#[test]
fn bytes_of_parts_depend_on_the_tensor_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let tensor = Tensor::random(&[30, 20, 10], 30_000, 5, values::integer);
    let of = |name: &str| options(&path(name), Kind::Tiled, SMALL_CHUNKS);
    let (report, stores) = divided(&tensor, 4, of("a"));
    assert!(report.duplicates_summed > 10_000);
    divided(&tensor.shuffled(1), 4, PackOptions { memory: 0, ..of("b") });
    assert!(files(&path("a")) == files(&path("b")));
    assert_eq!(stores.iter().map(Store::nnz).sum::<u64>(), report.nnz);
}

#[test]
fn coordinates_are_in_one_part() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("s");
    // More than half are of one place.
    let mut rows = vec![([3, 3], 1.0); 700];
    rows.extend((0..600).map(|i| ([i % 8, i / 8 % 8], 2.0)));
    let tensor = Tensor::of([8, 8], &rows);
    for duplicates in [Duplicates::Keep, Duplicates::Sum, Duplicates::Count] {
        let options =
            PackOptions { duplicates, replace: true, ..options(&target, Kind::Tiled, SMALL_CHUNKS) };
        let (_, stores) = divided(&tensor, 3, options);
        let ends: Vec<_> =
            stores.iter().map(|store| (linear(place(store).from), linear(place(store).to))).collect();
        assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{duplicates:?}: {ends:?}");
    }
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("s");
    let refused = |tensor: &Tensor, parts: u32, kind: Kind| {
        let options = PackOptions { parts, ..options(&target, kind, SMALL_CHUNKS) };
        let refused = pack(&Sys::default(), &mut { tensor }, &options).unwrap_err().to_string();
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "{refused}");
        refused
    };
    let few = Tensor::of([4, 4], &[([0, 0], 1.0), ([0, 0], 1.0), ([1, 0], 2.0), ([3, 3], 1.0)]);
    assert!(refused(&few, 4, Kind::Tiled).contains("give fewer"));
    assert!(refused(&few, 5000, Kind::Tiled).contains("4096"));
    for kind in KINDS_OF_SEVERAL {
        assert!(refused(&few, 2, kind).contains("one partition"), "{kind:?}");
    }
    let (_, stores) = divided(&few, 3, options(&target, Kind::Tiled, SMALL_CHUNKS));
    assert_eq!(stores.iter().map(Store::nnz).collect::<Vec<_>>(), [1, 1, 1]);
}

/// A divided tensor is replaced as a store is, by a store or by other parts, but not if something else is in its directory.
#[test]
fn parts_are_replaced_together() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("s");
    let tensor = Tensor::random(&[30, 20, 10], 900, 7, values::integer);
    let of = |parts| PackOptions { parts, replace: true, ..options(&target, Kind::Tiled, SMALL_CHUNKS) };
    let packs = |parts| pack(&Sys::default(), &mut &tensor, &of(parts));
    for parts in [3, 1, 4] {
        packs(parts).unwrap();
        let found =
            target.read_dir().unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
        assert_eq!(found, if parts == 1 { 0 } else { parts as usize });
    }
    // One that is being read keeps its files.
    let reading = open(&target, 1, 4);
    packs(2).unwrap();
    assert_eq!(exported(&reading).unwrap().nnz() as u64, reading.nnz());
    drop(reading);
    packs(2).unwrap();
    assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    let refused = |why: &str| {
        let before = tree(&target);
        let refused = packs(3).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        assert!(tree(&target) == before);
    };
    std::fs::write(target.join("part-1-of-2/notes"), "mine").unwrap();
    refused("notes");
    std::fs::remove_file(target.join("part-1-of-2/notes")).unwrap();
    std::fs::create_dir(target.join("part-3-of-2")).unwrap();
    refused("part-3-of-2");
    std::fs::remove_dir(target.join("part-3-of-2")).unwrap();
    std::fs::create_dir(target.join("part-1-of-1")).unwrap();
    refused("part-1-of-1");
}

#[test]
fn a_repaired_part_keeps_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("s");
    let tensor = Tensor::random(&[600, 50, 400], 30_000, 9, values::fraction);
    let (_, stores) = divided(&tensor, 2, options(&target, Kind::Tiled, SMALL_CHUNKS));
    let part = target.join(part_name(1, 2));
    assert!(stores[1].manifest().chunks.len() > 2);
    let engine = Engine::new().unwrap();
    let repaired = || {
        let mut salvage = engine.salvage(&part).unwrap();
        let new = PackOptions { replace: true, ..PackOptions::new(dir.path().join("new")) };
        let options = salvage.options(new);
        engine.pack(&mut salvage, &options).unwrap();
        Store::open(&Sys::default(), &options.target).unwrap()
    };
    assert_eq!(repaired().id(), stores[1].id());
    std::fs::remove_file(part.join("chunk-000001.bin")).unwrap();
    let less = repaired();
    let Manifest { nnz, part, .. } = less.manifest();
    assert!(*nnz < stores[1].nnz());
    assert_eq!(part.as_ref(), Some(place(&stores[1])));
}
