//! Commands that run to their end, and their outcome.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

/// Outcome of a command: its exit code (`None` after a signal), standard output and standard error.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Outcome {
    /// Returns standard output and standard error.
    pub fn said(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// A running command. Dropping it kills the process.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a command for the program under test.
pub fn weir() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir"))
}

/// Runs a command to its end with this standard input. Its output must be UTF-8.
pub fn run(command: &mut Command, input: impl AsRef<[u8]> + Send) -> Outcome {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // A separate thread writes the input, because the command can write output before it has read all input. If the
        // command ends without reading, the write fails.
        scope.spawn(move || {
            let _ = stdin.write_all(input.as_ref());
        });
        child.wait_with_output().unwrap()
    });
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs a command that must succeed.
pub fn succeed(command: &mut Command, input: impl AsRef<[u8]> + Send) -> Outcome {
    let outcome = run(command, input);
    assert_eq!(outcome.code, Some(0), "{command:?}\n{}", outcome.said());
    outcome
}
