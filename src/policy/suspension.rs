//! Suspensions: which mail of a suspended owner still passes, what the owner is told, and what ends the suspension.

use super::address::AddressNormalizer;
use super::budgets::Owner;
use super::matching::PatternTable;
use super::memory::KnownTo;
use super::request::Event;
use super::term::Term;
use crate::time::Timestamp;
use std::fmt;
use std::sync::Arc;

/// Suspension: refuses the mail of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// One user, user-domain, client or sender.
    pub owner: Owner,
    pub term: Term,
    /// True if all mail is refused, also to the recipients that `[suspensions]` allows.
    pub is_strict: bool,
    /// Memory whose recipients the owner may still write to: the suspension is a lock. `None`: the suspension refuses
    /// mail to all recipients that `[suspensions]` does not allow.
    pub known_to: Option<KnownTo>,
    pub new_password: NewPassword,
}

/// Effect of a new password of the suspended user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewPassword {
    /// The suspension stays in force.
    Keeps,
    /// The suspension ends. The fingerprint is that of the password at the beginning of the suspension; `None` until
    /// the users file has been asked.
    Ends(Option<PasswordFingerprint>),
}

/// Short digest of a stored password hash, by which a later change is found. It has 16 bits only: if another person
/// reads the state file, so short a digest confirms no guess at a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PasswordFingerprint(pub u16);

impl fmt::Display for PasswordFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)
    }
}

impl PasswordFingerprint {
    /// Parses the displayed form: four hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digits = text.len() == 4 && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_digits.then(|| u16::from_str_radix(text, 16).ok().map(Self))?
    }
}

/// `[suspensions]`: rules for all suspensions.
#[derive(Clone, Debug, Default)]
pub struct SuspensionRules {
    /// Recipients to which suspended owners may write, unless the suspension is strict.
    pub allowed: AllowedRecipients,
    /// Person or place that helps suspended users, as the reply names it.
    pub contact: Option<Arc<str>>,
    /// Whether a suspension of a user ends when the user has a new password.
    pub ends_on_new_password: bool,
}

/// Recipients to which suspended owners may write.
#[derive(Clone, Debug, Default)]
pub struct AllowedRecipients {
    tables: Vec<Arc<PatternTable<()>>>,
    /// Patterns as in the configuration.
    patterns: Arc<[Box<str>]>,
}

impl Suspension {
    /// Creates a suspension that allows no mail, and that no new password ends.
    pub fn strict(owner: Owner, term: Term) -> Self {
        Self { owner, term, is_strict: true, known_to: None, new_password: NewPassword::Keeps }
    }

    /// Returns whether the suspension is a lock, which refuses only mail to strangers.
    pub fn is_lock(&self) -> bool {
        self.known_to.is_some()
    }

    /// Returns the strength of the suspension: a strict one is stronger than others, a lock is weaker than others, and
    /// of equal ones that which ends last is the strongest.
    pub fn rank(&self) -> (bool, bool, Timestamp) {
        (self.is_strict, !self.is_lock(), self.term.until)
    }

    /// Returns whether the owner is a single user, whose password may end the suspension.
    pub fn is_of_user(&self) -> bool {
        self.user().is_some()
    }

    /// Returns the normalized name of the suspended user; `None` if the owner is not a single user.
    pub fn user(&self) -> Option<&str> {
        let mut parts = self.owner.parts();
        match (parts.next(), parts.next()) {
            (Some(("user", name)), None) => Some(name),
            _ => None,
        }
    }

    /// Returns the suspension that results when a limit begins this one while `former`, of the same owner, is in force.
    /// Returns `None` if `former` stays as it is: it ends at the same time or later, or this is only a lock. A lock does
    /// not prolong a suspension of all mail; it begins at the next refusal after the suspension has ended.
    pub fn following(&self, former: &Self) -> Option<Self> {
        let is_kept = match (former.is_lock(), self.is_lock()) {
            (true, false) => false,
            (false, true) => true,
            _ => former.term.until >= self.term.until,
        };
        (!is_kept).then(|| self.extending(former))
    }

