//! Import of postfwd rules with `rate()`, `rcpt()` and `size()`.

mod conditions;
mod rules;

use super::budget::Allowance;
use super::limit::{Budget, Condition, Limit, quoted};
use super::report::Report;
use super::source_line::SourceLine;
use crate::policy::limit::{Algorithm, Charge, Count, Template};
use crate::policy::matching::{Field, Widths};
use crate::policy::request::Stage;
use crate::time::{Units, format_duration, parse_rate};
use conditions::Narrowed;
use rules::{Ignored, Item, Rule};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Earlier rules that let mail through, so that postfwd does not evaluate the rule of the limit for this mail.
#[derive(Default)]
struct EarlierAccepts {
    /// Tables of `except` for the rules whose conditions limits can express.
    except: Vec<Vec<Condition>>,
    /// Places of the other rules, each with its action.
    unknown: Vec<(SourceLine, String)>,
}

/// Action of a rule.
enum Action<'a> {
    /// A rate limit: its command, such as `rate`, and the text in parentheses after it.
    Limit(&'static str, &'a str),
    /// An answer for Postfix, such as DUNNO or REJECT; true if this answer lets the mail through.
    Answer(bool),
    /// A rate limit that postfwd does not evaluate, and the reason.
    BadLimit(String),
    /// Any other command.
    Other(&'a str),
}

/// Reads a file of postfwd rules.
pub fn read(path: &Path, allowance: &Rc<Allowance>) -> std::io::Result<Report> {
    let text = allowance.read(path)?;
    let file: Rc<str> = path.display().to_string().into();
    let mut report = Report::new("rule", false);
    let (mut earlier, mut others) = (EarlierAccepts::default(), Vec::new());
    for rule in rules::rules(&file, &text, allowance) {
        let rule = match rule {
            Ok(rule) => rule,
            Err(ignored) => {
                refuse_ignored(&ignored, &mut report);
                continue;
            }
        };
        let action = rule.action().unwrap_or_default();
        let refuse = |report: &mut Report, why: &str| {
            let number = report.number();
            report.refuse(number, &rule.place, format!("{action}: {why}"));
        };
        match self::action(action) {
            Action::Limit(word, arguments) => match limit(&rule, word, arguments) {
                Ok(mut limit) => {
                    earlier.apply(&mut limit);
                    let number = report.number();
                    report.add(number, limit);
                }
                Err(why) => refuse(&mut report, &why),
            },
            Action::BadLimit(why) => refuse(&mut report, &why),
            Action::Answer(passes) => {
                if passes {
                    earlier.add(&rule, action, allowance);
                }
                others.push(rule.place);
            }
            Action::Other(word) => {
                if word == "jump" {
                    earlier.unknown.push((rule.place.clone(), action.to_owned()));
                }
                report.leave_out(&rule.place, format!("{action}: this command is not followed"));
            }
        }
    }
    note_others(&others, &mut report);
    Ok(report)
}

fn refuse_ignored(Ignored { place, why, is_limit }: &Ignored, report: &mut Report) {
    match is_limit {
        true => {
            let number = report.number();
            report.refuse(number, place, why);
        }
        false => report.leave_out(place, why),
    }
}

/// Adds a note on the rules that are not rate limits.
fn note_others(others: &[SourceLine], report: &mut Report) {
    let Some(first) = others.first().filter(|_| !report.is_empty()) else { return };
    let lines: Vec<String> = others.iter().take(20).map(|place| place.line.to_string()).collect();
    let more = if others.len() > 20 { format!(" and {} more", others.len() - 20) } else { String::new() };
    report.note(first, format!("rules that are no limits are left out: those of lines {}{more}.", lines.join(", ")));
}

