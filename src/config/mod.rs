//! Configuration: reads `weir.toml` into the `Options` of each module. An error names its position in the file; all
//! errors of the file are reported together.

mod accounts;
mod addresses;
mod admin;
mod certificates;
mod decision_log;
mod delay;
mod diagnostic;
mod diff;
mod egress;
mod exposure;
mod file_checks;
mod files;
mod limit;
mod list;
mod listeners;
mod location;
mod login_history;
mod login_networks;
mod mail_loop;
mod memory;
mod notify;
mod outcomes;
mod overrides;
mod policy_listener;
mod redact;
pub mod reference;
mod refusal_history;
mod section;
mod senders;
mod service_user;
mod shared_state;
mod source;
mod suspensions;
mod suspicion;
mod synonyms;
mod syntax;
mod trial;
mod upstream;
mod values;

pub use diagnostic::{Diagnostic, Diagnostics, Severity};
use files::Files;

use crate::accounts::file_metadata::FileMetadata;
use crate::policy::{MaxNewBudgets, MemoryRules, Policy};
use crate::session::Requirement;
use crate::{decisions, log, relay, server, store};
pub use diff::needs_restart;
pub use location::KnownDatabases;
use section::{Placed, Section};
pub use source::Setting;
use source::Source;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::{DeTable, DeValue};
pub use trial::{LimitOnTrial, limit_on_trial};
pub use values::quoted;
use values::{choice, count, host_name, octets, text};

/// A configuration without errors; the contents of certificates, keys and the users file are not checked yet.
pub struct Config {
    pub server: server::Options,
    pub listeners: Vec<server::ListenerOptions>,
    pub tls: Option<server::tls::Options>,
    pub relay: relay::Options,
    pub accounts: Option<crate::accounts::Options>,
    pub state: store::Options,
    pub admin: crate::admin::Options,
    pub policy: Policy,
    /// Targets of notifications.
    pub notify: crate::notify::Options,
    /// `None`: there is no section `[egress]`.
    pub egress: Option<crate::egress::Options>,
    pub log: log::Format,
    /// `None`: Weir writes no decision log.
    pub decision_log: Option<decisions::Options>,
    /// The text of the file, and its warnings.
    pub problems: Diagnostics,
    /// Every key read, with its value or default, in the order of reading.
    pub settings: Vec<Setting>,
    /// The files whose changes cause a reload of the configuration: `weir.toml`, lists and override tables. The
    /// metadata of each file was taken before the file was read.
    pub watched: Vec<(PathBuf, FileMetadata)>,
    /// The databases of locations in `policy`, for [`read_again`].
    pub databases: KnownDatabases,
    /// The users and groups that limits name; they are checked against the users file later.
    references: limit::References,
    places: Places,
}

/// Positions in the configuration at which problems with other files are reported.
#[derive(Default)]
struct Places {
    /// Positions of the names of each certificate file and its key file. The positions of the default certificate come
    /// first.
    certificates: Vec<(Range<usize>, Range<usize>)>,
    upstreams: Vec<Range<usize>>,
    /// Keys of `[accounts]`.
    accounts: accounts::Places,
    /// The files of `client-certificates` of all listeners.
    authorities: Vec<Placed<PathBuf>>,
    /// Position at which a listener says that it checks senders, if any does.
    checks_senders: Option<Range<usize>>,
    state: Range<usize>,
    /// Position of the key `path` of `[state]`.
    state_path: Range<usize>,
    /// Files with secrets of `[state]`.
    state_secrets: Vec<Placed<PathBuf>>,
    /// Position of the key `socket` of `[admin]`. If this key is missing, the position of `[state]`, because the
    /// control socket is then in the folder of the state file.
    socket: Range<usize>,
    /// Position of the key `tokens` of `[admin]`; empty if this key is missing.
    tokens: Range<usize>,
    /// Names of the notifications that limits use and that have no target, with the positions of these notifications.
    notifications: Vec<(String, Range<usize>)>,
    /// Files with secrets, and programs, of notifications.
    notify_files: notify::NotifyFiles,
}

/// Reason why no configuration could be read.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Io(PathBuf, std::io::Error),
    /// The file has errors.
    Diagnostics(Diagnostics),
}

/// Reads a configuration file. Relative paths in the file are relative to its folder.
pub fn read(path: &Path) -> Result<Config, ConfigError> {
    read_again(path, &KnownDatabases::default())
}

