//! Test message for `weir test`: description of a session from options or JSON, parsed and checked.

use crate::policy::request::{NULL_SENDER, Novelty, Stage};
use crate::smtp::address::{Path, parse_path};
use crate::smtp::sasl::is_user_name;
use crate::time::{Moment, Units, parse_amount, parse_moment};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::sync::Arc;

/// Session with one message, up to a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct TestMessage {
    /// IP address of the client.
    pub client: IpAddr,
    /// User who logs in, with the right password; `None`: no login.
    pub user: Option<String>,
    /// Groups of the user, in addition to the groups in the users file.
    pub groups: Vec<String>,
    /// Account of the user. Not in the JSON, because the Weir that rehearses looks up the account itself.
    pub account: Account,
    /// Envelope sender; `<>` is the null sender of bounces.
    pub sender: Option<String>,
    /// Envelope recipients.
    pub recipients: Vec<String>,
    /// Message size, in octets.
    pub size: Option<u64>,
    /// Last stage of the session; `None`: all stages for which the test message has facts.
    pub stage: Option<Stage>,
    /// Client's name in EHLO.
    pub helo: Option<String>,
    /// Name of the listener; `None` means the only listener, if there is only one.
    pub listener: Option<String>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Novelty of the login for the user.
    pub novelty: Novelty,
    /// Time of the session; `None`: now. A time without an offset is in the configuration's time zone.
    pub at: Option<Moment>,
}

/// Account of the user of a test message.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Account {
    /// There are no accounts, or no user.
    #[default]
    Unchecked,
    Known {
        is_disabled: bool,
        groups: Vec<String>,
        /// Login networks that the account itself names.
        login_networks: Option<Arc<[IpNet]>>,
    },
    Missing,
    /// The users file cannot be read, for this reason.
    Unreadable(String),
}

impl Account {
    pub fn known(is_disabled: bool, groups: &[Box<str>], login_networks: Option<Arc<[IpNet]>>) -> Self {
        Self::Known { is_disabled, groups: groups.iter().map(ToString::to_string).collect(), login_networks }
    }
}

/// Maximum number of recipients in a test message. The memory and the time of a rehearsal grow with this number times the
/// number of limits.
pub const MAX_RECIPIENTS: usize = 1_000;

/// Maximum number of groups in a test message. Each condition on groups compares all of them.
pub const MAX_GROUPS: usize = 100;

/// Maximum length of a text in the JSON of a test message, in octets. Each valid value is shorter.
const MAX_TEXT: usize = 1_000;

