//! Import of postfwd rules with `rate()`, `rcpt()` and `size()`.

mod action;
mod conditions;
mod followed;
mod hours;
mod rules;

use super::budget::Allowance;
use super::limit::{Budget, Condition, Limit};
use super::report::Report;
use super::source_line::SourceLine;
use crate::policy::limit::{Algorithm, Charge, Count};
use crate::policy::matching::{Field, Widths};
use crate::policy::request::Stage;
use crate::time::{Units, format_duration, parse_rate};
use action::{Action, act};
use conditions::Narrowed;
use followed::Answering;
use rules::{Ignored, Item, Rule};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Earlier rules that let mail through: postfwd does not evaluate the rule of the limit for this mail.
#[derive(Default)]
struct EarlierAccepts {
    /// Tables of `except` for the rules whose conditions limits can express.
    except: Vec<Vec<Condition>>,
    /// Places of the other rules, each with its action.
    unknown: Vec<(SourceLine, String)>,
}

/// Reads a file of postfwd rules.
pub fn read(path: &Path, allowance: &Rc<Allowance>) -> std::io::Result<Report> {
    let text = allowance.read(path)?;
    let file: Rc<str> = path.display().to_string().into();
    let mut report = Report::new("rule", false);
    let mut rules = Vec::new();
    for rule in rules::rules(&file, &text, allowance) {
        match rule {
            Ok(rule) => rules.push(rule),
            Err(ignored) => refuse_ignored(&ignored, &mut report),
        }
    }
    let file = Rules { rules: &rules, allowance };
    let (mut earlier, mut others) = (EarlierAccepts::default(), Vec::new());
    for (at, rule) in rules.iter().enumerate() {
        let action = rule.action().unwrap_or_default();
        let refuse = |report: &mut Report, why: &str| {
            let number = report.number();
            report.refuse(number, &rule.place, format!("{action}: {why}"));
        };
        match action::parse(action) {
            Action::Limit(word, arguments) => match file.limit(at, word, arguments, &earlier) {
                Ok(limit) => {
                    let number = report.number();
                    report.add(number, limit);
                }
                Err(why) => refuse(&mut report, &why),
            },
            Action::BadLimit(why) => refuse(&mut report, &why),
            Action::Answer(passes) => {
                if passes {
                    earlier.add(&file, at);
                }
                others.push(rule.place.clone());
            }
            // The effect of these commands is followed where a limit depends on it.
            Action::Other("set" | "note", _) => others.push(rule.place.clone()),
            Action::Other(word, _) => {
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
    /// Adds the rule `at`, which lets mail through.
    fn add(&mut self, file: &Rules<'_>, at: usize) {
        let rule = &file.rules[at];
        let narrowed = file.narrowed(at, rule.conditions().collect());
        // The conditions of this rule are repeated in each limit after it, so they are counted as items of the import.
        let is_bounded = file.allowance.items(narrowed.matches.len()).is_ok();
        if narrowed.is_plain() && !narrowed.matches.is_empty() && is_bounded {
            return self.except.push(narrowed.matches);
        }
        let action = rule.action().unwrap_or_default();
        self.unknown.push((
            rule.place.clone(),
            match narrowed.unknown.first() {
                Some(why) => format!("{action}): {why}"),
                None => format!("{action})"),
            },
        ));
    }

    fn apply(&self, limit: &mut Limit) {
        limit.except.extend(self.except.iter().cloned());
        for (place, action) in &self.unknown {
            limit.shadow(place, format!("an earlier rule lets others through ({action}"));
        }
    }
}

/// All rules of a file.
struct Rules<'r> {
    rules: &'r [Rule],
    allowance: &'r Allowance,
}

impl<'r> Rules<'r> {
    /// Translates conditions of the rule `at`.
    fn narrowed(&self, at: usize, items: Vec<&'r Item>) -> Narrowed {
        let resolved = followed::resolved(self.rules, at, items, self.allowance);
        let mut narrowed = Narrowed::of(resolved.items.into_iter(), self.allowance);
        for setter in resolved.setters {
            narrowed.join(Narrowed::of(setter.conditions(), self.allowance));
        }
        let others =
            resolved.others.iter().map(|item| format!("{item}: rules before this one set it, and are not followed"));
        narrowed.unknown.extend(others);
        narrowed
    }

    /// Translates the rule `at` with the action `rate(item/max/seconds/action)` into a limit.
    fn limit(&self, at: usize, word: &str, arguments: &str, earlier: &EarlierAccepts) -> Result<Limit, String> {
        let rule = &self.rules[at];
        let parts: Vec<&str> = arguments.splitn(4, '/').map(str::trim).collect();
        let [whose, most, seconds, action] = parts[..] else {
            return Err("write item, number, seconds and action, as in rate(client_address/5/300/450 4.7.1 too many)"
                .to_owned());
        };
        // Older configurations write the item with `$$`.
        let whose = whose.strip_prefix("$$").unwrap_or(whose);
        let mut limit = counting(rule, word, whose, rate(most, seconds)?)?;
        limit.comment(format!("{}: {word}({arguments})", rule.place));
        limit.comment("postfwd counts from the first mail on and begins anew when the time is over; here what is used comes back little by little.");
        if matches!(limit.budget, Budget::Own { count: Count::Recipients, .. }) && limit.stage.is_none() {
            limit.comment("It counts requests of Postfix: recipients, where it asks at RCPT. At the end of data write count = \"messages\".");
        }
        if field(whose).is_none() {
            for_all(&mut limit, &rule.place, whose);
        }
        self.narrow(&mut limit, at);
        if field(whose) == Some(Field::User) && !limit.matches.iter().any(|condition| condition.key == "user") {
            limit.comment("It does not hold without a login; in postfwd all who have none share one budget.");
        }
        if arguments.matches('(').count() != arguments.matches(')').count() {
            limit.lose(
                &rule.place,
                format!("({arguments}): its parentheses are not balanced; the last one ends it, as in postfwd"),
            );
        }
        earlier.apply(&mut limit);
        match followed::answering(self.rules, at, action, self.allowance) {
            Ok(None) => act(&mut limit, &rule.place, action),
            Ok(Some(answering)) => self.answer(&mut limit, at, &answering),
            Err(why) => {
                limit.shadow(&rule.place, why);
                limit.act("warn", "true");
            }
        }
        Ok(limit)
    }

    /// Adds the conditions of the rule to the limit.
    fn narrow(&self, limit: &mut Limit, at: usize) {
        let rule = &self.rules[at];
        for item in &rule.items {
            match &*item.key {
                "id" if item.value.contains('=') => {
                    limit.shadow(&rule.place, format!("id={}: a ; is missing, so that this is all the id", item.value));
                }
                "protocol_state" => at_state(limit, &rule.place, item),
                _ => {}
            }
        }
        let items = rule.conditions().filter(|item| item.key != "protocol_state").collect();
        let unknown = self.narrowed(at, items).apply(limit);
        unknown.iter().for_each(|item| limit.shadow(&rule.place, item));
    }

    /// Adds to the limit of rule `at` the answer of a later rule, and the conditions under which postfwd gives this
    /// answer.
    fn answer(&self, limit: &mut Limit, at: usize, answering: &Answering<'_>) {
        let Answering { rule, test, from, .. } = *answering;
        let mut between = EarlierAccepts::default();
        for n in from..answering.at {
            if matches!(action::parse(self.rules[n].action().unwrap_or_default()), Action::Answer(true)) {
                between.add(self, n);
            }
        }
        let is_test = |item: &&Item| test.is_some_and(|test| std::ptr::eq(*item, test));
        let is_state = |item: &&Item| item.key == "protocol_state" && self.rules[at].items.contains(item);
        let items = self.rules[answering.at].conditions().filter(|item| !is_test(item) && !is_state(item)).collect();
        let narrowed = self.narrowed(answering.at, items);
        let excepted = between.except.iter().flatten().map(|condition| condition.key);
        if !narrowed.keys().chain(excepted).all(|key| limit.owns(key)) {
            limit.shadow(&rule.place, "postfwd also counts the mail that this rule does not refuse");
        }
        let unknown = narrowed.apply(limit);
        unknown.iter().for_each(|item| limit.shadow(&rule.place, item));
        between.apply(limit);
        limit.comment(format!("{}: this rule answers for what exceeds the limit.", rule.place));
        act(limit, &rule.place, rule.action().unwrap_or_default());
    }
}

/// Returns a limit that counts in the same way as a command of postfwd.
fn counting(rule: &Rule, word: &str, whose: &str, rate: String) -> Result<Limit, String> {
    let field = field(whose);
    if field.is_none() && is_attribute(whose) {
        return Err(format!("limits have no key field for {whose}"));
    }
    // Before DATA, Postfix reports 0 as the number of recipients.
    let has_count = rule.conditions().any(|item| item.key == "recipient_count" && !item.operator.contains('<'));
    let (count, stage) = match word {
        "size" => (Count::Bytes, None),
        "rcpt" => (Count::Recipients, Some(Stage::Data)),
        _ if is_of_message(rule) || has_count => (Count::Messages, None),
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
    if is_at_rcpt && rule.conditions().any(|item| item.key == "recipient_count") {
        limit.shadow(&rule.place, "recipient_count is 0 before DATA: protocol_state==DATA is missing");
    }
    Ok(limit)
}

/// Returns whether Postfix sends one request for each message, not one for each recipient.
fn is_of_message(rule: &Rule) -> bool {
    let is_state = |item: &Item| item.key == "protocol_state" && item.value.starts_with(['E', 'D']);
    rule.conditions().any(is_state)
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
