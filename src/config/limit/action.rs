//! `[[limit.action]]`: the actions that Weir takes when a limit is exceeded.

use super::{Context, suspect};
use crate::config::section::{self, Section};
use crate::config::values::{choice, flag, text};
use crate::policy::exception::{Length, UNTIL_RELEASED};
use crate::policy::limit::{Action, Charge, Count, Delay, KnownValues, Ladder, Limit, Mode, Rung, Template, Verb};
use crate::policy::matching::Field;
use crate::policy::request::Stage;
use crate::time::{Units, format_duration, parse_amount, parse_duration};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeValue;

/// A rung, with its position in the file. A rung is one action of a limit, and the level from which the action applies.
type Placed = (Rung, Range<usize>);

/// Reads `mode`, which says whether the actions of a limit are carried out.
pub fn mode(s: &mut Section<'_>) -> Mode {
    s.value("mode", "\"enforce\"", choice(&Mode::ALL.map(|known| (known.name(), known))))
}

/// Reads all rungs of a limit; `limit` itself has no rungs yet. `is_climbed` is true if the level of a budget continues
/// to rise while the limit refuses attempts.
pub fn ladder(s: &mut Section<'_>, limit: &Limit, is_climbed: bool, cx: &Context<'_>) -> Ladder {
    let (levels, rungs): (Vec<_>, Vec<_>) = s.tables("action").into_iter().map(|table| rung(table, limit, cx)).unzip();
    let mut rungs: Vec<Placed> = rungs.into_iter().flatten().collect();
    rungs.sort_by(|(a, _), (b, _)| a.at.total_cmp(&b.at));
    let refusing = rungs.iter().find(|(rung, _)| rung.action.refuses() && !is_climbed).map(|(rung, _)| rung.at);
    check_order(s, &rungs, refusing);
    warn_of_percents(s, &levels, refusing);
    check_duplicates(s, &rungs);
    check_verbs(s, &rungs);
    check_delays(s, &rungs, limit, cx);
    check_suspensions(s, &rungs, limit);
    suspect::check(s, &rungs, limit, cx);
    if rungs.is_empty() { Ladder::standard() } else { Ladder::new(rungs.into_iter().map(|(rung, _)| rung).collect()) }
}

/// Reads one table `[[limit.action]]`. Returns the level from which the actions of the table apply, and these actions.
fn rung(mut s: Section<'_>, limit: &Limit, cx: &Context<'_>) -> (section::Placed<f64>, Vec<Placed>) {
    let level = s.placed("at", "1.0", times);
    let at = level.value;
    let mut actions: Vec<(Action, Range<usize>)> = Vec::new();
    let mut add = |read: Option<section::Placed<Action>>| actions.extend(read.map(|read| (read.value, read.span)));
    add(s.optional("warn", |value| match flag(value)? {
        true => Ok(Action::Warn),
        false => Err("false has no effect: leave the key out".to_owned()),
    }));
    add(s.optional("delay", |value| delay(&text(value)?, limit.count).map(Action::Delay)));
    for (key, verb) in [("defer", Verb::Defer), ("deny", Verb::Deny), ("drop", Verb::Drop)] {
        let read = s.optional(key, |value| words(value, verb, cx));
        // With `suspend` in the same table, the text of `deny` may ask for a later retry, because the suspension ends
        // by itself.
        if let Some(read) = read.as_ref().filter(|_| !(verb == Verb::Deny && s.has("suspend"))) {
            warn_of_contradiction(&s, verb, read.value.as_deref(), &read.span);
        }
        add(read.map(|read| section::Placed { value: Action::Refuse(verb, read.value), span: read.span }));
    }
    let route = named(&mut s, "route", "upstream", |name| route(name, cx));
    if let Some(read) = route.as_ref().filter(|read| !read.value.is_enabled) {
        let message =
            format!("route: the upstream \"{}\" is not enabled: mail with this route gets 451", read.value.name);
        s.warn(&read.span, message, None);
    }
    add(route.map(|read| section::Placed { value: Action::Route(read.value.name), span: read.span }));
    add(suspension(&mut s));
    add(s.optional("lock", |value| length(value).map(Action::Lock)));
    add(named(&mut s, "notify", "notify", |name| cx.notifications.get(name).map(Action::Notify)));
    add(suspect::read(&mut s, cx));
    if !s.has_any(&VERBS) {
        let help = "add defer = true, or another of warn, delay, deny, drop, route, suspend, lock, notify, suspect";
        s.error_unless(&VERBS, &s.span(), "this rung has no action", Some(help));
    }
    s.finish();
    (level, actions.into_iter().map(|(action, span)| (Rung { at, action }, span)).collect())
}

