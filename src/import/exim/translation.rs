//! Translation of a condition `ratelimit`, together with its statement, into a limit.

use super::super::limit::{Budget, Limit};
use super::super::report::Report;
use super::acl::Configuration;
use super::argument::{Amount, Argument};
use super::conditions;
use super::counting::{self, Counted, Events};
use super::key::{self, Owner};
use super::lookup::{Lookup, UNLIMITED};
use super::number::{per_event, rate};
use super::variables::Variables;
use super::{RatelimitUse, Verb, actions, known, overrides};
use crate::policy::limit::{Algorithm, Charge, Count};
use crate::policy::matching::Field;
use crate::policy::request::Stage;
use std::collections::HashMap;

/// State of the translation of all conditions.
pub struct Translation<'a> {
    configuration: &'a Configuration,
    ratelimit_uses: &'a [RatelimitUse<'a>],
    report: &'a mut Report,
    /// For the name of each of Exim's records, the limits that charge it.
    records: HashMap<String, ChargedRecord>,
}

/// Limits that charge the same record of Exim.
struct ChargedRecord {
    line: usize,
    limits: Vec<(String, Owner)>,
    /// The amount that these limits allow.
    most: f64,
}

/// Amount that the argument of a condition allows.
struct Most {
    most: f64,
    /// Reason why the import cannot know the amount: the limit is printed without a number.
    unknown: Option<String>,
}

impl Most {
    fn unknown(text: &str) -> Self {
        let text: String = text.chars().take(100).collect();
        let words = format!("its number is known only on Exim's machine: write it into rate (here it is {text})");
        Self { most: f64::INFINITY, unknown: Some(words) }
    }
}

