//! Establishes that factors and results may be in GPU memory that another library holds: the same bits as in host memory, and an
//! error for every address without such memory on that GPU.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values};
use crate::on_a_device::on_a_device;
use blco::internals::backend::cuda::driver::{Device, Memory};
use blco::internals::dense::seeded_factors;
use blco::{DeviceMatrix, Engine, FactorView, Matrix, Modes, Real};
use std::sync::Arc;

const DIMS: [u32; 3] = [60, 300, 17];
const RANK: usize = 6;

fn engine(device: blco::Device) -> Engine {
    let engine = Engine::builder().device(device).deterministic(true).compile_kernels(false);
    engine.threads(2).build().unwrap()
}

fn on_device<T: Real>(device: &Arc<Device>, data: &[T]) -> Memory {
    let mut memory = device.memory(size_of_val(data)).unwrap();
    memory.write(data).unwrap();
    memory
}

fn view<T>(device: &Device, memory: &Memory, rows: usize) -> DeviceMatrix<T> {
    DeviceMatrix::at(device.facts.number, memory.address(), rows, RANK)
}

fn check<T: Real>(device: &Arc<Device>) {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[60, 300, 17], 20_000, 3, values::fraction);
    let shape =
        packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS)).manifest().shape.clone();
    let engine = engine(blco::Device::Cuda);
    let store = engine.open(dir.path().join("s")).unwrap();
    let plan = engine.plan_mttkrp::<T>(&store, RANK, Modes::Only(&[2, 0]), 3).unwrap();
    let mut session = engine.prepare_mttkrp::<T>(&store, RANK, Modes::Only(&[2, 0]), plan).unwrap();
    for seed in 0..3 {
        let factors: Vec<Matrix<T>> =
            seeded_factors(&blco::internals::sys::Sys::default(), &shape, RANK, seed).unwrap();
        let wanted = session.mttkrp(&factors).unwrap();
        let there: Vec<Memory> = factors.iter().map(|factor| on_device(device, factor.data())).collect();
        let views: Vec<FactorView<'_, T>> =
            factors
                .iter()
                .zip(&there)
                .enumerate()
                .map(|(m, (factor, memory))| {
                    if m as u64 == seed { factor.into() } else { view(device, memory, factor.rows()).into() }
                })
                .collect();
        let poison = |rows: usize| on_device(device, &vec![T::nearest(f64::NAN); rows * RANK + 8]);
        let results: Vec<Memory> = wanted.iter().map(|(_, matrix)| poison(matrix.rows())).collect();
        let to: Vec<DeviceMatrix<T>> = results
            .iter()
            .zip(&wanted)
            .map(|(memory, (_, matrix))| view(device, memory, matrix.rows()))
            .collect();
        session.mttkrp_on_device(&views, &to).unwrap();
        for (memory, (mode, matrix)) in results.iter().zip(&wanted) {
            let mut found = vec![T::nearest(0.0); matrix.data().len() + 8];
            memory.read(&mut found).unwrap();
            let (found, behind) = found.split_at(matrix.data().len());
            assert!(found == matrix.data(), "mode {mode}, {:?}", T::PRECISION);
            assert!(behind.iter().all(|x| x.widen().is_nan()), "mode {mode}: written behind the result");
        }
        // Factors on the device, results on the host.
        assert!(session.mttkrp(&views).unwrap() == wanted);
    }
}

#[test]
fn views_of_device_memory_give_the_same_bits() {
    on_a_device(module_path!(), "views_of_device_memory_give_the_same_bits", |device| {
        check::<f64>(device);
        check::<f32>(device);
    });
}

#[test]
fn addresses_without_such_memory_are_refused() {
    on_a_device(module_path!(), "addresses_without_such_memory_are_refused", |device| {
        let dir = tempfile::tempdir().unwrap();
        let tensor = Tensor::random(&[60, 300, 17], 3000, 3, values::fraction);
        packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
        let factors = DIMS.map(|dim| Matrix::from_rows(dim as usize, RANK, vec![1.0; dim as usize * RANK]));
        let there = factors.each_ref().map(|factor| on_device(device, factor.data()));
        let rows = DIMS.map(|dim| dim as usize);
        let [a, b, c] = [0, 1, 2].map(|m| view::<f64>(device, &there[m], rows[m]));
        let at = |address| DeviceMatrix::at(device.facts.number, address, rows[1], RANK);
        let freed = on_device(device, factors[1].data()).address();
        let pinned = device.pinned(&blco::internals::sys::Sys::default(), 1 << 20).unwrap();
        let wrong = [
            at(0),
            at(u64::MAX - 7),
            at(freed),
            // Host memory, pinned or not, and device memory that is eight bytes too short.
            at(factors[1].data().as_ptr() as u64),
            at(pinned.as_ref().as_ptr() as u64),
            at(there[1].address() + 8),
            DeviceMatrix::at(device.facts.number + 1, there[1].address(), rows[1], RANK),
        ];
        let engine_there = engine(blco::Device::Cuda);
        let store = engine_there.open(dir.path().join("s")).unwrap();
        let plan = |engine: &Engine| engine.plan_mttkrp::<f64>(&store, RANK, Modes::Only(&[1]), 2).unwrap();
        let prepare = |engine: &Engine| {
            engine.prepare_mttkrp::<f64>(&store, RANK, Modes::Only(&[1]), plan(engine)).unwrap()
        };
        let mut session = prepare(&engine_there);
        for wrong in wrong {
            for (factors, result) in [([a, wrong, c], b), ([a, b, c], wrong)] {
                let said = session.mttkrp_on_device(factors, &[result]).unwrap_err().to_string();
                assert!(said.contains("of memory of its own at") || said.contains("computes"), "{said}");
            }
        }
        // Views of other shapes.
        let short = DeviceMatrix::at(device.facts.number, there[1].address(), rows[1] - 1, RANK);
        assert!(session.mttkrp_on_device([a, short, c], &[b]).is_err());
        assert!(session.mttkrp_on_device([a, b, c], &[short]).is_err());
        assert!(session.mttkrp_on_device([a, b, c], &[b, b]).is_err());
        session.mttkrp_on_device([a, b, c], &[b]).unwrap();
        // The CPU has no such memory.
        let mut session = prepare(&engine(blco::Device::Cpu));
        let said = session.mttkrp([a, b, c]).unwrap_err().to_string();
        assert!(said.contains("take `Device::Cuda`"), "{said}");
        assert!(session.mttkrp_on_device(&factors, &[b]).is_err());
        assert!(session.mttkrp(&factors).is_ok());
    });
}
