//! Notifications: notices of exceeded limits, to webhooks, commands and mail addresses.
//!
//! Sessions give events to the [`Notifier`]. It makes one notice for each [`episode`], and one delivery of this notice
//! for each target, which waits in the [`spool`]. The [`deliverer`] delivers, and tries again after failures. The
//! [`store`](crate::store) keeps deliveries and episodes in the state file, so that a restart loses neither. A
//! [`notice`] is a JSON document for [`webhook`]s and [`command`]s, and a [`text`] or [`template`] for a [`mail`].

mod amounts;
mod command;
mod deliverer;
mod delivery;
mod episode;
mod mail;
mod notice;
mod notifier;
mod options;
mod spool;
mod template;
mod test;
mod text;
mod webhook;

pub use deliverer::{Reader, Reading};
pub use delivery::{Failure, Mailer, OutgoingMail, Sending};
pub use notice::Session;
pub use notifier::Notifier;
pub use options::{Command, LOGIN, MailTarget, NotificationOptions, Options, USER, Webhook, is_mail_address};
pub use spool::{Extent, Failing, Kind};
pub use template::{BadTemplate, Template};
pub use test::test;
pub use webhook::read_secret;
