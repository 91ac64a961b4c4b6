//! Establishes that HOCFS stores agree with the paper's example, that chunks are cut as formats-spec/hocfs.md says,
//! and that the storage counters are correct.

use crate::common::{KINDS, SMALL_CHUNKS, Tensor, exported, options, packed, values};
use blco::internals::encoding::LeafRule;
use blco::internals::format::tree::{Leaves, Nodes, TreeView};
use blco::internals::format::{ChunkView, Decoder};
use blco::internals::op::storage::Storage;
use blco::internals::pack::{Duplicates, FormatOption, PackOptions};
use blco::internals::store::{SectionKind, Store};
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::path::Path;

/// The paper's tensor of section 5, 4 x 5 x 4, by its HOCOO arrays (which count from 1).
fn example() -> Tensor {
    let i = [1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4];
    let j = [1, 1, 2, 3, 3, 4, 4, 5, 1, 2, 3, 3, 4, 4, 1, 1, 2, 3, 3, 5, 5];
    let k = [1, 2, 2, 2, 3, 3, 4, 1, 3, 4, 1, 4, 2, 3, 2, 4, 1, 3, 4, 3, 4];
    let v = [3, 1, 9, 7, 3, 5, 8, 2, 4, 7, 5, 2, 1, 6, 7, 8, 3, 2, 1, 6, 5];
    let rows: Vec<([u32; 3], f64)> =
        (0..21).map(|n| ([i[n] - 1, j[n] - 1, k[n] - 1], f64::from(v[n]))).collect();
    Tensor::of([4, 5, 4], &rows)
}

fn hocfs(target: &Path, main_mode: usize, leaf: LeafRule, chunk_bytes: u64) -> PackOptions {
    let format = FormatOption::Hocfs { main_mode, leaf };
    // Random tensors repeat coordinates, which come back unchanged.
    let duplicates = Duplicates::Keep;
    PackOptions { format, chunk_bytes, duplicates, ..PackOptions::new(target.to_path_buf()) }
}