/// Reads a configuration file again. Databases of locations that have not changed are taken from `former`.
pub fn read_again(path: &Path, former: &KnownDatabases) -> Result<Config, ConfigError> {
    // Take the metadata before reading the file. If the file changes between these two steps, the next check notices
    // the change.
    let file = (path.to_owned(), FileMetadata::of(path));
    let bytes = std::fs::read(path).map_err(|error| ConfigError::Io(path.to_owned(), error))?;
    match String::from_utf8(bytes) {
        Ok(text) => {
            let mut config = parse_again(path, text, former)?;
            config.watched.push(file);
            Ok(config)
        }
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let (span, message) = (at..at + 1, "this is not UTF-8, which TOML is written in".to_owned());
            let found = vec![Diagnostic { severity: Severity::Error, span, message, help: None }];
            Err(ConfigError::Diagnostics(Diagnostics { path: path.to_owned(), text, found }))
        }
    }
}

/// Returns the path of the control socket of the Weir that runs with this configuration file. The file may have been
/// changed since Weir started, and may have errors. If a key cannot be read, its default is used.
pub fn socket(path: &Path) -> std::io::Result<PathBuf> {
    let bytes = std::fs::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let (document, _) = DeTable::parse_recoverable(&text);
    let source = Source::new(&text);
    let (mut root, mut places) = (Section::root(&document, &source), Places::default());
    let reader = Reader { folder: path.parent().unwrap_or(Path::new("")).to_owned() };
    let (state, _) = reader.state(root.section("state"), &mut places);
    Ok(admin::read(root.section("admin"), &reader.folder, &state.path, &places.state, &[]).options.socket)
}

/// Parses the text of a configuration file, and reads the lists that the text names. `path` names the file in messages;
/// relative paths in the text are relative to the folder of `path`.
pub fn parse(path: &Path, text: String) -> Result<Config, ConfigError> {
    parse_again(path, text, &KnownDatabases::default())
}

fn parse_again(path: &Path, text: String, former: &KnownDatabases) -> Result<Config, ConfigError> {
    let (document, syntax) = DeTable::parse_recoverable(&text);
    let source = Source::new(&text);
    syntax::report(&source, &text, &syntax);
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    // After a syntax error, the keys are not read, because other errors could be mere consequences of the syntax error.
    let draft = syntax.is_empty().then(|| Reader { folder }.read(Section::root(&document, &source), former));
    let (found, settings) = source.into_findings();
    let problems = Diagnostics { path: path.to_owned(), text: text.clone(), found };
    match draft {
        Some(draft) if !problems.has_errors() => Ok(Config { problems, settings, ..draft }),
        _ => Err(ConfigError::Diagnostics(problems)),
    }
}

