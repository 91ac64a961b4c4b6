//! `blco-gen`: see `--help`.

fn main() -> std::process::ExitCode {
    blco::cli::main::<blco::cli::generate::Gen>()
}
