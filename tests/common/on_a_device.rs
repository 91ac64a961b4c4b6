//! Tests that run in the process that calls the driver: on a CUDA device if there is one, or on the mock driver in another
//! process.

use blco::internals::backend::cuda::driver::Device;
use std::process::{Command, Output};
use std::sync::Arc;

/// Set in the processes that tests start.
const CHILD: &str = "BLCO_ON_THE_MOCK";

/// Whether a test started this process.
pub fn is_on_the_mock() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test on the device, or else test `name` of a module in another process on the mock driver.
pub fn on_a_device(module: &str, name: &str, test: impl FnOnce(&Arc<Device>)) {
    match (Device::open(0), std::env::var_os(CHILD)) {
        (Ok(device), _) => test(&device),
        (Err(e), Some(_)) => panic!("{e}"),
        (Err(e), None) if std::env::var_os("BLCO_MOCK_CUDA").is_none() => eprintln!("skipped: {e}"),
        (Err(_), None) => {
            let output = on_the_mock(module, name, &[]);
            let (text, said) =
                (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
            assert!(output.status.success() && said.contains("ok. 1 passed"), "{said}\n{text}");
        }
    }
}

/// Runs test `name` of a module in another process, on the mock driver if there is one.
pub fn on_the_mock(module: &str, name: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // Tests are named by their paths in the crate.
    let test = module.split("::").skip(1).chain([name]).collect::<Vec<_>>().join("::");
    command.args([&test, "--exact", "--nocapture", "--include-ignored"]).env(CHILD, "1");
    if let Some(directory) = std::env::var_os("BLCO_MOCK_CUDA") {
        command.env("LD_LIBRARY_PATH", directory);
    }
    command.envs(env.iter().copied()).output().unwrap()
}
