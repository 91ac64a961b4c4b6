//! `blco-gen`: see `--help`.

#[global_allocator]
static ALLOCATOR: blco::cli::memory::Allocator = blco::cli::memory::Allocator;

fn main() -> std::process::ExitCode {
    blco::cli::main::<blco::cli::generate::Gen>()
}
