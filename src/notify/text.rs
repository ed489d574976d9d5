//! Plain text of notices, for administrators and for users.

use super::notice::{Event, Excess, Notice};
use crate::time::format_duration;
use std::fmt::Write as _;
use std::time::Duration;

/// Subject and text of a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    pub subject: String,
    pub text: String,
}

/// Returns the text of a notice for administrators.
pub fn for_administrator(notice: &Notice) -> Letter {
    let excess = &notice.excess;
    let (who, limit) = (excess.subject(), &excess.limit);
    let subject = match notice.event {
        Event::Begin if excess.is_over => format!("Weir: {who} exceeds the limit {limit}"),
        Event::Begin => format!("Weir: {who} is close to the limit {limit}"),
        Event::End => format!("Weir: {who} is below the limit {limit} again"),
        Event::Test => format!("Weir: test of the notification {}", notice.notify),
    };
    let mut text = match notice.event {
        Event::Begin if excess.is_over => format!("{who} exceeds the limit {limit}.\n\n"),
        Event::Begin => format!("{who} has reached a level of the limit {limit} at which a notice is due.\n\n"),
        Event::End => format!("{who} has been below the limit {limit} for the limit's period.\n\n"),
        Event::Test => format!(
            "This is a test of the notification {}: an administrator has asked for it, and the values below are invented.\n\n",
            notice.notify
        ),
    };
    facts(notice, &mut text);
    if notice.event == Event::Begin {
        let period = Some(&*excess.period).filter(|period| period.starts_with(|c: char| c.is_ascii_digit()));
        let _ = write!(
            text,
            "\nThere is no other notice about this budget until its level has been lower for {}.\n",
            period.map_or_else(|| format_duration(REST), str::to_owned)
        );
        if let [(field, value)] = &excess.owner.iter().collect::<Vec<_>>()[..]
            && is_plain(value)
        {
            let _ = write!(
                text,
                "\nThe command \"weir show {field}={value}\" shows all budgets, \"weir suspend\" stops the mail.\n"
            );
        }
    }
    Letter { subject, text }
}

/// Returns whether a value can stand in a command: an administrator perhaps copies the command into a shell, and clients
/// choose senders, recipients and EHLO names.
fn is_plain(value: &str) -> bool {
    !value.starts_with('-') && value.chars().all(|c| c.is_ascii_alphanumeric() || "@._-+/:".contains(c))
}

/// Time after which an episode of a limit without a period has ended.
pub const REST: Duration = Duration::from_secs(3600);

/// Appends the values of a notice, one in each line.
fn facts(notice: &Notice, text: &mut String) {
    let Excess { counted, quota, mode, user, client, network, country, asn, session, times, since, .. } =
        &notice.excess;
    let place: Vec<String> = [
        network.as_ref().map(|network| format!("network {network}")),
        country.as_ref().map(|c| c.to_uppercase()),
        asn.clone(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let client = client.map(|client| format!("{client} ({})", place.join(", ")));
    let lines = [
        ("Counted", Some(counted.clone())),
        ("Allowed", Some(quota.clone())),
        ("Mode", Some(mode.clone())),
        ("User", user.clone()),
        ("Client", client),
        ("Session", session.clone()),
        ("Since", since.map(|since| since.rfc3339())),
        ("Events", times.map(|times| format!("{times} reached the level of the notice"))),
        ("Time", Some(notice.time.rfc3339())),
        ("Server", Some(notice.host.clone())),
        ("Notice", Some(notice.id.clone())),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:8} {value}");
        }
    }
}

/// Returns the text of a notice for the user who is concerned.
pub fn for_user(notice: &Notice, contact: &str, help_url: Option<&str>) -> Letter {
    let Excess { counted, quota, network, country, is_over, .. } = &notice.excess;
    let account = notice.excess.login().unwrap_or("(unknown)");
    let host = &notice.host;
    let from = network.as_ref().map(|network| match country {
        Some(country) => format!("{network} ({})", country.to_uppercase()),
        None => network.clone(),
    });
    let from = from.map_or_else(String::new, |network| format!(" from the network {network}"));
    let contact = match help_url {
        Some(url) => format!("{contact}, or see {url}"),
        None => contact.to_owned(),
    };
    let test = if notice.event == Event::Test { "This is a test, the values are invented.\n\n" } else { "" };
    if notice.event == Event::End {
        let subject = format!("Your account {account} is below its limit again");
        let text = format!("Your account {account} at {host} is below its limit again.\n\nQuestions: {contact}\n");
        return Letter { subject, text };
    }
    let does = if *is_over { "exceeds its limit" } else { "is close to its limit" };
    let subject = format!("Your account {account} {does}: was it you?");
    let text = format!(
        "{test}Your account {account} {does} at {host}.\n\nCounted: {counted}\nAllowed: {quota}\n\n\
         The last event came{from} at {}. Was it you?\n\n\
         If it was not you, another person perhaps knows your password. Change the password now, and tell us: {contact}\n\n\
         If it was you, there is nothing to do: the server accepts more when some time has passed. \
         If you need a higher limit, ask: {contact}\n",
        notice.time.rfc3339()
    );
    Letter { subject, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;
    use std::collections::BTreeMap;

    fn notice(event: Event, field: &str, value: &str) -> Notice {
        let notice = Notice::test("weir.example", "ops", "alice@example.org", Timestamp::from_micros(0));
        let owner = BTreeMap::from([(field.to_owned(), value.to_owned())]);
        Notice { event, excess: Excess { owner, ..notice.excess }, ..notice }
    }

    #[test]
    fn the_text_names_a_command_only_with_a_value_that_no_shell_interprets() {
        let text = |value| for_administrator(&notice(Event::Begin, "sender", value)).text;
        assert!(text("bob+x@example.org").contains("weir show sender=bob+x@example.org"));
        for hostile in
            ["\"$(reboot)\"@example.org", "a;b@example.org", "`id`@example.org", "-rf", "b\u{fc}@example.org"]
        {
            assert!(!text(hostile).contains("weir show"), "{hostile}");
        }
    }

    #[test]
    fn the_user_reads_the_numbers_the_network_and_the_contact() {
        let letter =
            for_user(&notice(Event::Begin, "user", "alice@example.org"), "help@example.org", Some("https://h.example"));
        assert_eq!(letter.subject, "Your account alice@example.org exceeds its limit: was it you?");
        for words in [
            "101 recipients",
            "100 recipients per 5 minutes",
            "203.0.113.0/24",
            "help@example.org, or see https://h.example",
        ] {
            assert!(letter.text.contains(words), "{words} in {}", letter.text);
        }
        assert!(!letter.text.contains("test"));
        let close = notice(Event::Begin, "user", "alice@example.org");
        let close = Notice { excess: Excess { is_over: false, ..close.excess }, ..close };
        assert!(for_user(&close, "help@example.org", None).subject.contains("is close to its limit"));
    }
}
