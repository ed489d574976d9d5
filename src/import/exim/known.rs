//! Knowledge of fields: the fields that are known at the stage at which a limit is evaluated. A field that is not known
//! yet can be neither in `per` nor in a condition.

use super::super::limit::{Budget, Condition, Limit};
use super::RatelimitUse;
use super::counting::Counted;
use super::event::Event;
use crate::policy::limit::Count;
use crate::policy::matching::Field;
use crate::policy::request::Stage;

/// Returns an error if a field in `per` is not known yet at the stage at which the limit charges.
pub fn check_owner(counted: &Counted, per: &[Field], event: Event) -> Result<(), String> {
    let (name, stage) = (counted.count.name(), charging(counted.count, counted.stage));
    match per.iter().find(|field| !is_known(**field, stage)) {
        Some(field) => Err(format!("{name} per {} cannot be counted at {}", field.name(), event.name())),
        None => Ok(()),
    }
}

/// Returns the stage at which a limit with this count charges.
pub fn charging(count: Count, stage: Option<Stage>) -> Stage {
    match count {
        Count::Connections => Stage::Connect,
        Count::Sessions | Count::LoginFailures => Stage::Auth,
        Count::Recipients => stage.unwrap_or(Stage::Rcpt),
        count if count.is_of_past_events() => Stage::Rcpt,
        _ => stage.unwrap_or(Stage::Data),
    }
}

/// Returns whether a field is known at this stage.
pub fn is_known(field: Field, stage: Stage) -> bool {
    match field {
        Field::Listener | Field::Client(_) | Field::Country | Field::Asn | Field::Destination => true,
        Field::Helo | Field::User | Field::UserDomain => stage > Stage::Connect,
        Field::Sender | Field::SenderDomain => stage > Stage::Auth,
        Field::Recipient | Field::RecipientDomain => stage == Stage::Rcpt,
    }
}

/// Removes conditions on fields that are not known yet, and puts the limit in shadow mode. At the connect stage,
/// exceptions for logged-in users are removed without shadow mode, because no user has logged in yet.
pub fn leave_unknown_out(limit: &mut Limit, one: &RatelimitUse<'_>) {
    let (count, stage) = match &limit.budget {
        Budget::Own { count, .. } => (Some(*count), charging(*count, limit.stage)),
        Budget::Watched(_) => (None, limit.stage.unwrap_or(Stage::Mail)),
    };
    let is_of_recipient = |condition: &Condition| condition.key.starts_with("recipient");
    if count == Some(Count::Messages)
        && stage == Stage::Rcpt
        && limit.matches.iter().chain(limit.except.iter().flatten()).any(is_of_recipient)
    {
        limit.stage = None;
        limit.comment("Exim counts a message at its first recipient; Weir at DATA, as the limit is about recipients.");
    }
    let is_unknown = |condition: &Condition| !is_key_known(condition.key, count, stage);
    if stage == Stage::Connect {
        limit.except.retain(|table| !table.iter().any(|condition| condition.key == "authenticated"));
    }
    let before = limit.matches.len() + limit.except.len();
    let all = limit.matches.iter().chain(limit.except.iter().flatten());
    let unknown: Vec<&str> = all.filter(|condition| is_unknown(condition)).map(|condition| condition.key).collect();
    let words = format!("{} not known when the limit is evaluated", unknown.join(", "));
    limit.matches.retain(|condition| !is_unknown(condition));
    limit.except.retain(|table| !table.iter().any(is_unknown));
    if before != limit.matches.len() + limit.except.len() {
        limit.shadow(&one.statement().place, words);
    }
}

/// Returns whether the field of a key of `match` is known at this stage.
fn is_key_known(key: &str, count: Option<Count>, stage: Stage) -> bool {
    match key {
        "authenticated" => stage > Stage::Connect && count != Some(Count::LoginFailures),
        "helo" | "user" | "user-domain" => stage > Stage::Connect,
        "sender" | "sender-domain" => stage > Stage::Auth,
        "recipient" | "recipient-domain" => stage >= Stage::Rcpt,
        "message-recipients" => stage >= Stage::Data,
        _ => true,
    }
}
