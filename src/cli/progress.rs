//! Progress bars on a terminal. If standard error is not a terminal, a line for some iterations.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two lines, if standard error is not a terminal.
const PAUSE: Duration = Duration::from_secs(10);

/// A bar, or nothing; a clone is the same bar.
#[derive(Clone, Debug)]
pub struct Bar {
    bar: ProgressBar,
    /// When the last line about an iteration was written; `None` with `quiet`.
    written: Option<Arc<Mutex<Instant>>>,
}

impl Bar {
    /// A bar for nonzeros, hidden with `quiet` and if standard error is not a terminal.
    pub fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() };
        let written = (!quiet).then(|| Arc::new(Mutex::new(Instant::now())));
        Self { bar: ProgressBar::with_draw_target(None, target), written }
    }

    /// Writes the line about an iteration that has ended: on a terminal, where it stays above the bar, or on standard error at most
    /// every ten seconds.
    pub fn iterated(&self, line: impl FnOnce() -> String) {
        let Some(written) = &self.written else { return };
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.bar.is_hidden() {
            self.bar.println(line());
        } else if written.elapsed() >= PAUSE {
            *written = Instant::now();
            // A failure to write this cannot be reported.
            drop(writeln!(std::io::stderr(), "{}", line()));
        }
    }

    /// Hides the bar until the next progress.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows that a run has reached `share` of its iterations, and is now at `what`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is from 0 to 1")]
    pub fn iterate(&self, what: &str, share: f64) {
        /// Parts of a bar that is full.
        const PARTS: u32 = 10_000;
        if self.bar.is_hidden() {
            return;
        }
        if self.bar.length() != Some(PARTS.into()) {
            if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent}%") {
                self.bar.set_style(style);
            }
            self.bar.set_length(PARTS.into());
        }
        if self.bar.message() != what {
            self.bar.set_message(what.to_owned());
        }
        self.bar.set_position((share * f64::from(PARTS)) as u64);
    }

    /// Shows that `phase` has done `done` nonzeros, of `total` if known.
    pub fn show(&self, phase: &'static str, done: u64, total: Option<u64>) {
        if self.bar.is_hidden() {
            return;
        }
        if self.bar.message() != phase || self.bar.length() != total {
            let template = match total {
                Some(_) => "{msg:>9} {wide_bar} {percent}% of {human_len} nonzeros, {per_sec}, {eta} left",
                None => "{msg:>9} {human_pos} nonzeros, {per_sec}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style);
            }
            if self.bar.message() != phase {
                self.bar.reset();
            }
            self.bar.set_message(phase);
            if let Some(total) = total {
                self.bar.set_length(total);
            }
        }
        self.bar.set_position(done);
    }
}

/// Removes the bar when its work ends, with or without an error.
impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