/// Calls `look` with each chunk's view.
fn each_chunk(store: &Store, mut look: impl FnMut(&TreeView<'_>)) {
    let decoder = Decoder::new(&store.manifest().shape, store.manifest().format());
    let mut buffer = Sys::default().page_buf(store.buffer_bytes()).unwrap();
    for number in 0..store.manifest().chunks.len() {
        let (header, _) = store.load(number, &mut buffer, &mut store.scratch().unwrap()).unwrap();
        let image = &buffer[..header.image_bytes as usize];
        let view = ChunkView::open(&decoder, &header, image, store.chunk_path(number)).unwrap();
        look(view.tree().expect("a tree"));
    }
}

/// The error of opening a store's first chunk.
fn opening(store: &Store) -> Result<(), String> {
    let decoder = Decoder::new(&store.manifest().shape, store.manifest().format());
    let mut buffer = Sys::default().page_buf(store.buffer_bytes()).unwrap();
    let (header, _) = store.load(0, &mut buffer, &mut store.scratch().unwrap()).unwrap();
    let image = &buffer[..header.image_bytes as usize];
    ChunkView::open(&decoder, &header, image, store.chunk_path(0)).map(drop).map_err(|e| e.to_string())
}

/// A damaged chunk with correct checksums that has more slots than its leaf rule allows, or fewer than nonzeros, is refused before this
/// number is used.
#[test]
fn slots_that_the_leaf_rule_forbids_are_refused() {
    let tensor = Tensor::random(&[3, 4, 50], 96, 3, values::integer);
    let order = tensor.order();
    for (leaf, most) in [(LeafRule::Csr, 96), (LeafRule::Ell, 192), (LeafRule::Auto, 108)] {
        for slots in [95, most, most + 1, 512, u32::MAX] {
            let dir = tempfile::tempdir().unwrap();
            let store = packed(&tensor, &hocfs(&dir.path().join("store"), 0, leaf, 1 << 20));
            assert_eq!(store.manifest().nnz, 96);
            let damaged = crate::common::with_section(&store, SectionKind::Levels, |levels| {
                levels[16 + 4 * (order - 1)..][..4].copy_from_slice(&slots.to_le_bytes());
            });
            let refused = opening(&damaged)
                .is_err_and(|e| e.ends_with("chunk 0: corrupt: LEVELS section (image-section)"));
            assert_eq!(refused, !(96..=most).contains(&slots), "{leaf:?}, {slots} slots");
        }
    }
}

/// All nodes of a level: indices, the starts of their children, and the end of the last one's.
fn level(view: &TreeView<'_>, level: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut nodes, mut indices, mut starts) = (Nodes::default(), Vec::new(), Vec::new());
    for tile in 0..view.tiles_of(level) {
        view.nodes(level, tile, &mut nodes).unwrap();
        indices.extend(&nodes.indices[..nodes.len]);
        starts.extend(&nodes.starts[..nodes.len]);
    }
    starts.push(nodes.starts[nodes.len]);
    (indices, starts)
}

/// Indices and values of all slots; padding has the index `u32::MAX`.
fn slots(view: &TreeView<'_>) -> (Vec<u32>, Vec<f64>) {
    let (mut leaves, mut indices, mut values) = (Leaves::default(), Vec::new(), Vec::new());
    for tile in 0..view.tiles_of(view.order() - 1) {
        view.leaves(tile, &mut leaves).unwrap();
        indices.extend(&leaves.indices[..leaves.len]);
        values.extend(&leaves.values[..leaves.len]);
    }
    (indices, values)
}

fn from_one(indices: &[u32]) -> Vec<u32> {
    indices.iter().map(|i| i + 1).collect()
}

/// Slice, fibers, `Ap`, `Aj` and `Av`.
type TableRow = (u32, &'static [u32], &'static [u32], &'static [u32], &'static [u32]);

/// Table 1: slices 1, 3 and 4; their fibers, `Ap`, `Aj` and `Av`.
#[test]
fn the_example_is_table_1() {
    let dir = tempfile::tempdir().unwrap();
    let store = packed(&example(), &hocfs(&dir.path().join("s"), 0, LeafRule::Csr, SMALL_CHUNKS));
    // Its order is that of the HOCOO arrays.
    assert_eq!(exported(&store).unwrap(), example());
    let table: [TableRow; 3] = [
        (1, &[1, 2, 3, 4, 5], &[0, 2, 3, 5, 7, 8], &[1, 2, 2, 2, 3, 3, 4, 1], &[3, 1, 9, 7, 3, 5, 8, 2]),
        (3, &[1, 2, 3, 4], &[0, 1, 2, 4, 6], &[3, 4, 1, 4, 2, 3], &[4, 7, 5, 2, 1, 6]),
        (4, &[1, 2, 3, 5], &[0, 2, 3, 5, 7], &[2, 4, 1, 3, 4, 3, 4], &[7, 8, 3, 2, 1, 6, 5]),
    ];
    each_chunk(&store, |view| {
        let ((slices, first_fiber), (fibers, ap), (aj, av)) = (level(view, 0), level(view, 1), slots(view));
        assert_eq!(from_one(&slices), table.map(|row| row.0));
        for (s, (_, wanted_fibers, wanted_ap, wanted_aj, wanted_av)) in table.iter().enumerate() {
            let range = first_fiber[s] as usize..first_fiber[s + 1] as usize;
            let (from, to) = (ap[range.start], ap[range.end]);
            assert_eq!(from_one(&fibers[range.clone()]), *wanted_fibers, "slice {s}");
            let of_slice: Vec<u32> = ap[range.start..=range.end].iter().map(|start| start - from).collect();
            assert_eq!(of_slice, *wanted_ap, "slice {s}");
            let leaves = from as usize..to as usize;
            assert_eq!(from_one(&aj[leaves.clone()]), *wanted_aj, "slice {s}");
            let wanted: Vec<f64> = wanted_av.iter().map(|&v| f64::from(v)).collect();
            assert_eq!(av[leaves], wanted, "slice {s}");
        }
    });
}

/// HOCSR's pointers, with the one that the paper drops (empty rows 6 to 11 begin at 9), and CFB's buckets, with the two
/// elements that it omits.
#[test]
fn the_example_in_the_other_formats() {
    let dir = tempfile::tempdir().unwrap();
    let store = packed(&example(), &hocfs(&dir.path().join("s"), 0, LeafRule::Csr, SMALL_CHUNKS));
    each_chunk(&store, |view| {
        let ((slices, first_fiber), (fibers, ap)) = (level(view, 0), level(view, 1));
        let mut lengths = [0; 20];
        for s in 0..slices.len() {
            for f in first_fiber[s] as usize..first_fiber[s + 1] as usize {
                lengths[(slices[s] * 5 + fibers[f]) as usize] = ap[f + 1] - ap[f];
            }
        }
        let pointers: Vec<u32> = (0..=20).map(|row| 1 + lengths[..row].iter().sum::<u32>()).collect();
        let wanted = [1, 3, 4, 6, 8, 9, 9, 9, 9, 9, 9, 10, 11, 13, 15, 15, 17, 18, 20, 20, 22];
        assert_eq!(pointers, wanted);
    });
    // Fibers along mode 1: of the tree with main mode 2.
    let store = packed(&example(), &hocfs(&dir.path().join("t"), 1, LeafRule::Csr, SMALL_CHUNKS));
    each_chunk(&store, |view| {
        let ((slices, first_fiber), (fibers, ap), (i, v)) = (level(view, 0), level(view, 1), slots(view));
        let of_slice = |f: usize| first_fiber.partition_point(|&first| first as usize <= f) - 1;
        let buckets: Vec<u32> = (0..fibers.len()).map(|f| slices[of_slice(f)] * 4 + fibers[f] + 1).collect();
        assert_eq!(buckets, [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 19, 20]);
        let fiber = |f: usize| {
            let leaves = ap[f] as usize..ap[f + 1] as usize;
            i[leaves.clone()].iter().map(|i| i + 1).zip(v[leaves].iter().copied()).collect::<Vec<_>>()
        };
        let of_bucket = |bucket: u32| fiber(buckets.iter().position(|&b| b == bucket).unwrap());
        assert_eq!(of_bucket(2), [(1, 1.0), (4, 7.0)]);
        assert_eq!(of_bucket(4), [(4, 8.0)]);
        assert_eq!(of_bucket(12), [(3, 2.0), (4, 1.0)]);
        assert_eq!(of_bucket(11), [(1, 3.0), (4, 2.0)]);
        assert_eq!(of_bucket(15), [(1, 5.0), (3, 6.0)]);
    });
}

/// Slices 3 and 4 have fibers of different length. The rule `ell` pads them, with sentinels in empty slots.
#[test]
fn padding_is_where_the_rule_says() {
    let dir = tempfile::tempdir().unwrap();
    let store = packed(&example(), &hocfs(&dir.path().join("s"), 0, LeafRule::Ell, SMALL_CHUNKS));
    assert_eq!(exported(&store).unwrap(), example());
    each_chunk(&store, |view| {
        // 10 slots for 8, 8 for 6, 8 for 7.
        assert_eq!((view.ell_slices(), view.level_nodes(2), view.nnz()), (3, 26, 21));
        let (indices, _) = slots(view);
        let pad = u32::MAX;
        assert_eq!(indices[..10], [0, 1, 1, pad, 1, 2, 2, 3, 0, pad]);
    });
    // At most one slot in nine: 8 of 10 is too few, 7 of 8 too.
    let store = packed(&example(), &hocfs(&dir.path().join("t"), 0, LeafRule::Auto, SMALL_CHUNKS));
    each_chunk(&store, |view| assert_eq!((view.ell_slices(), view.level_nodes(2)), (0, 21)));
}

/// Where chunks begin: in a new slice, or the chunk before holds one slice, and then in a new fiber, or that chunk holds
/// one fiber.
fn check_cuts(store: &Store, what: &str) {
    let (mut first_paths, mut shapes) = (Vec::new(), Vec::new());
    each_chunk(store, |view| {
        let fibers = view.level_nodes(view.order() - 2);
        assert!(view.payload().len() as u64 + 256 <= store.manifest().chunk_bytes, "{what}");
        let (slices, _) = level(view, 0);
        let (fiber, _) = level(view, view.order() - 2);
        first_paths.push((slices[0], fiber[0], slices[slices.len() - 1], fiber[fiber.len() - 1]));
        shapes.push((slices.len(), fibers));
    });
    assert!(shapes.len() > 1, "{what}: several chunks");
    for (n, pair) in first_paths.windows(2).enumerate() {
        if pair[0].2 == pair[1].0 {
            assert_eq!(shapes[n].0, 1, "{what}: chunk {n} ends inside a slice and holds another");
            if pair[0].3 == pair[1].1 {
                assert_eq!(shapes[n].1, 1, "{what}: chunk {n} ends inside a fiber and holds another");
            }
        }
    }
}

#[test]
fn chunks_hold_whole_slices_where_they_fit() {
    let dir = tempfile::tempdir().unwrap();
    let many_slices = Tensor::random(&[5000, 200, 300], 60_000, 1, values::fraction);
    let one_slice = Tensor::random(&[1, 900, 70_000], 60_000, 2, values::fraction);
    let one_fiber = Tensor::random(&[1, 1, 5_000_000], 60_000, 3, values::fraction);
    let mixed = Tensor::random(&[3, 4, 100_000], 80_000, 4, values::integer);
    for (n, tensor) in [many_slices, one_slice, one_fiber, mixed].iter().enumerate() {
        for leaf in [LeafRule::Csr, LeafRule::Ell, LeafRule::Auto] {
            let target = dir.path().join(format!("{n}-{leaf:?}"));
            let store = packed(tensor, &hocfs(&target, 0, leaf, SMALL_CHUNKS));
            check_cuts(&store, &format!("tensor {n}, {leaf:?}"));
            assert!(exported(&store).unwrap().sorted() == tensor.sorted(), "tensor {n}, {leaf:?}");
        }
    }
}

/// Values that need more bytes than earlier ones do not make a chunk exceed its bound.
#[test]
fn a_wider_value_closes_a_chunk_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensor = Tensor::random(&[60, 70, 80], 60_000, 5, values::one);
    for n in (0..60_000).step_by(20_011) {
        tensor.values[n] = 0.1;
    }
    tensor = exported(&packed(&tensor, &options(&dir.path().join("sum"), KINDS[1], SMALL_CHUNKS))).unwrap();
    let store = packed(&tensor, &hocfs(&dir.path().join("s"), 2, LeafRule::Csr, SMALL_CHUNKS));
    check_cuts(&store, "a wider value");
}

