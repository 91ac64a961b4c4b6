//! Establishes that stores of several partitions hold what was packed in every cover, whether memory holds the tensor or not; that they
//! verify, and what damage to any file does; that a whole cover repairs the others; and the worked examples of the papers.

use crate::common::{
    KINDS_OF_SEVERAL, Kind, SMALL_CHUNKS, Tensor, exported, identity, options, pack, packed, values,
    with_manifest,
};
use blco::internals::backend::host::HostBackend;
use blco::internals::error::{Error, Result};
use blco::internals::format::Trees;
use blco::internals::format::fcoo::{FcooFor, flags};
use blco::internals::format::mmcsf::{Assign, Assigner, Fibers};
use blco::internals::linear::{BitLayout, Linearizer, Nonzero};
use blco::internals::op::fibers::{CountFibers, PartitionFibers};
use blco::internals::op::salvage::Salvage;
use blco::internals::op::verify;
use blco::internals::pack::{Duplicates, FormatOption, PackOptions};
use blco::internals::shape::{ModeOrder, Shape};
use blco::internals::store::{Formats, Store};
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub fn verified(store: &Store) -> Result<()> {
    verify::verify(store, |part, op| {
        let mut backend = HostBackend::new(part, op)?;
        let plan = plan(part, 0, &Limits::default())?;
        Executor::new(part, &plan, &mut backend)?.pass(&mut backend, &|_| ()).map(drop)
    })
}

/// Counts of each partition.
fn fibers(store: &Store) -> Vec<PartitionFibers> {
    let view = store.partitions();
    let plan = plan(&view, 0, &Limits::default()).unwrap();
    let mut backend = HostBackend::new(&view, CountFibers::new(&view)).unwrap();
    Executor::new(&view, &plan, &mut backend).unwrap().pass(&mut backend, &|_| ()).unwrap();
    backend.into_op().finish()
}

/// Slices of every kind, fibers of one and of many nonzeros, several chunks of each partition.
fn uneven() -> Tensor {
    let mut tensor = Tensor::random(&[400, 60, 900], 30_000, 1, values::decimal);
    for (i, row) in tensor.indices.chunks_exact_mut(3).enumerate() {
        match i % 5 {
            0 => (row[0], row[1]) = (row[0] % 7, row[1] % 3),
            1 => (row[1], row[2]) = (row[1] % 5, row[2] % 40),
            _ => {}
        }
    }
    tensor.dims[0] = 600;
    // Slices of the first mode with one nonzero, and with fibers of one.
    tensor.indices.extend([500, 59, 899, 501, 59, 1, 502, 1, 2, 502, 2, 3, 502, 3, 3]);
    tensor.values.extend([1.5, -2.0, 0.25, 3.0, 7.5]);
    tensor
}

/// Every cover holds the tensor. Without any memory, the bytes are the same.
#[test]
fn every_cover_holds_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    for (n, tensor) in [
        uneven(),
        Tensor::random(&[70, 900], 5000, 2, values::integer),
        Tensor::random(&[6, 5, 1, 7, 4, 3, 2, 9], 4000, 3, values::few),
        Tensor::of([1, 1], &[([0, 0], 0.1)]),
    ]
    .into_iter()
    .enumerate()
    {
        let path = |what: String| dir.path().join(format!("{n}-{what}"));
        let blco = packed(&tensor, &options(&path("blco".into()), Kind::Tiled, SMALL_CHUNKS));
        let wanted = exported(&blco).unwrap().sorted();
        for kind in KINDS_OF_SEVERAL {
            let store = packed(&tensor, &options(&path(format!("{kind:?}")), kind, SMALL_CHUNKS));
            let whole = store.whole();
            assert_eq!((whole.hash(), whole.nnz), (blco.whole().hash(), blco.whole().nnz), "{kind:?}");
            assert!(
                whole.covers() == 1 || whole.covers() == u32::try_from(tensor.order()).unwrap(),
                "{kind:?}"
            );
            for cover in 0..whole.covers() {
                let found = exported(&store.view(&[cover])).unwrap().sorted();
                assert!(found == wanted, "tensor {n}, {kind:?}, cover {cover}");
            }
            verified(&store).unwrap_or_else(|error| panic!("tensor {n}, {kind:?}: {error}"));
            let spilled =
                PackOptions { memory: 0, ..options(&path(format!("{kind:?}-spilled")), kind, SMALL_CHUNKS) };
            let report = pack(&Sys::default(), &mut { &tensor }, &spilled).unwrap();
            assert!(report.spilled.runs > 0 || tensor.nnz() < 10_000, "{kind:?}: {:?}", report.spilled);
            assert!(identity(&spilled.target) == identity(store.path()), "tensor {n}, {kind:?}: spilled");
            assert!(!dir.path().join(format!("{n}-{kind:?}-spilled.partial")).exists());
        }
    }
}

