//! Several processes that compute together, through a communicator of mpi4py's: no MPI is linked, so that every wheel serves every MPI.

use blco::{Error, Links, Result};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

/// Bytes of a message at most; this much is copied for mpi4py.
const MESSAGE_BYTES: usize = 64 << 20;

/// This process among the others; `connection` is a `Ranks` of blco/_ranks.py.
#[derive(Debug)]
pub struct Ranks {
    connection: Py<PyAny>,
    rank: usize,
    count: usize,
    on_machine: (usize, usize),
}

impl Ranks {
    pub fn new(ranks: &Bound<'_, PyAny>) -> PyResult<Self> {
        let number = |name| ranks.getattr(name)?.extract();
        let on_machine = ranks.getattr("on_machine")?.extract()?;
        let (rank, count) = (number("rank")?, number("count")?);
        Ok(Self { connection: ranks.clone().unbind(), rank, count, on_machine })
    }

    /// One message at most each way.
    fn pass(
        &self,
        py: Python<'_>,
        send: Option<(usize, &[u8])>,
        receive: Option<(usize, &mut [u8])>,
    ) -> PyResult<()> {
        let sent = send.map(|(to, bytes)| (to, PyArray1::from_slice(py, bytes)));
        let got =
            receive.as_ref().map(|(from, bytes)| (*from, PyArray1::<u8>::zeros(py, bytes.len(), false)));
        self.connection.call_method1(py, "exchange", (sent, got.clone()))?;
        if let (Some((_, bytes)), Some((_, got))) = (receive, got) {
            bytes.copy_from_slice(got.readonly().as_slice()?);
        }
        Ok(())
    }
}

impl Links for Ranks {
    fn number(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn on_machine(&self) -> (usize, usize) {
        self.on_machine
    }

    fn exchange(&self, send: Option<(usize, &[u8])>, receive: Option<(usize, &mut [u8])>) -> Result<()> {
        let (to, mut sent) =
            send.map_or((None, [].chunks(1)), |(to, all)| (Some(to), all.chunks(MESSAGE_BYTES)));
        let (from, all) = receive.map_or((None, Default::default()), |(from, all)| (Some(from), all));
        let mut got = all.chunks_mut(MESSAGE_BYTES);
        loop {
            let (send, receive) = (to.zip(sent.next()), from.zip(got.next()));
            if send.is_none() && receive.is_none() {
                return Ok(());
            }
            Python::attach(|py| self.pass(py, send, receive))
                .map_err(|error| Error::request(error.to_string()))?;
        }
    }
}
