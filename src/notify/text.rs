//! Plain text of notices, for administrators and for users.

use super::notice::{Event, Excess, Notice};
use crate::policy::exception::UNTIL_RELEASED;
use crate::policy::limit::plain_period;
use crate::time::{format_duration, parse_duration};
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
        Event::End => format!("{who} is below the limit {limit} again.\n\n"),
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
            "\nThere is no other notice about this budget until its level has been lower for {}, or until it is reset.\n",
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
    let Excess { counted, quota, mode, user, client, network, country, asn, session, suspicion, times, since, .. } =
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
        ("Score", suspicion.clone()),
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

/// Returns the text of a notice for the user who is concerned, who perhaps knows nothing about mail servers.
pub fn for_user(notice: &Notice, contact: &str, help_url: Option<&str>) -> Letter {
    let excess = &notice.excess;
    let (account, host) = (excess.login().unwrap_or("(unknown)"), &notice.host);
    let contact = match help_url {
        Some(url) => format!("{contact}, or see {url}"),
        None => contact.to_owned(),
    };
    // A budget of several users, such as that of a client, is not the account's own.
    let (owner, its) = match excess.owner.contains_key("user") {
        true => (format!("Your account {account}"), "its limit"),
        false => (format!("Your account {account}, or other mail that counts with its mail,"), "a limit"),
    };
    if notice.event == Event::End {
        let subject = format!("Your account {account} is below its limit again");
        let text = format!("{owner} is below {its} at {host} again.\n\nQuestions: {contact}\n");
        return Letter { subject, text };
    }
    let test = if notice.event == Event::Test { "This is a test, the values are invented.\n\n" } else { "" };
    let does = if excess.is_over { "exceeds" } else { "is close to" };
    let network = excess.network.as_ref().map(|network| match &excess.country {
        Some(country) => format!("{network} ({})", country.to_uppercase()),
        None => network.clone(),
    });
    let network = network.map_or_else(String::new, |network| format!(", for a device in the network {network}"));
    let text = format!(
        "{test}{owner} {does} {its} at {host}.\n\n\
         It has reached {}.\n\
         The server noticed it at {}{network}. Was it you?\n\n\
         If it was not you, another person probably uses your account. Change your password at once, and tell us: \
         {contact}\n\n{}\n",
        excess.reached_text(),
        plain_time(notice),
        next(excess, &contact),
    );
    Letter { subject: format!("Your account {account} {does} {its}: was it you?"), text }
}

/// Returns the paragraph about the consequences, for the user who has caused the notice.
fn next(excess: &Excess, contact: &str) -> String {
    if let Some(time) = &excess.suspends_for {
        let (does, refuses) = match excess.is_lock {
            true => ("locked", "mail to recipients who have not got mail from you before"),
            false => ("suspended", "mail"),
        };
        return match &**time {
            UNTIL_RELEASED => format!(
                "The server has {does} it: it refuses {refuses}, until the account is released. If it was you, ask for a \
                 release: {contact}"
            ),
            time => format!(
                "The server has {does} it for {}: until then it refuses {refuses}, and each refusal says when this ends. If \
                 it was you, ask for an earlier end: {contact}",
                plain_duration(time)
            ),
        };
    }
    let now = match excess.refuses {
        true => "The server refuses what exceeds the limit, and accepts more when some time has passed.",
        false => "The server has not refused anything because of this limit yet.",
    };
    let later = excess.may_suspend_for.as_ref().map(|time| match &**time {
        UNTIL_RELEASED => " If it goes on, it can be suspended until it is released.".to_owned(),
        time => format!(" If it goes on, it can be suspended for {}.", plain_duration(time)),
    });
    let later = later.unwrap_or_default();
    format!("If it was you, you need not do anything. {now}{later} If you need a higher limit, ask: {contact}")
}

/// Formats a duration such as `1d` for people: `one day`, `8 hours`.
fn plain_duration(text: &str) -> String {
    let Ok(duration) = parse_duration(text) else { return text.to_owned() };
    let plain = plain_period(duration);
    if plain.starts_with(|c: char| c.is_ascii_digit()) { plain } else { format!("one {plain}") }
}

/// Returns the time of a notice: `2026-03-01 10:00:00 UTC`.
fn plain_time(notice: &Notice) -> String {
    notice.time.rfc3339().replace('T', " ").replace('Z', " UTC")
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
            "It has reached 101 of 100 recipients per 5 minutes.\n",
            "at 1970-01-01 00:00:00 UTC, for a device in the network",
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

    #[test]
    fn the_user_reads_the_consequences_of_this_limit_and_no_others() {
        let text = |change: fn(&mut Excess)| {
            let mut notice = notice(Event::Begin, "user", "alice");
            change(&mut notice.excess);
            for_user(&notice, "help@example.org", None).text
        };
        assert!(text(|_| ()).contains("refuses what exceeds the limit"));
        let harmless = text(|excess| excess.refuses = false);
        assert!(harmless.contains("has not refused anything") && !harmless.contains("suspend"), "{harmless}");
        let threatened = text(|excess| (excess.refuses, excess.may_suspend_for) = (false, Some("1d".to_owned())));
        assert!(threatened.contains("If it goes on, it can be suspended for one day."), "{threatened}");
        let suspended = text(|excess| excess.suspends_for = Some("1d".to_owned()));
        assert!(
            suspended.contains("has suspended it for one day: until then")
                && !suspended.contains("need not do anything"),
            "{suspended}"
        );
        let locked = text(|excess| (excess.suspends_for, excess.is_lock) = (Some("1d".to_owned()), true));
        assert!(locked.contains("has locked it for one day: until then it refuses mail to recipients who"), "{locked}");
        let endless = text(|excess| excess.suspends_for = Some("until-released".to_owned()));
        assert!(endless.contains("has suspended it: it refuses mail, until the account is released."), "{endless}");
        // The budget of a client is perhaps filled by others.
        let shared = for_user(&notice(Event::Begin, "client", "192.0.2.7"), "help@example.org", None);
        assert!(shared.subject.ends_with(" exceeds a limit: was it you?"), "{}", shared.subject);
        assert!(shared.text.contains("or other mail that counts with its mail"), "{}", shared.text);
    }
}
