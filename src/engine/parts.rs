//! Several processes and a divided tensor: each process has a part of it, perhaps on a machine of its own. Before they compute, they hold together
//! what their parts say (formats-spec/container.md, "Part"), so that a part that is missing, doubled or of another tensor ends the run.

use super::Engine;
use crate::error::{Error, Result};
use crate::format::Neumaier;
use crate::members::Group;
use crate::shape::ORDER_MAX;
use crate::store::{MANIFEST, PartOf, Store, Whole, chunk_name, digest_of, part_name, parts_in};
use bytemuck::cast_slice;
use std::borrow::Cow;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

impl Engine {
    /// What this process opens by the name `path`: its part, if a divided tensor is there.
    pub(super) fn own_part<'p>(&self, path: &'p Path) -> Result<Cow<'p, Path>> {
        let Some(group) = self.members() else { return Ok(path.into()) };
        let found = parts_in(path)?;
        let [number, count] = [group.number(), group.count()].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let own = path.join(part_name(number, count));
        let Some(&(_, last)) = found.last() else {
            // Nothing of a store, damaged or not.
            let is_bare = |name: &str| !path.join(name).exists();
            if path.is_dir() && is_bare(MANIFEST) && is_bare(&chunk_name(0)) {
                let what =
                    format!("no store here, and of a tensor in parts not {}", part_name(number, count));
                return Err(Error::request(format!("{}: {what}", path.display())));
            }
            return Ok(path.into());
        };
        if found.contains(&(number, count)) {
            return Ok(own.into());
        }
        let what = if found.iter().any(|&(_, parts)| parts == count) {
            format!("{}: missing; this process computes from it: copy it to this machine", own.display())
        } else {
            let needed = format!("a tensor in {last} parts, for as many processes");
            format!("{}: {needed}; this run has {count}", path.display())
        };
        Err(Error::request(what))
    }

    /// This process's share of a divided tensor: all of its part.
    pub(super) fn share_of_part(&self, store: &Store, part: &PartOf) -> Result<Store> {
        let refused = |what: &str| Err(Error::request(format!("{}: {what}", store.path().display())));
        if self.options().deterministic {
            return refused("a part: with `deterministic` every process reads all chunks; take one store");
        }
        // Only the whole has as many.
        if store.manifest().nnz != part.nnz {
            return refused(
                "a part of a tensor, whose other parts no process has; blco-run, blco-cpd and Python compute from all",
            );
        }
        Ok(store.of_chunks(0..store.manifest().chunks.len()))
    }
}

/// Holds the parts of all processes together. Every process calls it, with what it has opened.
pub(super) fn unite(group: &Group, store: Store) -> Result<Store> {
    let gathered = group.all_gather(cast_slice(&Facts::of(&store).numbers()))?;
    let facts: Vec<Facts> = gathered.iter().map(|bytes| Facts::read(bytes)).collect();
    let wrong = |process: usize, what: String| -> Result<Store> {
        let path = store.path().display();
        let message = if process == group.number() {
            format!("{path}: process {process} has {what}")
        } else {
            format!("process {process} has {what}")
        };
        Err(Error::request(message))
    };
    for (process, has) in facts.iter().enumerate() {
        let [is, needed] = [[has.number, has.parts], [process as u64, group.count() as u64]];
        if has.parts == 0 {
            return wrong(process, "a whole store, and others have parts; name the same for all".into());
        }
        if is != needed {
            let name = |[number, parts]: [u64; 2]| format!("part {} of {parts}", number + 1);
            let what = format!("{}, and needs {}", name(is), name(needed));
            return wrong(process, format!("{what}; name the directory that holds the parts"));
        }
        if has.of_tensor != facts[0].of_tensor {
            return wrong(process, "a part of another tensor than process 0".into());
        }
    }
    let sum = |of: fn(&Facts) -> u64| facts.iter().map(of).fold(0, u64::wrapping_add);
    let [_, nnz, hash] = facts[0].of_tensor;
    if [sum(|has| has.nnz), sum(|has| has.hash)] != [nnz, hash] {
        let found = sum(|has| has.nnz);
        let what = format!("the parts do not hold every nonzero of their tensor once: {found} of {nnz}");
        return Err(Error::request(format!(
            "{}: {what}; a part was repaired, or is of another `blco-pack --split`",
            store.path().display()
        )));
    }
    let mut squares = Neumaier::default();
    for has in &facts {
        squares.add(has.sum_squares);
    }
    let whole = Whole {
        id: digest_of(&facts.iter().map(|has| has.id).collect::<Vec<u64>>()),
        nnz,
        sum_squares: squares.total(),
        value_min: facts.iter().map(|has| has.value_min).min_by(f64::total_cmp).unwrap_or(0.0),
        value_max: facts.iter().map(|has| has.value_max).max_by(f64::total_cmp).unwrap_or(0.0),
        longest_row_bounds: (0..store.dims().len())
            .map(|mode| facts.iter().map(|has| has.longest_row_bounds[mode]).fold(0, u64::saturating_add))
            .collect(),
    };
    Ok(store.within(&whole))
}