impl EarlierAccepts {
    fn add(&mut self, rule: &Rule, action: &str, allowance: &Allowance) {
        let mut narrowed = Narrowed::default();
        rule.conditions().for_each(|item| narrowed.add(item));
        // The conditions of this rule are repeated in each limit after it, so that they are counted as items of the
        // import.
        let is_bounded = allowance.items(narrowed.matches.len()).is_ok();
        if narrowed.unknown.is_empty() && narrowed.except.is_empty() && !narrowed.matches.is_empty() && is_bounded {
            self.except.push(narrowed.matches);
        } else {
            self.unknown.push((rule.place.clone(), action.to_owned()));
        }
    }

    fn apply(&self, limit: &mut Limit) {
        limit.except.extend(self.except.iter().cloned());
        for (place, action) in &self.unknown {
            limit.shadow(place, format!("an earlier rule lets others through ({action})"));
        }
    }
}

/// Parses an action. postfwd's commands are in lower case, and the closing parenthesis of a command is the last
/// character of the action.
fn action(text: &str) -> Action<'_> {
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
        (None, _) => Action::Other(word),
    }
}

/// Translates a rule with the action `rate(item/max/seconds/action)` into a limit.
fn limit(rule: &Rule, word: &str, arguments: &str) -> Result<Limit, String> {
    let parts: Vec<&str> = arguments.splitn(4, '/').map(str::trim).collect();
    let [whose, most, seconds, action] = parts[..] else {
        return Err(
            "write item, number, seconds and action, as in rate(client_address/5/300/450 4.7.1 too many)".to_owned()
        );
    };
    // Older configurations write the item with `$$`.
    let whose = whose.strip_prefix("$$").unwrap_or(whose);
    let field = field(whose);
    if field.is_none() && is_attribute(whose) {
        return Err(format!("limits have no key field for {whose}"));
    }
    let rate = rate(most, seconds)?;
    let is_at = |state: &str| {
        let is_state = |item: &Item| item.key == "protocol_state" && item.value.starts_with(state);
        rule.conditions().any(is_state)
    };
    let is_of_message = is_at("END") || is_at("DATA");
    let (count, stage) = match word {
        "size" => (Count::Bytes, None),
        "rcpt" => (Count::Recipients, Some(Stage::Data)),
        _ if is_of_message => (Count::Messages, None),
        _ => (Count::Recipients, None),
    };
    let is_at_rcpt = count == Count::Recipients && stage.is_none();
    if let Some(field) = field.filter(|field| field.is_of_recipient() && !is_at_rcpt) {
        return Err(format!("{} of a whole message are not counted per {}", count.name(), field.name()));
    }
    let mut limit = Limit::new(Budget::Own {
        count,
        per: field.into_iter().collect(),
        rate,
        algorithm: Algorithm::TokenBucket,
        burst: None,
        charge: Charge::Accepted,
        distinct: None,
    });
    limit.stage = stage;
    limit.comment(format!("{}: {word}({arguments})", rule.place));
    limit.comment("postfwd counts from the first mail on and begins anew when the time is over; here what is used comes back little by little.");
    if word == "rate" && !is_of_message {
        limit.comment("It counts requests of Postfix: recipients, where it asks at RCPT. At the end of data write count = \"messages\".");
    }
    if field.is_none() {
        for_all(&mut limit, &rule.place, whose);
    }
    narrow(&mut limit, rule);
    if field == Some(Field::User) && !limit.matches.iter().any(|condition| condition.key == "user") {
        limit.comment("It does not hold without a login; in postfwd all who have none share one budget.");
    }
    if arguments.matches('(').count() != arguments.matches(')').count() {
        limit.lose(
            &rule.place,
            format!("({arguments}): its parentheses are not balanced; the last one ends it, as in postfwd"),
        );
    }
    act(&mut limit, &rule.place, action);
    Ok(limit)
}

/// Translates a maximum and a number of seconds into a rate.
fn rate(most: &str, seconds: &str) -> Result<String, String> {
    let most: u64 = most.parse().map_err(|_| format!("\"{most}\" is not a number"))?;
    let time = seconds.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let time = time.ok_or_else(|| format!("\"{seconds}\" is not a number of seconds"))?;
    if most == 0 {
        return Ok("0".to_owned());
    }
    let rate = format!("{most} / {}", format_duration(time));
    parse_rate(&rate, Units::Things).map_err(|error| error.to_string())?;
    Ok(rate)
}

