//! Import of the ratelimit section of an rspamd configuration, in its old and new forms (rspamd 4.1).

mod map;
mod owner;
mod rate;
mod selector;
mod ucl;

use super::budget::Allowance;
use super::limit::{Budget, Condition, Limit, MatchValue, quoted};
use super::report::Report;
use super::source_line::SourceLine;
use crate::policy::limit::{Algorithm, Charge, Count, KnownValues, Template};
use crate::policy::matching::Field;
use crate::policy::request::Stage;
use owner::Owner;
use rate::Bucket;
use std::path::Path;
use std::rc::Rc;
use ucl::{Entry, Value};

/// Reads a configuration file with a ratelimit section, or a file that has only the content of this section.
pub fn read(path: &Path, allowance: &Rc<Allowance>) -> std::io::Result<Report> {
    let text = allowance.read(path)?;
    let file: Rc<str> = path.display().to_string().into();
    let read = ucl::read(&text, allowance);
    let mut report = Report::new("bucket", false);
    if allowance.excess().is_some() {
        return Ok(report);
    }
    if let Some(error) = read.error {
        report.leave_out(&SourceLine::new(&file, error.line), format!("{}; nothing is read from here on", error.why));
    }
    for (line, directive) in read.included.iter().filter(|(_, directive)| may_exist(path, directive)) {
        report.leave_out(
            &SourceLine::new(&file, *line),
            format!("{directive}: it is not followed; import that file, too"),
        );
    }
    let (sections, others): (Vec<_>, Vec<_>) = read.entries.into_iter().partition(|entry| entry.key == "ratelimit");
    let is_section = sections.is_empty();
    let sections =
        sections.into_iter().filter_map(|entry| if let Value::Object(all) = entry.value { Some(all) } else { None });
    // A file without a ratelimit section contains only the content of this section, like the files in local.d.
    let sections: Vec<Vec<Entry>> = if is_section { vec![others] } else { sections.collect() };
    for section in &sections {
        Section::new(&file, section, allowance).translate(&mut report);
    }
    Ok(report)
}

/// Returns whether an included file exists or must exist.
fn may_exist(path: &Path, directive: &str) -> bool {
    if !directive.contains("try=true") {
        return true;
    }
    let name = directive.split(['"', '\'']).nth(1).unwrap_or_default();
    map::resolved(path, name).exists()
}

/// Settings of a ratelimit section that apply to all limits made from it.
struct Section<'a> {
    file: &'a Rc<str>,
    entries: &'a [Entry],
    allowance: &'a Allowance,
    bounce_senders: Vec<String>,
    /// Setting with which rspamd only marks the mail: the limits are then in shadow mode.
    marks: Option<String>,
    except: Vec<Condition>,
    /// Settings that limits cannot express; they are printed with each limit.
    lost: Vec<(SourceLine, String)>,
    /// Whether rspamd changes burst and rate according to its rating of the mail as spam or ham (`dynamic_rate_limit`,
    /// off by default since rspamd 3.9).
    is_dynamic: bool,
}

const FACTORS: &str = "limits do not change with the rating of the mail";

/// Keys that configure Redis, or the names of buckets in Redis. They have no effect on the limits.
const STORAGE_KEYS: [&str; 17] = [
    "servers",
    "read_servers",
    "write_servers",
    "sentinels",
    "sentinel_master_name",
    "sentinel_watch_time",
    "username",
    "password",
    "dbname",
    "db",
    "timeout",
    "prefix",
    "expire",
    "max_delay",
    "allow_local",
    "prefilter",
    "expand_keys",
];

/// Keys with which rspamd changes limits according to its rating of the mail as spam or ham.
const RATING_KEYS: [&str; 7] = [
    "ham_factor_rate",
    "spam_factor_rate",
    "ham_factor_burst",
    "spam_factor_burst",
    "max_rate_mult",
    "max_bucket_mult",
    "use_ip_score",
];

