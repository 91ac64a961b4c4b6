//! Numbers several at a time, in the vectors that the machine has. Nothing is fused and lanes do not meet, so that
//! every width gives the same bits.

use pulp::Simd;

/// Vectors of a kind of number, for each set of instructions that inner loops are compiled for.
pub trait Lanes: Copy {
    /// A vector of as many numbers as the machine works on at once.
    type Vector<S: Simd>: Copy;
    /// The whole vectors of `row`, wherever it starts. The remainder has fewer numbers than a vector.
    fn vectors<S: Simd>(row: &[Self]) -> &[Self::Vector<S>];
    /// `x` in every lane.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// Lane by lane.
    fn times<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `row` in f64: itself, or in `room`, which is as long.
    fn widened<'a>(row: &'a [Self], room: &'a mut [f64]) -> &'a [f64];
    /// Adds each lane to one of `sums`, in f64.
    ///
    /// # Panics
    /// If there are fewer sums than lanes.
    fn add_to<S: Simd>(simd: S, lanes: Self::Vector<S>, sums: &mut [f64]);
}

impl Lanes for f64 {
    type Vector<S: Simd> = S::f64s;

    #[inline(always)]
    fn vectors<S: Simd>(row: &[Self]) -> &[S::f64s] {
        S::as_simd_f64s(row).0
    }

    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: Self) -> S::f64s {
        simd.splat_f64s(x)
    }

    #[inline(always)]
    fn times<S: Simd>(simd: S, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.mul_f64s(a, b)
    }

    #[inline(always)]
    fn widened<'a>(row: &'a [Self], _: &'a mut [f64]) -> &'a [f64] {
        row
    }

    #[inline(always)]
    fn add_to<S: Simd>(simd: S, lanes: S::f64s, sums: &mut [f64]) {
        let sum = &mut S::as_mut_simd_f64s(sums).0[0];
        *sum = simd.add_f64s(*sum, lanes);
    }
}

impl Lanes for f32 {
    type Vector<S: Simd> = S::f32s;

    #[inline(always)]
    fn vectors<S: Simd>(row: &[Self]) -> &[S::f32s] {
        S::as_simd_f32s(row).0
    }

    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: Self) -> S::f32s {
        simd.splat_f32s(x)
    }

    #[inline(always)]
    fn times<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.mul_f32s(a, b)
    }

    #[inline(always)]
    fn widened<'a>(row: &'a [Self], room: &'a mut [f64]) -> &'a [f64] {
        room.iter_mut().zip(row).for_each(|(wide, &x)| *wide = f64::from(x));
        room
    }

    #[inline(always)]
    fn add_to<S: Simd>(_: S, lanes: S::f32s, sums: &mut [f64]) {
        let lanes: &[f32] = bytemuck::cast_slice(std::slice::from_ref(&lanes));
        for (sum, &x) in sums[..lanes.len()].iter_mut().zip(lanes) {
            *sum += f64::from(x);
        }
    }
}
