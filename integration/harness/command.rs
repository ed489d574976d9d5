//! Commands that run to their end, and their outcome.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Outcome of a command: its exit code (`None` after a signal), standard output and standard error.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Returns a command for the program under test.
pub fn weir() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir"))
}

/// Runs a command to its end with this standard input.
pub fn run(command: &mut Command, input: impl AsRef<[u8]> + Send) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A thread of its own: the command may write before it has read all. If it ends without reading, the pipe
        // breaks.
        scope.spawn(move || {
            let _ = stdin.write_all(input.as_ref());
        });
        child.wait_with_output().unwrap()
    })
}

/// Returns the outcome of a command that has ended.
pub fn outcome(output: Output) -> Outcome {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs a command that must succeed; returns its standard output.
pub fn succeed(command: &mut Command, input: impl AsRef<[u8]> + Send) -> String {
    let Outcome { code, out, err } = outcome(run(command, input));
    assert_eq!(code, Some(0), "{command:?}: {err}");
    out
}