/// Duplicates are added up, or kept, in every cover alike.
#[test]
fn duplicates_are_settled_in_every_cover() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[9, 8, 7], 3000, 4, values::fraction);
    for duplicates in [Duplicates::Sum, Duplicates::Keep] {
        let of = |kind| {
            let path = dir.path().join(format!("{kind:?}-{duplicates:?}"));
            let options = PackOptions { duplicates, ..options(&path, kind, SMALL_CHUNKS) };
            let report = pack(&Sys::default(), &mut { &tensor }, &options).unwrap();
            (Store::open(&Sys::default(), &path).unwrap(), [report.duplicates_summed, report.duplicates_kept])
        };
        let (blco, counted) = of(Kind::Tiled);
        for kind in KINDS_OF_SEVERAL {
            let (store, found) = of(kind);
            assert_eq!((found, store.whole().hash()), (counted, blco.whole().hash()), "{kind:?}");
            verified(&store).unwrap();
        }
    }
}

/// If a file of any partition is lost, a whole cover gives all nonzeros. If there is only one cover, the other chunks are left.
#[test]
fn a_whole_cover_repairs_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = uneven();
    let scan = |path: &Path| {
        Salvage::scan(&Sys::default(), &Formats::default(), path, SMALL_CHUNKS, u64::MAX, &|_, _| ())
    };
    for kind in KINDS_OF_SEVERAL {
        let store = packed(&tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
        let all = exported(&store).unwrap().sorted();
        let files: Vec<PathBuf> = (0..store.partitions().manifest().chunks.len())
            .map(|n| store.partitions().chunk_path(n))
            .collect();
        for (number, file) in files.iter().enumerate().step_by(3) {
            let kept = std::fs::read(file).unwrap();
            std::fs::remove_file(file).unwrap();
            let mut salvage = scan(store.path()).unwrap();
            let lost = salvage.findings().nnz_lost().unwrap();
            assert_eq!(lost == 0, store.whole().covers() > 1, "{kind:?} without chunk {number}");
            let target = dir.path().join("repaired");
            let options = salvage.options(PackOptions { replace: true, ..PackOptions::new(target.clone()) });
            pack(&Sys::default(), &mut salvage, &options).unwrap();
            let repaired = Store::open(&Sys::default(), &target).unwrap();
            verified(&repaired).unwrap();
            let found = exported(&repaired).unwrap().sorted();
            assert_eq!(found.len() as u64 + lost, all.len() as u64);
            assert!(found.iter().all(|nonzero| all.binary_search(nonzero).is_ok()));
            let same = lost == 0;
            assert_eq!(repaired.id() == store.id(), same, "{kind:?} without chunk {number}");
            std::fs::write(file, kept).unwrap();
        }
        // Trees describe themselves.
        if matches!(kind, Kind::CsfAll | Kind::Mmcsf) {
            let manifest = std::fs::read(store.path().join("manifest")).unwrap();
            std::fs::remove_file(store.path().join("manifest")).unwrap();
            let found = Tensor::read(&mut scan(store.path()).unwrap()).unwrap().sorted();
            assert!(found == all, "{kind:?} without a manifest");
            std::fs::write(store.path().join("manifest"), manifest).unwrap();
        }
    }
}

/// Manifests with inconsistent covers are refused, with the rule.
#[test]
fn covers_that_do_not_add_up_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = uneven();
    let refused = |kind, what: &str, change: fn(&mut blco::internals::store::Manifest)| {
        let store =
            packed(&tensor, &options(&dir.path().join(format!("{kind:?}-{what}")), kind, SMALL_CHUNKS));
        let mut manifest = store.whole().clone();
        change(&mut manifest);
        let (bytes, _) = manifest.encode();
        let error = blco::internals::store::Manifest::decode(&bytes, Path::new("manifest")).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { rule: Some("manifest-covers"), .. }), "{what}: {error}");
    };
    refused(Kind::CsfAll, "two partitions in a cover", |m| m.partitions[1].covers = 1);
    refused(Kind::CsfAll, "a cover left out", |m| m.partitions[2].covers = 8);
    refused(Kind::CsfAll, "a mode that nothing serves", |m| m.partitions[1].targets = 1);
    refused(Kind::CsfAll, "another hash", |m| {
        m.partitions[1].hash = m.partitions[1].hash.map(|hash| hash ^ 1);
    });
    refused(Kind::Mmcsf, "a second cover", |m| m.partitions[0].covers = 2);
    refused(Kind::Hbcsf, "roles in different covers", |m| m.partitions[1].covers = 2);
    let honest = packed(&tensor, &options(&dir.path().join("csf"), Kind::CsfOne, SMALL_CHUNKS));
    with_manifest(&honest, |_| ());
}