/// Reads `suspend`, and `strict`, which says that the suspension allows no mail at all.
fn suspension(s: &mut Section<'_>) -> Option<section::Placed<Action>> {
    let strict = s.optional("strict", flag);
    let is_strict = strict.as_ref().is_some_and(|strict| strict.value);
    if let Some(strict) = strict.filter(|_| !s.has("suspend")) {
        s.error(&strict.span, "strict works only with suspend", Some("add suspend = \"1d\", or leave strict out"));
    }
    s.optional("suspend", |value| Ok(Action::Suspend { time: length(value)?, is_strict }))
}

/// Reads the length of a suspension or a lock.
fn length(value: &DeValue<'_>) -> Result<Length, String> {
    match &*text(value)? {
        UNTIL_RELEASED => Ok(Length::UntilReleased),
        text => period(text).map(Length::For),
    }
}

const VERBS: [&str; 10] = ["warn", "delay", "defer", "deny", "drop", "route", "suspend", "lock", "notify", "suspect"];

/// Reads a key whose value is a name from another section, `of`. If the name is unknown and that section has an error,
/// only the error in that section is reported, because it may be the cause.
fn named<T>(
    s: &mut Section<'_>,
    key: &'static str,
    of: &str,
    find: impl FnOnce(&str) -> Result<T, String>,
) -> Option<section::Placed<T>> {
    let section::Placed { value: name, span } = s.optional(key, text)?;
    match find(&name) {
        Ok(value) => Some(section::Placed { value, span }),
        Err(why) => {
            s.source().error_unless(&[of], &span, format!("{key}: {why}"), None);
            s.mark_wrong(key);
            None
        }
    }
}

/// Upstream that the action `route` names.
struct Route {
    name: Arc<str>,
    is_enabled: bool,
}

/// Finds the upstream that the action `route` names. A configuration without upstreams only answers Postfix, which puts
/// the mail on hold whatever the name.
fn route(name: &str, cx: &Context<'_>) -> Result<Route, String> {
    let found = cx.upstreams.iter().find(|upstream| *upstream.name == *name);
    match found {
        Some(upstream) => Ok(Route { name: upstream.name.clone(), is_enabled: upstream.enabled }),
        None if cx.upstreams.is_empty() => Ok(Route { name: name.into(), is_enabled: true }),
        None => {
            let names: Vec<&str> = cx.upstreams.iter().map(|upstream| &*upstream.name).collect();
            Err(format!("there is no upstream \"{name}\"; known: {}", names.join(", ")))
        }
    }
}

/// Reads a level, written as a multiple of the limit's rate.
fn times(value: &DeValue<'_>) -> Result<f64, String> {
    let written = match value {
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::String(text) if text.trim_end().ends_with('%') => {
            let share = text.trim_end_matches(['%', ' ']).parse::<f64>();
            let example = share.map_or("0.8".to_owned(), |share| format!("{:?}", share / 100.0));
            return Err(format!("write the level as a number of times the limit: {example} for \"{text}\""));
        }
        _ => return Err("write the level as a number of times the limit, as in 0.8".to_owned()),
    };
    let number = written.replace('_', "").parse().ok().filter(|at| (0.01..=1000.0).contains(at));
    number.ok_or_else(|| format!("{written} is not a level from 0.01 to 1000 times the limit"))
}

/// Reads a duration above 0.
fn period(text: &str) -> Result<Duration, String> {
    match parse_duration(text).map_err(|error| error.to_string())? {
        time if time.is_zero() => Err("write a duration above 0s, as in \"1d\"".to_owned()),
        time => Ok(time),
    }
}