impl<'a> Translation<'a> {
    pub fn new(
        configuration: &'a Configuration,
        ratelimit_uses: &'a [RatelimitUse<'a>],
        report: &'a mut Report,
    ) -> Self {
        Self { configuration, ratelimit_uses, report, records: HashMap::new() }
    }

    /// Translates first the conditions that charge a record, then those that only read one.
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
        self.report.refuse(one.number, &one.condition.place, format!("{}: {why}", conditions::short(one.condition)));
    }

    fn translate_charging(&mut self, one: &RatelimitUse<'_>) -> Result<(), String> {
        let argument = &one.argument;
        let owners = key::owners(argument.key.as_deref().unwrap_or("$sender_host_address"))?;
        let Most { most, unknown } = self.most(one)?;
        let mut limits = Vec::new();
        for owner in owners {
            let counted = counting::counted(argument, one.event, one.events, &owner.per)?;
            known::check_owner(&counted, &owner.per, one.event)?;
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
                overrides::add(&mut limit, one, &lookup, &counted, self.report, &self.configuration.named.allowance);
            }
            let reasons = unknown.as_deref().into_iter().chain(counted.difference).chain(owner.difference);
            reasons.for_each(|words| limit.shadow(&one.condition.place, words));
            self.finish(&mut limit, one, &owner);
            limits.push((limit, owner));
        }
        let limits = limits.into_iter().map(|(limit, owner)| (self.report.add(one.number, limit), owner)).collect();
        let recorded = ChargedRecord { line: one.condition.place.line, limits, most };
        self.records.entry(argument.record()).or_insert(recorded);
        Ok(())
    }

    /// Returns the amount that an argument allows. A condition with the limit 0 that only warns measures a rate for
    /// others: it gets the amount of the first condition that reads its record.
    fn most(&self, one: &RatelimitUse<'_>) -> Result<Most, String> {
        let most = match &one.argument.limit {
            Amount::Number(number) => *number,
            Amount::Expansion(text) => match self.looked_up(text)? {
                Some(number) => number,
                None => return Ok(Most::unknown(text)),
            },
        };
        if most.is_nan() {
            return Err("a limit that is not a number (NaN) is always exceeded: write a number".to_owned());
        }
        if most > 0.0 || one.verb != Verb::Warn {
            return Ok(Most { most, unknown: None });
        }
        self.configuration.named.allowance.items(self.ratelimit_uses.len())?;
        let record = one.argument.record();
        let looks = self.ratelimit_uses.iter().filter(|look| look.is_read_only && look.argument.record() == record);
        let numbers = looks.filter_map(|look| match look.argument.limit {
            Amount::Number(number) if number > 0.0 && number.is_finite() => Some(number),
            _ => None,
        });
        let most = numbers.into_iter().next().ok_or_else(|| {
            "a limit of 0 logs every rate; Weir's log has the levels of limits with numbers, also of those in shadow"
                .to_owned()
        })?;
        Ok(Most { most, unknown: None })
    }

    /// Returns the amount for keys that are not in the table of a lookup; `None` if only Exim can know it.
    fn looked_up(&self, text: &str) -> Result<Option<f64>, String> {
        let Some(lookup) = Lookup::parse(text) else { return Ok(None) };
        match lookup.default_value(&self.configuration.named.allowance).as_deref() {
            Some(UNLIMITED) => Ok(Some(f64::INFINITY)),
            Some(default) => match Argument::parse(&format!("{default} / 1s"))?.limit {
                Amount::Number(number) => Ok(Some(lookup.divided(number))),
                Amount::Expansion(_) => Ok(None),
            },
            None => Err("there is no default for keys that are not in the table".to_owned()),
        }
    }

    fn translate_watching(&mut self, one: &RatelimitUse<'_>) -> Result<(), String> {
        let Some(recorded) = self.records.get(&one.argument.record()) else {
            return Err(
                "it only reads a record, and no ratelimit with this period, per_* option and key charges it".to_owned()
            );
        };
        let Amount::Number(number) = one.argument.limit else { return Err("its limit is looked up".to_owned()) };
        let at = number / recorded.most;
        if recorded.most.is_infinite() {
            return Err(format!("it is a part of the number of line {}, which is not known", recorded.line));
        }
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
            if let Some(field) = owner.per.iter().find(|field| !known::is_known(**field, stage)) {
                return Err(format!("{} is not known at {}", field.name(), one.event.name()));
            }
            limit.stage = Some(stage);
            limits.push((limit, owner.clone()));
        }
        for (mut limit, owner) in limits {
            self.finish(&mut limit, one, &owner);
            self.report.add(one.number, limit);
        }
        Ok(())
    }

    /// Adds comments to a limit: its place in the source, and the differences between Exim and Weir.
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
        let is_of_mail = !matches!(counted.count, Count::Rejections | Count::LoginFailures);
        if counted.charge == Charge::Accepted && one.verb == Verb::Warn && is_of_mail {
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
        if one.events == Events::Rejections {
            limit.comment("Exim asks the recipient's server; Weir counts the recipients that the smart host rejects.");
        }
        let is_number = matches!(one.argument.limit, Amount::Number(_));
        if is_number && matches!(&limit.budget, Budget::Own { rate, .. } if rate == "unlimited") {
            limit.comment("No sender can exceed it.");
        }
        if one.argument.limit == Amount::Number(0.0) && one.verb == Verb::Warn {
            limit.comment("Exim only measures here; the number is that of the first condition that reads the record.");
        }
    }

    /// Adds `match`, `except` and the actions to a limit.
    fn finish(&self, limit: &mut Limit, one: &RatelimitUse<'_>, owner: &Owner) {
        let place = &one.statement().place;
        one.differences.iter().for_each(|words| limit.shadow(place, words));
        if one.is_guessed {
            let acl = if one.acl.name.is_empty() { "it".to_owned() } else { format!("the ACL \"{}\"", one.acl.name) };
            let words = format!("no option says when {acl} runs: taken as that of {}", one.event.name());
            match self.configuration.is_whole() {
                true => limit.shadow(place, words),
                false => limit.comment(words),
            }
        }
        if let Some(only) = &owner.only {
            limit.add_match(only.clone());
        }
        if let Some(place) = self.configuration.condition_of(one.acl) {
            limit.shadow(place, format!("the ACL \"{}\" runs only under conditions", one.acl.name));
        }
        let variables = Variables::of(one.acl, self.configuration);
        self.narrow(limit, one, &variables);
        self.except_accepted(limit, one, &variables);
        known::leave_unknown_out(limit, one);
        actions::act(limit, one);
    }

    /// Adds the conditions of the statement to `match` and `except` of the limit.
    fn narrow(&self, limit: &mut Limit, one: &RatelimitUse<'_>, variables: &Variables<'_>) {
        let mut is_after = false;
        for (n, condition) in one.statement().conditions.iter().enumerate() {
            if condition.name == "ratelimit" {
                is_after = true;
            } else if !conditions::is_modifier(condition) && !one.events.are_selected_by(condition) {
                if is_after {
                    limit.comment("Exim also counts mail that does not match the conditions after ratelimit.");
                }
                conditions::narrow(limit, condition, &self.configuration.named, &variables.at(one.at, n));
            }
        }
    }

    /// Adds to `except` the mail that earlier statements of the ACL accept, so that Exim does not evaluate the
    /// condition for it.
    fn except_accepted(&self, limit: &mut Limit, one: &RatelimitUse<'_>, variables: &Variables<'_>) {
        let allowance = &self.configuration.named.allowance;
        let statements = one.acl.statements[..one.at].iter().enumerate();
        let accepts = statements.filter(|(_, statement)| statement.verb == "accept");
        for (at, accept) in accepts.take_while(|_| allowance.items(1).is_ok()) {
            let scope = variables.at(at, accept.conditions.len());
            match conditions::accepted(accept, &self.configuration.named, &scope) {
                Ok(Some(table)) if limit.except.contains(&table) => {}
                Ok(Some(table)) => limit.except.push(table),
                Ok(None) => {}
                Err(words) => limit.shadow(&accept.place, words),
            }
        }
    }
}

/// Returns the lookup whose result is the number `m` of the argument.
fn table(argument: &Argument) -> Option<Lookup> {
    if let Amount::Expansion(text) = &argument.limit { Lookup::parse(text) } else { None }
}
