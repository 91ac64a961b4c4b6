//! What a call of a prepared session takes beside its pass: `cargo bench --bench session -- STORE [RANK]`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement ends where something fails, and prints"
)]

use blco::{Device, Engine, Matrix, Modes};
use std::time::Instant;

const CALLS: usize = 101;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let Some(store) = arguments.first() else { return println!("session: name a store") };
    let rank: usize = arguments.get(1).map_or(16, |rank| rank.parse().unwrap());
    let engine = Engine::builder().device(Device::Cpu).build().unwrap();
    let store = engine.open(store).unwrap();
    let ones = |&dim: &u32| Matrix::from_rows(dim as usize, rank, vec![1.0; dim as usize * rank]);
    let factors: Vec<Matrix<f64>> = store.dims().iter().map(ones).collect();
    let plan = engine.plan_mttkrp::<f64>(&store, rank, Modes::All, 100).unwrap();
    let mut session = engine.prepare_mttkrp::<f64>(&store, rank, Modes::All, plan).unwrap();
    let mut results: Vec<Vec<f64>> = store.dims().iter().map(|&dim| vec![0.0; dim as usize * rank]).collect();
    for owned in [true, false] {
        let mut times: Vec<[f64; 2]> = Vec::new();
        for _ in 0..CALLS {
            let start = Instant::now();
            if owned {
                session.mttkrp(&factors).unwrap();
            } else {
                let mut into: Vec<&mut [f64]> = results.iter_mut().map(Vec::as_mut_slice).collect();
                session.mttkrp_into(&factors, &mut into).unwrap();
            }
            let (all, pass) = (start.elapsed().as_secs_f64(), session.passes()[0].seconds);
            times.push([all - pass, pass]);
        }
        let median = |at: usize| {
            let mut sorted: Vec<f64> = times[1..].iter().map(|time| time[at]).collect();
            sorted.sort_by(f64::total_cmp);
            1e3 * sorted[sorted.len() / 2]
        };
        let what = if owned { "owned results" } else { "results into the caller's memory" };
        println!(
            "{what}: beside the pass {:.4} ms (second call {:.4}), the pass {:.4} ms, medians of {}",
            median(0),
            1e3 * times[1][0],
            median(1),
            CALLS - 1
        );
    }
}
