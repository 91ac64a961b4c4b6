//! `blco-info`: see `--help`.

fn main() -> std::process::ExitCode {
    blco::cli::main::<blco::cli::info::Info>()
}
