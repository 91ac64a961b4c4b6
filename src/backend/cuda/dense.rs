//! The kernels of a decomposition's dense update (kernels/dense.cuh), for a precision and rank.

use super::abi::DENSE_HALS;
use super::driver::{Device, Kernel};
use super::kernels::embedded_ptx;
use crate::dense::Precision;
use crate::error::Result;
use std::sync::Arc;

/// All of them.
pub const KERNELS: [&str; 16] = [
    "dense_update_f64_r16",
    "dense_update_f64_r32",
    "dense_update_f64_r64",
    "dense_update_f32_r16",
    "dense_update_f32_r32",
    "dense_update_f32_r64",
    "dense_product_f64",
    "dense_product_f32",
    "dense_hals_f64",
    "dense_hals_f32",
    "dense_gram_f64",
    "dense_gram_f32",
    "dense_reduce",
    "dense_extended_gram_f64",
    "dense_extended_gram_f32",
    "dense_extended_reduce",
];

/// The largest rank that one kernel updates.
pub const FUSED_RANK_MAX: usize = 64;
/// The largest rank of HALS.
pub const HALS_RANK_MAX: usize = DENSE_HALS as usize;

/// What makes the Gram matrix of a factor in twice f64's digits.
#[derive(Debug)]
pub struct ExtendedKernels {
    /// Makes its partial sums.
    pub gram: Kernel,
    /// Adds up partial sums.
    pub reduce: Kernel,
}

impl ExtendedKernels {
    /// Loads them for factors of a precision from what is embedded.
    pub fn load(device: &Arc<Device>, precision: Precision) -> Result<Self> {
        let names = [&format!("dense_extended_gram_{}", precision.name())[..], "dense_extended_reduce"];
        let module = device.module(&embedded_ptx(&names))?;
        Ok(Self { gram: module.kernel(names[0])?, reduce: module.kernel(names[1])? })
    }
}

/// Those for a precision and rank.
#[derive(Debug)]
pub enum DenseKernels {
    /// The new factor and its partial sums from one.
    Fused {
        /// Makes both.
        update: Kernel,
        /// Adds up partial sums.
        reduce: Kernel,
    },
    /// For ranks above [`FUSED_RANK_MAX`].
    Apart {
        /// Makes the new factor, by a product or by HALS.
        rows: Kernel,
        /// Makes its partial sums.
        gram: Kernel,
        /// Adds up partial sums.
        reduce: Kernel,
    },
}

impl DenseKernels {
    /// Loads them from what is embedded; with `nonneg` those of HALS, up to [`HALS_RANK_MAX`].
    pub fn load(device: &Arc<Device>, precision: Precision, rank: usize, nonneg: bool) -> Result<Self> {
        let real = precision.name();
        let names = match rank {
            0..=16 => vec![format!("dense_update_{real}_r16")],
            17..=32 => vec![format!("dense_update_{real}_r32")],
            33..=FUSED_RANK_MAX => vec![format!("dense_update_{real}_r64")],
            _ => vec![
                format!("dense_{}_{real}", if nonneg { "hals" } else { "product" }),
                format!("dense_gram_{real}"),
            ],
        };
        let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
        all.push("dense_reduce");
        let module = device.module(&embedded_ptx(&all))?;
        let (first, reduce) = (module.kernel(&names[0])?, module.kernel("dense_reduce")?);
        Ok(match names.get(1) {
            None => Self::Fused { update: first, reduce },
            Some(gram) => Self::Apart { rows: first, gram: module.kernel(gram)?, reduce },
        })
    }
}
