use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::run()
}
