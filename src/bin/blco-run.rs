//! `blco-run`: see `--help`.

fn main() -> std::process::ExitCode {
    blco::cli::main::<blco::cli::run::Run>()
}
