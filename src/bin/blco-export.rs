//! `blco-export`: see `--help`.

fn main() -> std::process::ExitCode {
    blco::cli::main::<blco::cli::export::Export>()
}
