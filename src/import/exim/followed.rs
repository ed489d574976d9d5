//! Search for the statement that refuses mail because of a variable. An earlier `warn` with `ratelimit` sets this
//! variable: `warn ratelimit = … set acl_m_over = 1`, and then `deny condition = $acl_m_over`.

use super::Verb;
use super::acl::{Acl, Condition, Configuration, Statement, set};
use super::braces::is_constant;
use super::conditions::is_modifier;
use super::constant::{Scope, truth};

/// Statement that refuses mail because of a variable that an earlier statement of the same ACL has set.
#[derive(Clone, Copy)]
pub struct Refusal<'a> {
    pub statement: &'a Statement,
    /// Index of the statement in the ACL.
    pub at: usize,
    /// Condition of the statement that tests the variable.
    pub test: &'a Condition,
    /// Whether each run of the ACL first sets the variable to another value. If not, the variable keeps its value for
    /// the whole message (`acl_m_…`) or connection (`acl_c_…`).
    pub is_reset: bool,
    pub verb: Verb,
}

/// Way in which the configuration uses the variables that a statement sets.
pub enum Use<'a> {
    /// No use, or use only in texts.
    None,
    Refusal(Refusal<'a>),
    /// Another use, described in words; the limit cannot do the same.
    Other(String),
}

/// A condition or modifier that uses a variable.
struct Mention<'a> {
    acl: &'a Acl,
    at: usize,
    condition: &'a Condition,
}

/// Returns the use of the variables that statement `at` of an ACL sets after its condition `ratelimit`.
pub fn follow<'a>(configuration: &'a Configuration, acl: &'a Acl, at: usize, ratelimit: &Condition) -> Use<'a> {
    let statement = &acl.statements[at];
    if statement.verb != "warn" || ratelimit.negated {
        return Use::None;
    }
    let after = statement.conditions.iter().skip_while(|one| !std::ptr::eq(*one, ratelimit));
    for setting in after.filter(|one| set(&one.name).is_some()) {
        match of_variable(configuration, acl, at, setting) {
            Use::None => {}
            found => return found,
        }
    }
    Use::None
}

fn of_variable<'a>(configuration: &'a Configuration, acl: &'a Acl, at: usize, setting: &Condition) -> Use<'a> {
    let name = set(&setting.name).unwrap_or_default();
    let (mut uses, mut settings) = (Vec::new(), Vec::new());
    let allowance = &configuration.named.allowance;
    for acl in configuration.acls.iter().take_while(|_| allowance.items(1).is_ok()) {
        for (at, statement) in acl.statements.iter().enumerate().take_while(|_| allowance.items(1).is_ok()) {
            for condition in &statement.conditions {
                let mention = || Mention { acl, at, condition };
                if set(&condition.name) == Some(name) && !std::ptr::eq(condition, setting) {
                    settings.push(mention());
                }
                if !is_text(condition) && !std::ptr::eq(condition, setting) && mentions(&condition.value, name) {
                    uses.push(mention());
                }
            }
        }
    }
    let is_other = |line: &&super::source::Line| mentions(&line.text, name);
    if let Some(line) = configuration.elsewhere.iter().find(is_other) {
        return Use::Other(format!(
            "{} uses ${name}, which this sets: what it does with the mail is not followed",
            line.place
        ));
    }
    match &uses[..] {
        [] => Use::None,
        [one] => match refusal(configuration, (acl, at), setting, one, &settings) {
            Ok(refusal) => Use::Refusal(refusal),
            Err(why) => Use::Other(format!("{} uses ${name}, which this sets: {why}", one.condition.place)),
        },
        [first, ..] => Use::Other(format!(
            "{} and others use ${name}, which this sets: only one statement is followed",
            first.condition.place
        )),
    }
}

/// Returns the refusal by the only statement that uses a variable. Returns an error that says why the limit cannot do
/// the same.
fn refusal<'a>(
    configuration: &Configuration,
    (acl, at): (&Acl, usize),
    setting: &Condition,
    user: &Mention<'a>,
    settings: &[Mention<'_>],
) -> Result<Refusal<'a>, &'static str> {
    let statement = &user.acl.statements[user.at];
    if is_modifier(user.condition) || user.condition.name != "condition" {
        return Err("what it does with the mail is not followed");
    }
    let verb = match &*statement.verb {
        "deny" => Verb::Deny,
        "defer" => Verb::Defer,
        "drop" => Verb::Drop,
        "require" if statement.conditions.iter().filter(|one| !is_modifier(one)).count() == 1 => Verb::Deny,
        _ => return Err("what it does with the mail is not followed"),
    };
    if !std::ptr::eq(user.acl, acl) {
        return Err("it refuses in another ACL");
    }
    if user.at <= at {
        return Err("it stands before this statement");
    }
    let is_earlier = |one: &Mention<'_>| std::ptr::eq(one.acl, acl) && one.at < at && is_constant(&one.condition.value);
    if !settings.iter().all(is_earlier) {
        return Err("the variable is set elsewhere, too");
    }
    let is_reset = settings.iter().any(|one| acl.statements[one.at].conditions.iter().all(is_modifier));
    if setting.name.contains("acl_c") && !is_reset {
        return Err("it refuses all later mail of the connection, too");
    }
    compare(configuration, setting, user, settings)?;
    Ok(Refusal { statement, at: user.at, test: user.condition, is_reset, verb })
}

/// Checks that a statement refuses mail if and only if the variable has the value of `setting`.
fn compare(
    configuration: &Configuration,
    setting: &Condition,
    user: &Mention<'_>,
    settings: &[Mention<'_>],
) -> Result<(), &'static str> {
    let name = set(&setting.name).unwrap_or_default();
    let refuses = user.acl.statements[user.at].verb != "require";
    let is = |value: &str, wanted: bool| outcome(configuration, name, value, user.condition) == Some(wanted);
    let is_clear = is_constant(&setting.value) && is(&setting.value, refuses);
    // A text with variables, such as a message, has an unknown value that is not empty.
    let is_text = !is_constant(&setting.value) && setting.value.contains("$sender_rate");
    if !(is_clear || is_text && is("1.5", refuses) && is("a text", refuses)) {
        return Err("its condition is not understood");
    }
    match is("", !refuses) && settings.iter().all(|one| is(&one.condition.value, !refuses)) {
        true => Ok(()),
        false => Err("it also refuses mail for which the variable is not set"),
    }
}

/// Returns the result of a condition if the variable has this value; `None` if the result also depends on something
/// else.
fn outcome(configuration: &Configuration, name: &str, value: &str, condition: &Condition) -> Option<bool> {
    let mut scope = Scope::new(&configuration.named.allowance);
    scope.set(name, value);
    Some(truth(&scope.simplified(&condition.value))? != condition.negated)
}

/// Returns whether this is a text for the client or the log.
fn is_text(condition: &Condition) -> bool {
    matches!(&*condition.name, "message" | "log_message" | "logwrite")
}

/// Returns whether a text contains the name of a variable.
fn mentions(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part))
}