/// Reads the text of a refusal. The value `true` means the standard text.
fn words(value: &DeValue<'_>, verb: Verb, cx: &Context<'_>) -> Result<Option<Arc<Template>>, String> {
    match value.as_bool() {
        Some(true) => return Ok(None),
        Some(false) => return Err("false has no effect: leave the key out".to_owned()),
        None => {}
    }
    let known = KnownValues { help_url: cx.help_url.as_ref(), contact: cx.contact.as_ref() };
    let template = Template::parse(&text(value)?, known).map_err(|error| error.to_string())?;
    let class = match (verb, template.code()) {
        (Verb::Defer, Some(code)) if code.basic >= 500 => Some((code, "its codes are 4xx; deny has 5xx")),
        (Verb::Deny, Some(code)) if code.basic < 500 => Some((code, "its codes are 5xx; defer has 4xx")),
        _ => None,
    };
    match class {
        Some((code, class)) => Err(format!("{} does not suit {}: {class}", code.basic, verb.name())),
        None => Ok(Some(Arc::new(template))),
    }
}

/// Warns if the text of a refusal says "try later" although the reply code says that no retry will succeed.
fn warn_of_contradiction(s: &Section<'_>, verb: Verb, text: Option<&Template>, span: &Range<usize>) {
    let Some(text) = text.filter(|text| text.says_later()) else { return };
    if verb == Verb::Deny || text.code().is_some_and(|code| code.basic >= 500) {
        let message = format!("{}: the text says to try again later, but the code is permanent", verb.name());
        s.warn(span, message, Some("use defer for a temporary refusal"));
    }
}

/// Reads `2s`, `1s per 10`, `until-free`.
fn delay(text: &str, count: Count) -> Result<Delay, String> {
    if text == "until-free" {
        return Ok(Delay::UntilFree);
    }
    let (time, units) = match text.split_once(" per ") {
        Some((time, units)) => {
            let units = parse_amount(units.trim(), if count == Count::Bytes { Units::Octets } else { Units::Things })
                .map_err(|error| error.to_string())?;
            (time, Some(units))
        }
        None => (text, None),
    };
    let time = parse_duration(time.trim()).map_err(|error| error.to_string())?;
    if time.is_zero() {
        return Err("the delay must be above 0s".to_owned());
    }
    Ok(units.map_or(Delay::For(time), |units| Delay::Per { time, units }))
}

/// Reports rungs that are never reached. If refused attempts are not charged, the level does not rise above `refusing`,
/// the level of the lowest rung that refuses.
fn check_order(s: &Section<'_>, rungs: &[Placed], refusing: Option<f64>) {
    let Some(refusing) = refusing else { return };
    for (rung, span) in rungs.iter().filter(|(rung, _)| rung.at > refusing) {
        let message = format!(
            "the level {} is never reached: from {refusing} on attempts are refused, and refused attempts are not charged",
            rung.at
        );
        let lower = if rung.at >= PERCENT { in_percent(rung.at) } else { "use a lower level".to_owned() };
        let help = format!("{lower}; or charge = \"attempts\", which does not work with buckets");
        s.error_unless(&["charge"], span, message, Some(&help));
    }
}

/// Lowest level that is probably meant as a percentage.
const PERCENT: f64 = 50.0;

/// Warns of levels that are probably meant as percentages. Ignores levels above `refusing`, because another check
/// reports them as never reached.
fn warn_of_percents(s: &Section<'_>, levels: &[section::Placed<f64>], refusing: Option<f64>) {
    let is_reached = |at: f64| refusing.is_none_or(|refusing| at <= refusing);
    for section::Placed { value: at, span } in levels.iter().filter(|level| level.value >= PERCENT) {
        if is_reached(*at) {
            s.warn(span, format!("at = {at} is {at} times the limit"), Some(&in_percent(*at)));
        }
    }
}

fn in_percent(at: f64) -> String {
    format!("at = {} is {at} % of the limit", at / 100.0)
}

/// Reports two rungs with the same action at the same level, because only one of these rungs can take effect. If
/// several rungs with the same action are reached, only the highest of them takes effect.
fn check_duplicates(s: &Section<'_>, rungs: &[Placed]) {
    for (n, (rung, span)) in rungs.iter().enumerate() {
        let is_other = |(other, _): &Placed| other.at == rung.at && other.action.name() == rung.action.name();
        if rung.action != Action::Warn && rungs[..n].iter().any(is_other) {
            s.error(span, format!("there is another {} at {}", rung.action.name(), rung.at), None);
        }
    }
}