impl TestMessage {
    /// Checks that the test message has the facts that its last stage needs. Returns an error that names the missing
    /// option.
    pub fn check(&self) -> Result<(), String> {
        let needs = |what: &str, needed: &str| Err(format!("{what} needs {needed}"));
        let goes_to = |stage| self.stage.is_some_and(|last| last >= stage);
        let stage = self.stage.map(|stage| format!("--stage {}", stage.name())).unwrap_or_default();
        match self {
            Self { user: None, groups, .. } if !groups.is_empty() => needs("--group", "--user: groups are of users"),
            Self { sender: None, recipients, .. } if !recipients.is_empty() => needs("--rcpt-to", "--mail-from"),
            Self { sender: None, size: Some(_), .. } => needs("--size", "--mail-from, which declares it"),
            Self { user: None, novelty, .. } if *novelty != Novelty::default() => {
                needs("--new-network, --new-country or --new-helo", "--user: the history is of users")
            }
            Self { user: None, stage: Some(Stage::Auth), .. } => needs(&stage, "--user"),
            Self { sender: None, .. } if goes_to(Stage::Mail) => needs(&stage, "--mail-from"),
            Self { recipients, .. } if recipients.is_empty() && goes_to(Stage::Rcpt) => needs(&stage, "--rcpt-to"),
            Self { recipients, .. } if recipients.len() > MAX_RECIPIENTS => {
                Err(format!("{} recipients are too many: {MAX_RECIPIENTS} at most", recipients.len()))
            }
            Self { groups, .. } if groups.len() > MAX_GROUPS => {
                Err(format!("{} groups are too many: {MAX_GROUPS} at most", groups.len()))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the session reaches a stage.
    pub fn reaches(&self, stage: Stage) -> bool {
        self.stage.is_none_or(|last| stage <= last)
    }

    /// Returns the groups of the user: the groups of the account, and further groups in the test message.
    pub fn all_groups(&self) -> Vec<String> {
        let mut groups = match &self.account {
            Account::Known { groups, .. } => groups.clone(),
            _ => Vec::new(),
        };
        let others = self.groups.iter().filter(|other| !groups.iter().any(|group| group.eq_ignore_ascii_case(other)));
        groups.extend(others.cloned().collect::<Vec<_>>());
        groups
    }

    /// Returns why a real login to this account would fail. The rehearsal itself treats the login as successful.
    pub fn doubt(&self) -> Option<String> {
        let user = self.user.as_deref()?;
        match &self.account {
            Account::Unchecked | Account::Known { is_disabled: false, .. } => None,
            Account::Known { .. } => Some(format!("the account {user} is disabled: a login would be refused")),
            Account::Missing => Some(format!("the users file has no account {user}: a login would be refused")),
            Account::Unreadable(why) => Some(format!("the groups of {user} are not known: {why}")),
        }
    }

    /// Returns the test message as JSON, for the running Weir.
    pub fn to_json(&self) -> Value {
        json!({ "client": self.client.to_string(), "user": self.user, "group": self.groups, "mail-from": self.sender,
            "rcpt-to": self.recipients, "size": self.size, "stage": self.stage.map(Stage::name), "helo": self.helo,
            "listener": self.listener, "tls": self.tls, "new-network": self.novelty.network,
            "new-country": self.novelty.country, "new-helo": self.novelty.helo, "at": self.at.map(|at| at.to_string()) })
    }

    /// Parses the JSON of [`TestMessage::to_json`], or JSON of another client. Returns an error that names the bad
    /// value.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let Value::Object(object) = value else { return Err("this is not a JSON object".to_owned()) };
        if let Some(unknown) = object.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!("there is no \"{unknown}\"; known: {}", KEYS.join(", ")));
        }
        let facts = Fields(object);
        let test_message = Self {
            client: facts.one("client", client)?.ok_or("there is no client")?,
            user: facts.one("user", user)?,
            groups: facts.all("group", name)?,
            account: Account::Unchecked,
            sender: facts.one("mail-from", sender)?,
            recipients: facts.all("rcpt-to", recipient)?,
            size: facts.one("size", size)?,
            stage: facts.one("stage", stage)?,
            helo: facts.one("helo", name)?,
            listener: facts.one("listener", name)?,
            tls: facts.flag("tls")?.unwrap_or(false),
            novelty: Novelty {
                network: facts.flag("new-network")?,
                country: facts.flag("new-country")?,
                helo: facts.flag("new-helo")?,
            },
            at: facts.one("at", time)?,
        };
        test_message.check().map(|()| test_message)
    }
}

const KEYS: [&str; 14] = [
    "client",
    "user",
    "group",
    "mail-from",
    "rcpt-to",
    "size",
    "stage",
    "helo",
    "listener",
    "tls",
    "new-network",
    "new-country",
    "new-helo",
    "at",
];

/// JSON object of a test message.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn one<T>(&self, key: &str, read: fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
        let text = match self.0.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(other) => return Err(format!("{key} is {other}: write a text")),
        };
        check_length(&text).and_then(|()| read(&text)).map(Some).map_err(|why| format!("{key}: {why}"))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(format!("{key} is {other}: write true or false")),
        }
    }

    fn all<T>(&self, key: &str, read: fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
        let item = |item: &Value| match item {
            Value::String(text) => check_length(text).and_then(|()| read(text)).map_err(|why| format!("{key}: {why}")),
            other => Err(format!("{key} has {other} in it: write texts")),
        };
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => items.iter().map(item).collect(),
            Some(other) => Err(format!("{key} is {other}: write a list of texts")),
        }
    }
}

/// Checks the length of a text before it is parsed, so that an error does not repeat a very long text.
fn check_length(text: &str) -> Result<(), String> {
    match text.len() {
        0..=MAX_TEXT => Ok(()),
        length => Err(format!("it has {length} octets: {MAX_TEXT} at most")),
    }
}

