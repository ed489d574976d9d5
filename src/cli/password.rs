//! New password of a user, from the terminal or from standard input.

use super::{CommandError, exit};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _};
use tokio::signal::unix::{SignalKind, signal};

/// Prompts for the password twice if standard input is a terminal; otherwise reads the first line of standard input.
pub fn read() -> Result<String, CommandError> {
    let fail = |why: String| CommandError::new(exit::IO, why);
    if !io::stdin().is_terminal() {
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        read.map_err(|error| fail(format!("standard input: {error}")))?;
        let password = line.strip_suffix('\n').unwrap_or(&line);
        return Ok(password.strip_suffix('\r').unwrap_or(password).to_owned());
    }
    let (first, second) = prompt().map_err(|error| fail(format!("terminal: {error}; nothing was changed")))?;
    if first == second { Ok(first) } else { Err(fail("the two passwords differ; nothing was changed".to_owned())) }
}

/// Prompts twice. During the prompts, the terminal does not show the characters that are typed. If Ctrl-C ended the
/// process at this time, the terminal would stay in this mode. So Ctrl-C is caught, and the former mode is restored.
fn prompt() -> io::Result<(String, String)> {
    let terminal = File::open("/dev/tty")?;
    let mode = tcgetattr(&terminal)?;
    let ask = || Ok((rpassword::prompt_password("Password: ")?, rpassword::prompt_password("Once more: ")?));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let typed = runtime.block_on(async {
        let mut interrupts = signal(SignalKind::interrupt())?;
        tokio::select! {
            typed = tokio::task::spawn_blocking(ask) => typed.unwrap_or_else(|error| Err(io::Error::other(error))),
            _ = interrupts.recv() => Err(io::ErrorKind::Interrupted.into()),
        }
    });
    // After Ctrl-C, the thread of the prompt still waits for the terminal. The thread ends with the process.
    runtime.shutdown_background();
    tcsetattr(&terminal, OptionalActions::Now, &mode)?;
    typed
}
