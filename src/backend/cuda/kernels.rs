//! placeholder
use crate::dense::Precision;
use crate::error::{Error, Result};
/// l
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// r
    Raw,
    /// t
    Tiled,
}
/// s
#[derive(Clone, Debug)]
pub struct Specialisation {
    layout: Layout,
    precision: Precision,
    order: usize,
    rank: usize,
}
impl Specialisation {
    /// n
    pub fn new(layout: Layout, precision: Precision, order: usize, rank: usize) -> Self {
        Self { layout, precision, order, rank }
    }
    /// n
    pub fn embedded_name(&self) -> String {
        let o = if self.order == 3 || self.order == 4 { self.order } else { 8 };
        let l = if self.rank <= 8 {
            "l8c1"
        } else if self.rank <= 16 {
            "l16c1"
        } else {
            "l16c2"
        };
        format!(
            "mttkrp_{}_{}_o{o}_{l}",
            match self.layout {
                Layout::Raw => "raw",
                Layout::Tiled => "tiled",
            },
            match self.precision {
                Precision::F64 => "f64",
                Precision::F32 => "f32",
            }
        )
    }
}
/// e
pub fn embedded() -> Result<Vec<u8>> {
    let mut ptx = zstd::decode_all(&include_bytes!("../../../kernels/blco.ptx.zst")[..])
        .map_err(|e| Error::request(e.to_string()))?;
    ptx.push(0);
    Ok(ptx)
}
