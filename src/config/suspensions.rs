//! `[suspensions]`: rules for suspended users, clients, senders and domains.

use super::limit::{Context, recipient_tables};
use super::section::{Placed, Section};
use super::values::{flag, text};
use crate::policy::exception::{AllowedRecipients, SuspensionRules};
use std::sync::Arc;

/// Maximum length of the contact in characters, so that it fits in a line of a reply.
const MAX_CONTACT: usize = 200;

/// Reads `[suspensions]`. `has_users_file`: `[accounts]` names a users file, which alone shows new passwords.
pub fn read(mut s: Section<'_>, has_users_file: bool, cx: &mut Context<'_>) -> SuspensionRules {
    let allowed = s.list("allow-recipients", Some("[]"), "", |pattern| match pattern {
        "*" => Err("\"*\" would allow all recipients, and the suspension would refuse nothing".to_owned()),
        pattern => Ok(pattern.to_owned()),
    });
    let allowed = allowed.map_or_else(AllowedRecipients::default, |Placed { value: patterns, span }| {
        let tables = recipient_tables(&s, "allow-recipients", &patterns, &span, cx);
        AllowedRecipients::new(tables, patterns)
    });
    let contact = s.optional("contact", |value| contact(&text(value)?)).map(|contact| contact.value);
    let ends = s.placed("end-on-new-password", "false", flag);
    if ends.value && !has_users_file {
        let help = "name the users file in [accounts], or leave end-on-new-password out";
        let message = "end-on-new-password needs a users file: other sources of accounts do not report new passwords";
        s.source().error_unless(&["accounts"], &ends.span, message, Some(help));
    }
    s.finish();
    SuspensionRules { allowed, contact, ends_on_new_password: ends.value }
}

/// Checks the contact, which becomes a part of replies.
fn contact(text: &str) -> Result<Arc<str>, String> {
    match text.trim() {
        "" => Err("it is empty".to_owned()),
        text if !text.bytes().all(|b| (b' '..=b'~').contains(&b)) => {
            Err("a reply has one line of printable ASCII for it".to_owned())
        }
        text if text.len() > MAX_CONTACT => Err(format!("a reply has room for {MAX_CONTACT} characters of it")),
        text => Ok(text.into()),
    }
}
