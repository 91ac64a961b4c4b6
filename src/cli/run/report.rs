//! What the reports of every operation have.

use crate::cli::nonzeros;
use crate::coo::tns::TnsReader;
use crate::coo::{Batch, Extent, Source};
use crate::dense::{Precision, Real};
use crate::error::Result;
use crate::store::{Manifest, Store};
use crate::stream::PassReport;
use bytesize::ByteSize;
use serde::Serialize;
use std::path::PathBuf;

/// What a report begins with.
#[derive(Debug, Serialize)]
pub struct ReportHead {
    #[serde(serialize_with = "crate::sys::shown_path")]
    pub store: PathBuf,
    pub digest: String,
    pub op: &'static str,
    pub backend: &'static str,
    /// Why not on a GPU, what was less than planned.
    pub notes: Vec<String>,
    pub precision: Precision,
    pub dims: Vec<u32>,
    pub nnz: u64,
}

impl ReportHead {
    /// Of a run on `store`.
    pub fn new<T: Real>(store: &Store, op: &'static str, on_device: bool, notes: Vec<String>) -> Self {
        let manifest = store.manifest();
        Self {
            store: store.path().to_path_buf(),
            digest: format!("{:016x}", store.id()),
            op,
            backend: if on_device { "cuda" } else { "cpu" },
            notes,
            precision: T::PRECISION,
            dims: manifest.shape.dims().to_vec(),
            nnz: manifest.nnz,
        }
    }

    /// A line for each note.
    pub fn notes_text(&self) -> String {
        self.notes.iter().flat_map(|note| ["  note: ", note, "\n"]).collect()
    }
}

/// A text that a check drains, and what was found in it.
pub struct Checked<'a> {
    source: &'a mut TnsReader,
    found: Option<Extent>,
}

impl<'a> Checked<'a> {
    pub fn new(source: &'a mut TnsReader) -> Self {
        Self { source, found: None }
    }

    /// How the text, where it is another tensor than the store's, differs in dims and nnz: for a check that fails.
    pub fn differs(&self, manifest: &Manifest) -> Vec<String> {
        let Some(found) = &self.found else { return Vec::new() };
        let by = |dims: Vec<String>| dims.join(" x ");
        let text = by(found.dims.iter().map(ToString::to_string).collect());
        let store = by(manifest.shape.dims().iter().map(ToString::to_string).collect());
        let name = self.source.name();
        let dims = (text != store).then(|| format!("{name} has dims {text}, the store {store}"));
        let nnz = (found.nnz != manifest.nnz)
            .then(|| format!("{name} has {}, the store {}", nonzeros(found.nnz), manifest.nnz));
        dims.into_iter().chain(nnz).collect()
    }
}

impl Source for Checked<'_> {
    fn name(&self) -> String {
        self.source.name()
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let extent = self.source.drain(sink)?;
        self.found = Some(extent.clone());
        Ok(extent)
    }
}

/// The pass of which as many took longer as took less; of an even number, the shorter of two.
pub fn median(passes: &[PassReport]) -> &PassReport {
    let mut by_time: Vec<&PassReport> = passes.iter().collect();
    by_time.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    by_time[(by_time.len() - 1) / 2]
}

/// Of how many passes it is the median, where there is more than one.
pub fn median_of(passes: &[PassReport]) -> String {
    if passes.len() > 1 { format!(" (median of {})", passes.len()) } else { String::new() }
}

/// Where the time of a pass went, but for its workers.
pub fn stages_text(pass: &PassReport) -> String {
    let stall = pass.compute_stall_seconds;
    let Some(device) = &pass.device else {
        return format!("compute {:.4} s, waited for data {stall:.4} s", pass.compute_seconds);
    };
    format!(
        "kernels {:.4} s (asking for {:.0} % of what device memory moves, caches included), copies {:.4} s ({:.0} % of the link: {} in {} chunks at {}/s, {} \
         chunks there already), both at once {:.4} s, waited for data {stall:.4} s",
        device.kernel_seconds,
        100.0 * device.memory_share,
        device.copy_seconds,
        100.0 * device.link_share,
        ByteSize(device.copied_bytes),
        device.copied_chunks,
        rate(device.copied_bytes, device.copy_seconds),
        device.resident_chunks,
        device.overlap_seconds,
    )
}

/// An error as a part of its bound, readable for errors far beyond it too.
pub fn share_of_bound(part: f64) -> String {
    if part < 1e4 { format!("{part:.4}") } else { format!("{part:.1e}") }
}

/// Bytes a second.
fn rate(bytes: u64, seconds: f64) -> ByteSize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown with two digits")]
    ByteSize((bytes as f64 / seconds.max(1e-9)) as u64)
}