impl Config {
    /// Returns the effective configuration in TOML: every key, with its value or default. `note` takes the name of a
    /// limit and returns an explanation, which becomes a comment above the limit.
    pub fn effective(&self, note: impl Fn(&str) -> Option<String>) -> String {
        let mut text = String::new();
        let mut section = ("", 0);
        for setting in &self.settings {
            let this = (setting.section.as_str(), setting.place);
            if this != section && !this.0.is_empty() {
                let name = (this.0 == LIMIT).then(|| self.limit_name(setting.place)).flatten();
                let note = name.and_then(|name| note(&name)).unwrap_or_default();
                let note: String = note.lines().map(|line| format!("# {line}\n")).collect();
                text.push_str(&format!("\n{note}{}\n", setting.section));
            }
            section = this;
            let line = match (&setting.value, setting.is_default) {
                (Some(url), false) if setting.key == WEBHOOK => format!("{WEBHOOK} = {}", redact::redact_url(url)),
                (Some(value), false) => format!("{} = {value}", setting.key),
                (Some(value), true) => format!("{:40} # default", format!("{} = {value}", setting.key)),
                (None, _) if this.0.is_empty() && setting.key == "hostname" => {
                    format!("# hostname is {}, the name of this machine", values::quoted(&self.relay.hostname))
                }
                (None, _) => format!("# {} is not set", setting.key),
            };
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    /// Returns the name of the limit whose section is at this position.
    fn limit_name(&self, place: usize) -> Option<String> {
        let is_name = |setting: &&Setting| setting.section == LIMIT && setting.place == place && setting.key == "name";
        let name = self.settings.iter().find(is_name)?.value.as_deref()?;
        DeValue::parse(name).ok()?.get_ref().as_str().map(str::to_owned)
    }
}

/// Key of a URL whose path may contain a token.
const WEBHOOK: &str = "webhook";

/// Bounds of the memory for budgets, in octets.
const BUDGET_MEMORY: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 30;

/// Title of the section of a limit.
const LIMIT: &str = "[[limit]]";

struct Reader {
    folder: PathBuf,
}

impl Reader {
    /// Reads the whole file, and reports errors to the source of `root`. If the file has errors, the result is
    /// incomplete.
    fn read(&self, mut root: Section<'_>, former: &KnownDatabases) -> Config {
        let hostname = own_name(&mut root);
        let help_url = delay::help_url(&mut root);
        let zone = addresses::zone(&mut root);
        let mut places = Places::default();
        let (server, shared) = listeners::session(root.section("session"), hostname);
        let mut tls = certificates::read(root.section("tls"), &self.folder, &mut places.certificates);
        let mut section = root.section("accounts");
        let login_networks = login_networks::keys(&mut section);
        let login_history = login_history::read(&mut section);
        let accounts = accounts::read(section, &self.folder);
        let listeners = listeners::listeners(&mut root, &self.folder, &shared, tls.is_some(), accounts.as_ref());
        let takes_mail = listeners.take_mail();
        let listeners::Listeners { all: mut listeners, names: listener_names, authorities, checks_senders } = listeners;
        places.checks_senders = checks_senders;
        if let Some(tls) = &mut tls {
            let files: BTreeSet<_> = authorities.iter().map(|file| file.value.clone()).collect();
            tls.authorities = files.into_iter().collect();
        }
        let upstreams = upstream::read_all(&mut root, &self.folder, takes_mail, &mut places.upstreams);
        if let Some(accounts) = &accounts {
            accounts.check(&root, &upstreams, !authorities.is_empty());
        }
        places.authorities = authorities;
        let accounts = accounts.map(|accounts| {
            places.accounts = accounts.places;
            accounts.options
        });
        let dns = upstream::dns(root.section("dns"), shared.upstream_timeout);
        let mut relay = relay::Options {
            hostname: shared.hostname,
            upstreams,
            routed: Vec::new(),
            timeout: shared.upstream_timeout,
            data_timeout: shared.upstream_data_timeout,
            dns,
            listening: listeners.iter().filter_map(|listener| listener.address.tcp()).collect(),
        };
        mail_loop::warn(&root, &relay, &places.upstreams, &listeners);
        let (mut state, max_new_budgets) = self.state(root.section("state"), &mut places);
        let outcomes = outcomes::read(root.section("outcomes"));
        let has_outcomes = outcomes.is_some();
        if let Some((options, report_address)) = outcomes {
            state.outcomes = Some(options);
            for listener in &mut listeners {
                Arc::make_mut(&mut listener.session).report_address.clone_from(&report_address);
            }
        }
        let admin::Admin { options: admin, socket, tokens } =
            admin::read(root.section("admin"), &self.folder, &state.path, &places.state, &listeners);
        (places.socket, places.tokens) = (socket, tokens);
        let egress = egress::read(root.section("egress"));
        let log = log_format(root.section("log"));
        let decision_log = decision_log::read(root.section("decision-log"), &self.folder);
        let normalizer = addresses::normalizer(root.section("addresses"));
        let mut files = Files::new(&self.folder);
        let lists = list::lists(root.named("list"), &mut files);
        let located = location::read(root.section("location"), &mut files, former);
        let lateness = delay::lateness(root.section("delay"));
        let notifications = notify::notifications(root.named("notify"), &mut files, &relay.hostname);
        let mut context = limit::Context {
            source: root.source(),
            lists: &lists,
            files: &mut files,
            normalizer: &normalizer,
            listeners: listener_names,
            has_auth: listeners.iter().any(|listener| listener.session.auth != Requirement::None),
            has_xclient: listeners.iter().any(|listener| listener.is_policy() || !listener.session.xclient.is_empty()),
            takes_mail,
            has_login_networks: login_networks.has_table(),
            is_shared: state.shared.is_some(),
            has_outcomes,
            exceedable: Vec::new(),
            counting: HashSet::new(),
            is_nameless: false,
            upstreams: &relay.upstreams,
            notifications: &notifications,
            located: located.configured,
            lateness,
            help_url: help_url.clone(),
            contact: None,
            suspicion: suspicion::Suspicion::default(),
            memory: MemoryRules::default(),
            compiled: limit::Compiled::default(),
            references: limit::References::default(),
            odd_patterns: BTreeMap::new(),
        };
        let senders = senders::read(root.section("senders"), &mut context);
        let has_users_file = accounts.as_ref().is_some_and(|accounts| accounts.file.is_some());
        let suspensions = suspensions::read(root.section("suspensions"), has_users_file, &mut context);
        context.contact = suspensions.contact.clone();
        context.suspicion = suspicion::read(root.section("suspicion"));
        let (memory, memory_span) = memory::read(root.section("memory"));
        context.memory = memory;
        let limits = limit::limits(root.tables("limit"), &mut context);
        let suspicion = context.suspicion.rules;
        let (mut references, has_xclient) = (context.references, context.has_xclient);
        let login_networks = login_networks.read(&root, &mut files, &normalizer, &mut references);
        if has_xclient {
            // A user that a proxy names needs no account.
            references.users.clear();
        }
        notifications.warn_of_unused(&root);
        (places.notifications, places.notify_files) = (notifications.without_target(), notifications.files());
        let notify = notifications.options(&relay.hostname, suspensions.contact.clone(), help_url.clone());
        let mut policy = Policy::new(limits, normalizer, zone);
        memory::warn_of_unused(&root, memory_span, &policy);
        (policy.lateness, policy.help_url, policy.max_new_budgets) = (lateness, help_url, max_new_budgets);
        (policy.locations, policy.login_networks) = (located.locations, login_networks.into());
        policy.login_history = login_history;
        policy.senders = Arc::new(senders);
        policy.suspensions = Arc::new(suspensions);
        policy.suspicion = suspicion;
        // Without upstreams, Weir only answers Postfix, and a route is the word for mail on hold.
        relay.routed = policy.routes().filter(|_| !relay.upstreams.is_empty()).cloned().collect();
        root.finish();
        let problems = Diagnostics { path: PathBuf::new(), text: String::new(), found: Vec::new() };
        let (settings, watched) = (Vec::new(), files.into_watched());
        Config {
            server,
            listeners,
            tls,
            relay,
            accounts,
            state,
            admin,
            policy,
            notify,
            egress,
            log,
            decision_log,
            problems,
            settings,
            watched,
            databases: located.known,
            references,
            places,
        }
    }

    fn state(&self, mut s: Section<'_>, places: &mut Places) -> (store::Options, MaxNewBudgets) {
        let path = s.placed("path", "\"/var/lib/weir/state.db\"", |value| match text(value)? {
            path if path.is_empty() => Err("it is empty".to_owned()),
            path => Ok(path),
        });
        (places.state, places.state_path) = (s.span(), path.span);
        let path = path.value;
        let kinds = [("process", store::Durability::Process), ("power", store::Durability::Power)];
        let durability = s.value("durability", "\"process\"", choice(&kinds));
        let kinds = [("allow", store::OnFailure::Allow), ("defer", store::OnFailure::Defer)];
        let on_failure = s.value("on-failure", "\"allow\"", choice(&kinds));
        let MaxNewBudgets(most) = MaxNewBudgets::default();
        let max_new_budgets = s.value("max-new-budgets", &most.to_string(), count(1..=100_000_000));
        let budget_octets = s.value("budget-memory", "\"20M\"", |value| match octets(value)? {
            octets if !BUDGET_MEMORY.contains(&octets) => Err("it must be from 1M to 64G".to_owned()),
            octets => usize::try_from(octets).map_err(|_| "it is too large for this machine".to_owned()),
        });
        let refusals = refusal_history::read(&mut s);
        let shared = shared_state::read(&mut s, &self.folder, &mut places.state_secrets);
        s.finish();
        let max_new_budgets = MaxNewBudgets(u32::try_from(max_new_budgets).unwrap_or(most));
        let path = self.folder.join(path);
        let options = store::Options { path, durability, on_failure, shared, budget_octets, refusals, outcomes: None };
        (options, max_new_budgets)
    }
}

/// Returns the name with which Weir greets clients and upstreams. The default is the name of this machine. Warns if the
/// name is an IP address without brackets. RFC 5321 §4.1.3 requires brackets around an address, and many servers refuse
/// an address as a name.
fn own_name(root: &mut Section<'_>) -> String {
    let Some(name) = root.optional("hostname", |value| host_name(&text(value)?)) else {
        return listeners::system_hostname();
    };
    if name.value.parse::<IpAddr>().is_ok() {
        let message = format!("\"{}\" is an address: other servers may refuse it as a name", name.value);
        root.warn(&name.span, message, Some("write a name, as in \"smtp.example.org\""));
    }
    name.value
}

fn log_format(mut s: Section<'_>) -> log::Format {
    let formats = [("logfmt", log::Format::Logfmt), ("json", log::Format::Json)];
    let format = s.value("format", "\"logfmt\"", choice(&formats));
    s.finish();
    format
}