/// What a process tells the others of what it has opened.
#[derive(Debug)]
struct Facts {
    /// 0 for a whole store.
    parts: u64,
    number: u64,
    /// Of the whole: a checksum of the dims and of what makes a tensor, its nonzeros, and their hash.
    of_tensor: [u64; 3],
    id: u64,
    nnz: u64,
    hash: u64,
    sum_squares: f64,
    value_min: f64,
    value_max: f64,
    longest_row_bounds: [u64; ORDER_MAX],
}

const NUMBERS: usize = 11 + ORDER_MAX;

impl Facts {
    fn of(store: &Store) -> Self {
        let manifest = store.whole();
        let part = manifest.part.as_ref();
        let dims: Vec<u8> = store.dims().iter().flat_map(|dim| dim.to_le_bytes()).collect();
        let mut longest_row_bounds = [0; ORDER_MAX];
        longest_row_bounds[..store.dims().len()].copy_from_slice(&manifest.longest_row_bounds);
        Self {
            parts: part.map_or(0, |part| part.parts.into()),
            number: part.map_or(0, |part| part.number.into()),
            of_tensor: [
                xxh3_64(&dims) ^ u64::from(manifest.may_repeat),
                part.map_or(0, |part| part.nnz),
                part.map_or(0, |part| part.hash),
            ],
            id: store.id(),
            nnz: manifest.nnz,
            hash: manifest.hash().unwrap_or(0),
            sum_squares: manifest.sum_squares,
            value_min: manifest.value_min,
            value_max: manifest.value_max,
            longest_row_bounds,
        }
    }

    fn numbers(&self) -> [u64; NUMBERS] {
        let [of_dims, of_nnz, of_hash] = self.of_tensor;
        let [squares, min, max] = [self.sum_squares, self.value_min, self.value_max].map(f64::to_bits);
        let first = [
            self.parts,
            self.number,
            of_dims,
            of_nnz,
            of_hash,
            self.id,
            self.nnz,
            self.hash,
            squares,
            min,
            max,
        ];
        let mut numbers = [0; NUMBERS];
        numbers[..first.len()].copy_from_slice(&first);
        numbers[first.len()..].copy_from_slice(&self.longest_row_bounds);
        numbers
    }