/// Adds the conditions of the rule to the limit.
fn narrow(limit: &mut Limit, rule: &Rule) {
    let mut narrowed = Narrowed::default();
    for item in rule.items.iter().filter(|item| item.key != "action") {
        match &*item.key {
            "id" if item.value.contains('=') => {
                limit.shadow(&rule.place, format!("id={}: a ; is missing, so that this is all the id", item.value));
            }
            "id" => {}
            "protocol_state" => at_state(limit, &rule.place, item),
            _ => narrowed.add(item),
        }
    }
    limit.matches = narrowed.matches;
    limit.except = narrowed.except;
    narrowed.unknown.iter().for_each(|item| limit.shadow(&rule.place, format!("{item} cannot be expressed")));
}

/// Returns the field of Weir for an attribute of Postfix requests.
fn field(name: &str) -> Option<Field> {
    Some(match name {
        "client_address" => Field::Client(Widths::default()),
        "sasl_username" => Field::User,
        "sender" => Field::Sender,
        "sender_domain" => Field::SenderDomain,
        "recipient" => Field::Recipient,
        "recipient_domain" => Field::RecipientDomain,
        "helo_name" => Field::Helo,
        _ => return None,
    })
}

/// Explains a limit whose item is no attribute of Postfix requests. postfwd 3.0 ignores this item; the administrator
/// who wrote it meant one budget for all requests of the rule.
fn for_all(limit: &mut Limit, place: &SourceLine, word: &str) {
    let words = format!("postfwd ignores {word}, which is no attribute of a request; one budget for all is meant");
    match word {
        "global" | "server" => limit.comment(format!("{place}: {words}")),
        _ => limit.shadow(place, words),
    }
}

/// Returns whether a word is an attribute of Postfix requests.
fn is_attribute(name: &str) -> bool {
    const PREFIXES: [&str; 16] = [
        "ccert_",
        "client_",
        "encryption_",
        "etrn_",
        "helo_",
        "policy_",
        "protocol_",
        "queue_",
        "recipient_",
        "reverse_",
        "rhsbl",
        "rbl",
        "sasl_",
        "sender_",
        "server_",
        "postfwd_",
    ];
    let others = ["request", "instance", "size", "stress", "mail_version", "compatibility_level", "version"];
    others.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@'))
}

/// Checks a condition on the protocol state. Limits can express RCPT, DATA and END-OF-MESSAGE; for other states the
/// limit is in shadow mode.
fn at_state(limit: &mut Limit, place: &SourceLine, item: &Item) {
    let Item { operator, value, .. } = item;
    let is_usual = value == "RCPT" || value.starts_with("END") || value == "DATA";
    if !matches!(&**operator, "=" | "==" | "=~" | "~=") || !is_usual {
        limit.shadow(place, format!("protocol_state{operator}{value} cannot be expressed"));
    }
}

/// Adds the action that postfwd applies to mail that exceeds the limit.
fn act(limit: &mut Limit, place: &SourceLine, action: &str) {
    let (word, words) = action.split_once(char::is_whitespace).unwrap_or((action, ""));
    let upper = word.to_ascii_uppercase();
    let (verb, text) = match &*upper {
        "REJECT" => ("deny", words),
        "DEFER" | "DEFER_IF_PERMIT" | "DEFER_IF_REJECT" => ("defer", words),
        "DUNNO" | "OK" | "WARN" | "INFO" => return limit.act("warn", "true"),
        _ if word.starts_with('4') => ("defer", action),
        _ if word.starts_with('5') => ("deny", action),
        _ => {
            limit.lose(place, format!("{action}: limits have no such action, so this one only warns"));
            return limit.act("warn", "true");
        }
    };
    let text = text.replace("$$ratecount", "\u{1}level\u{2}").replace(['{', '}'], "");
    let text = text.replace('\u{1}', "{").replace('\u{2}', "}");
    let wrong = match Template::parse(&text, None) {
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
