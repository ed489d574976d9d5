//! Translation of a condition `ratelimit`, together with its statement, into a limit.

use super::super::limit::{Budget, Limit};
use super::super::report::Report;
use super::acl::Configuration;
use super::argument::{Amount, Argument};
use super::conditions;
use super::counting::{self, Counted, Events};
use super::event::Event;
use super::followed::Refusal;
use super::key::{self, Owner};
use super::looks::{self, Reading};
use super::lookup::{Lookup, UNLIMITED};
use super::number::{per_event, rate};
use super::records::{self, Charging, Record};
use super::variables::Variables;
use super::{RatelimitUse, Verb, actions, known, overrides};
use crate::policy::limit::{Algorithm, Charge, Count};
use crate::policy::matching::Field;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// State of the translation of all conditions.
pub struct Translation<'a> {
    configuration: &'a Configuration,
    ratelimit_uses: &'a [RatelimitUse<'a>],
    report: &'a mut Report,
    /// Exim's records by their names.
    records: HashMap<String, Record<'a>>,
}

/// Mail that Exim counts, compared with the mail to which a limit applies.
#[derive(Default)]
struct Reach {
    /// Whether Exim also counts mail to which the limit does not apply.
    is_part: bool,
    /// Whether Exim counts no mail from the network.
    is_never: bool,
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

    /// Translates first the conditions that charge a record, then the conditions that only read a record.
    pub fn all(mut self) {
        let ratelimit_uses = self.ratelimit_uses;
        let (looks, charges): (Vec<_>, Vec<_>) = ratelimit_uses.iter().partition(|one| one.is_read_only);
        let mut charging: Vec<Charging<'a>> = charges.into_iter().map(|one| self.charging(one)).collect();
        records::compare(&mut charging);
        charging.into_iter().for_each(|one| self.record(one));
        for one in looks {
            if let Err(why) = self.translate_watching(one) {
                self.refuse(one, &why);
            }
        }
    }

    /// Adds the limits of a charging condition to the report, and remembers the condition's record.
    fn record(&mut self, charging: Charging<'a>) {
        let one = charging.one;
        let names = match &charging.limits {
            Ok(limits) => limits.iter().map(|(limit, _)| self.report.add(one.number, limit.clone())).collect(),
            Err(why) => {
                self.refuse(one, why);
                Vec::new()
            }
        };
        match self.records.entry(one.argument.record()) {
            Entry::Vacant(entry) => drop(entry.insert(Record { first: charging, names, other: None })),
            Entry::Occupied(_) if charging.is_never => {}
            Entry::Occupied(mut entry) => {
                let record = entry.get_mut();
                let line = one.condition.place.line;
                if record.first.limits.is_err() && charging.limits.is_ok() {
                    let former = std::mem::replace(record, Record { first: charging, names, other: None });
                    record.other = Some(former.first.one.condition.place.line);
                } else {
                    record.other.get_or_insert(line);
                }
            }
        }
    }

    fn refuse(&mut self, one: &RatelimitUse<'_>, why: &str) {
        self.report.refuse(one.number, &one.condition.place, format!("{}: {why}", conditions::short(one.condition)));
    }

