use super::*;
use KernelLayout::{Raw, Segments, Tiled, Tree};
use Precision::{F32, F64};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const EVERY_DRIVER: u32 = 99_000;
/// A compute capability that all compile for.
const EVERY_NVRTC: (u32, u32) = (8, 0);

/// The pinned NVRTC that tools/test.sh names, or a word that it is skipped.
fn pinned() -> Option<Nvrtc> {
    let Some(directory) = std::env::var_os("BLCO_NVRTC_PATH") else {
        println!("skipped: BLCO_NVRTC_PATH is not set (tools/kernel_tools.sh, then tools/test.sh)");
        return None;
    };
    Some(Nvrtc::find(EVERY_DRIVER, EVERY_NVRTC, Some(Path::new(&directory))).unwrap())
}

fn all(orders: &[usize], ranks: &[usize]) -> Vec<Specialisation> {
    let mut specs = Vec::new();
    for layout in [Raw, Tiled, Segments, Tree] {
        for precision in [F64, F32] {
            for &order in orders {
                specs.extend(ranks.iter().map(|&rank| Specialisation {
                    layout,
                    precision,
                    order,
                    rank,
                    kronecker: None,
                    decimals: true,
                }));
            }
        }
    }
    specs
}

fn by_threads(threads: MttkrpVariant) -> Kronecker {
    Kronecker { threads, matrices: None, embedded_matrices: None }
}

/// The same of Kronecker products, whose threads take this many columns.
fn kroneckers(orders: &[usize], columns: &[u32]) -> Vec<Specialisation> {
    let of = |columns| {
        let with = move |spec: Specialisation| {
            let variant = MttkrpVariant::kronecker(spec.precision, spec.order, columns, 100);
            Specialisation { kronecker: Some(by_threads(variant)), ..spec }
        };
        all(orders, &[1]).into_iter().map(with)
    };
    columns.iter().copied().flat_map(of).collect()
}

/// Of Kronecker products whose sorted nonzeros are multiplied on tensor cores.
fn by_matrices() -> impl Iterator<Item = Specialisation> {
    let ranks: [&[usize]; 11] = [
        &[8; 3],
        &[16; 3],
        &[20; 3],
        &[32; 3],
        &[64, 4, 12],
        &[8; 4],
        &[10; 4],
        &[8; 5],
        &[8; 6],
        &[8; 7],
        &[8; 8],
    ];
    [F64, F32].into_iter().flat_map(move |precision| {
        ranks.map(|ranks| {
            let threads = MttkrpVariant::kronecker(precision, ranks.len(), 8, 100);
            let matrices = Some(Matrices::fastest(precision, ranks, &[0, 1, 2]).unwrap());
            Specialisation {
                layout: Tiled,
                precision,
                order: ranks.len(),
                rank: 1,
                kronecker: Some(Kronecker { threads, matrices, embedded_matrices: None }),
                decimals: true,
            }
        })
    })
}

fn embedded(spec: &Specialisation) -> String {
    spec.embedded_name(&spec.embedded_variant(false))
}

fn fastest(spec: &Specialisation) -> MttkrpVariant {
    spec.compiled_variant(1 << 30, false)
}

/// Every variant that is chosen fits the shared memory that all devices give, and is what its name says.
#[test]
fn variants_suit_what_they_are_chosen_for() {
    for spec in all(&[2, 3, 4, 5, 6, 7, 8], &[1, 8, 9, 16, 17, 64, 100]) {
        for variant in [fastest(&spec), spec.embedded_variant(false), spec.embedded_variant(true)] {
            assert_eq!(spec.takes(&variant), Ok(()), "{spec:?}");
            assert_eq!(spec.fitting(variant), variant, "{spec:?}");
            assert_eq!(variant.to_string().parse(), Ok(variant));
        }
    }
    for text in [
        "",
        "t4",
        "t4l16c2v1",
        "t4l16c2b4x",
        "t04l16c2b4",
        "l16t4c2v1b4",
        "t4l16c2b-4",
        "t99999999999l1c1v1b1",
    ] {
        assert!(text.parse::<MttkrpVariant>().unwrap_err().contains("not like t4l16c2b4"), "{text}");
    }
    let suits = |text: &str, precision, order| text.parse::<MttkrpVariant>().unwrap().suits(precision, order);
    assert_eq!(suits("t2l8c4b2", F32, 7), Ok(()));
    assert!(suits("t4l16c2b4", F64, 5).unwrap_err().contains("57344 bytes"));
    assert!(suits("t3l16c2b4", F64, 3).unwrap_err().contains("tiles is 3"));
    let of_tree =
        Specialisation { layout: Tree, precision: F64, order: 4, rank: 32, kronecker: None, decimals: true };
    let fitting = |text: &str| of_tree.fitting(text.parse().unwrap()).to_string();
    assert_eq!(fitting("t4l8c4b2"), "t2l8c4b2");
    assert_eq!(fitting("t1l16c2b4"), "t1l16c2b4");
}

