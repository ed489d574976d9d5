//! `weir import postfwd`: rules with `rate()`, `rcpt()` and `size()`.

use super::allowance::Allowance;
use super::limit::{Budget, Condition, Limit, Value, quoted};
use super::report::{Place, Report};
use crate::policy::event::Stage;
use crate::policy::field::{Field, Widths};
use crate::policy::limit::{Algorithm, Charge, Count};
use crate::policy::template::Template;
use crate::time::{Units, format_duration, parse_rate};
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// A rule: what has to hold, and what is done.
struct Rule {
    place: Place,
    items: Vec<(String, String, String)>,
}

/// Reads a set of rules.
pub fn read(path: &Path, allowance: &Rc<Allowance>) -> std::io::Result<Report> {
    let text = allowance.read(path)?;
    let file: Rc<str> = path.display().to_string().into();
    let mut report = Report::default();
    for rule in rules(&file, &text) {
        let action = rule.items.iter().find(|(key, ..)| key == "action").map(|(.., value)| value.as_str());
        let Some(action) = action else { continue };
        let limiting = ["rate", "rcpt", "size"].into_iter().find_map(|word| {
            let rest = action.strip_prefix(word)?;
            let rest = rest.strip_prefix("5321").unwrap_or(rest).trim_start().strip_prefix('(')?;
            Some((word, rest.trim_end().strip_suffix(')').unwrap_or(rest)))
        });
        let Some((word, arguments)) = limiting else { continue };
        match limit(&rule, word, arguments) {
            Ok(limit) => drop(report.add(limit)),
            Err(why) => report.refuse(&rule.place, format!("{action}: {why}")),
        }
    }
    Ok(report)
}

/// Rules go on over lines that begin with a space, and over a backslash at the end.
fn rules(file: &Rc<str>, text: &str) -> Vec<Rule> {
    let mut whole: Vec<(Place, String)> = Vec::new();
    let mut goes_on = false;
    for (n, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let is_more = goes_on || line.starts_with([' ', '\t']);
        goes_on = line.trim_end().ends_with('\\');
        let line = line.trim().trim_end_matches('\\').trim_end();
        match whole.last_mut().filter(|_| is_more) {
            Some((_, begun)) => *begun += &format!(";{line}"),
            None => whole.push((Place::new(file, n + 1), line.to_owned())),
        }
    }
    let rule = |(place, text): (Place, String)| Rule {
        place,
        items: split(&text).iter().filter_map(|one| item(one)).collect(),
    };
    whole.into_iter().map(rule).collect()
}

/// The items between semicolons, but for those within parentheses.
fn split(text: &str) -> Vec<String> {
    let (mut items, mut depth) = (vec![String::new()], 0usize);
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match items.last_mut() {
            Some(item) if c != ';' || depth > 0 => item.push(c),
            _ => items.push(String::new()),
        }
    }
    items
}

/// Key, operator and value.
fn item(text: &str) -> Option<(String, String, String)> {
    let end = text.find(|c: char| "=<>!~".contains(c))?;
    let (key, rest) = text.split_at(end);
    let value = rest.trim_start_matches(|c| "=<>!~".contains(c));
    let operator = &rest[..rest.len() - value.len()];
    Some((key.trim().to_owned(), operator.to_owned(), value.trim().to_owned()))
}

