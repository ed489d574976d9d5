//! Translation of a `ratelimit` condition and its statement to a limit.

use super::super::budget::Allowance;
use super::super::limit::{Budget, Limit};
use super::super::report::Report;
use super::acl::{Configuration, Event};
use super::argument::{Amount, Argument};
use super::conditions::{self, Part};
use super::counting::{self, Counted};
use super::key::{self, Owner};
use super::lookup::{Lookup, MAX_ROWS, UNLIMITED};
use super::number::{per_event, rate};
use super::{RatelimitUse, Verb, actions};
use crate::policy::limit::{Algorithm, Charge, Count};
use crate::policy::matching::Field;
use crate::policy::request::Stage;
use std::collections::HashMap;
use std::path::Path;

/// State of the translation.
pub struct Translation<'a> {
    configuration: &'a Configuration,
    ratelimit_uses: &'a [RatelimitUse<'a>],
    report: &'a mut Report,
    /// Limits by the name of Exim's record.
    records: HashMap<String, ChargedRecord>,
}

/// Limits that charge one of Exim's records.
struct ChargedRecord {
    line: usize,
    limits: Vec<(String, Owner)>,
    /// The amount that they allow.
    most: f64,
}

impl<'a> Translation<'a> {
    pub fn new(
        configuration: &'a Configuration,
        ratelimit_uses: &'a [RatelimitUse<'a>],
        report: &'a mut Report,
    ) -> Self {
        Self { configuration, ratelimit_uses, report, records: HashMap::new() }
    }

    /// Translates the conditions that charge, then those that only read.
    pub fn all(mut self) {
        let ratelimit_uses = self.ratelimit_uses;
        let (looks, charges): (Vec<_>, Vec<_>) = ratelimit_uses.iter().partition(|one| one.is_read_only);
        for one in charges {
            if let Err(why) = self.translate_charging(one) {
                self.refuse(one, &why);
            }
        }
        for one in looks {
            if let Err(why) = self.translate_watching(one) {
                self.refuse(one, &why);
            }
        }
    }

    fn refuse(&mut self, one: &RatelimitUse<'_>, why: &str) {
        self.report.refuse(&one.condition.place, format!("{}: {why}", conditions::written(one.condition)));
    }

    fn translate_charging(&mut self, one: &RatelimitUse<'_>) -> Result<(), String> {
        let argument = &one.argument;
        let owners = key::owners(argument.key.as_deref().unwrap_or("$sender_host_address"))?;
        let most = self.most(one)?;
        let mut limits = Vec::new();
        for owner in owners {
            let counted = counting::counted(argument, one.event, &owner.per)?;
            check_owner(&counted, &owner.per, one.event)?;
            let rate = rate(per_event(most, counted.amount), &argument.period, counted.count, one.verb)?;
            let mut limit = Limit::new(Budget::Own {
                count: counted.count,
                per: owner.per.clone(),
                rate,
                algorithm: Algorithm::Ewma,
                burst: None,
                charge: counted.charge,
                distinct: counted.distinct,
            });
            limit.stage = counted.stage;
            self.explain(&mut limit, one, &owner, &counted);
            if let Some(lookup) = one.lookup.clone().or_else(|| table(argument)) {
                overrides(&mut limit, one, &lookup, &counted, &self.configuration.named.allowance);
            }
            self.finish(&mut limit, one, &owner);
            limits.push((limit, owner));
        }
        let limits = limits.into_iter().map(|(limit, owner)| (self.report.add(limit), owner)).collect();
        let recorded = ChargedRecord { line: one.condition.place.line, limits, most };
        self.records.entry(argument.record()).or_insert(recorded);
        Ok(())
    }

    /// Returns the amount that an argument allows. A condition that only measures, with limit 0, gets the amount of the
    /// first condition that reads its record.
    fn most(&self, one: &RatelimitUse<'_>) -> Result<f64, String> {
        let most = match &one.argument.limit {
            Amount::Number(number) => *number,
            Amount::Expansion(text) => {
                let default =
                    Lookup::parse(text).map(|lookup| lookup.default_value(&self.configuration.named.allowance));
                match default.as_ref().map(Option::as_deref) {
                    Some(Some(UNLIMITED)) => f64::INFINITY,
                    Some(Some(default)) => match Argument::parse(&format!("{default} / 1s"))?.limit {
                        Amount::Number(number) => number,
                        Amount::Expansion(text) => return Err(format!("{text} is known only to Exim")),
                    },
                    Some(None) => return Err("there is no default for keys that are not in the table".to_owned()),
                    None => return Err(format!("{text} is known only to Exim")),
                }
            }
        };
        if most.is_nan() {
            return Err("a limit that is not a number (NaN) is always exceeded: write a number".to_owned());
        }
        if most > 0.0 || one.verb != Verb::Warn {
            return Ok(most);
        }
        self.configuration.named.allowance.items(self.ratelimit_uses.len())?;
        let record = one.argument.record();
        let looks = self.ratelimit_uses.iter().filter(|look| look.is_read_only && look.argument.record() == record);
        let numbers = looks.filter_map(|look| match look.argument.limit {
            Amount::Number(number) if number > 0.0 && number.is_finite() => Some(number),
            _ => None,
        });
        numbers.into_iter().next().ok_or_else(|| {
            "a limit of 0 logs every rate; Weir's log has the levels of limits with numbers, also of those in shadow"
                .to_owned()
        })
    }

    fn translate_watching(&mut self, one: &RatelimitUse<'_>) -> Result<(), String> {
        let Some(recorded) = self.records.get(&one.argument.record()) else {
            return Err(
                "it only reads a record, and no ratelimit with this period, per_* option and key charges it".to_owned()
            );
        };
        let Amount::Number(number) = one.argument.limit else { return Err("its limit is looked up".to_owned()) };
        let at = number / recorded.most;
        if !(0.01..=1000.0).contains(&at) {
            return Err(format!(
                "{number} is not from 0.01 to 1000 times {}, which line {} limits to",
                recorded.most, recorded.line
            ));
        }
        let stage = counting::stage(one.event);
        let mut limits = Vec::new();
        for (name, owner) in &recorded.limits {
            let mut limit = Limit::new(Budget::Watched(name.clone()));
            limit.rung.at = at;
            limit.comment(format!(
                "{}: {} {}",
                one.condition.place,
                one.statement().verb,
                conditions::written(one.condition)
            ));
            if stage.is_none() {
                limit.comment("Exim reads the record at HELO; Weir does not limit HELO, and reads its budget at MAIL.");
            }
            let stage = stage.unwrap_or(Stage::Mail);
            if let Some(field) = owner.per.iter().find(|field| !is_known(**field, stage)) {
                return Err(format!("{} is not known at {}", field.name(), one.event.name()));
            }
            limit.stage = Some(stage);
            limits.push((limit, owner.clone()));
        }
        for (mut limit, owner) in limits {
            self.finish(&mut limit, one, &owner);
            self.report.add(limit);
        }
        Ok(())
    }

    /// Adds comments: the origin of a limit, and the differences in meaning.
    fn explain(&self, limit: &mut Limit, one: &RatelimitUse<'_>, owner: &Owner, counted: &Counted) {
        limit.comment(format!(
            "{}: {} {}",
            one.condition.place,
            one.statement().verb,
            conditions::written(one.condition)
        ));
        if let Some(part) = one.argument.mistaken() {
            limit.comment(format!("{part} is no option of Exim's: it takes it for a part of the key."));
        }
        counted.comments.iter().for_each(|words| limit.comment(words));
        if counted.charge == Charge::Accepted && one.verb == Verb::Warn {
            limit.comment(
                "Leaky: Exim charges nothing while the limit is exceeded; Weir charges all that it lets through,",
            );
            limit.comment("so mail that is only warned of or delayed exceeds the limit for longer.");
        }
        if owner.per.contains(&Field::Client(Default::default())) {
            limit.comment("An IPv6 client is its /64; per = [\"client/32/128\"] is each address, as in Exim.");
        }
        if owner.per.contains(&Field::User) && owner.only.is_none() {
            limit.comment("It does not hold without a login; in Exim all who have none share one budget.");
        }
        if let Some(recorded) = self.records.get(&one.argument.record()) {
            limit.comment(format!(
                "Exim keeps one record for this and for line {}; here each counts by itself.",
                recorded.line
            ));
        }
        if matches!(&limit.budget, Budget::Own { rate, .. } if rate == "unlimited") {
            limit.comment("No sender can exceed it.");
        }
        if one.argument.limit == Amount::Number(0.0) && one.verb == Verb::Warn {
            limit.comment("Exim only measures here; the number is that of the first condition that reads the record.");
        }
    }

    /// Adds `match`, `except` and the actions.
    fn finish(&self, limit: &mut Limit, one: &RatelimitUse<'_>, owner: &Owner) {
        if one.is_guessed {
            let words =
                format!("no option says when the ACL \"{}\" runs: taken as that of {}", one.acl.name, one.event.name());
            match self.configuration.is_whole() {
                true => limit.broaden(&one.statement().place, words),
                false => limit.comment(words),
            }
        }
        if let Some(only) = &owner.only {
            limit.add_match(only.clone());
        }
        if let Some(caller) = self.configuration.condition_of(one.acl) {
            limit.broaden(&caller.place, format!("the ACL \"{}\" runs only under conditions", one.acl.name));
        }
        let mut is_after = false;
        for part in conditions::parts(one.statement()) {
            match part {
                Part::Ratelimit(_) => is_after = true,
                Part::Modifier(_) => {}
                Part::Condition(condition) => {
                    if is_after {
                        let words = "Exim also counts mail that does not match the conditions after ratelimit.";
                        limit.comment(words);
                    }
                    conditions::narrow(limit, condition, &self.configuration.named);
                }
            }
        }
        let before = &one.acl.statements[..one.at];
        let accepts = before.iter().filter(|statement| statement.verb == "accept");
        for accept in accepts.take_while(|_| self.configuration.named.allowance.items(1).is_ok()) {
            conditions::except_accepted(limit, accept, &self.configuration.named);
        }
        actions::act(limit, one);
    }
}

