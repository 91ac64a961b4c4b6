//! Elements of TTV as values, and their definition.

use crate::common::Tensor;
use blco::internals::dense::Real;
use blco::internals::op::ttv::streams;
use blco::internals::shape::ModeOrder;
use blco::internals::store::Store;
use std::collections::BTreeMap;

/// Coordinates without the mode of the vector, and value.
pub type Elements = Vec<(Vec<u32>, f64)>;

/// The definition: for each element its sum, the sum of absolute values, and the number of terms.
pub fn oracle<T: Real>(tensor: &Tensor, mode: usize, x: &[T]) -> BTreeMap<Vec<u32>, (f64, f64, f64)> {
    let mut sums = BTreeMap::new();
    for (row, value) in tensor.rows() {
        let mut at = row.to_vec();
        let product = value * x[at.remove(mode) as usize].widen();
        let sum = sums.entry(at).or_insert((0.0, 0.0, 0.0));
        *sum = (sum.0 + product, sum.1 + product.abs(), sum.2 + 1.0);
    }
    sums
}

/// Compares elements with the definition: equal coordinates, and values within the bound of rounding errors.
pub fn compare<T: Real>(found: &Elements, tensor: &Tensor, mode: usize, x: &[T], what: &str) {
    let wanted = oracle(tensor, mode, x);
    let mut seen = found.clone();
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(seen.iter().map(|e| &e.0).eq(wanted.keys()), "{what}: coordinates, each once");
    for ((at, value), (sum, absolute, n)) in seen.iter().zip(wanted.values()) {
        // Two roundings of factors, one of the product, one of the result, and the sum's in f64.
        let bound = absolute * (T::ROUNDOFF * 4.0 + f64::EPSILON / 2.0 * (n + 2.0));
        assert!((value - sum).abs() <= bound, "{what}: {at:?} is {value}, not {sum}");
    }
}

/// The order of elements: the store's for a streamed mode, that of the modes otherwise.
pub fn check_order(found: &Elements, store: &Store, mode: usize, what: &str) {
    let order = store.manifest().shape.order();
    let levels = store.manifest().format().tree_levels().filter(|_| streams(store.manifest(), mode));
    let place = |at: &[u32]| -> Vec<u32> {
        let full: Vec<u32> =
            (0..order).map(|m| if m == mode { 0 } else { at[m - usize::from(m > mode)] }).collect();
        let in_store = |levels: ModeOrder| (0..order - 1).map(|l| full[levels.mode(l)]).collect();
        levels.map_or_else(|| full.clone(), in_store)
    };
    assert!(found.is_sorted_by(|a, b| place(&a.0) < place(&b.0)), "{what}: in order");
}

pub fn bits(elements: &Elements) -> Vec<(&[u32], u64)> {
    elements.iter().map(|(at, value)| (&at[..], value.to_bits())).collect()
}
