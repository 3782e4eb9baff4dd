//! The `steadfast` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    node::cli::main()
}