/// The tensor of the paper's Figure 2, its flags, and what a store holds of it.
#[test]
fn the_figure_of_f_coo() {
    let rows: BTreeMap<[u32; 3], f64> = [[0, 0], [1, 0], [1, 1]]
        .into_iter()
        .zip([5, 4, 3])
        .flat_map(|([i, j], fiber)| (0..fiber).map(move |k| [i, j, k]))
        .zip(1u32..)
        .map(|(at, value)| (at, value.into()))
        .collect();
    let bits = |text: &str| text.bytes().map(|b| b == b'1').collect::<Vec<bool>>();
    let begins = |same: &dyn Fn(&[u32; 3]) -> [u32; 2]| -> Vec<bool> {
        let segments: Vec<[u32; 2]> = rows.keys().map(same).collect();
        (0..segments.len()).map(|n| n == 0 || segments[n] != segments[n - 1]).collect()
    };
    let ttm = flags(&begins(&|at| [at[0], at[1]]), 4);
    assert_eq!(ttm, (bits("111101110110"), bits("111")));
    let mttkrp = flags(&begins(&|at| [at[0], 0]), 4);
    assert_eq!(mttkrp, (bits("111101111110"), bits("110")));
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(flags(&begins(&|at| [at[0], 0]), 8).1, bits("10"), "of eight nonzeros each");
    let rows: Vec<([u32; 3], f64)> = rows.into_iter().collect();
    let tensor = Tensor::of([2, 2, 5], &rows);
    for (kind, segments) in [(Kind::FcooTtm, [2, 2, 3]), (Kind::FcooMttkrp, [2, 2, 5])] {
        let store = packed(&tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
        for (partition, segments) in segments.into_iter().enumerate() {
            let part = store.partition(partition);
            let file = std::fs::read(part.chunk_path(0)).unwrap();
            let header = blco::internals::store::ChunkHeader::decode(&file, Path::new("chunk")).unwrap();
            let section = header.section(blco::internals::store::SectionKind(8)).unwrap();
            let found = u32::from_le_bytes(file[section.start..section.start + 4].try_into().unwrap());
            // Along modes 1 and 2, fibers are in other orders; along mode 3 they are in the figure's.
            if kind == Kind::FcooMttkrp || partition == 2 {
                assert_eq!(found, segments, "{kind:?}, partition {partition}");
            }
            assert!(exported(&part).unwrap().sorted() == tensor.sorted());
        }
    }
}

/// The paper's Figure 4: slices of one nonzero, of three fibers of one, and of one fiber of four: 24 words as coordinates, 24 as CSF, 19
/// as HB-CSF.
#[test]
fn the_figure_of_hb_csf() {
    let rows = [[0, 1, 2], [1, 0, 0], [1, 1, 3], [1, 2, 1], [2, 3, 0], [2, 3, 1], [2, 3, 2], [2, 3, 3]];
    let rows: Vec<([u32; 3], f64)> = rows.into_iter().zip(1u32..).map(|(at, v)| (at, v.into())).collect();
    assert_eq!(3 * rows.len(), 24);
    let dir = tempfile::tempdir().unwrap();
    for (name, kind, of_main_mode, words) in
        [("csf", Kind::CsfAll, &[8][..], 24), ("hbcsf", Kind::Hbcsf, &[1, 3, 4], 19)]
    {
        let store =
            packed(&Tensor::of([3, 4, 5], &rows), &options(&dir.path().join(name), kind, SMALL_CHUNKS));
        let parts: Vec<PartitionFibers> = fibers(&store).into_iter().take(of_main_mode.len()).collect();
        assert_eq!(parts.iter().map(|part| part.counts.nnz).collect::<Vec<_>>(), of_main_mode);
        let bytes = parts.iter().map(|part| part.format.paper_index_bytes(&part.counts).unwrap());
        assert_eq!(bytes.sum::<u64>(), 4 * words, "{name}");
    }
}

/// The paper's Figure 4, in the figure's order (its modes j, i and k are 0, 1 and 2 here, so that ties go as there): under static
/// lengths one nonzero goes to fibers along i and leaves a fiber more; under dynamic ones all go to fibers along k.
#[test]
fn the_figure_of_mm_csf() {
    let nonzeros: [[u32; 3]; 8] =
        [[5, 1, 1], [5, 1, 2], [5, 1, 3], [4, 1, 2], [4, 1, 1], [4, 1, 5], [0, 1, 2], [0, 1, 4]];
    let shape = Shape::new(&[6, 2, 6]).unwrap();
    // Partition 0 has fibers <i, j>, whose leaves are along k; partition 1 has fibers <j, k>, along i.
    let partition = |leaf: usize| match leaf {
        2 => 0,
        0 => 1,
        _ => 2,
    };
    for (assign, wanted, fibers) in
        [(Assign::Static, [0, 0, 0, 0, 0, 0, 1, 0], 4), (Assign::Dynamic, [0; 8], 3)]
    {
        let fibers_along = |leaf: usize| {
            let levels = ModeOrder::new(&[(leaf + 1) % 3, (leaf + 2) % 3, leaf]).unwrap();
            let linearizer = Linearizer::<u128>::new(&BitLayout::concatenated(&shape, &levels));
            let number =
                |(i, at): (u32, &[u32; 3])| Nonzero { linear: linearizer.scatter(at), value: i.into() };
            let mut sorted: Vec<Nonzero<u128>> = (0..).zip(&nonzeros).map(number).collect();
            sorted.sort_by_key(|nonzero| nonzero.linear);
            Fibers::of(&sorted, shape.bits(leaf))
        };
        let mut assigner = Assigner::new(assign, (0..3).map(fibers_along).collect());
        let mut leaves = Vec::new();
        assigner.choose(0..3, &mut leaves);
        assigner.choose(3..8, &mut leaves);
        let leaves: Vec<usize> = leaves.into_iter().map(usize::from).collect();
        assert_eq!(leaves.iter().map(|&leaf| partition(leaf)).collect::<Vec<_>>(), wanted, "{assign:?}");
        let fiber = |(at, &leaf): (&[u32; 3], &usize)| {
            (leaf, std::array::from_fn(|m| if m == leaf { 0 } else { at[m] }))
        };
        let met: BTreeSet<(usize, [u32; 3])> = nonzeros.iter().zip(&leaves).map(fiber).collect();
        assert_eq!(met.len(), fibers, "{assign:?}");
    }
}

/// Nonzeros of a thread, of which the default is 8: the same bytes whether that was chosen or not, others if it was not.
#[test]
fn a_default_that_is_given_changes_no_byte() {
    let dir = tempfile::tempdir().unwrap();
    let packed_with = |thread_nnz| {
        let format = FormatOption::Fcoo { operation: FcooFor::Ttm, trees: Trees::All, thread_nnz };
        let target = dir.path().join(thread_nnz.to_string());
        let store = packed(&uneven(), &PackOptions { format, ..PackOptions::new(target) });
        let of_thread = store.whole().partitions.iter().map(|p| p.format.thread_nnz()).collect::<Vec<_>>();
        (of_thread, identity(store.path()))
    };
    let [default, eight, nine] = [0, 8, 9].map(packed_with);
    assert_eq!((&default.0, &nine.0), (&vec![Some(8); 3], &vec![Some(9); 3]));
    assert!(default == eight && default.1 != nine.1);
}

/// The program packs a store again in another format without text. The bytes equal those of packing the text.
#[test]
fn a_store_is_packed_again_in_another_format() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.tns"), uneven().text()).unwrap();
    let pack = |args: &[&str]| {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_blco-pack"));
        command.current_dir(dir.path()).args(args).env_remove("BLCO_FAULT").output().unwrap()
    };
    let packs = |args: &[&str]| {
        let output = pack(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    packs(&["t.tns", "-o", "blco"]);
    let mut last = "blco".to_owned();
    for format in ["csf", "bcsf", "hbcsf", "mmcsf", "fcoo", "hocfs", "blco"] {
        let (wanted, found) = (format!("{format}-of-text"), format!("{format}-of-{last}"));
        packs(&["t.tns", "-o", &wanted, "--format", format]);
        packs(&[&last, "-o", &found, "--format", format]);
        assert!(identity(&dir.path().join(&wanted)) == identity(&dir.path().join(&found)), "{found}");
        last = found;
    }
    let said = |args: &[&str]| String::from_utf8_lossy(&pack(args).stderr).into_owned();
    assert!(said(&["blco", "--format", "csf"]).contains("-o"));
    assert!(said(&["blco", "-o", "x", "--index-base", "0"]).contains("--index-base is an option of text"));
    assert!(
        said(&["t.tns", "-o", "x", "--trees", "one"])
            .contains("--trees is an option of --format csf or bcsf")
    );
    assert!(said(&["t.tns", "-o", "x", "--format", "csf", "--trees", "4"]).contains("modes 1 to 3"));
}