/// The counters of every kind of store, against a count of sets.
#[test]
fn storage_counts_slices_and_fibers() {
    let dir = tempfile::tempdir().unwrap();
    for (n, dims) in [&[4u64, 5, 4][..], &[30, 1, 2000], &[9, 70], &[6, 5, 4, 7, 3]].into_iter().enumerate() {
        let tensor = if n == 0 { example() } else { Tensor::random(dims, 700, 6, values::one) };
        for kind in KINDS {
            let store =
                packed(&tensor, &options(&dir.path().join(format!("{n}-{kind:?}")), kind, SMALL_CHUNKS));
            let sys = Sys::default();
            let modes: Vec<usize> = (0..dims.len()).collect();
            let shape = &store.manifest().shape;
            let mut storage =
                Storage::<u64>::new(&sys, (shape, store.manifest().nnz), &modes, 1 << 30, dir.path());
            let mut backend = blco::internals::backend::host::HostBackend::new(&store, &mut storage).unwrap();
            let plan = plan(&store, 0, &Limits::default()).unwrap();
            let mut executor = Executor::new(&store, &plan, &mut backend).unwrap();
            executor.pass(&mut backend, &|_| ()).unwrap();
            drop((executor, backend));
            for (mode, units) in storage.finish().unwrap().iter().enumerate() {
                let distinct = |modes: &[usize]| {
                    let keys =
                        tensor.rows().map(|(row, _)| modes.iter().map(|&m| row[m]).collect::<Vec<_>>());
                    keys.collect::<std::collections::BTreeSet<_>>().len() as u64
                };
                let others: Vec<usize> = (1..dims.len()).map(|at| (mode + at) % dims.len()).collect();
                assert_eq!((units.mode, units.main_mode), (mode + 1, others[0] + 1));
                assert_eq!(units.slices, distinct(&others[..1]));
                assert_eq!(units.fibers, distinct(&others));
                let nnz = store.manifest().nnz;
                let nodes: u64 = (1..=others.len()).map(|n| distinct(&others[..n])).sum();
                assert_eq!(units.hocfs, 2 * nodes + 2 * nnz);
                if n == 0 && mode == 0 {
                    // 17 buckets of 21 elements; 20 rows.
                    assert_eq!((units.hocoo, units.hocsr, units.cfb), (84, Some(62), 76));
                }
            }
        }
    }
}
