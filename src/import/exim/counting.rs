//! Translation of a `per_*` option into `count`, `stage`, `distinct` and `charge` of a limit, for the event at which
//! Exim counts.

use super::acl::{Condition, Statement};
use super::argument::{Argument, Per, Update, number};
use super::event::Event;
use super::key;
use crate::policy::limit::{Charge, Count};
use crate::policy::matching::Field;
use crate::policy::request::Stage;

/// Keys of a limit that say what the limit counts, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    pub count: Count,
    /// Stage at which the limit charges, if it is not the default for the count.
    pub stage: Option<Stage>,
    pub distinct: Option<Field>,
    /// Amount that one event adds in Exim.
    pub amount: f64,
    pub charge: Charge,
    pub comments: Vec<&'static str>,
    /// Difference between Exim and the limit. If there is a difference, the limit is in shadow mode.
    pub difference: Option<&'static str>,
}

/// Count of a limit, its stage if this is not the default for the count, and a difference that puts the limit in shadow
/// mode.
type Plain = (Count, Option<Stage>, Option<&'static str>);

/// Events that a statement counts. The statement's conditions can select other events than the event at which Exim runs
/// the ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    OfAcl,
    /// Recipients that the next server rejects when Exim asks it: `!verify = recipient/callout`.
    Rejections,
    LoginFailures,
}

impl Events {
    pub fn of(statement: &Statement, event: Event) -> Self {
        let is = |test: &dyn Fn(&Condition) -> bool| statement.conditions.iter().any(test);
        match event {
            Event::Rcpt if is(&is_rejection) => Self::Rejections,
            Event::Other("smtp_quit" | "smtp_notquit") if is(&is_failed_login) => Self::LoginFailures,
            _ => Self::OfAcl,
        }
    }

    /// Returns whether a condition has no other effect than to select these events.
    pub fn are_selected_by(self, condition: &Condition) -> bool {
        match self {
            Self::OfAcl => false,
            Self::Rejections => is_rejection(condition),
            Self::LoginFailures => is_failed_login(condition),
        }
    }
}

/// Returns whether a condition is the condition of the recipe BlockCracking, which counts rejected recipients: `!verify
/// = recipient/callout=10s,use_sender`.
fn is_rejection(condition: &Condition) -> bool {
    condition.negated && condition.name == "verify" && condition.value.starts_with("recipient")
}

fn is_failed_login(condition: &Condition) -> bool {
    !condition.negated && condition.name == "condition" && condition.value == "$authentication_failed"
}

/// Returns whether Exim counts with this `per_…` option when it runs an ACL at this event. If not, Exim only reads the
/// rate that is stored in its database.
pub fn fits(per: Option<Per>, event: Event) -> bool {
    let is_early = matches!(event, Event::Connect | Event::Helo | Event::Auth);
    match per {
        None | Some(Per::Conn | Per::Cmd) => true,
        Some(Per::Mail | Per::Byte) => !is_early,
        Some(Per::Rcpt) => !is_early && event != Event::Mail,
        Some(Per::Addr) => event == Event::Rcpt,
    }
}

/// Returns the stage of a limit with `watch` that corresponds to this event.
pub fn stage(event: Event) -> Option<Stage> {
    Some(match event {
        Event::Connect => Stage::Connect,
        Event::Auth => Stage::Auth,
        Event::Mail => Stage::Mail,
        Event::Rcpt => Stage::Rcpt,
        Event::Predata => Stage::Data,
        Event::Data => Stage::End,
        Event::Helo | Event::Other(_) => return None,
    })
}

/// Translates the part of an argument that says what to count at an event. `per` has the fields of the limit's budgets.
pub fn counted(argument: &Argument, event: Event, what: Events, per: &[Field]) -> Result<Counted, String> {
    let (count, stage, difference) = match argument.count.as_deref() {
        _ if what == Events::Rejections => (Count::Rejections, None, None),
        _ if what == Events::LoginFailures => (Count::LoginFailures, None, Some(FAILURES)),
        Some(count) if count.contains('$') => computed(count, event)?,
        _ => plain(argument, event, per)?,
    };
    let amount = match argument.count.as_deref() {
        Some("") => Some(0.0),
        Some(count) if !count.contains('$') => number(count),
        _ => Some(1.0),
    };
    let amount = amount.filter(|amount| amount.is_finite()).ok_or("the amount that an event counts is not a number")?;
    let is_strict = argument.update == Update::Strict && !matches!(count, Count::Rejections | Count::LoginFailures);
    let charge = if is_strict { Charge::Attempts } else { Charge::Accepted };
    let distinct = distinct(argument, count, per)?;
    let comments = comments(count, event, distinct);
    Ok(Counted { count, stage, distinct, amount, charge, comments, difference })
}

