//! `blco-pack`: see `--help`.

fn main() -> std::process::ExitCode {
    blco::cli::main::<blco::cli::pack::Pack>()
}