    /// Translates a condition that charges a record.
    fn charging(&mut self, one: &'a RatelimitUse<'a>) -> Charging<'a> {
        let mut charging = Charging {
            one,
            limits: Ok(Vec::new()),
            counted: None,
            most: f64::INFINITY,
            is_part: false,
            is_never: false,
            is_shared: false,
        };
        charging.limits = self.charging_limits(one, &mut charging);
        charging
    }

    fn charging_limits(
        &mut self,
        one: &RatelimitUse<'_>,
        charging: &mut Charging<'_>,
    ) -> Result<Vec<(Limit, Owner)>, String> {
        let argument = &one.argument;
        let owners = key::owners(argument.key.as_deref().unwrap_or("$sender_host_address"))?;
        let Most { most, unknown } = self.most(one)?;
        charging.most = most;
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
            let reach = self.finish(&mut limit, one, &owner);
            charging.is_part |= reach.is_part;
            charging.is_never = reach.is_never;
            charging.counted = Some(counted);
            limits.push((limit, owner));
        }
        Ok(limits)
    }

    /// Returns the amount that an argument allows. A condition with the limit 0 that only warns measures a rate for
    /// other conditions. Such a condition gets the amount of the first condition that reads its record.
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

    /// Returns the amount for keys that are not in the table of a lookup; `None` if only Exim can know the amount.
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
        let Some(record) = self.records.get(&one.argument.record()) else {
            return Err(
                "it only reads a record, and no ratelimit with this period, per_* option and key charges it".to_owned()
            );
        };
        if record.first.limits.is_err() {
            let line = record.first.one.condition.place.line;
            return Err(format!("it only reads the record that line {line} charges, which is not translated"));
        }
        let Amount::Number(number) = one.argument.limit else { return Err("its limit is looked up".to_owned()) };
        let (most, line) = (record.first.most, record.first.one.condition.place.line);
        if most.is_infinite() {
            return Err(format!("it is a part of the number of line {line}, which is not known"));
        }
        let reading = record.reading(one);
        let mut limits = Vec::new();
        for ((charging, owner), name) in record.first.limits.iter().flatten().zip(&record.names) {
            let mut limit = match (&reading, &record.first.counted) {
                (Reading::Count, Some(counted)) => looks::twin(charging, one, number / counted.amount)?,
                _ => looks::watching(name, one, owner, number, most, line)?,
            };
            limit.comments.insert(0, source(one));
            if let Reading::Doubtful(words) = &reading {
                limit.shadow(&one.condition.place, words);
            }
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
        limit.comment(source(one));
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
    fn finish(&self, limit: &mut Limit, one: &RatelimitUse<'_>, owner: &Owner) -> Reach {
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
        let verb = &one.refusal.map_or(one.statement(), |refusal| refusal.statement).verb;
        let call = self.configuration.call_without_refusal(one.acl, verb);
        if let Some(place) = call.filter(|_| one.verb != Verb::Warn) {
            limit.shadow(place, format!("this call does not refuse what the ACL \"{}\" refuses", one.acl.name));
        }
        let variables = Variables::of(one.acl, self.configuration);
        let mut reach = self.narrow(limit, one, &variables);
        if let Some(refusal) = one.refusal.filter(|refusal| !refusal.is_reset)
            && one.event == Event::Rcpt
            && limit.depends_on_recipient()
        {
            limit.shadow(&refusal.statement.place, "Exim refuses the later recipients of the message, too");
        }
        self.except_accepted(limit, 0..one.at, one, &variables);
        if let Some(refusal) = &one.refusal {
            reach.is_part |= self.narrow_refusal(limit, one, refusal, &variables);
        }
        known::leave_unknown_out(limit, one);
        actions::act(limit, one);
        reach
    }

    /// Adds the conditions of the statement that refuses. Returns whether Exim also counts mail that this statement
    /// does not refuse.
    fn narrow_refusal(
        &self,
        limit: &mut Limit,
        one: &RatelimitUse<'_>,
        refusal: &Refusal<'_>,
        variables: &Variables<'_>,
    ) -> bool {
        let Refusal { statement, at, test, .. } = *refusal;
        limit.comment(format!("{}: {} is what happens above the limit.", statement.place, statement.verb));
        let mut is_part = false;
        for (n, condition) in statement.conditions.iter().enumerate() {
            if !std::ptr::eq(condition, test) && !conditions::is_modifier(condition) {
                is_part = true;
                conditions::narrow(limit, condition, true, &self.configuration.named, &variables.at(at, n));
            }
        }
        is_part | self.except_accepted(limit, one.at + 1..at, one, variables)
    }

    /// Adds the conditions of the statement to `match` and `except` of the limit.
    fn narrow(&self, limit: &mut Limit, one: &RatelimitUse<'_>, variables: &Variables<'_>) -> Reach {
        let (mut is_after, mut reach) = (false, Reach::default());
        // A limit that counts what another limit counts must count all mail of that limit.
        let is_twin = one.is_read_only;
        for (n, condition) in one.statement().conditions.iter().enumerate() {
            if condition.name == "ratelimit" {
                is_after = true;
            } else if !conditions::is_modifier(condition) && !one.events.are_selected_by(condition) {
                reach.is_part |= is_after;
                let (scope, named) = (variables.at(one.at, n), &self.configuration.named);
                let is_never = conditions::narrow(limit, condition, is_after || is_twin, named, &scope);
                reach.is_never |= is_never && !is_after;
            }
        }
        reach
    }

    /// Adds to `except` the mail that the statements in this range of the ACL accept. For this mail, Exim does not
    /// evaluate the condition, or the refusal after it. Returns whether there is such mail.
    fn except_accepted(
        &self,
        limit: &mut Limit,
        range: std::ops::Range<usize>,
        one: &RatelimitUse<'_>,
        variables: &Variables<'_>,
    ) -> bool {
        let allowance = &self.configuration.named.allowance;
        let is_counted = range.start > 0;
        let mut is_any = false;
        let lets_through = |at: &usize| matches!(&*one.acl.statements[*at].verb, "accept" | "discard");
        for at in range.filter(lets_through).take_while(|_| allowance.items(1).is_ok()) {
            let accept = &one.acl.statements[at];
            let scope = variables.at(at, accept.conditions.len());
            match conditions::accepted(accept, &self.configuration.named, &scope) {
                Ok(None) => continue,
                Ok(Some(table)) => {
                    if is_counted && !table.iter().all(|condition| limit.owns(condition.key)) {
                        limit.shadow(&accept.place, "Exim also counts the mail that this lets through");
                    }
                    if !limit.except.contains(&table) {
                        limit.except.push(table);
                    }
                }
                Err(words) => limit.shadow(&accept.place, words),
            }
            is_any = true;
        }
        is_any
    }
}

/// Returns the comment that shows a condition with its place.
fn source(one: &RatelimitUse<'_>) -> String {
    format!("{}: {} {}", one.condition.place, one.statement().verb, conditions::written(one.condition))
}

/// Returns the lookup whose result is the number `m` of the argument.
fn table(argument: &Argument) -> Option<Lookup> {
    if let Amount::Expansion(text) = &argument.limit { Lookup::parse(text) } else { None }
}
