//! Limits on a client's errors and idle commands. A session that exceeds one of these limits is closed.

/// Counters of one session. An accepted message resets all counters but the counter of wrong passwords.
#[derive(Default)]
pub struct ErrorLimits {
    errors: u32,
    idle_commands: u32,
    refusals: u32,
    wrong_passwords: u32,
}

/// Maximum errors of syntax or order. RCPT and DATA out of order do not count, because they perhaps follow a refused MAIL.
const MAX_ERRORS: u32 = 20;

/// Maximum idle commands since the last accepted message: commands that transfer no message by themselves. RCPT and
/// accepted DATA do not count.
const MAX_IDLE_COMMANDS: u32 = 200;

/// Maximum refusals, most of them of recipients. A mailing can have many recipients that do not exist, but a client
/// that searches for valid addresses has more of them.
const MAX_REFUSALS: u32 = 1000;

/// Maximum refusals of a client whose transaction has accepted recipients, so that it can still send them the message.
const MAX_REFUSALS_WITH_RECIPIENTS: u32 = 10 * MAX_REFUSALS;

/// Maximum wrong passwords on one connection.
const MAX_WRONG_PASSWORDS: u32 = 3;

impl ErrorLimits {
    /// Counts an error of syntax or order.
    pub fn count_error(&mut self) {
        self.errors += 1;
    }

    /// Counts a command that transfers no message by itself.
    pub fn count_idle_command(&mut self) {
        self.idle_commands += 1;
    }

    /// Counts a refusal that is not the client's error.
    pub fn count_refusal(&mut self) {
        self.refusals += 1;
    }

    /// Counts a failed login.
    pub fn count_wrong_password(&mut self) {
        self.wrong_passwords += 1;
    }

    /// Resets all counters but the counter of wrong passwords, after an accepted message.
    pub fn reset(&mut self) {
        *self = Self { wrong_passwords: self.wrong_passwords, ..Self::default() };
    }

    /// Returns whether there were so many refusals that Weir refuses further recipients without asking policy or the
    /// upstream.
    pub fn exceeds_refusals(&self) -> bool {
        self.refusals > MAX_REFUSALS
    }

    /// Returns whether there were so many refusals that the session ends, even if recipients were accepted.
    pub fn exceeds_refusals_with_recipients(&self) -> bool {
        self.refusals > MAX_REFUSALS_WITH_RECIPIENTS
    }

    /// Returns the text of a limit that is exceeded. Does not check the limits on refusals.
    pub fn exceeded(&self) -> Option<&'static str> {
        let counts = [
            (self.errors >= MAX_ERRORS, "Too many errors"),
            (self.wrong_passwords >= MAX_WRONG_PASSWORDS, "Too many wrong passwords"),
            (self.idle_commands > MAX_IDLE_COMMANDS, "Too many commands without a message"),
        ];
        counts.iter().find(|(is_exceeded, _)| *is_exceeded).map(|(_, why)| *why)
    }
}