#[test]
fn a_kronecker_product_takes_any_columns_that_threads_add_up() {
    let own = MttkrpVariant::kronecker(F32, 4, 10, 100);
    assert_eq!(own.to_string(), "t4l8c10b2");
    let spec = Specialisation {
        layout: Tiled,
        precision: F32,
        order: 4,
        rank: 10,
        kronecker: Some(by_threads(own)),
        decimals: true,
    };
    let takes = |text: &str| spec.takes(&text.parse::<MttkrpVariant>().unwrap());
    assert_eq!(takes("t4l16c8b2"), Ok(()));
    assert_eq!(takes("t2l8c10b4"), Ok(()));
    assert!(takes("t4l16c10b2").unwrap_err().contains("columns is 10, not from 1 to 8"));
    assert!(takes("t4l8c0b2").unwrap_err().contains("columns is 0"));
    assert!(takes("t4l3c5b2").unwrap_err().contains("lanes is 3"));
    assert_eq!(spec.embedded_name(&spec.embedded_variant(false)), "ttmc_tiled_f32_o4");
    for spec in kroneckers(&[2, 3, 4, 5, 6, 7, 8], &[1, 4, 5, 8, 10]) {
        for variant in [fastest(&spec), spec.embedded_variant(false)] {
            assert_eq!(spec.takes(&variant), Ok(()), "{spec:?}");
            assert_eq!(spec.fitting(variant), variant, "{spec:?}");
        }
    }
    let of_trees = Specialisation { layout: Tree, ..spec };
    assert_eq!(fastest(&of_trees).to_string(), "t2l16c5b2");
    assert_eq!(fastest(&Specialisation { precision: F64, ..of_trees }).to_string(), "t2l16c5b1");
    assert_eq!(embedded(&of_trees), "ttmc_tree_f32_o4");
}

#[test]
fn names_say_what_a_kernel_is_made_for() {
    let name = |layout, precision, order, rank| {
        embedded(&Specialisation { layout, precision, order, rank, kronecker: None, decimals: true })
    };
    assert_eq!(name(Tiled, F64, 3, 32), "mttkrp_tiled_f64_o3_t4l16c2b2");
    assert_eq!(name(Tree, F32, 3, 32), "mttkrp_tree_f32_o3_t4l16c2b4");
    assert_eq!(name(Tree, F64, 4, 16), "mttkrp_tree_f64_o4_t2l16c1b4");
    assert_eq!(name(Raw, F32, 4, 16), "mttkrp_raw_f32_o4_t4l16c1b4");
    assert_eq!(name(Raw, F32, 2, 8), "mttkrp_raw_f32_o8_t2l8c1b4");
    assert_eq!(name(Tiled, F64, 8, 17), "mttkrp_tiled_f64_o8_t2l16c2b2");
}

/// The kernels that PTX holds.
fn entries(ptx: &[u8]) -> BTreeSet<String> {
    let lines = std::str::from_utf8(ptx).unwrap().lines();
    let names =
        lines.filter_map(|line| Some(line.strip_prefix(".visible .entry ")?.split_once('(')?.0.to_owned()));
    names.collect()
}

/// Those of every kernel in f32, compiled or embedded, for measurements too.
fn wide_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for spec in all(&[2, 3, 4, 5, 6, 7, 8], &[1]) {
        for tiles in [1, 2, 4] {
            let variant = MttkrpVariant { tiles, lanes: 8, columns: 1, batch: 4, split: false };
            let spec = Specialisation { precision: F32, ..spec };
            if spec.takes(&variant).is_ok() && spec.fitting(variant) == variant {
                names.insert(spec.wide_name(tiles));
                names.extend(spec.wide_sorted_name());
            }
        }
    }
    names
}

