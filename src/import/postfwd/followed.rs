//! Search for the rules that belong to a variable of `set()`, or to the target of `jump()`.

use super::super::budget::Allowance;
use super::action::{self, Action};
use super::conditions;
use super::rules::{Item, Rule};

/// The rule whose answer postfwd gives for mail that exceeds a limit.
pub struct Answering<'r> {
    pub rule: &'r Rule,
    /// Index of the rule.
    pub at: usize,
    /// Item of the rule that tests the variable; `None` for a `jump()`.
    pub test: Option<&'r Item>,
    /// Index of the rule at which postfwd continues after the rule of the limit.
    pub from: usize,
}

/// Returns the rule whose answer postfwd gives for mail that exceeds the limit of rule `at`. Returns `None` if the
/// limit's action is neither `set()` nor `jump()`. Returns an error that says why the action is not followed.
pub fn answering<'r>(
    rules: &'r [Rule],
    at: usize,
    action: &str,
    allowance: &Allowance,
) -> Result<Option<Answering<'r>>, String> {
    match action::parse(action) {
        Action::Other("set", assignments) => {
            allowance.items(rules.len())?;
            by_variable(rules, at, assignments)
        }
        Action::Other("jump", id) => {
            allowance.items(rules.len())?;
            by_jump(rules, at, id)
        }
        Action::Other("score", _) => Err(format!("{action}: limits have no scores")),
        Action::Limit(..) | Action::BadLimit(_) => Err(format!("{action}: one limit inside another is not followed")),
        Action::Answer(_) | Action::Other(..) => Ok(None),
    }
}

fn by_variable<'r>(rules: &'r [Rule], at: usize, assignments: &str) -> Result<Option<Answering<'r>>, String> {
    let tests = |name: &str| rules.iter().any(|rule| rule.conditions().any(|item| item.key == name));
    let mut tested = names(assignments).filter(|name| tests(name));
    let Some(name) = tested.next() else { return Ok(None) };
    let value = pairs(assignments).find(|(known, value)| *known == name && is_constant(value));
    let (Some((_, value)), None) = (value, tested.next()) else {
        return Err(format!("set({assignments}): only one constant that a rule tests is followed"));
    };
    let users: Vec<(usize, &Rule, &Item)> = rules
        .iter()
        .enumerate()
        .flat_map(|(n, rule)| rule.conditions().filter(|item| item.key == name).map(move |item| (n, rule, item)))
        .collect();
    let is_set_elsewhere = || rules.iter().filter(|rule| assigns(rule, name)).count() > 1;
    match users[..] {
        [] => Ok(None),
        [(n, rule, test)] => {
            let why = if is_set_elsewhere() {
                "another rule sets it, too"
            } else if n <= at {
                "it stands before this one"
            } else if !is_equal(test, value) {
                "it does not compare it with this value"
            } else if rules[at + 1..n].iter().any(jumps) {
                "a rule before it jumps elsewhere"
            } else if !refuses(rule) {
                "it does not refuse the mail"
            } else {
                return Ok(Some(Answering { rule, at: n, test: Some(test), from: at + 1 }));
            };
            Err(format!("{} tests {name}, which this sets: {why}", rule.place))
        }
        [(_, rule, _), ..] => Err(format!("{} and others test {name}, which this sets", rule.place)),
    }
}

fn by_jump<'r>(rules: &'r [Rule], at: usize, id: &str) -> Result<Option<Answering<'r>>, String> {
    let target = rules.iter().enumerate().find(|(_, rule)| rule.id() == Some(id));
    match target {
        Some((n, rule)) if n > at && refuses(rule) => Ok(Some(Answering { rule, at: n, test: None, from: n })),
        Some((_, rule)) => {
            Err(format!("jump({id}): what the rules from {} on do with the mail is not followed", rule.place))
        }
        None => Err(format!("jump({id}): no rule has this id, so that postfwd goes on with the next rule")),
    }
}

/// Conditions of a rule. Variables of `set()` in them have been followed to the rules that set these variables.
#[derive(Default)]
pub struct Resolved<'r> {
    /// Conditions that test no variable.
    pub items: Vec<&'r Item>,
    /// Rules whose conditions must hold, too: they set a variable to the value that the rule tests.
    pub setters: Vec<&'r Rule>,
    /// Conditions on variables that are not followed.
    pub others: Vec<&'r Item>,
}

/// Follows the variables that conditions of rule `at` test.
pub fn resolved<'r>(rules: &'r [Rule], at: usize, items: Vec<&'r Item>, allowance: &Allowance) -> Resolved<'r> {
    let mut resolved = Resolved::default();
    for item in items {
        if conditions::is_attribute(&item.key) || allowance.items(at).is_err() {
            resolved.items.push(item);
            continue;
        }
        let setters: Vec<&Rule> = rules[..at].iter().filter(|rule| assigns(rule, &item.key)).collect();
        match setters[..] {
            [] => resolved.items.push(item),
            [setter] if sets_to(setter, item) => resolved.setters.push(setter),
            _ => resolved.others.push(item),
        }
    }
    resolved
}

/// Returns whether a rule's action sets a variable to the constant that an item tests.
fn sets_to(setter: &Rule, item: &Item) -> bool {
    let Action::Other("set", assignments) = action::parse(setter.action().unwrap_or_default()) else { return false };
    pairs(assignments).any(|(name, value)| name == item.key && is_constant(value) && is_equal(item, value))
}

/// Returns whether a rule sets a variable, with its own action or with the action of its limit.
fn assigns(rule: &Rule, name: &str) -> bool {
    match action::parse(rule.action().unwrap_or_default()) {
        Action::Other("set", assignments) => names(assignments).any(|one| one == name),
        Action::Limit(_, arguments) => arguments.contains(&format!("{name}=")),
        _ => false,
    }
}

fn pairs(assignments: &str) -> impl Iterator<Item = (&str, &str)> {
    assignments.split(',').filter_map(|one| one.split_once('=')).map(|(name, value)| (name.trim(), value.trim()))
}

fn names(assignments: &str) -> impl Iterator<Item = &str> {
    assignments.split(',').map(|one| one.split(['=', '+', '-', '*', '/', '.']).next().unwrap_or_default().trim())
}

fn is_constant(value: &str) -> bool {
    !value.contains("$$") && !value.starts_with(['=', '+', '-', '*', '/', '.'])
}

/// Returns whether an item is true for this value of its attribute.
fn is_equal(item: &Item, value: &str) -> bool {
    let own = item.value.trim_matches('/').trim_start_matches('^').trim_end_matches('$');
    let numbers = || Some((value.parse::<f64>().ok()?, own.parse::<f64>().ok()?));
    match &*item.operator {
        "=" | "==" | "=~" => own.eq_ignore_ascii_case(value),
        "=>" => numbers().is_some_and(|(value, least)| value >= least),
        "=<" => numbers().is_some_and(|(value, most)| value <= most),
        ">" => numbers().is_some_and(|(value, least)| value > least),
        _ => false,
    }
}

fn refuses(rule: &Rule) -> bool {
    matches!(action::parse(rule.action().unwrap_or_default()), Action::Answer(false))
}

fn jumps(rule: &Rule) -> bool {
    matches!(action::parse(rule.action().unwrap_or_default()), Action::Other("jump", _))
}
