//! Test of a notification: one test notice to each of its targets.

use super::delivery::{Mailer, deliver};
use super::notice::Notice;
use super::notifier::targets;
use super::options::Options;
use super::spool::Kind;
use crate::time::Timestamp;

/// Sends a test notice about `user` to each target of a notification. Returns the outcome of each target; `None` if
/// there is no notification of this name.
pub async fn test(
    options: &Options,
    mailer: &Mailer,
    name: &str,
    user: &str,
    now: Timestamp,
) -> Option<Vec<(String, Result<(), String>)>> {
    let of_name = options.notifications.get(name)?;
    let notice = Notice::test(&options.hostname, name, user, now);
    let (targets, skipped) = targets(of_name, &notice);
    let mut outcomes = Vec::new();
    for target in targets {
        let Some(kind) = Kind::of_target(&target) else { continue };
        let outcome = deliver(options, mailer, &notice, kind, now).await;
        outcomes.push((target.clone(), outcome.map_err(|failure| failure.why)));
    }
    if skipped {
        outcomes.push((Kind::User.name().to_owned(), Err(format!("the mail address of \"{user}\" is not known"))));
    }
    Some(outcomes)
}
