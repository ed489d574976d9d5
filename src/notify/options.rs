//! Options of notifications: the targets of each, and how long Weir tries to deliver.

use super::template::Template;
use crate::smtp::envelope::Rcpt;
use hyper::Uri;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// All notifications.
#[derive(Clone, Debug)]
pub struct Options {
    /// Weir's host name, which notices name as their origin.
    pub hostname: Arc<str>,
    /// Person or place that helps suspended users, of `[suspensions]`.
    pub contact: Option<Arc<str>>,
    /// Help page for users.
    pub help_url: Option<Arc<str>>,
    pub notifications: BTreeMap<Arc<str>, NotificationOptions>,
}

/// Options of one notification.
#[derive(Clone, Debug, PartialEq)]
pub struct NotificationOptions {
    pub webhook: Option<Webhook>,
    pub mail: Vec<MailTarget>,
    pub command: Option<Command>,
    /// Address in the header From of mails.
    pub from: String,
    /// Mail address of a user whose login is no address: `{user}` stands for the login.
    pub user_address: Option<String>,
    /// Template of the text for administrators.
    pub template: Option<Arc<Template>>,
    /// Template of the text for users.
    pub user_template: Option<Arc<Template>>,
    /// True if the end of an episode is a notice, too.
    pub at_end: bool,
    /// Time for which a delivery is tried.
    pub retry_for: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    /// URL with the scheme `http` or `https` and a host.
    pub url: Uri,
    /// File whose first line is the secret of the signatures; `None`: requests have no signature.
    pub secret_file: Option<PathBuf>,
}

/// Recipient of mails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MailTarget {
    Address(String),
    /// The user who is concerned.
    User,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Absolute path of the program.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub timeout: Duration,
}

/// Word in the list `mail` that stands for the user who is concerned.
pub const USER: &str = "user";

/// Placeholder of the login in `user-address`.
pub const LOGIN: &str = "{user}";

impl NotificationOptions {
    /// Returns whether the notification has any target besides the log.
    pub fn has_targets(&self) -> bool {
        self.webhook.is_some() || self.command.is_some() || !self.mail.is_empty()
    }

    /// Returns the mail address of a user: the login, if it is an address, otherwise the address that `user-address`
    /// gives. Returns `None` if neither is an address.
    pub fn address_of(&self, login: &str) -> Option<String> {
        let given = self.user_address.as_ref().map(|rule| rule.replace(LOGIN, login));
        [Some(login.to_owned()), given].into_iter().flatten().find(|address| is_mail_address(address))
    }
}

/// Returns whether a text is a mail address to which Weir can write: in ASCII, with a domain.
pub fn is_mail_address(text: &str) -> bool {
    text.is_ascii() && text.contains('@') && Rcpt::parse(&format!("TO:<{text}>")).is_ok()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns options without targets.
    pub fn plain() -> NotificationOptions {
        NotificationOptions {
            webhook: None,
            mail: Vec::new(),
            command: None,
            from: "postmaster@weir.example".to_owned(),
            user_address: None,
            template: None,
            user_template: None,
            at_end: false,
            retry_for: Duration::from_secs(86_400),
        }
    }

    #[test]
    fn a_user_has_the_address_of_the_login_or_of_the_rule() {
        let rule = NotificationOptions { user_address: Some("{user}@example.org".to_owned()), ..plain() };
        assert_eq!(plain().address_of("alice@example.net").as_deref(), Some("alice@example.net"));
        assert_eq!(plain().address_of("alice"), None);
        assert_eq!(rule.address_of("alice").as_deref(), Some("alice@example.org"));
        assert_eq!(rule.address_of("alice@example.net").as_deref(), Some("alice@example.net"));
        for hostile in ["a\r\nBcc: x@example.net", "a b", "a>,<b", "", "@", "b\u{fc}cher"] {
            assert_eq!(rule.address_of(hostile), None, "{hostile:?}");
        }
    }
}