/// Whatever can be asked for is embedded, and nothing else but what finishes a result.
#[test]
fn the_embedded_kernels_are_those_that_are_asked_for() {
    let mut asked: BTreeSet<String> =
        all(&[2, 3, 4, 5, 6, 7, 8], &[1, 8, 9, 16, 17, 100]).iter().map(embedded).collect();
    let tiled = all(&[2, 3, 4, 5, 6, 7, 8], &[1, 8, 9, 16, 17, 100]);
    asked.extend(tiled.iter().filter(|spec| spec.has_sorted()).map(|spec| {
        spec.embedded_sorted_name(&MttkrpVariant::embedded(spec.precision, spec.order, spec.rank, false))
    }));
    asked.extend(wide_names());
    asked.extend(["f64", "f32"].into_iter().flat_map(of_rows));
    asked.extend(crate::backend::cuda::mode_sorted::KERNELS.map(String::from));
    asked.extend(crate::backend::cuda::mode_sorted::FIBER_KERNELS.map(String::from));
    asked.extend([F64, F32].into_iter().flat_map(|p| [8, 16, 17].map(|rank| FiberSumKernels::name(p, rank))));
    asked.extend(crate::backend::cuda::dense::KERNELS.map(String::from));
    let (precisions, orders) = (["f64", "f32"], ["o3", "o4", "o8"]);
    for kind in ["tiled", "raw", "segments", "tree", "sorted"] {
        asked.extend(precisions.iter().flat_map(|p| orders.map(|order| format!("ttmc_{kind}_{p}_{order}"))));
    }
    asked.extend(crate::backend::cuda::expand::KERNELS.map(String::from));
    asked.insert(crate::backend::cuda::expand::COUNT.into());
    asked.extend(crate::backend::cuda::ttm::KERNELS.map(String::from));
    asked.extend(crate::backend::cuda::ttv::KERNELS.map(String::from));
    let names: Vec<&str> = asked.iter().map(String::as_str).collect();
    let ptx = embedded_ptx(&names);
    assert!(ptx.ends_with(b"}\n\0"), "whole and NUL-terminated");
    assert!(ptx.starts_with(b".version 8.0\n.target sm_70\n"), "a driver of CUDA 12.0 must take it");
    assert_eq!(entries(&ptx), asked);
    let whole = zstd::decode_all(PTX).unwrap();
    assert!(ptx[..ptx.len() - 1] == whole, "all kernels are the whole file");
    let one = embedded_ptx(&["finish_f32"]);
    assert_eq!(entries(&one), BTreeSet::from(["finish_f32".to_owned()]));
    let braces = |brace| memchr::memchr_iter(brace, &one).count();
    assert_eq!(braces(b'{'), braces(b'}'));
}

#[test]
fn the_embedded_kernels_of_matrices_are_those_that_are_asked_for() {
    let ptx = zstd::decode_all(MATRICES_PTX).unwrap();
    assert!(ptx.starts_with(b".version 8.0\n.target sm_80\n"), "a driver of CUDA 12.0 must take it");
    let specs: Vec<_> = by_matrices().collect();
    assert_eq!(entries(&ptx), specs.iter().map(Specialisation::embedded_matrices_name).collect());
    let names =
        |spec: &Specialisation, layout| Specialisation { layout, ..*spec }.compiled_name(&fastest(spec));
    assert_eq!(names(&specs[1], Tiled), "ttmc_tiled_f64_o3_t4l16c8b1, sorted m2x2x1");
    assert_eq!(names(&specs[1], Raw), "ttmc_raw_f64_o3_t4l16c8b1");
}

/// Every source is embedded: what a specialised kernel is compiled from is what the PTX was made from.
#[test]
fn every_source_is_embedded() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let names = fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    // No specialised kernel is compiled from what only lists embedded ones.
    let names = names.filter(|name| name != "matrices.cu");
    let sources: BTreeSet<String> =
        names.filter(|name| [".cu", ".cuh", ".h"].iter().any(|ending| name.ends_with(ending))).collect();
    let embedded: BTreeSet<String> =
        HEADERS.iter().chain([&SOURCE]).map(|source| source.name.to_owned()).collect();
    assert_eq!(embedded, sources);
}

#[test]
fn a_key_depends_on_all_that_a_kernel_depends_on() {
    let spec =
        Specialisation { layout: Tiled, precision: F64, order: 3, rank: 32, kronecker: None, decimals: true };
    let variant = fastest(&spec);
    let options = spec.options(&variant, (9, 0));
    let reference = key((12, 8), &options);
    assert_eq!(reference, key((12, 8), &spec.options(&variant, (9, 0))));
    let mut keys = BTreeSet::from([reference]);
    keys.extend([
        key((12, 9), &options),
        key((13, 8), &options),
        key((12, 8), &spec.options(&variant, (8, 0))),
    ]);
    let others = [
        Specialisation { layout: Raw, ..spec },
        Specialisation { precision: F32, ..spec },
        Specialisation { order: 4, ..spec },
        Specialisation { rank: 31, ..spec },
        Specialisation { decimals: false, ..spec },
    ];
    keys.extend(others.iter().map(|other| key((12, 8), &other.options(&variant, (9, 0)))));
    let variants = [
        MttkrpVariant { tiles: 2, ..variant },
        MttkrpVariant { lanes: 8, ..variant },
        MttkrpVariant { columns: 1, ..variant },
        MttkrpVariant { batch: 1, ..variant },
    ];
    keys.extend(variants.iter().map(|other| key((12, 8), &spec.options(other, (9, 0)))));
    assert_eq!(keys.len(), 13);
}

