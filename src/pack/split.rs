//! Dividing a buffer among threads.

/// Cuts `buffer` into consecutive slices of these lengths. They must not add up to more than its length.
pub fn split<T>(buffer: &mut [T], lengths: impl IntoIterator<Item = usize>) -> Vec<&mut [T]> {
    let mut rest = buffer;
    let cut = |length| {
        let (slice, behind) = std::mem::take(&mut rest).split_at_mut(length);
        rest = behind;
        slice
    };
    lengths.into_iter().map(cut).collect()
}
