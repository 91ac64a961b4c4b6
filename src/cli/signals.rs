//! Signals: SIGINT, SIGTERM and SIGHUP, which ask a program to stop, and SIGXFSZ, the limit on file sizes.
//!
//! A signal that was ignored when the program started stays ignored. `nohup` ignores SIGHUP; a shell without job
//! control ignores SIGINT for background commands.

use crate::error::{Error, Result};
use libc::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

/// Calls `interrupt`, on its own thread, for every SIGINT, SIGTERM and SIGHUP that was not ignored. Because SIGXFSZ is caught,
/// a write beyond the limit on file sizes fails with EFBIG. Unlike an ignored signal, a handler does not outlive an exec.
pub fn handle(interrupt: impl Fn() + Send + 'static) -> Result<()> {
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
    let caught = [SIGINT, SIGTERM, SIGHUP, SIGXFSZ].into_iter().filter(|s| ignored >> (s - 1) & 1 == 0);
    let failed = |source| Error::Resource { action: "handle signals", source };
    let mut signals = Signals::new(caught).map_err(failed)?;
    let (started, starts) = std::sync::mpsc::sync_channel(1);
    let wait = move || {
        let _ = started.send(());
        signals.forever().filter(|&signal| signal != SIGXFSZ).for_each(|_| interrupt());
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(failed)?;
    // A thread that finds no memory when it starts ends the program and reports that, unless another thread reports already.
    let _ = starts.recv();
    Ok(())
}

/// The ignored signals in the text of /proc/self/status: bit s - 1 is signal s. None if the text does not have them.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        let status =
            "Name:\tblco\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert_eq!(ignored(status), 1 << (SIGHUP - 1) | 1 << (libc::SIGPIPE - 1));
        assert_eq!((ignored(""), ignored("SigIgn:\tnone\n")), (0, 0));
    }
}
