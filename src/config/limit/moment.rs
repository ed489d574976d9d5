//! Moment at which a limit is evaluated, and the fields that are known then.

use super::Context;
use crate::config::section::Section;
use crate::policy::limit::Count;
use crate::policy::request::Stage;
use std::ops::Range;

/// The event at which a limit is evaluated. At an early stage some fields are not known yet, such as the sender.
pub struct Moment {
    pub stage: Stage,
    /// The unit that the limit counts; `None` for a limit that watches another limit.
    pub count: Option<Count>,
}

impl Moment {
    /// Reports an error if the field of a key is not known at this stage.
    pub fn check(&self, s: &Section<'_>, span: &Range<usize>, key: &str, is_match: bool, cx: &Context<'_>) {
        cx.check_location(s, span, key);
        if self.knows(key, is_match) {
            return;
        }
        if self.count == Some(Count::BlockedConnections) {
            let message = format!("{key}: of a blocked connection only the client is known, and its location");
            return s.error(span, message, Some("leave it out, or use \"client\", \"country\" or \"asn\""));
        }
        let when = match (self.count, self.stage) {
            (None, stage) => format!("at {}", stage.name()),
            (Some(Count::Commands), _) => "when commands are counted".to_owned(),
            (Some(count), stage) => format!("when {} are counted, at {}", count.name(), stage.name()),
        };
        let message = format!("{key}: {} {when}", self.absence(key));
        s.error_unless(&["stage", "partial"], span, message, Some(self.remedy(key)));
    }

    /// Returns whether the field of a key is known at this stage. In `match`, a key about recipients can also be used
    /// at data and end. There it matches if any recipient of the message matches.
    fn knows(&self, key: &str, is_match: bool) -> bool {
        if self.count == Some(Count::BlockedConnections) {
            let is_of_client = key == "client" || key.starts_with("client/");
            return is_of_client || matches!(key, "country" | "asn" | "destination" | "time" | "exceeded");
        }
        let is_at_message = self.is_at_message();
        match key {
            "helo" | "user" | "user-domain" | "registered-network" | "suspicion" => self.stage > Stage::Connect,
            "group" | "authenticated" => self.stage > Stage::Connect && !self.is_before_password(),
            key if is_of_history(key) => self.stage > Stage::Connect,
            "sender" | "sender-domain" | "own-sender" => self.stage > Stage::Auth,
            "recipient" | "recipient-domain" => self.stage == Stage::Rcpt || is_match && is_at_message,
            "message-recipients" => is_at_message,
            _ => true,
        }
    }

    /// Returns whether the recipients of the message are known.
    pub fn is_at_message(&self) -> bool {
        matches!(self.stage, Stage::Data | Stage::End)
    }

    fn is_before_password(&self) -> bool {
        self.count == Some(Count::LoginFailures) || self.count.is_none() && self.stage == Stage::Auth
    }

    fn absence(&self, key: &str) -> &'static str {
        match key {
            "helo" => "the client has not said EHLO",
            "group" | "authenticated" if self.stage > Stage::Connect => "the password has not been tried",
            "user" | "user-domain" | "group" | "authenticated" | "registered-network" | "suspicion" => {
                "no user has logged in"
            }
            key if is_of_history(key) => "no user has logged in",
            "message-recipients" => "the number of recipients is not known",
            "recipient" | "recipient-domain" if self.is_at_message() => "there is no single recipient",
            "recipient" | "recipient-domain" => "there is no recipient",
            _ => "there is no sender",
        }
    }

    fn remedy(&self, key: &str) -> &'static str {
        let is_of_login =
            matches!(key, "user" | "user-domain" | "group" | "authenticated" | "registered-network" | "suspicion")
                || is_of_history(key);
        match self.count {
            None => "name a later stage, or leave it out",
            Some(Count::Connections) if is_of_login => "count = \"sessions\" counts those of a user, or \"logins\"",
            Some(Count::Sessions) if is_of_login => "stage = \"auth\" counts those with a logged-in user",
            Some(Count::Recipients) => "recipients are known one by one at rcpt: leave stage and partial out",
            _ => "leave it out, or count something else",
        }
    }
}

/// Returns whether a field compares the login with the login history.
pub fn is_of_history(key: &str) -> bool {
    matches!(key, "new-network" | "new-country" | "new-helo")
}