/// Returns the table that gives the limit's number.
fn table(argument: &Argument) -> Option<Lookup> {
    if let Amount::Expansion(text) = &argument.limit { Lookup::parse(text) } else { None }
}

/// Refuses key fields that are unknown when the limit charges.
fn check_owner(counted: &Counted, per: &[Field], event: Event) -> Result<(), String> {
    let (name, stage) = (counted.count.name(), counted.stage);
    let at = match counted.count {
        Count::Connections => Stage::Connect,
        Count::Sessions => Stage::Auth,
        Count::Recipients => stage.unwrap_or(Stage::Rcpt),
        _ => stage.unwrap_or(Stage::Data),
    };
    match per.iter().find(|field| !is_known(**field, at)) {
        Some(field) => Err(format!("{name} per {} cannot be counted at {}", field.name(), event.name())),
        None => Ok(()),
    }
}

/// Returns whether a field is known at a stage.
fn is_known(field: Field, stage: Stage) -> bool {
    match field {
        Field::Listener | Field::Client(_) => true,
        Field::Helo | Field::User | Field::UserDomain => stage > Stage::Connect,
        Field::Sender | Field::SenderDomain => stage > Stage::Auth,
        Field::Recipient | Field::RecipientDomain => stage == Stage::Rcpt,
    }
}