    /// # Panics
    ///
    /// If the bytes are not those of [`Facts::numbers`].
    fn read(bytes: &[u8]) -> Self {
        let mut numbers = [0u64; NUMBERS];
        bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(bytes);
        let number = |at: usize| numbers[at];
        let [sum_squares, value_min, value_max] = [8, 9, 10].map(|at| f64::from_bits(number(at)));
        Self {
            parts: number(0),
            number: number(1),
            of_tensor: [2, 3, 4].map(number),
            id: number(5),
            nnz: number(6),
            hash: number(7),
            sum_squares,
            value_min,
            value_max,
            longest_row_bounds: std::array::from_fn(|mode| number(11 + mode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coo::tns::ReadOptions;
    use crate::dense::{FactorView, Matrix, seeded_factors};
    use crate::encoding::{IndexEncoding, LeafRule};
    use crate::engine::{Cp, Device, EngineBuilder, Modes};
    use crate::members::{Links, threads};
    use crate::pack::{FormatOption, PackOptions};
    use crate::store::Format;
    use std::fmt::Write;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::thread::scope;
    use std::time::Duration;

    const DIMS: [u32; 3] = [40, 30, 20];

    /// Packs a tensor, of these values times a number, and returns where it is.
    fn packed(dir: &Path, name: &str, factor: u64, parts: u32) -> PathBuf {
        let (mut text, mut state) = (String::new(), 5u64);
        // Knuth's linear congruential generator.
        let mut below = |n: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % u64::from(n)
        };
        for _ in 0..9000 {
            let at = DIMS.map(|dim| below(dim) + 1);
            let value = (below(9) + 1) * factor;
            writeln!(text, "{} {} {} {value}", at[0], at[1], at[2]).unwrap();
        }
        let (input, target) = (dir.join("t.tns"), dir.join(name));
        std::fs::write(&input, text).unwrap();
        let engine = engine(None);
        let mut source = engine.read_text(&input, ReadOptions::default()).unwrap();
        let format = FormatOption::Known(Format::blco(IndexEncoding::Raw));
        let options =
            PackOptions { parts, format, chunk_bytes: 64 << 10, ..PackOptions::new(target.clone()) };
        engine.pack(&mut source, &options).unwrap();
        target
    }

    fn engine(links: Option<Arc<dyn Links>>) -> Engine {
        let builder = Engine::builder().device(Device::Cpu).threads(1);
        links.into_iter().fold(builder, EngineBuilder::links).build().unwrap()
    }

    /// A process for each of `stores`, which opens it; process 0 does `work`. Returns the errors of all, in order, or what process 0 made.
    fn together<R: Send>(
        stores: &[PathBuf],
        work: impl Fn(&Engine, &Store) -> Result<R> + Sync,
    ) -> std::result::Result<R, Vec<String>> {
        let members = threads::links(stores.len(), Duration::from_secs(20));
        let ended: Vec<Result<Option<R>>> = scope(|scope| {
            let work = &work;
            let start = |(links, store): (_, &PathBuf)| {
                let store = store.clone();
                scope.spawn(move || {
                    let engine = engine(Some(links));
                    if engine.members().is_some_and(|group| group.number() > 0) {
                        return engine.serve(&store).map(|()| None);
                    }
                    let made = work(&engine, &engine.open_together(&store)?)?;
                    engine.end_serving().map(|()| Some(made))
                })
            };
            let started: Vec<_> = members.into_iter().zip(stores).map(start).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let errors: Vec<String> =
            ended.iter().filter_map(|end| Some(end.as_ref().err()?.to_string())).collect();
        if errors.is_empty() {
            Ok(ended.into_iter().find_map(|end| end.unwrap()).unwrap())
        } else {
            Err(errors)
        }
    }

    /// Asserts that process `of` says `what`, and that no process succeeds.
    fn fails(stores: &[PathBuf], what: &str) {
        let errors = together(stores, |engine, store| engine.cp_als::<f64>(store, &Cp::rank(2).max_iters(2)));
        let errors = errors.map(drop).unwrap_err();
        assert_eq!(errors.len(), stores.len(), "{errors:?}");
        assert!(errors.iter().any(|error| error.contains(what)), "{what}: {errors:?}");
    }

    fn close(a: &[f64], b: &[f64], bound: f64) {
        assert_eq!(a.len(), b.len());
        let largest = a.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        let apart = a.iter().zip(b).fold(0.0, |apart: f64, (a, b)| apart.max((a - b).abs()));
        assert!(apart <= bound * largest, "{apart:e} of {largest:e}");
    }

    #[test]
    fn parts_on_machines_of_their_own_compute_what_the_whole_store_does() {
        let dir = tempfile::tempdir().unwrap();
        let whole = engine(None).open(packed(dir.path(), "whole", 1, 1)).unwrap();
        let cp = Cp::rank(3).max_iters(5).tol(0.0);
        for parts in [2, 3] {
            // Each process has a directory of its own.
            let divided = packed(dir.path(), &format!("t{parts}"), 1, parts);
            let own = |part: u32| {
                let own = dir.path().join(format!("machine-{part}-of-{parts}"));
                std::fs::create_dir(&own).unwrap();
                let name = part_name(part, parts);
                std::fs::rename(divided.join(&name), own.join(&name)).unwrap();
                own
            };
            let stores: Vec<PathBuf> = (0..parts).map(own).collect();
            let one = engine(None);
            let factors: Vec<Matrix<f64>> = seeded_factors(one.sys(), &whole.manifest().shape, 4, 1).unwrap();
            let mttkrp = |engine: &Engine, store: &Store| {
                engine.mttkrp::<f64>(store, factors.iter().map(FactorView::from), Modes::All)
            };
            let (wanted, found) = (mttkrp(&one, &whole).unwrap(), together(&stores, mttkrp).unwrap());
            for ((_, wanted), (_, found)) in wanted.iter().zip(&found) {
                // Values are whole numbers below 10, of which a row has fewer than 512.
                close(wanted.data(), found.data(), 512.0 * f64::EPSILON);
            }
            let decompose = |engine: &Engine, store: &Store| {
                let manifest = store.manifest();
                let of_whole = (manifest.nnz, manifest.value_min, manifest.value_max, store.id());
                engine.cp_als::<f64>(store, &cp).map(|outcome| (outcome, of_whole, manifest.sum_squares))
            };
            let (wanted, of_whole, squares) = decompose(&one, &whole).unwrap();
            let (found, of_parts, of_all) = together(&stores, decompose).unwrap();
            assert_eq!((of_whole.0, of_whole.1, of_whole.2), (of_parts.0, of_parts.1, of_parts.2));
            close(&[squares], &[of_all], 4.0 * f64::EPSILON);
            close(&[wanted.fit()], &[found.fit()], 1e-12);
            close(wanted.model.lambda.data(), found.model.lambda.data(), 1e-9);
        }
    }

    #[test]
    fn parts_that_do_not_fit_together_end_all_processes() {
        let dir = tempfile::tempdir().unwrap();
        let [two, three, other] = [("two", 1, 2), ("three", 1, 3), ("other", 2, 2)]
            .map(|(name, factor, parts)| packed(dir.path(), name, factor, parts));
        let whole = packed(dir.path(), "whole", 1, 1);
        fails(&[two.clone(), other.clone()], "process 1 has a part of another tensor");
        fails(&[two.clone(), whole.clone()], "process 1 has a whole store");
        fails(&[whole, two.clone()], "no process has");
        let [first, second] = [0, 1].map(|part| two.join(part_name(part, 2)));
        assert!(together(&[first.clone(), second.clone()], |_, store| Ok(store.nnz())).is_ok());
        fails(&[first.clone(), first], "process 1 has part 1 of 2, and needs part 2 of 2");
        fails(&[two.clone(), three.clone()], "3 parts, for as many processes; this run has 2");
        fails(&[three.clone(), three.clone()], "this run has 2");
        // Of the same tensor, in another order: together they lack some nonzeros and have others twice.
        let again = packed(dir.path(), "again", 1, 2);
        let engine = engine(None);
        let mut source = engine.read_text(dir.path().join("t.tns"), ReadOptions::default()).unwrap();
        let format = FormatOption::Hocfs { main_mode: 1, leaf: LeafRule::Auto };
        let target = dir.path().join("hocfs");
        engine
            .pack(&mut source, &PackOptions { parts: 2, format, ..PackOptions::new(target.clone()) })
            .unwrap();
        fails(&[again, target], "every nonzero of their tensor once");
        std::fs::remove_dir_all(second).unwrap();
        fails(&[two.clone(), two], "missing; this process computes from it");
    }
}
