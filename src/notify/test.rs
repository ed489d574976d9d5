//! Test of a notification: one test notice to each of its targets.

use super::delivery::{Mailer, deliver};
use super::notice::Notice;
use super::notifier::targets;
use super::options::{MailTarget, NotificationOptions, Options};
use super::spool::Kind;
use crate::time::Timestamp;

/// User in a test notice that no user gets.
const NOBODY: &str = "test";

/// Sends a test notice about `user` to each target of a notification, one after the other. Without a user, the target
/// `user` gets nothing. Returns the outcome of each target; `None` if there is no notification of this name.
pub async fn test(
    options: &Options,
    mailer: &Mailer,
    name: &str,
    user: Option<&str>,
    now: Timestamp,
) -> Option<Vec<(String, Result<(), String>)>> {
    let of_name = options.notifications.get(name)?;
    let notice = Notice::test(&options.hostname, name, user.unwrap_or(NOBODY), now);
    let addresses = of_name.mail.iter().filter(|target| user.is_some() || **target != MailTarget::User).cloned();
    let tested = NotificationOptions { mail: addresses.collect(), ..of_name.clone() };
    let (targets, is_skipped) = targets(&tested, &notice);
    let mut outcomes = Vec::new();
    for target in targets {
        let Some(kind) = Kind::of_target(&target) else { continue };
        let outcome = deliver(options, mailer, &notice, kind, now).await;
        outcomes.push((target.clone(), outcome.map_err(|failure| failure.why)));
    }
    let why = match user {
        None if tested.mail.len() < of_name.mail.len() => Some("not tested: name a user with --user".to_owned()),
        Some(user) if is_skipped => {
            Some(format!("the mail address of \"{user}\" is not known: user-address gives one"))
        }
        _ => None,
    };
    outcomes.extend(why.map(|why| (Kind::User.name().to_owned(), Err(why))));
    Some(outcomes)
}