/// `rate(item/max/seconds/action)`
fn limit(rule: &Rule, word: &str, arguments: &str) -> Result<Limit, String> {
    let parts: Vec<&str> = arguments.splitn(4, '/').map(str::trim).collect();
    let [whose, most, seconds, action] = parts[..] else {
        return Err(
            "write item, number, seconds and action, as in rate(client_address/5/300/450 4.7.1 too many)".to_owned()
        );
    };
    let field = field(whose).ok_or_else(|| format!("no limit is for each {whose}"))?;
    let most: u64 = most.parse().map_err(|_| format!("\"{most}\" is not a number"))?;
    let time = seconds.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let time = time.ok_or_else(|| format!("\"{seconds}\" is not a number of seconds"))?;
    let is_at_end = rule.items.iter().any(|(key, _, value)| key == "protocol_state" && value.starts_with("END"));
    let (count, stage) = match word {
        "size" => (Count::Bytes, None),
        "rcpt" => (Count::Recipients, Some(Stage::Data)),
        _ if is_at_end => (Count::Messages, None),
        _ => (Count::Recipients, None),
    };
    let is_at_rcpt = count == Count::Recipients && stage.is_none();
    if field.is_of_recipient() && !is_at_rcpt && count != Count::Messages {
        return Err(format!("{} of a whole message are not counted per {}", count.name(), field.name()));
    }
    let rate = if most == 0 { "0".to_owned() } else { format!("{most} / {}", format_duration(time)) };
    if most > 0 {
        parse_rate(&rate, Units::Things).map_err(|error| error.to_string())?;
    }
    let mut limit = Limit::new(Budget::Own {
        count,
        per: vec![field],
        rate,
        algorithm: Algorithm::TokenBucket,
        burst: None,
        charge: Charge::Accepted,
        distinct: None,
    });
    limit.stage = stage;
    limit.comment(format!("{}: {word}({arguments})", rule.place));
    limit.comment("postfwd counts from the first mail on and begins anew when the time is over; here what is used comes back little by little.");
    if word == "rate" && !is_at_end {
        limit.comment("It counts requests of Postfix: recipients, where it asks at RCPT. At the end of data write count = \"messages\".");
    }
    for (key, operator, value) in
        rule.items.iter().filter(|(key, ..)| !matches!(&**key, "id" | "action" | "protocol_state"))
    {
        narrow(&mut limit, &rule.place, key, operator, value);
    }
    act(&mut limit, &rule.place, action);
    Ok(limit)
}

/// Attributes of Postfix as fields.
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

/// Makes a limit be for whom an item means.
fn narrow(limit: &mut Limit, place: &Place, key: &str, operator: &str, value: &str) {
    let written = format!("{key}{operator}{value}");
    let any = ["/./", "/.+/", "/^.+$/", "/^(.+)$/", "^.+$", "."].contains(&value);
    let items: Vec<String> = match operator {
        "=~" | "~=" if any => vec!["*".to_owned()],
        "=" | "==" if !value.contains(['$', ':', '!', '(', '*']) || value.parse::<IpAddr>().is_ok() => {
            value.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
        }
        _ => Vec::new(),
    };
    let names =
        ["client_address", "sasl_username", "sender", "sender_domain", "recipient", "recipient_domain", "helo_name"];
    let keys = ["client", "user", "sender", "sender-domain", "recipient", "recipient-domain", "helo"];
    let known = names.into_iter().zip(keys).find(|(name, _)| *name == key);
    let Some((_, known)) = known.filter(|_| !items.is_empty()) else {
        return limit.broaden(place, format!("{written} cannot be said"));
    };
    // All clients have an address.
    let is_everybody = known == "client" && items == ["*"];
    if !is_everybody && !limit.add_match(Condition { key: known, value: Value::Texts(items) }) {
        limit.broaden(place, format!("{written}: there is such an item already"));
    }
}

/// What happens to whoever is over, as Postfix is told.
fn act(limit: &mut Limit, place: &Place, action: &str) {
    let (word, words) = action.split_once(char::is_whitespace).unwrap_or((action, ""));
    let upper = word.to_ascii_uppercase();
    let (verb, text) = match &*upper {
        "REJECT" => ("deny", words),
        "DEFER" | "DEFER_IF_PERMIT" | "DEFER_IF_REJECT" => ("defer", words),
        "DUNNO" | "OK" | "WARN" | "INFO" => return limit.act("warn", "true"),
        _ if word.starts_with('4') => ("defer", action),
        _ if word.starts_with('5') => ("deny", action),
        _ => {
            limit.lose(place, format!("{action}: limits do nothing like it, so this one only warns"));
            return limit.act("warn", "true");
        }
    };
    let text = text.replace("$$ratecount", "\u{1}level\u{2}").replace(['{', '}'], "");
    let text = text.replace('\u{1}', "{").replace('\u{2}', "}");
    let wrong = match Template::parse(&text, None) {
        _ if text.contains("$$") => Some("it names what a text of Weir's cannot".to_owned()),
        _ if text.trim().is_empty() => None,
        Ok(_) => return limit.act(verb, quoted(&text)),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = wrong {
        limit.lose(place, format!("{action}: {why}, so the standard text stands instead"));
    }
    limit.act(verb, "true");
}