/// Reports refusals that never take effect. If the levels of several refusals are reached, only the strongest refusal
/// is applied.
fn check_verbs(s: &Section<'_>, rungs: &[Placed]) {
    let verb = |rung: &Rung| if let Action::Refuse(verb, _) = rung.action { Some(verb) } else { None };
    let refusals: Vec<_> = rungs.iter().filter_map(|(rung, span)| Some((rung.at, verb(rung)?, span))).collect();
    for (at, verb, span) in &refusals {
        if let Some((from, stronger, _)) = refusals.iter().find(|(from, other, _)| from <= at && other > verb) {
            let (name, stronger) = (verb.name(), stronger.name());
            s.error(
                span,
                format!("{name} at {at} has no effect: from {from} on {stronger} applies, which is stronger"),
                None,
            );
        }
    }
}

fn check_delays(s: &Section<'_>, rungs: &[Placed], limit: &Limit, cx: &Context<'_>) {
    let delays = || {
        rungs.iter().filter_map(|(rung, span)| match rung.action {
            Action::Delay(delay) => Some((delay, span)),
            _ => None,
        })
    };
    let holds_back = |(rung, _): &Placed| rung.action.refuses() || matches!(rung.action, Action::Route(_));
    if let Some((_, span)) = delays().next().filter(|_| !rungs.iter().any(holds_back)) {
        let help = "a client with many connections is not slowed down: add a rung that defers";
        let message = "this limit only delays: it refuses only what [delay] does not allow";
        s.warn_unless(&["action"], span, message, Some(help));
    }
    for (delay, span) in delays() {
        if limit.stage == Stage::End {
            s.error(
                span,
                "delay does not work with stage = \"end\": clients would time out and send the message again",
                None,
            );
        }
        if let Delay::For(time) | Delay::Per { time, .. } = delay
            && time > cx.lateness.command
        {
            let (time, most) = (format_duration(time), format_duration(cx.lateness.command));
            let message = format!(
                "{time} is longer than per-command of [delay]: a command that would be delayed for more than {most} is refused"
            );
            s.source().warn_unless(&["delay"], span, message, None);
        }
    }
}

fn check_suspensions(s: &Section<'_>, rungs: &[Placed], limit: &Limit) {
    let Some((rung, span)) = rungs.iter().find(|(rung, _)| rung.action.suspends().is_some()) else { return };
    let verb = rung.action.name();
    let lock = rungs.iter().find(|(rung, _)| matches!(rung.action, Action::Lock(_)));
    let has_memory = limit.distinct.is_some_and(|distinct| distinct.known_to.is_some());
    if let Some((_, span)) = lock.filter(|_| !has_memory) {
        let help = "add distinct = \"recipient\" and known-to = \"user\"; or suspend = \"1d\", which refuses all mail";
        let message = "lock needs known-to: it lets mail pass to recipients that this memory knows";
        s.error_unless(&["distinct", "known-to"], span, message, Some(help));
    }
    let is_one = matches!(limit.per[..], [Field::User | Field::Client(_) | Field::Sender | Field::UserDomain]);
    if !is_one {
        let names: Vec<_> = limit.per.iter().map(|field| field.name()).collect();
        let message = match names.is_empty() {
            true => format!("{verb} needs exactly one of user, client, sender or user-domain in \"per\""),
            false => format!(
                "{verb} needs exactly one of user, client, sender or user-domain in \"per\", not {}",
                names.join(", ")
            ),
        };
        let help = "per = [\"user\"], or client, sender or user-domain alone";
        s.error_unless(&["per", "watch"], span, message, Some(help));
    }
    if limit.count == Count::LoginFailures && limit.per.iter().any(|field| field.is_of_user()) {
        let help = "per = [\"client\"] suspends the client that guesses";
        s.warn(span, format!("{verb}: a client that guesses passwords would get their owner suspended"), Some(help));
    }
    if limit.charge == Charge::Attempts && limit.distinct.is_none() {
        let help = "leave charge out, or add distinct = \"recipient\"";
        s.warn(
            span,
            format!("{verb}: with charge = \"attempts\" a client that retries as told would be suspended"),
            Some(help),
        );
    }
}