/// Translates an argument without `count=`: the count follows from the `per_*` option and the event.
fn plain(argument: &Argument, event: Event, per: &[Field]) -> Result<Plain, String> {
    let of_messages = |stage| Ok((Count::Messages, Some(stage), None));
    let of_user = per.iter().any(|field| field.is_of_user());
    match (argument.per, event) {
        (_, Event::Other(name)) => Err(other(name)),
        (Some(Per::Conn), _) if of_user => Ok((Count::Sessions, None, None)),
        (Some(Per::Conn) | None, Event::Connect) => Ok((Count::Connections, None, None)),
        (Some(Per::Conn), _) => Ok((Count::Connections, None, Some(CONNECTIONS))),
        (Some(Per::Cmd), Event::Connect) => Ok((Count::Connections, None, None)),
        (Some(Per::Cmd) | None, Event::Auth) => Ok((Count::LoginFailures, None, Some(AUTH))),
        (_, Event::Helo) => Ok((Count::Connections, None, Some(HELO))),
        (Some(Per::Cmd | Per::Rcpt | Per::Addr), Event::Rcpt) => Ok((Count::Recipients, None, None)),
        (Some(Per::Rcpt), Event::Predata) => Ok((Count::Recipients, Some(Stage::Data), None)),
        (Some(Per::Rcpt), Event::Data) => Ok((Count::Recipients, Some(Stage::End), None)),
        (Some(Per::Byte), Event::Data) => Ok((Count::Bytes, Some(Stage::End), None)),
        (Some(Per::Byte), Event::Mail | Event::Rcpt | Event::Predata) => Ok((Count::Bytes, None, None)),
        (_, Event::Mail) => of_messages(Stage::Mail),
        (_, Event::Rcpt) => of_messages(Stage::Rcpt),
        (_, Event::Predata) => Ok((Count::Messages, None, None)),
        (_, _) => of_messages(Stage::End),
    }
}

const AUTH: &str = "Exim counts each AUTH; Weir counts failed logins, and count = \"logins\" those that succeed";
const CONNECTIONS: &str = "Exim counts a connection when it gets to this list; Weir counts and refuses it at once";
const HELO: &str = "Exim counts each HELO; Weir counts connections";
const FAILURES: &str = "Exim counts connections that end after a failed login; Weir counts failed logins";

/// Returns the reason why Weir counts nothing at an event that it does not have.
pub fn other(event: &str) -> String {
    match event {
        "not_smtp" | "not_smtp_start" | "not_smtp_mime" => {
            "it limits mail of local programs, which does not come over SMTP and does not pass Weir".to_owned()
        }
        "smtp_quit" | "smtp_notquit" => "Weir counts nothing at the end of a connection".to_owned(),
        "expansions" => "its ACL runs from an expansion, such as event_action, which Weir does not have".to_owned(),
        _ => format!("Weir has nothing like acl_{event}"),
    }
}

/// Translates an argument whose `count=` is an expansion, such as `$recipients_count`.
fn computed(count: &str, event: Event) -> Result<Plain, String> {
    let (count, stage) =
        match (count.trim().trim_start_matches("${").trim_start_matches('$').trim_end_matches('}'), event) {
            ("recipients_count" | "rcpt_count", Event::Predata) => (Count::Recipients, Some(Stage::Data)),
            ("recipients_count" | "rcpt_count", Event::Data) => (Count::Recipients, Some(Stage::End)),
            ("message_size", Event::Mail | Event::Rcpt | Event::Predata) => (Count::Bytes, None),
            ("message_size", Event::Data) => (Count::Bytes, Some(Stage::End)),
            _ => return Err(format!("limits count no {count} at {}", event.name())),
        };
    Ok((count, stage, None))
}

/// Returns the field for `distinct`: the limit counts an event only if the value of this field is new.
fn distinct(argument: &Argument, count: Count, per: &[Field]) -> Result<Option<Field>, String> {
    let unique = match (argument.per, argument.unique.as_deref()) {
        // If an argument has both `per_addr` and `unique=`, Exim uses the later option. An administrator who writes
        // both options means the recipient, as in per_addr.
        (Some(Per::Addr), _) => return Ok(Some(Field::Recipient)),
        (_, None) => return Ok(None),
        (_, Some(unique)) => unique,
    };
    let owners = key::owners(unique).map_err(|why| format!("unique={unique}: {why}"))?;
    let what = match owners.first().map(|owner| &owner.per[..]) {
        Some([what]) if owners.len() == 1 && owners[0].difference.is_none() => *what,
        Some([]) => return Err(format!("unique={unique} is the same each time, so that it counts once in a period")),
        _ => return Err(format!("unique={unique}: only one thing can be distinct")),
    };
    let fits = count == Count::Recipients || count == Count::Messages && !what.is_of_recipient();
    if !fits || per.contains(&what) {
        return Err(format!("unique={unique}: count = \"{}\" has no distinct = \"{}\"", count.name(), what.name()));
    }
    Ok(Some(what))
}

fn comments(count: Count, event: Event, distinct: Option<Field>) -> Vec<&'static str> {
    let mut comments = Vec::new();
    if count == Count::Bytes && event != Event::Data {
        comments.push("Exim counts what MAIL declares; Weir, too, but corrects it at the end of the message.");
    }
    if count == Count::Sessions {
        comments.push("Exim counts a connection when it gets to this list; Weir when its login has succeeded.");
    }
    if distinct.is_some_and(Field::is_of_recipient) {
        comments.push("Sub-addresses are cut: bob+lists is bob, unless [addresses] says otherwise.");
    }
    comments
}
