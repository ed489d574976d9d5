//! Actions of postfwd rules, and their translation into actions of limits.

use super::super::limit::{Limit, quoted};
use super::super::source_line::SourceLine;
use crate::policy::limit::{KnownValues, Template};

/// Action of a rule.
#[derive(Debug)]
pub enum Action<'a> {
    /// A rate limit: its command, such as `rate`, and the text in parentheses after it.
    Limit(&'static str, &'a str),
    /// An answer for Postfix, such as DUNNO or REJECT; true if this answer lets the mail through.
    Answer(bool),
    /// A rate limit that postfwd does not evaluate, and the reason.
    BadLimit(String),
    /// Any other command, and the text in parentheses after it.
    Other(&'a str, &'a str),
}

/// Parses an action. postfwd's commands are in lower case, and the closing parenthesis of a command is the last
/// character of the action.
pub fn parse(text: &str) -> Action<'_> {
    let word_end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').unwrap_or(text.len());
    let (word, rest) = text.split_at(word_end);
    let Some(inner) = rest.trim_start().strip_prefix('(').filter(|_| !word.is_empty()) else {
        let upper = word.to_ascii_uppercase();
        let refuses = ["REJECT", "DEFER", "DEFER_IF_PERMIT", "DEFER_IF_REJECT", "DISCARD"].contains(&&*upper)
            || word.starts_with(['4', '5']);
        return Action::Answer(!refuses);
    };
    let known = ["rate", "rcpt", "size"].into_iter().find(|known| word.strip_suffix("5321").unwrap_or(word) == *known);
    match (known, inner.strip_suffix(')')) {
        (Some(known), Some(arguments)) => Action::Limit(known, arguments),
        (Some(_), None) => Action::BadLimit("its last ) is missing, so that postfwd runs no command".to_owned()),
        (None, _) if ["rate", "rcpt", "size"].iter().any(|known| word.to_ascii_lowercase().starts_with(known)) => {
            Action::BadLimit(format!("{word} is no command of postfwd's, which are in small letters"))
        }
        (None, arguments) => Action::Other(word, arguments.unwrap_or(inner).trim()),
    }
}

/// Adds the action that postfwd applies to mail that exceeds the limit.
pub fn act(limit: &mut Limit, place: &SourceLine, action: &str) {
    let (word, words) = action.split_once(char::is_whitespace).unwrap_or((action, ""));
    let upper = word.to_ascii_uppercase();
    let is_code = |class: char| word.len() == 3 && word.starts_with(class) && word.bytes().all(|b| b.is_ascii_digit());
    let (verb, text) = match &*upper {
        "REJECT" => ("deny", words),
        "DEFER" | "DEFER_IF_PERMIT" | "DEFER_IF_REJECT" => ("defer", words),
        "DUNNO" | "OK" | "WARN" | "INFO" => return limit.act("warn", "true"),
        _ if is_code('4') => ("defer", action),
        _ if is_code('5') => ("deny", action),
        _ => match parse(action) {
            Action::Other("wait", seconds) if seconds.parse::<u32>().is_ok_and(|seconds| seconds > 0) => {
                limit.act("warn", "true");
                return limit.act("delay", quoted(&format!("{seconds}s")));
            }
            Action::Other("note" | "mail" | "sendmail", _) => {
                limit.lose(place, format!("{action}: limits have no such action, so this one only warns"));
                return limit.act("warn", "true");
            }
            _ => {
                limit.shadow(place, format!("{action}: limits have no such action, so this one only warns"));
                return limit.act("warn", "true");
            }
        },
    };
    let text = text.replace("$$ratecount", "\u{1}level\u{2}").replace(['{', '}'], "");
    let text = text.replace('\u{1}', "{").replace('\u{2}', "}");
    let wrong = match Template::parse(&text, KnownValues::default()) {
        _ if text.contains("$$") => Some("it uses a variable that texts of Weir do not have".to_owned()),
        _ if text.trim().is_empty() => None,
        Ok(_) => return limit.act(verb, quoted(&text)),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = wrong {
        limit.lose(place, format!("{action}: {why}, so Weir's standard text is used"));
    }
    limit.act(verb, "true");
}
