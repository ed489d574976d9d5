//! How much a client may do wrong, or in vain, before it is sent away.

/// What a session has seen of that. Whoever gets a message through begins anew, but for wrong passwords.
#[derive(Default)]
pub struct ErrorLimits {
    errors: u32,
    idle_commands: u32,
    refusals: u32,
    wrong_passwords: u32,
}

/// After so many errors of syntax or order a client is only costing time.
const MAX_ERRORS: u32 = 20;

/// So are commands, but RCPT and DATA, that lead to no message.
const MAX_IDLE_COMMANDS: u32 = 200;

/// Recipients refused, mostly: a mailing may have many that do not exist, and a harvester of addresses has more.
const MAX_REFUSALS: u32 = 1000;

/// So many are refused to nobody who still means to send the message to those that were accepted.
const MAX_REFUSALS_OF_ANYBODY: u32 = 10 * MAX_REFUSALS;

/// Passwords tried on one connection.
const MAX_WRONG_PASSWORDS: u32 = 3;

impl ErrorLimits {
    /// An error of syntax or order.
    pub fn count_error(&mut self) {
        self.errors += 1;
    }

    /// A command that leads to no message by itself.
    pub fn count_idle_command(&mut self) {
        self.idle_commands += 1;
    }

    /// A refusal by policy or the upstream.
    pub fn count_refusal(&mut self) {
        self.refusals += 1;
    }

    /// A login that failed.
    pub fn count_wrong_password(&mut self) {
        self.wrong_passwords += 1;
    }

    /// A message got through: a client worth keeping.
    pub fn renew(&mut self) {
        *self = Self { wrong_passwords: self.wrong_passwords, ..Self::default() };
    }

    /// So much has been refused that nothing more should be asked.
    pub fn is_tired_of_refusals(&self) -> bool {
        self.refusals > MAX_REFUSALS
    }

    /// So much has been refused that the session ends even where recipients were accepted.
    pub fn is_out_of_refusals(&self) -> bool {
        self.refusals > MAX_REFUSALS_OF_ANYBODY
    }

    /// What there has been too much of, but for refusals.
    pub fn exhausted_by(&self) -> Option<&'static str> {
        let counts = [
            (self.errors >= MAX_ERRORS, "Too many errors"),
            (self.wrong_passwords >= MAX_WRONG_PASSWORDS, "Too many wrong passwords"),
            (self.idle_commands > MAX_IDLE_COMMANDS, "Too many commands without a message"),
        ];
        counts.iter().find(|(is_exhausted, _)| *is_exhausted).map(|(_, why)| *why)
    }
}
