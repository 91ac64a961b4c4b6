//! `--plan --nodes`: the time on other machines than this one, as options, JSON and text.

use super::report::shown;
use super::{Report, counted, in_options, size};
use crate::dense::{Precision, Real};
use crate::engine::{Demand, Device, Engine, Estimate, Forecast, MACHINES_MAX, Machines};
use crate::error::{Error, Result};
use crate::store::Store;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// The options of a plan for other machines.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --plan: other machines than this one")]
pub struct ForecastArgs {
    /// Predict the time of a pass or iteration on this many machines, by stage, what binds, and how many machines pay
    #[arg(long, value_name = "N", requires = "plan", group = "several", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    nodes: Option<u32>,
    /// GPUs of each machine; 0 if they compute on their CPUs, with --threads each [default: 1, or 0 with --backend cpu]
    #[arg(long, value_name = "N", requires = "nodes", value_parser = clap::value_parser!(u32).range(0..=1024))]
    devices_per_node: Option<u32>,
    /// Rate at which a machine receives from the others, such as 50GB/s. Several machines need it
    #[arg(long, value_name = "RATE", requires = "nodes", value_parser = rate)]
    link: Option<u64>,
}

/// Parses bytes per second: `50GB/s`.
fn rate(text: &str) -> std::result::Result<u64, String> {
    let bytes = text.strip_suffix("/s").unwrap_or(text);
    let rate = size(bytes).ok().filter(|&rate| rate > 0 && !bytes.ends_with('b'));
    rate.ok_or_else(|| "not a rate in bytes; rates look like 50GB/s or 1.2GiB/s (8 Gb/s are 1GB/s)".into())
}

impl ForecastArgs {
    /// The machines, if a plan is for others than this one.
    pub fn machines(&self, device: Device) -> Result<Option<Machines>> {
        let Some(count) = self.nodes else { return Ok(None) };
        let on_cpu = device == Device::Cpu;
        let devices = self.devices_per_node.unwrap_or(u32::from(!on_cpu));
        if on_cpu && devices > 0 {
            let what = "GPUs do not compute with --backend cpu; leave one of the two out";
            return Err(Error::request(format!("--devices-per-node {devices}: {what}")));
        }
        if device == Device::Cuda && devices == 0 {
            let what = "no GPU computes then; give 1 or more, or leave out --backend cuda";
            return Err(Error::request(format!("--devices-per-node 0: {what}")));
        }
        if count > 1 && self.link.is_none() {
            let what = "say with --link how much a machine receives from the others, such as --link 50GB/s";
            return Err(Error::request(format!("--nodes {count}: {what}")));
        }
        let link = self.link.map(|rate| rate as f64);
        Ok(Some(Machines { count: count as usize, devices: devices as usize, link }))
    }
}

/// The JSON report.
#[derive(Debug, Serialize)]
struct ForecastReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    store: PathBuf,
    digest: String,
    dims: Vec<u32>,
    nnz: u64,
    op: &'static str,
    rank: usize,
    precision: Precision,
    forecast: Forecast,
}

/// The report on `demand`, which is `what`; `op` is its name.
pub fn report<P: super::Program, T: Real>(
    engine: &Engine,
    store: &Store,
    demand: &Demand<'_>,
    machines: &Machines,
    (op, what): (&'static str, &str),
) -> Result<Report> {
    let mut forecast = engine.forecast::<T>(store, demand, machines)?;
    forecast.notes.iter_mut().for_each(|note| *note = in_options(note));
    let text = text(store, what, T::PRECISION, &forecast);
    let manifest = store.manifest();
    let report = ForecastReport {
        store: store.path().to_path_buf(),
        digest: format!("{:016x}", store.id()),
        dims: manifest.shape.dims().to_vec(),
        nnz: manifest.nnz,
        op,
        rank: demand.rank,
        precision: T::PRECISION,
        forecast,
    };
    Report::new::<P>(text, &report)
}

fn text(store: &Store, what: &str, precision: Precision, forecast: &Forecast) -> String {
    let Forecast { machines, devices_per_machine, rates, counts, pays_up_to, notes } = forecast;
    let on = match devices_per_machine {
        0 => String::new(),
        devices => format!(" with {} each", counted(*devices, "GPU")),
    };
    let rate = |name: &str, rate: f64| match rate {
        0.0 => String::new(),
        rate => format!(", {name} {}/s", shown(rate)),
    };
    let mut text = format!(
        "{}: {what}, {}, on {}{on} ({})\n  rates   memory {}/s{}{}{}{}\n  machines    seconds  first      read      copy    kernel reduction  exchange    \
         update  binds\n",
        store.path().display(),
        precision.name(),
        counted(*machines, "machine"),
        rates.of,
        shown(rates.memory),
        rate("to each GPU", rates.copy),
        rate("between GPUs", rates.reduction),
        rate("between machines", rates.exchange),
        rate("read", rates.read),
    );
    text.extend(counts.iter().map(|at| {
        let Estimate { machines, seconds, first_seconds, stages, binds, .. } = at;
        let [read, copy, kernel, reduction, exchange, update] = stages.named().map(|(_, seconds)| seconds);
        format!(
            "  {machines:>8} {seconds:>10.5} {first_seconds:>+6.1}{read:>10.5}{copy:>10.5}{kernel:>10.5}{reduction:>10.5}\
             {exchange:>10.5}{update:>10.5}  {binds}\n"
        )
    }));
    let modes = forecast.asked().modes.iter().filter(|mode| !mode.why.is_empty());
    text.extend(modes.map(super::device::division_text));
    text.extend(pays_up_to.map(|n| match n {
        n if n >= MACHINES_MAX => format!("  pays    up to {n} machines and more\n"),
        n => format!("  pays    up to {}: twice as many save less than 10 %\n", counted(n, "machine")),
    }));
    text.extend(notes.iter().flat_map(|note| ["  note: ", note, "\n"]));
    text
}