#[test]
fn every_specialisation_compiles() {
    let Some(nvrtc) = pinned() else { return };
    let ranks = [1, 16, 33];
    let specs = (2..=ORDER_MAX).flat_map(|order| all(&[order], &[ranks[order % 3]]));
    let specs = specs.chain(kroneckers(&[3], &[8])).chain(kroneckers(&[5], &[5]));
    let both = specs.flat_map(|spec| [(spec, (8, 0)), (spec, (9, 0))]);
    let all: Vec<_> = both.chain(by_matrices().zip([(8, 0), (9, 0)].into_iter().cycle())).collect();
    all.into_par_iter().for_each(|(spec, capability)| {
        let image = specialised(&Sys::default(), &nvrtc, &spec, &fastest(&spec), capability, None)
            .unwrap_or_else(|reason| panic!("{spec:?} for {capability:?}: {reason}"));
        assert!(image.bytes.starts_with(b"\x7fELF"), "{spec:?}");
        assert_eq!((image.origin, image.cache_refused), (Origin::Compiled, None));
    });
}

#[test]
fn a_kernel_is_compiled_once() {
    let Some(nvrtc) = pinned() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let spec =
        Specialisation { layout: Tiled, precision: F64, order: 3, rank: 32, kronecker: None, decimals: true };
    let make = || specialised(&Sys::default(), &nvrtc, &spec, &fastest(&spec), (9, 0), Some(&path)).unwrap();
    let first = make();
    assert_eq!((first.origin, first.cache_refused), (Origin::Compiled, None));
    let second = make();
    assert_eq!((second.origin, second.cache_refused), (Origin::Cache, None));
    assert!(first.bytes == second.bytes);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let third = make();
    assert_eq!(third.origin, Origin::Compiled);
    assert!(third.cache_refused.unwrap().contains("other users can write"));
    assert!(first.bytes == third.bytes, "NVRTC makes other bytes from the same source");
}

/// A cache that cannot be made is no error.
#[test]
fn a_kernel_needs_no_cache() {
    let Some(nvrtc) = pinned() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let spec =
        Specialisation { layout: Raw, precision: F32, order: 2, rank: 4, kronecker: None, decimals: true };
    let image = specialised(
        &Sys::default(),
        &nvrtc,
        &spec,
        &fastest(&spec),
        (8, 0),
        Some(&file.path().join("cache")),
    )
    .unwrap();
    assert_eq!(image.origin, Origin::Compiled);
    assert!(image.cache_refused.is_some());
}

#[test]
fn what_cannot_be_compiled_is_told_in_a_line() {
    let Some(nvrtc) = pinned() else { return };
    let spec =
        Specialisation { layout: Raw, precision: F64, order: 3, rank: 4, kronecker: None, decimals: true };
    let compile = |spec, capability| {
        specialised(&Sys::default(), &nvrtc, spec, &fastest(spec), capability, None).unwrap_err()
    };
    let reasons = [compile(&spec, (99, 9)), compile(&Specialisation { order: 0, ..spec }, (9, 0))];
    for reason in reasons {
        assert!(reason.starts_with("NVRTC 1") && !reason.contains('\n'), "{reason}");
    }
}

#[test]
fn an_nvrtc_newer_than_the_driver_is_refused() {
    let Some(nvrtc) = pinned() else { return };
    let directory = nvrtc.name().parent().unwrap().to_owned();
    let (major, _) = nvrtc.version();
    assert!(Nvrtc::find(major * 1000, EVERY_NVRTC, Some(&directory)).is_ok());
    let refused = Nvrtc::find(major * 1000 - 10, EVERY_NVRTC, Some(&directory)).unwrap_err();
    assert!(refused.contains("newer than the driver"), "{refused}");
}

/// As CUDA 13 has dropped 7.0, which the embedded kernels serve.
#[test]
fn an_nvrtc_that_does_not_compile_for_the_device_is_refused() {
    let Some(nvrtc) = pinned() else { return };
    let directory = nvrtc.name().parent().unwrap().to_owned();
    for (capability, other) in [((3, 0), "an older"), ((99, 9), "a newer")] {
        let refused = Nvrtc::find(EVERY_DRIVER, capability, Some(&directory)).unwrap_err();
        let (major, minor) = capability;
        let what =
            format!("does not compile for compute capability {major}.{minor}: install {other} NVRTC too");
        assert!(refused.contains(&what) && refused.lines().count() == 1, "{refused}");
    }
}

#[test]
fn what_is_not_installed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let find = || Nvrtc::find(EVERY_DRIVER, EVERY_NVRTC, Some(dir.path())).unwrap_err();
    assert_eq!(find(), "NVRTC (libnvrtc.so) is not installed");
    fs::write(dir.path().join("libnvrtc.so.12"), "not a library").unwrap();
    assert_eq!(find(), "NVRTC (libnvrtc.so) is not installed");
}
