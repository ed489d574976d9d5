//! Replies, with their codes, that tell a client that a limit or a suspension has refused its command.

use crate::policy::request::Stage;
use crate::policy::verdict::{Code, Meaning, Refusal, Suspended, Verb};
use crate::smtp::reply::Reply;

/// Returns the reply to a command that a limit refuses at this stage, and whether the reply ends the session.
/// `reference` names the refusal in the reply and in the log.
pub fn refusal_reply(refusal: &Refusal, stage: Stage, hostname: &str, reference: &str) -> (Reply, bool) {
    let code = code(refusal, stage);
    let closes = refusal.ends_session(Some(stage)) || code.basic == 421;
    let host = if code.basic == 421 { format!("{hostname} ") } else { String::new() };
    let [class, subject, detail] = code.enhanced;
    (Reply::new(code.basic, format!("{class}.{subject}.{detail} {host}{}", refusal.text(reference))), closes)
}

/// Returns the reply to a command of a suspended client, user or sender.
pub fn suspended_reply(suspended: &Suspended, reference: &str) -> Reply {
    let lines = wrapped(&suspended.text(reference), MAX_LINE_LENGTH);
    Reply::lines(550, lines.iter().map(|line| format!("5.7.1 {line}")))
}

/// Length in octets up to which a line of a reply gets more words. Together with the codes it is below the 512 octets
/// of RFC 5321 §4.5.3.1.5.
const MAX_LINE_LENGTH: usize = 480;

/// Splits a text into lines of at most `most` octets, if possible between words. Replies have ASCII only, so other
/// characters become `?`.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let printable = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
    let text: String = text.chars().map(printable).collect();
    let (mut lines, mut rest) = (Vec::new(), text.as_str());
    while rest.len() > most {
        let end = rest[..=most].rfind(' ').filter(|end| *end > 0).unwrap_or(most);
        lines.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    lines.push(rest.to_owned());
    lines
}

/// Returns the code of a refusal: the code that the limit configures, or the code that clients handle best.
fn code(refusal: &Refusal, stage: Stage) -> Code {
    if let Some(code) = refusal.code() {
        return code;
    }
    match (refusal.verb, refusal.meaning(), stage) {
        (Verb::Drop, ..) => Code::new(421, [4, 7, 0]),
        (Verb::Lock | Verb::Suspend, _, Stage::End) => Code::new(550, [5, 7, 1]),
        (Verb::Deny | Verb::Lock | Verb::Suspend, ..) | (_, Meaning::Never, _) => permanent(stage),
        // RFC 5321 §4.5.3.1.10: 452 for recipients, so that the client sends the message to fewer recipients.
        (_, Meaning::TooLarge | Meaning::TooMuchForMessage | Meaning::TooLate, Stage::Rcpt) => {
            Code::new(452, [4, 5, 3])
        }
        (_, Meaning::TooLarge | Meaning::TooMuchForMessage, Stage::Mail | Stage::Data | Stage::End) => {
            Code::new(552, [5, 3, 4])
        }
        (_, Meaning::TooLarge, _) => permanent(stage),
        _ => temporary(stage),
    }
}

fn temporary(stage: Stage) -> Code {
    match stage {
        Stage::Connect | Stage::Command => Code::new(421, [4, 7, 0]),
        // Never 535, because after a 535 mail programs ask the user for the password again.
        Stage::Auth => Code::new(454, [4, 7, 0]),
        // Not 452: after a 452, some clients send the message to the remaining recipients at once, and some conclude
        // that the message is too large.
        Stage::Mail | Stage::Rcpt | Stage::Data => Code::new(450, [4, 7, 1]),
        Stage::End => Code::new(451, [4, 7, 1]),
    }
}

fn permanent(stage: Stage) -> Code {
    match stage {
        Stage::Mail | Stage::Rcpt | Stage::Data => Code::new(550, [5, 7, 1]),
        // RFC 5321 §4.3.2 lists this code for these stages. RFC 4954 §4 lists no other code of this meaning for AUTH.
        Stage::Connect | Stage::Command | Stage::Auth | Stage::End => Code::new(554, [5, 7, 1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_split_between_words() {
        for (text, lines) in [
            ("", &[""][..]),
            ("one two", &["one two"]),
            ("one two three", &["one two", "three"]),
            ("12345678 9", &["12345678", "9"]),
            ("123456789012 345", &["12345678", "9012 345"]),
            ("gr\u{fc}n\r\nrot", &["gr?n??ro", "t"]),
        ] {
            assert_eq!(wrapped(text, 8), lines, "{text:?}");
        }
    }
}
