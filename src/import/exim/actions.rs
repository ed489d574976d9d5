//! Translation of a statement's verb and modifiers into the actions of a limit.

use super::super::limit::{Budget, Limit, quoted};
use super::acl::Condition;
use super::argument::Update;
use super::conditions::{self, Part};
use super::{RatelimitUse, Verb, texts};
use crate::policy::matching::Field;
use crate::policy::request::Stage;

/// Adds the actions of the statement `one` to the limit.
pub fn act(limit: &mut Limit, one: &RatelimitUse<'_>) {
    let (mut text, mut delay, mut is_after) = ("true".to_owned(), None, false);
    let refusing = one.refusal.into_iter().flat_map(|refusal| conditions::parts(refusal.statement));
    // The `message` of a `warn` statement is a text for the log or for a header, not for a reply.
    let own = conditions::parts(one.statement());
    let own = own.filter(|part| one.refusal.is_none() || !matches!(part, Part::Modifier(one) if one.name == "message"));
    for part in own.chain(refusing) {
        let modifier = match part {
            Part::Ratelimit(_) => {
                is_after = true;
                continue;
            }
            Part::Condition(_) => continue,
            Part::Modifier(modifier) => modifier,
        };
        match &*modifier.name {
            "message" if !matches!(one.verb, Verb::Warn | Verb::Suspend) => {
                match texts::text(&modifier.value, one.verb) {
                    Ok(words) => text = quoted(&words),
                    Err(why) => limit.lose(&modifier.place, why),
                }
            }
            "delay" if one.verb == Verb::Warn && is_after => delay = waiting(limit, modifier),
            // Nothing to do: the value replaces the variable in the conditions that use it, and the statement that
            // refuses because of the variable is followed.
            _ if modifier.name.starts_with("set") && (!is_after || one.refusal.is_some()) => {}
            _ => other(limit, one.verb, modifier),
        }
    }
    match one.verb {
        Verb::Warn => limit.act("warn", "true"),
        Verb::Defer => limit.act("defer", text),
        Verb::Deny => limit.act("deny", text),
        Verb::Drop => limit.act("drop", text),
        Verb::Suspend => suspend(limit, one),
    }
    if let Some(delay) = delay {
        limit.act("delay", quoted(&delay));
    }
    if one.argument.update == Update::Noupdate {
        limit.comment("noupdate makes strict and leaky mean nothing in Exim.");
    }
}

/// Makes the limit suspend the user, client or sender for a day. Exim instead holds the mail until an administrator
/// releases it.
fn suspend(limit: &mut Limit, one: &RatelimitUse<'_>) {
    let is_one = matches!(&limit.budget, Budget::Own { per, .. } if matches!(per[..], [Field::User | Field::Client(_) | Field::Sender | Field::UserDomain]));
    if is_one {
        limit.comment(
            "Exim holds the mail until an administrator has looked at it; Weir suspends for a day: see weir release.",
        );
        return limit.act("suspend", quoted("1d"));
    }
    limit.shadow(&one.statement().place, "only one user, client or sender can be suspended");
    limit.act("warn", "true");
}

/// Returns the delay that Exim imposes on mail that exceeds the limit.
fn waiting(limit: &mut Limit, modifier: &Condition) -> Option<String> {
    match texts::delay(&modifier.value) {
        Ok(_) if limit.stage == Some(Stage::End) => {
            let why = "delay: Weir delays nothing at the end of a message: clients would send the message again";
            limit.lose(&modifier.place, why);
            None
        }
        Ok(time) => Some(time),
        Err(why) => {
            limit.lose(&modifier.place, why);
            None
        }
    }
}

/// Handles a modifier that has no action in Weir: adds a comment if it has no effect on the mail, otherwise records a
/// loss.
fn other(limit: &mut Limit, verb: Verb, modifier: &Condition) {
    let Condition { place, name, value, .. } = modifier;
    match &**name {
        "delay" if verb != Verb::Warn => {
            limit.comment(format!("{place}: Exim waits for {value} before it refuses; Weir refuses at once."));
        }
        _ if verb == Verb::Suspend && modifier.name != "delay" => {}
        "endpass" => {}
        "log_message" | "logwrite" | "log_reject_target" => {
            limit.comment(format!("{name}: Weir's log has its own messages."));
        }
        // These modifiers change how Exim handles the mail.
        "control" | "queue" | "continue" if verb == Verb::Warn => {
            limit.shadow(place, format!("{}: limits have no such action", conditions::short(modifier)));
        }
        _ => limit.lose(place, format!("{}: limits have no such action", conditions::short(modifier))),
    }
}
