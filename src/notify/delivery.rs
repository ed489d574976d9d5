//! One attempt to deliver a notice to a target.

use super::notice::{Event, Notice};
use super::options::{NotificationOptions, Options};
use super::spool::{Extent, Kind};
use super::text::{self, Letter};
use super::{command, mail, webhook};
use crate::time::Timestamp;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time of one attempt to send a mail: the further mails of the notification wait for it. A client of Weir waits
/// longer for an upstream, because a client that gives up after the final dot sends its message twice. A notice that
/// arrives twice has the same Message-ID.
const MAIL_TIMEOUT: Duration = Duration::from_secs(120);

/// Mail to be sent with the null sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMail {
    pub to: String,
    /// Message, with CRLF at the end of each line, and without lines that begin with a dot.
    pub message: String,
    /// ID of the notice, for the log.
    pub id: Arc<str>,
}

/// Function that sends a mail through the upstreams.
pub type Mailer = Arc<dyn Fn(OutgoingMail) -> Sending + Send + Sync>;

/// Future of the outcome of a mail.
pub type Sending = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Reason why a notice was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub why: String,
    pub extent: Extent,
    /// True if another attempt makes no sense: the upstream has refused the recipient or the message.
    pub is_permanent: bool,
}

impl Failure {
    /// Makes the failure of a target.
    pub fn of_target(why: String) -> Self {
        Self { why, extent: Extent::Target, is_permanent: false }
    }
}

/// Delivers a notice to the target of this kind. `address` is the address of a mail.
pub async fn deliver(
    options: &Options,
    mailer: &Mailer,
    notice: &Notice,
    (kind, address): (Kind, &str),
    now: Timestamp,
) -> Result<(), Failure> {
    let removed = || Failure { is_permanent: true, ..Failure::of_target("the target was removed".to_owned()) };
    let of_name = options.notifications.get(notice.notify.as_str()).ok_or_else(removed)?;
    let outcome = match kind {
        Kind::Webhook => {
            let webhook = of_name.webhook.as_ref().ok_or_else(removed)?;
            webhook::post(webhook, &notice.id, &document(of_name, notice), now.whole_seconds()).await
        }
        Kind::Command => {
            let command = of_name.command.as_ref().ok_or_else(removed)?;
            command::run(command, &notice.id, &(document(of_name, notice) + "\n")).await
        }
        Kind::Mail | Kind::User => {
            let letter = match kind {
                Kind::User => user_letter(options, of_name, notice),
                _ => administrator_letter(of_name, notice),
            };
            let (from, id) = (&*of_name.from, &*notice.id);
            let headers = mail::Headers { from, to: address, id, host: &options.hostname, time: notice.time };
            let message = mail::message(&headers, &letter);
            return within(MAIL_TIMEOUT, mailer(OutgoingMail { to: address.to_owned(), message, id: id.into() })).await;
        }
    };
    outcome.map_err(Failure::of_target)
}

/// Waits for the outcome of a mail, for at most this time. The connection to the upstream is closed afterwards.
async fn within(time: Duration, sending: Sending) -> Result<(), Failure> {
    let late = || Err(Failure::of_target(format!("no answer of the upstream within {} s", time.as_secs())));
    tokio::time::timeout(time, sending).await.unwrap_or_else(|_| late())
}

/// Returns the JSON document for webhooks and commands, with the text for administrators.
fn document(options: &NotificationOptions, notice: &Notice) -> String {
    let text = administrator_letter(options, notice).text;
    Notice { text, ..notice.clone() }.stored()
}

fn administrator_letter(options: &NotificationOptions, notice: &Notice) -> Letter {
    match &options.template {
        Some(template) if notice.event != Event::End => template.fill(notice),
        _ => text::for_administrator(notice),
    }
}

fn user_letter(options: &Options, of_name: &NotificationOptions, notice: &Notice) -> Letter {
    match &of_name.user_template {
        Some(template) if notice.event != Event::End => template.fill(notice),
        _ => {
            let contact = options.contact.as_deref().unwrap_or(&of_name.from);
            text::for_user(notice, contact, options.help_url.as_deref())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_upstream_that_never_answers_makes_the_attempt_fail_for_now() {
        let failure = within(Duration::from_millis(10), Box::pin(std::future::pending())).await.unwrap_err();
        assert_eq!((failure.extent, failure.is_permanent), (Extent::Target, false));
        assert!(failure.why.contains("no answer of the upstream"), "{}", failure.why);
        assert_eq!(within(Duration::from_secs(10), Box::pin(async { Ok(()) })).await, Ok(()));
    }
}