/// Prints the rows of a table, or says how to write the overrides.
fn overrides(limit: &mut Limit, one: &RatelimitUse<'_>, lookup: &Lookup, counted: &Counted, allowance: &Allowance) {
    let (file, argument) = (&lookup.file, &one.argument);
    let place = one.condition.place.clone();
    let lose = |limit: &mut Limit, words: String| limit.lose(&place, words);
    let stem =
        Path::new(file).file_stem().map_or_else(|| limit.name.clone(), |stem| stem.to_string_lossy().into_owned());
    let csv = format!("{stem}.csv");
    let Some(rows) = lookup.rows(allowance) else {
        let words = format!(
            "the numbers of {file} ({}) are not in force: write them to {csv}, with rows like \"WHO,500 / {}\" under the header \
             \"{},rate\", and add overrides = \"{csv}\"",
            lookup.kind,
            argument.period,
            column(lookup.by)
        );
        return lose(limit, words);
    };
    let words =
        format!("the numbers of {file} are not in force: save the table above as {csv}, and add overrides = \"{csv}\"");
    lose(limit, words);
    limit.comment(format!("{},rate", column(lookup.by)));
    for (who, value) in rows.iter().filter(|(who, _)| who != "*").take(MAX_ROWS) {
        let whole = if one.lookup.is_some() { value.clone() } else { format!("{value} / {}", argument.period) };
        let row = Argument::parse(&whole).and_then(|row| match row.limit {
            Amount::Number(number) => rate(per_event(number, counted.amount), &row.period, counted.count, Verb::Deny),
            Amount::Expansion(text) => Err(format!("{text} is known only to Exim")),
        });
        match row {
            Ok(rate) => limit.comment(format!("{who},{rate}")),
            Err(why) => limit.lose(&place, format!("{file}: {who}: {why}")),
        }
    }
    if rows.len() > MAX_ROWS {
        limit.comment(format!("... and {} more rows of {file}", rows.len() - MAX_ROWS));
    }
}

/// Returns the overrides column of a field. The column of a client has addresses and networks, so its name has no
/// widths.
fn column(field: Field) -> String {
    let name = field.name();
    name.split('/').next().unwrap_or_default().to_owned()
}
