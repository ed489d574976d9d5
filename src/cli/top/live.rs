//! Live view of `weir top`: redraws the screen every two seconds, and reads single keys.

use super::{Answer, Question, ask, error, view};
use crate::cli::table::{Paint, Tone, cut};
use crate::cli::{CommandError, exit, written};
use crate::top::{SenderKind, SortBy};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// Time between two redraws.
const PACE: Duration = Duration::from_secs(2);

/// Ctrl-C as a key: while keys are read singly, the terminal makes no signal of it.
const CTRL_C: u8 = 3;

/// Lines of the help at the bottom of the screen.
const HELP_LINES: usize = 1;

/// Height and width of a terminal that does not tell its size.
const USUAL_SIZE: (usize, usize) = (24, 80);

/// Screen of the terminal in single-key mode. Dropping it restores the terminal as it was.
struct Screen {
    former: Termios,
}

impl Screen {
    fn take() -> io::Result<Self> {
        let former = tcgetattr(io::stdin())?;
        let mut keys = former.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &keys)?;
        let screen = Self { former };
        // The alternate screen keeps what the terminal showed before; and no cursor.
        screen.write("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Shows lines from the top of the screen, and clears the rest. Each line is cleared behind its end, so that the
    /// screen does not flicker.
    fn show(&self, lines: &[String]) -> io::Result<()> {
        let text: Vec<String> = lines.iter().map(|line| format!("{line}\x1b[K")).collect();
        self.write(&format!("\x1b[H{}\x1b[J", text.join("\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is no way to report a failure: the terminal is gone.
        let _ = self.write("\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.former);
    }
}

/// State of the live view.
struct Live {
    config: PathBuf,
    question: Question,
    /// Number of rows that the administrator asks for; `None`: as many as there is room for.
    rows: Option<u32>,
    paint: Paint,
    /// The last answer, or the reason why there is none.
    answer: Option<Result<Answer, String>>,
}

/// Shows the live view until the key q, Ctrl-C, or a signal to end.
pub fn run(config: &Path, question: Question, rows: Option<u32>, paint: Paint) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::new(exit::OS, error))?;
    let live = Live { config: config.to_owned(), question, rows, paint, answer: None };
    let shown = runtime.block_on(live.run());
    // A request that is not answered yet must not delay the end.
    runtime.shutdown_background();
    written(shown)
}

impl Live {
    async fn run(mut self) -> io::Result<()> {
        let mut ends = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()].map(signal);
        let [Ok(terminate), Ok(hang_up), Ok(interrupt)] = &mut ends else {
            return Err(io::Error::other("signals cannot be caught"));
        };
        let mut resized = signal(SignalKind::window_change())?;
        let screen = Screen::take()?;
        let mut keys = keys();
        let mut ticks = tokio::time::interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked: Option<JoinHandle<Result<Answer, String>>> = None;
        // True if the question has changed since it was asked. There is one request at a time, also while a key repeats.
        let mut has_changed = false;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = hang_up.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                _ = resized.recv() => has_changed = true,
                key = keys.recv() => match key {
                    None | Some(b'q' | b'Q' | CTRL_C) => return Ok(()),
                    Some(key) => {
                        self.press(key);
                        has_changed = true;
                    }
                },
                _ = ticks.tick(), if asked.is_none() => has_changed = true,
                answer = answer(&mut asked) => {
                    asked = None;
                    self.answer = Some(answer);
                }
            }
            if has_changed && asked.is_none() {
                asked = Some(self.ask());
                has_changed = false;
            }
            screen.show(&self.lines())?;
        }
    }

    /// Changes the question as a key says. Other keys only redraw.
    fn press(&mut self, key: u8) {
        let Question::Senders { by, kind } = &mut self.question else { return };
        match key {
            b'r' => *by = SortBy::Recipients,
            b'm' => *by = SortBy::Messages,
            b'f' => *by = SortBy::Refusals,
            b'o' => *by = SortBy::Octets,
            b'u' => *kind = Some(SenderKind::User),
            b'c' => *kind = Some(SenderKind::Client),
            b'a' => *kind = None,
            _ => {}
        }
    }

    /// Asks the running Weir in a thread, so that keys are read meanwhile.
    fn ask(&self) -> JoinHandle<Result<Answer, String>> {
        let (config, question) = (self.config.clone(), self.question.clone());
        let (height, _) = size();
        let room = height.saturating_sub(view::HEAD_LINES + HELP_LINES).max(1);
        let rows =
            self.rows.unwrap_or(u32::MAX).min(room.try_into().unwrap_or(u32::MAX)).min(crate::admin::top::MAX_ROWS);
        tokio::task::spawn_blocking(move || ask(&config, &question, rows).map_err(|why| error(why).words))
    }

    /// Returns the lines of the screen: the answer, and the keys in the last line.
    fn lines(&self) -> Vec<String> {
        let (height, width) = size();
        let text = match &self.answer {
            None => "asking the running Weir…".to_owned(),
            Some(Ok(answer)) => view::text(answer, width, self.paint),
            Some(Err(why)) => crate::cli::table::wrapped(&crate::cli::table::harmless(why), 0, width),
        };
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.resize(height.saturating_sub(HELP_LINES), String::new());
        let help = match self.question {
            Question::Senders { .. } => {
                "q quit   sort: r recipients m messages f refusals o octets   u users c clients a all"
            }
            Question::Limit(_) => "q quit",
        };
        // A screen of 80 columns has no room for the longest help.
        let help = if help.len() > width {
            "q quit  r recipients m messages f refusals o octets  u users c clients a all"
        } else {
            help
        };
        lines.push(self.paint.paint(Tone::Heading, &cut(help, width)));
        lines
    }
}

/// Waits for the answer to a question; waits for ever if there is none.
async fn answer(asked: &mut Option<JoinHandle<Result<Answer, String>>>) -> Result<Answer, String> {
    match asked {
        Some(asked) => asked.await.unwrap_or_else(|error| Err(error.to_string())),
        None => std::future::pending().await,
    }
}

/// Reads keys in a thread, which ends with the process. The channel is closed when the terminal is gone.
fn keys() -> UnboundedReceiver<u8> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        let mut key = [0];
        while matches!(io::stdin().lock().read(&mut key), Ok(1)) && sender.send(key[0]).is_ok() {}
    });
    receiver
}

/// Returns the height and the width of the terminal.
fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => USUAL_SIZE,
    }
}