impl<'a> Section<'a> {
    fn new(file: &'a Rc<str>, entries: &'a [Entry], allowance: &'a Allowance) -> Self {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let mut section = Self {
            file,
            entries,
            allowance,
            bounce_senders: list(&["postmaster", "mailer-daemon", "<>", "null", "fetchmail-daemon", "mdaemon"]),
            marks: None,
            except: Vec::new(),
            lost: Vec::new(),
            is_dynamic: entries.iter().any(|entry| entry.key == "dynamic_rate_limit" && entry.value.is_true()),
        };
        let mut recipients = list(&["postmaster", "mailer-daemon"]);
        for entry in entries {
            section.option(entry, &mut recipients);
        }
        if !recipients.is_empty() {
            section.except.push(Condition { key: "recipient", value: MatchValue::Texts(recipients) });
        }
        section
    }

    fn place(&self, line: usize) -> SourceLine {
        SourceLine::new(self.file, line)
    }

    /// Reads one entry of the section, if its key is about exceptions or actions.
    fn option(&mut self, entry: &Entry, recipients: &mut Vec<String>) {
        let items = texts(&entry.value);
        let key = match &*entry.key {
            "bounce_senders" => {
                let null = |text: String| if text.is_empty() { "<>".to_owned() } else { text };
                self.bounce_senders = items.into_iter().map(null).collect();
                return;
            }
            "symbol" => {
                self.marks = Some(format!("symbol = {}", items.join(", ")));
                return;
            }
            "enabled" if entry.value.is_false() => {
                self.lost
                    .push((self.place(entry.line), "enabled = false: rspamd does not use these limits".to_owned()));
                return;
            }
            "whitelisted_rcpts" => "recipient",
            "whitelisted_ip" => "client",
            "whitelisted_user" => "user",
            _ => return,
        };
        match map::items(&items, self.file, self.allowance) {
            Ok(items) if key == "recipient" => *recipients = items,
            Ok(items) if items.is_empty() => {}
            Ok(items) => self.except.push(Condition { key, value: MatchValue::Texts(items) }),
            Err(why) => {
                let words = format!(
                    "{} = {}: {why}; write [list.NAME] with file = \"PATH\", one item a line, and add \
                     except = {{ {key} = \"list:NAME\" }}",
                    entry.key,
                    items.join(", ")
                );
                self.lost.push((self.place(entry.line), words));
            }
        }
    }

    fn translate(&self, report: &mut Report) {
        for entry in self.entries {
            let place = self.place(entry.line);
            match &*entry.key {
                "rates" => {
                    let Value::Object(rates) = &entry.value else {
                        report.leave_out(&place, "rates has no limits in { }");
                        continue;
                    };
                    rates.iter().for_each(|rate| self.rates(rate, report));
                }
                "limit" => {
                    report.leave_out(&place, "limit = \"NAME:BURST:RATE\" is a form that rspamd itself has given up")
                }
                "max_rcpt" | "max_rcpts" => report.leave_out(
                    &place,
                    format!(
                        "{}: rspamd once exempted messages with more recipients; neither rspamd nor Weir does so now",
                        entry.key
                    ),
                ),
                "custom_keywords" | "message_func" => {
                    report.leave_out(&place, format!("{} is a program, which is not read", entry.key));
                }
                "whitelisted_rcpts" | "whitelisted_ip" | "whitelisted_user" | "bounce_senders" | "symbol"
                | "info_symbol" | "enabled" | "dynamic_rate_limit" => {}
                key if STORAGE_KEYS.contains(&key) => {}
                key if RATING_KEYS.contains(&key) => {
                    let is_one = matches!(entry.value.number(), Some(1.0)) || entry.value.is_false();
                    if self.is_dynamic && !is_one {
                        report.leave_out(&place, format!("{key}: {FACTORS}"));
                    }
                }
                key => report.leave_out(&place, format!("{key} is no key of rspamd's ratelimit that this knows")),
            }
        }
    }

    /// Returns whether the import is permitted to add one more limit. Each limit repeats all settings of the section,
    /// so these settings count against the bounds of the import.
    fn may_add(&self) -> bool {
        let texts = self.except.iter().flat_map(|condition| match &condition.value {
            MatchValue::Texts(texts) => &texts[..],
            MatchValue::Flag(_) => &[],
        });
        let texts = texts.chain(&self.bounce_senders).chain(self.lost.iter().map(|(_, words)| words));
        let mut texts = texts.map(|text| self.allowance.octets(text.len()));
        self.allowance.items(1).is_ok() && texts.all(|taken| taken.is_ok())
    }

    /// Translates all buckets with the same name into limits.
    fn rates(&self, entry: &Entry, report: &mut Report) {
        let (owner, buckets) = match &entry.value {
            Value::Object(inner) if inner.iter().any(|one| one.key == "bucket") => {
                let selector = inner.iter().find(|one| one.key == "selector").and_then(|one| one.value.text());
                let owner = match selector {
                    Some(selector) => owner::of_selector(selector),
                    None => owner::of_name(&entry.key, &self.bounce_senders),
                };
                for other in inner.iter().filter(|one| !matches!(&*one.key, "bucket" | "selector")) {
                    report
                        .leave_out(&self.place(other.line), format!("{}: {} is not understood", entry.key, other.key));
                }
                let buckets = inner.iter().filter(|one| one.key == "bucket").flat_map(|one| match &one.value {
                    Value::Array(many) if !rate::is_pair(many) => {
                        many.iter().map(|value| (first_line(value).unwrap_or(one.line), value)).collect()
                    }
                    value => vec![(one.line, value)],
                });
                (owner, buckets.collect::<Vec<_>>())
            }
            value => (owner::of_name(&entry.key, &self.bounce_senders), vec![(entry.line, value)]),
        };
        for (line, value) in buckets {
            let (place, number) = (self.place(line), report.number());
            if !self.may_add() {
                return;
            }
            let read = owner.as_ref().map_err(String::clone).and_then(|owner| Ok((owner, rate::bucket(value)?)));
            match read {
                Ok((owner, Some(bucket))) => drop(report.add(number, self.limit(&entry.key, &place, owner, &bucket))),
                Ok((_, None)) => report.refuse(number, &place, format!("{}: a burst of 0 is no limit", entry.key)),
                Err(why) => report.refuse(number, &place, format!("{}: {why}", entry.key)),
            }
        }
    }

    fn limit(&self, name: &str, place: &SourceLine, owner: &Owner, bucket: &Bucket) -> Limit {
        let is_per_recipient = owner.per.iter().any(|field| field.is_of_recipient());
        let count = if bucket.skip_recipients { Count::Messages } else { Count::Recipients };
        let mut limit = Limit::new(Budget::Own {
            count,
            per: owner.per.clone(),
            rate: bucket.rate.clone(),
            algorithm: Algorithm::LeakyBucket,
            burst: Some(bucket.burst.clone()),
            charge: Charge::Accepted,
            distinct: None,
        });
        limit.name = owner::limit_name(name);
        // rspamd charges all recipients of a message together, so the limit charges at DATA.
        limit.stage = (count == Count::Recipients && !is_per_recipient).then_some(Stage::Data);
        limit.comment(format!("{place}: {name} = {}", bucket.written));
        bucket.comments.iter().for_each(|words| limit.comment(words));
        owner.comments.iter().for_each(|words| limit.comment(words));
        limit
            .comment("The first mail of a new bucket passes rspamd whatever its size; Weir refuses what does not fit.");
        if self.is_dynamic {
            limit.comment("rspamd raises and lowers burst and rate by its rating of the mail; Weir keeps them.");
        }
        if owner.per.contains(&Field::Client(Default::default())) {
            limit.comment("An IPv6 client is its /64; per = [\"client/32/128\"] is each address, as in rspamd.");
        }
        limit.matches = owner.matches.clone();
        limit.except = owner.except.iter().chain(&self.except).map(|one| vec![one.clone()]).collect();
        if self.except.iter().any(|one| one.key == "recipient") {
            limit.comment(
                "rspamd exempts the whole message if one recipient is exempt; Weir exempts this recipient only.",
            );
        }
        self.lost.iter().for_each(|(place, words)| limit.shadow(place, words));
        let factors = bucket.factors.iter().filter(|_| self.is_dynamic);
        bucket.lost.iter().chain(factors).for_each(|(line, words)| limit.lose(&self.place(*line), words));
        self.act(&mut limit, place, bucket);
        limit
    }

    /// Adds the action for mail that exceeds the limit.
    fn act(&self, limit: &mut Limit, place: &SourceLine, bucket: &Bucket) {
        if let Some(setting) = bucket.marks.as_ref().or(self.marks.as_ref()) {
            limit.shadow(place, format!("{setting}: rspamd only marks the mail"));
        }
        let text = bucket.message.as_deref().map(|text| text.replace(['{', '}'], ""));
        match text.as_deref().map(|text| Template::parse(text, KnownValues::default())) {
            None => limit.act("defer", "true"),
            Some(Ok(template)) if template.code().is_none_or(|code| code.basic < 500) => {
                limit.act("defer", quoted(text.as_deref().unwrap_or_default()));
            }
            Some(Ok(_)) => {
                limit.lose(
                    place,
                    "message: its code is permanent, but the refusal is temporary: Weir's standard text is used",
                );
                limit.act("defer", "true");
            }
            Some(Err(error)) => {
                limit.lose(place, format!("message: {error}, so Weir's standard text is used"));
                limit.act("defer", "true");
            }
        }
    }
}

/// Returns the line of the first key of a section.
fn first_line(value: &Value) -> Option<usize> {
    if let Value::Object(entries) = value { entries.first().map(|entry| entry.line) } else { None }
}

/// Returns the items of a list, in any form in which rspamd can write one.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().filter_map(Value::text).map(str::to_owned).collect(),
        Value::Object(_) => Vec::new(),
        Value::Quoted(text) | Value::Bare(text) => text.split(',').map(|item| item.trim().to_owned()).collect(),
    }
}
