//! SASL exchanges other than PLAIN and LOGIN (RFC 4954 §4): the session passes the messages between the client and the
//! accounts, which know the mechanism. `auth.rs` does that with the values of this file.

use crate::policy::budgets::RefundableCharge;
use crate::smtp::mechanism::Mechanism;
use crate::smtp::sasl::{Credentials, Response};

/// A client's attempt to log in.
pub enum Attempt {
    /// PLAIN or LOGIN: are these credentials right?
    Password(Credentials),
    /// A step of another mechanism: how does the exchange continue after this message? There is no message if the
    /// accounts begin the exchange.
    Message(Exchange, Option<Response>),
}

/// An exchange in progress.
pub struct Exchange {
    mechanism: Mechanism,
    /// The user that the client claims to be, if its first message names a user.
    user: Option<String>,
    /// Number of challenges that the accounts have sent.
    challenges: u32,
    /// True if policy has permitted the login, so that messages of the client go to the accounts.
    is_admitted: bool,
    /// Charges that are refunded unless the login is wrong, or the client breaks off the exchange.
    charges: Vec<RefundableCharge>,
}

/// Maximum challenges of one exchange. The mechanisms in use need up to four.
const MAX_CHALLENGES: u32 = 10;

impl Attempt {
    /// Returns the user that the client claims to be, if known.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Password(credentials) => Some(&credentials.user),
            Self::Message(exchange, _) => exchange.user(),
        }
    }
}

impl Exchange {
    pub(super) fn new(mechanism: Mechanism) -> Self {
        Self { mechanism, user: None, challenges: 0, is_admitted: false, charges: Vec::new() }
    }

    /// Returns the user that the client claims to be, if known.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub fn mechanism(&self) -> &Mechanism {
        &self.mechanism
    }

    /// Returns whether the accounts have seen nothing of this exchange yet.
    pub fn is_new(&self) -> bool {
        self.challenges == 0
    }

    /// Returns whether a response of the client has gone to the accounts. If the exchange ends then, it is a failed
    /// login: the client has perhaps learned from a challenge that its login is wrong.
    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Sets the user that the first message names. Call this before policy is asked.
    pub(super) fn admit(mut self, user: Option<String>) -> Self {
        (self.user, self.is_admitted) = (user, true);
        self
    }

    /// Removes and returns the charges of the login.
    pub(super) fn take_charges(&mut self) -> Vec<RefundableCharge> {
        std::mem::take(&mut self.charges)
    }

    /// Counts a challenge of the accounts, and keeps the `charges` of the login. Returns `None` if there were too many
    /// challenges.
    pub(super) fn challenged(mut self, charges: Vec<RefundableCharge>) -> Option<Self> {
        self.challenges += 1;
        self.charges = charges;
        (self.challenges <= MAX_CHALLENGES).then_some(self)
    }
}
