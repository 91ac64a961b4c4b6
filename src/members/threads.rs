//! Members that are threads of one process, connected by channels.

use super::Links;
use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::sync::Arc;
use std::time::Duration;

/// One of the threads.
#[derive(Debug)]
struct Thread {
    number: usize,
    /// By the other's number.
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    /// How long it waits for another.
    timeout: Duration,
}

/// Connects `count` members.
#[must_use]
pub fn links(count: usize, timeout: Duration) -> Vec<Arc<dyn Links>> {
    let channels: Vec<Vec<_>> = (0..count).map(|_| (0..count).map(|_| unbounded()).collect()).collect();
    let member = |number: usize| -> Arc<dyn Links> {
        let to = channels[number].iter().map(|(sender, _)| sender.clone()).collect();
        let from = channels.iter().map(|of| of[number].1.clone()).collect();
        Arc::new(Thread { number, to, from, timeout })
    };
    (0..count).map(member).collect()
}

impl Links for Thread {
    fn number(&self) -> usize {
        self.number
    }

    fn count(&self) -> usize {
        self.to.len()
    }

    fn on_machine(&self) -> (usize, usize) {
        (self.number, self.to.len())
    }

    fn exchange(&self, send: Option<(usize, &[u8])>, receive: Option<(usize, &mut [u8])>) -> Result<()> {
        if let Some((to, bytes)) = send {
            self.to[to]
                .send(bytes.to_vec())
                .map_err(|_| Error::request(format!("process {to} has ended")))?;
        }
        let Some((from, bytes)) = receive else { return Ok(()) };
        let received = self.from[from].recv_timeout(self.timeout).map_err(|e| {
            let what = match e {
                RecvTimeoutError::Timeout => {
                    format!("process {from} has sent nothing for {} ms", self.timeout.as_millis())
                }
                RecvTimeoutError::Disconnected => format!("process {from} has ended"),
            };
            Error::request(what)
        })?;
        assert_eq!(received.len(), bytes.len(), "members make the same calls");
        bytes.copy_from_slice(&received);
        Ok(())
    }
}