pub fn client(text: &str) -> Result<IpAddr, String> {
    let address = text.parse::<IpAddr>().map(|address| address.to_canonical());
    address.map_err(|_| format!("\"{text}\" is not an IP address: write 192.0.2.7 or 2001:db8::7"))
}

pub fn user(text: &str) -> Result<String, String> {
    is_user_name(text).then(|| text.to_owned()).ok_or_else(|| format!("\"{text}\" is not a user name"))
}

pub fn name(text: &str) -> Result<String, String> {
    let good = !text.is_empty() && text.len() <= 255 && !text.contains(char::is_control);
    good.then(|| text.to_owned()).ok_or_else(|| format!("\"{}\" is not a name", text.escape_debug()))
}

pub fn sender(text: &str) -> Result<String, String> {
    match path(text) {
        Some(Path::Null) => Ok(NULL_SENDER.to_owned()),
        Some(Path::Mailbox(_)) => Ok(bare(text)),
        _ => Err(format!("\"{text}\" is not an address: write alice@example.org, or <> for the sender of bounces")),
    }
}

pub fn recipient(text: &str) -> Result<String, String> {
    match path(text) {
        Some(Path::Mailbox(_) | Path::Postmaster(_)) => Ok(bare(text)),
        _ => Err(format!("\"{text}\" is not an address: write bob@example.net")),
    }
}

/// Parses an address, with or without angle brackets.
fn path(text: &str) -> Option<Path> {
    let bracketed = format!("<{}>", bare(text));
    let (path, rest) = parse_path(&bracketed)?;
    (rest.is_empty() && !text.is_empty()).then_some(path)
}

fn bare(text: &str) -> String {
    text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).unwrap_or(text).to_owned()
}

pub fn size(text: &str) -> Result<u64, String> {
    let octets = parse_amount(text, Units::Octets).map_err(|error| error.to_string())?;
    match octets.fract() == 0.0 {
        true => Ok(octets as u64),
        false => Err(format!("\"{text}\" is not a whole number of octets")),
    }
}

pub fn stage(text: &str) -> Result<Stage, String> {
    let known = Stage::NAMED.into_iter().find(|stage| stage.name() == text);
    known.ok_or_else(|| format!("\"{text}\" is not a stage: {}", Stage::NAMED.map(Stage::name).join(", ")))
}

