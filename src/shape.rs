//! The shape of a tensor: its dims, validated once.

use crate::error::{Error, Result};

/// Most modes that a tensor can have here.
pub const ORDER_MAX: usize = 8;
/// Fewest modes that a tensor can have here.
pub const ORDER_MIN: usize = 2;
/// The longest mode: 2^32 - 1, so that an index and a count of indices both fit 32 bits.
pub const DIM_MAX: u64 = u32::MAX as u64;
/// Most bits that the linear index of a tensor can have.
pub const LINEAR_BITS_MAX: u32 = 128;

/// The dims of a tensor of order 2 to 8. Holding one means that every dim is in `1..=DIM_MAX` and that
/// the linear index has at most 128 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    dims: Vec<u32>,
}

/// The modes of a tensor, or of all but some, each once: which comes first, which next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeOrder {
    modes: [u8; ORDER_MAX],
    len: usize,
}

impl ModeOrder {
    /// `modes` from 0, each named once, at most 8; `None` where they are not.
    #[must_use]
    pub fn new(modes: &[usize]) -> Option<Self> {
        let mut order = Self { modes: [0; ORDER_MAX], len: modes.len() };
        let mut named = [false; ORDER_MAX];
        for (at, &mode) in modes.iter().enumerate() {
            let seen = named.get_mut(mode)?;
            if std::mem::replace(seen, true) {
                return None;
            }
            *order.modes.get_mut(at)? = u8::try_from(mode).ok()?;
        }
        Some(order)
    }

    /// All modes of a tensor of `order`, `main` first and then each next one, mode 0 after the last.
    ///
    /// # Panics
    /// If `order` exceeds 8 or has no mode `main`.
    #[must_use]
    pub fn rotated(order: usize, main: usize) -> Self {
        assert!(main < order, "a mode of the tensor");
        let modes: Vec<usize> = (0..order).map(|at| (main + at) % order).collect();
        Self::new(&modes).expect("at most 8 modes, each once")
    }

    /// The modes, first to last.
    #[must_use]
    pub fn modes(&self) -> &[u8] {
        &self.modes[..self.len]
    }

    /// The mode at place `at`.
    #[must_use]
    pub fn mode(&self, at: usize) -> usize {
        self.modes().get(at).copied().map_or(usize::MAX, usize::from)
    }

    /// The last mode.
    #[must_use]
    pub fn last(&self) -> usize {
        self.mode(self.len.wrapping_sub(1))
    }
}

impl Shape {
    /// Checks `dims`.
    pub fn new(dims: &[u64]) -> Result<Self> {
        if !(ORDER_MIN..=ORDER_MAX).contains(&dims.len()) {
            return Err(Error::request(format!(
                "order {} is not supported; give {ORDER_MIN} to {ORDER_MAX} modes",
                dims.len()
            )));
        }
        let mut checked = Vec::with_capacity(dims.len());
        for (m, &dim) in dims.iter().enumerate() {
            match u32::try_from(dim) {
                Ok(d) if d > 0 => checked.push(d),
                _ => {
                    return Err(Error::request(format!(
                        "mode {} has dim {dim}; dims run from 1 to {DIM_MAX}",
                        m + 1
                    )));
                }
            }
        }
        let shape = Self { dims: checked };
        let bits = shape.linear_bits();
        if bits > LINEAR_BITS_MAX {
            return Err(Error::request(format!(
                "dims {shape} need {bits} bits for a linear index; at most {LINEAR_BITS_MAX} are supported"
            )));
        }
        Ok(shape)
    }

    /// The number of modes.
    #[must_use]
    pub fn order(&self) -> usize {
        self.dims.len()
    }

    /// The dims, mode 0 first.
    #[must_use]
    pub fn dims(&self) -> &[u32] {
        &self.dims
    }

    /// Bits that an index of `mode` needs: 0 for a mode of one index.
    #[must_use]
    pub fn bits(&self, mode: usize) -> u32 {
        u32::BITS - (self.dims[mode] - 1).leading_zeros()
    }

    /// Bits of the linear index: the sum over the modes.
    #[must_use]
    pub fn linear_bits(&self) -> u32 {
        (0..self.order()).map(|m| self.bits(m)).sum()
    }
}

/// `183 x 24 x 1140 x 1717`
impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (m, dim) in self.dims.iter().enumerate() {
            write!(f, "{}{dim}", if m > 0 { " x " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_exactly() {
        assert!(Shape::new(&[3]).is_err());
        assert!(Shape::new(&[1; 9]).is_err());
        assert!(Shape::new(&[1, 0]).is_err());
        assert!(Shape::new(&[1 << 32, 1]).is_err());
        assert!(Shape::new(&[DIM_MAX; 4]).is_ok());
        let message = Shape::new(&[DIM_MAX, DIM_MAX, DIM_MAX, DIM_MAX, 2]).unwrap_err().to_string();
        assert!(message.contains("129 bits"), "{message}");
    }

    #[test]
    fn bits_of_a_mode() {
        let shape = Shape::new(&[1, 2, 3, 4, 5]).unwrap();
        assert_eq!((0..5).map(|m| shape.bits(m)).collect::<Vec<_>>(), [0, 1, 2, 2, 3]);
        assert_eq!(shape.to_string(), "1 x 2 x 3 x 4 x 5");
    }
}
