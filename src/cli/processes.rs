//! Several processes that `mpirun` or another launcher of MPI has started: process 0 is the program, the others serve it.

use crate::engine::members::end_serving;
use crate::error::Result;
use crate::members::{Group, Links};
use std::sync::Arc;
#[cfg(feature = "mpi")]
use {crate::members::mpi::Mpi, std::io::Write, std::sync::OnceLock, std::time::Duration};

/// Seconds without a sign of life, or of progress, after which a process has failed; `BLCO_PROCESS_TIMEOUT` sets others, for tests.
#[cfg(feature = "mpi")]
const TIMEOUT_SECONDS: f64 = 300.0;

#[cfg(feature = "mpi")]
static MPI: OnceLock<Arc<Mpi>> = OnceLock::new();

/// Connects this process with the others, if a launcher of MPI has started it.
#[cfg(feature = "mpi")]
pub fn start(name: &str) -> Result<()> {
    let launchers = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"];
    if MPI.get().is_some() || !launchers.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(());
    }
    let given = std::env::var("BLCO_PROCESS_TIMEOUT").ok().and_then(|text| text.parse().ok());
    let timeout = Duration::from_secs_f64(given.unwrap_or(TIMEOUT_SECONDS));
    let name = name.to_owned();
    let mpi = Mpi::start(timeout, move |error| drop(writeln!(std::io::stderr(), "{name}: {error}")))?;
    MPI.get_or_init(|| mpi);
    Ok(())
}

/// The other processes, if there are any.
#[cfg(feature = "mpi")]
pub fn links() -> Option<Arc<dyn Links>> {
    let links: Arc<dyn Links> = MPI.get()?.clone();
    (links.count() > 1).then_some(links)
}

/// Ends all processes, because this one has failed.
#[cfg(feature = "mpi")]
pub fn fail(status: i32) {
    if let Some(mpi) = MPI.get().filter(|mpi| mpi.count() > 1) {
        mpi.abort(status);
    }
}

#[cfg(feature = "mpi")]
fn finish() {
    if let Some(mpi) = MPI.get() {
        mpi.finish();
    }
}

/// Without MPI a process is alone.
#[cfg(not(feature = "mpi"))]
#[expect(clippy::unnecessary_wraps, reason = "with MPI it can fail")]
pub fn start(_: &str) -> Result<()> {
    Ok(())
}

/// Without MPI a process is alone.
#[cfg(not(feature = "mpi"))]
pub fn links() -> Option<Arc<dyn Links>> {
    None
}

/// Without MPI a process is alone.
#[cfg(not(feature = "mpi"))]
pub fn fail(_: i32) {}

#[cfg(not(feature = "mpi"))]
fn finish() {}

/// The number of this process, if there are several.
pub fn number() -> Option<usize> {
    links().map(|links| links.number())
}

/// Called when this process has done its work. It ends when all have.
pub fn end() -> Result<()> {
    if let Some(links) = links().filter(|links| links.number() == 0) {
        end_serving(&Group::new(links))?;
    }
    finish();
    Ok(())
}