    /// Returns this suspension as the extension of a former one of the same owner. It began with the former one, and
    /// allows and ends no more than the former one, so that no client gets around an administrator's suspension.
    fn extending(&self, former: &Self) -> Self {
        let new_password = match (former.new_password, self.new_password) {
            (NewPassword::Keeps, _) | (_, NewPassword::Keeps) => NewPassword::Keeps,
            (NewPassword::Ends(None), own) => own,
            (former @ NewPassword::Ends(Some(_)), _) => former,
        };
        let until = self.term.until.max(former.term.until);
        let term = Term { since: former.term.since, until, ..self.term.clone() };
        let known_to = self.known_to.filter(|_| former.is_lock());
        Self { owner: self.owner.clone(), term, is_strict: self.is_strict || former.is_strict, known_to, new_password }
    }

    /// Returns whether a new password of the user ends this suspension.
    pub fn ends_on_new_password(&self) -> bool {
        self.new_password != NewPassword::Keeps
    }
}

impl SuspensionRules {
    /// Returns a lock of an owner, which lets mail pass to recipients that the memory knows.
    pub fn lock(&self, owner: Owner, term: Term, known_to: KnownTo) -> Suspension {
        Suspension { known_to: Some(known_to), ..self.suspension(owner, term, false, false) }
    }

    /// Returns a suspension of an owner, as `[suspensions]` says. A strict suspension refuses all mail. A suspension that
    /// is strict, or that the administrator keeps (`is_kept`), does not end when the user gets a new password.
    pub fn suspension(&self, owner: Owner, term: Term, is_strict: bool, is_kept: bool) -> Suspension {
        let suspension = Suspension { is_strict, ..Suspension::strict(owner, term) };
        match self.ends_on_new_password && !is_strict && !is_kept && suspension.is_of_user() {
            true => Suspension { new_password: NewPassword::Ends(None), ..suspension },
            false => suspension,
        }
    }

    /// Returns whether a suspension lets this event of a transaction pass. `recipients` are the accepted recipients of
    /// the message, which count at DATA and at the end of the message.
    pub(super) fn allow(
        &self,
        suspension: &Suspension,
        event: &Event,
        recipients: &[Arc<str>],
        normalizer: &AddressNormalizer,
    ) -> bool {
        if suspension.is_strict || self.allowed.is_empty() {
            return false;
        }
        let is_allowed = |recipient: &Arc<str>| self.allowed.contains(&normalizer.address(recipient));
        match event {
            Event::Recipient(recipient) => is_allowed(recipient),
            // Recipients that were accepted before the suspension began are perhaps not allowed now.
            Event::Message | Event::End { .. } => recipients.iter().all(is_allowed),
            _ => true,
        }
    }
}

impl AllowedRecipients {
    /// `tables` are the compiled `patterns`.
    pub fn new(tables: Vec<Arc<PatternTable<()>>>, patterns: impl IntoIterator<Item = String>) -> Self {
        Self { tables, patterns: patterns.into_iter().map(String::into_boxed_str).collect() }
    }

    /// Returns whether suspended owners may write to this normalized address.
    pub fn contains(&self, address: &str) -> bool {
        self.tables.iter().any(|table| table.find(address).is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Returns the patterns as in the configuration.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.patterns.iter().map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_parsed_as_it_is_displayed() {
        for number in [0, 0xa, 0xbeef, u16::MAX] {
            let fingerprint = PasswordFingerprint(number);
            assert_eq!(PasswordFingerprint::parse(&fingerprint.to_string()), Some(fingerprint));
        }
        for text in ["", "123", "12345", "+123", "wxyz"] {
            assert_eq!(PasswordFingerprint::parse(text), None, "{text}");
        }
    }
}
