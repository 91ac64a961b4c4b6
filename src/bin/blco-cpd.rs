//! `blco-cpd`: see `--help`.

fn main() -> std::process::ExitCode {
    blco::cli::main::<blco::cli::cpd::Cpd>()
}