pub fn time(text: &str) -> Result<Moment, String> {
    parse_moment(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TestMessage, String> {
        TestMessage::from_json(&serde_json::from_str(text).unwrap())
    }
    use crate::time::Timestamp;

    #[test]
    fn a_case_survives_json() {
        let mut test_message = TestMessage {
            client: "192.0.2.7".parse().unwrap(),
            user: Some("alice".into()),
            groups: vec!["staff".into()],
            account: Account::Unchecked,
            sender: Some(NULL_SENDER.into()),
            recipients: vec!["bob@example.net".into(), "postmaster".into()],
            size: Some(20_000),
            stage: Some(Stage::Data),
            helo: Some("client.example".into()),
            listener: Some("submission".into()),
            tls: true,
            novelty: Novelty { network: Some(true), country: None, helo: Some(false) },
            at: Some(Moment::Exact(Timestamp::from_micros(1_700_000_000_000_001))),
        };
        assert_eq!(TestMessage::from_json(&test_message.to_json()), Ok(test_message.clone()));
        test_message.at = Some(parse_moment("2026-03-01T10:00").unwrap());
        assert_eq!(TestMessage::from_json(&test_message.to_json()), Ok(test_message));
    }

    #[test]
    fn the_groups_of_the_case_are_added_to_those_of_the_account() {
        let mut test_message = parse(r#"{"client":"::1","user":"sam","group":["Staff","boat"]}"#).unwrap();
        assert_eq!(
            (test_message.all_groups(), test_message.doubt()),
            (vec!["Staff".to_owned(), "boat".to_owned()], None)
        );
        test_message.account = Account::Known {
            is_disabled: false,
            groups: vec!["crew".to_owned(), "staff".to_owned()],
            login_networks: None,
        };
        assert_eq!(test_message.all_groups(), ["crew", "staff", "boat"]);
        assert_eq!(test_message.doubt(), None);
        test_message.account = Account::Missing;
        assert_eq!(test_message.doubt().unwrap(), "the users file has no account sam: a login would be refused");
    }

    #[test]
    fn a_test_message_has_bounds_for_recipients_groups_and_texts() {
        let list = |item: &'static str, count| vec![item; count];
        let parse = |value: &Value| TestMessage::from_json(value);
        let recipients = |count| json!({ "client": "::1", "mail-from": "a@b", "rcpt-to": list("c@d", count) });
        let groups = |count| json!({ "client": "::1", "user": "sam", "group": list("staff", count) });
        assert!(parse(&recipients(MAX_RECIPIENTS)).is_ok() && parse(&groups(MAX_GROUPS)).is_ok());
        let error = |value: &Value| parse(value).unwrap_err();
        assert_eq!(error(&recipients(MAX_RECIPIENTS + 1)), "1001 recipients are too many: 1000 at most");
        assert_eq!(error(&groups(MAX_GROUPS + 1)), "101 groups are too many: 100 at most");
        for key in ["client", "user", "mail-from", "stage", "helo", "listener", "at", "size"] {
            let mut value = json!({ "client": "::1" });
            value[key] = "x".repeat(MAX_TEXT + 1).into();
            assert_eq!(error(&value), format!("{key}: it has 1001 octets: 1000 at most"));
        }
        let long = json!({ "client": "::1", "mail-from": "a@b", "rcpt-to": ["x".repeat(2_000)] });
        assert_eq!(error(&long), "rcpt-to: it has 2000 octets: 1000 at most");
    }

    #[test]
    fn errors_name_the_bad_value_of_a_case() {
        for (text, words) in [
            ("[]", "not a JSON object"),
            ("{}", "there is no client"),
            (r#"{"client":"here"}"#, "client: \"here\" is not an IP address"),
            (r#"{"client":"::1","tsl":true}"#, "there is no \"tsl\"; known: client, user"),
            (r#"{"client":"::1","tls":"yes"}"#, "tls is \"yes\": write true or false"),
            (r#"{"client":"::1","user":"a b"}"#, "user: \"a b\" is not a user name"),
            (r#"{"client":"::1","user":["a"]}"#, "user is [\"a\"]: write a text"),
            (r#"{"client":"::1","mail-from":"a@"}"#, "mail-from: \"a@\" is not an address"),
            (r#"{"client":"::1","mail-from":"a@b> x"}"#, "\"a@b> x\" is not an address"),
            (r#"{"client":"::1","mail-from":"postmaster"}"#, "\"postmaster\" is not an address"),
            (r#"{"client":"::1","mail-from":"a@b","rcpt-to":["<>"]}"#, "rcpt-to: \"<>\" is not an address"),
            (r#"{"client":"::1","mail-from":"a@b","rcpt-to":"c@d"}"#, "write a list of texts"),
            (r#"{"client":"::1","rcpt-to":["c@d"]}"#, "--rcpt-to needs --mail-from"),
            (r#"{"client":"::1","mail-from":"a@b","size":1.5}"#, "size: \"1.5\" is not a whole number of octets"),
            (r#"{"client":"::1","mail-from":"a@b","size":"0"}"#, "the amount must be above 0"),
            (r#"{"client":"::1","size":9}"#, "--size needs --mail-from"),
            (r#"{"client":"::1","group":["staff"]}"#, "--group needs --user"),
            (r#"{"client":"::1","stage":"rctp"}"#, "\"rctp\" is not a stage: connect, auth, mail, rcpt, data, end"),
            (r#"{"client":"::1","stage":"auth"}"#, "--stage auth needs --user"),
            (r#"{"client":"::1","stage":"mail"}"#, "--stage mail needs --mail-from"),
            (r#"{"client":"::1","mail-from":"a@b","stage":"end"}"#, "--stage end needs --rcpt-to"),
            (r#"{"client":"::1","at":"noon"}"#, "at: \"noon\" is not a time"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
