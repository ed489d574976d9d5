//! `weir.toml`, read into the Options of each room. Errors point at the place in the file, and there may be several.

mod limit;
mod problem;
mod section;

pub use problem::{Problem, Problems, Severity};

use crate::policy::Policy;
use crate::server::tls::Certificate;
use crate::session::{Requirement, Security};
use crate::{accounts, admin, relay, server, session, store};
use ipnet::IpNet;
use section::{Found, Placed, Section};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeTable;

/// A configuration that can be used, but for what the files it names contain.
pub struct Config {
    pub server: server::Options,
    pub listeners: Vec<server::ListenerOptions>,
    pub certificate: Option<CertificatePaths>,
    pub relay: relay::Options,
    pub accounts: Option<accounts::Options>,
    pub state: store::Options,
    pub admin: Option<admin::Options>,
    pub policy: Policy,
    /// The file, and the warnings about it.
    pub problems: Problems,
    places: Places,
}

/// Where certificate and key are.
#[derive(Clone, Debug)]
pub struct CertificatePaths {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Where in the file other files are named.
#[derive(Default)]
struct Places {
    tls: Range<usize>,
    upstream: Range<usize>,
    users: Range<usize>,
}

/// Why there is no configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Io(PathBuf, std::io::Error),
    /// There is something wrong in it.
    Problems(Problems),
}

const DEFAULT_STATE: &str = "/var/lib/weir/state.db";

/// Reads a configuration file. Relative paths in it are relative to its folder.
pub fn read(path: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Io(path.to_owned(), error))?;
    parse(path, text)
}

/// Reads the text of a configuration file; `path` names it in messages and is what relative paths are relative to.
pub fn parse(path: &Path, text: String) -> Result<Config, ConfigError> {
    let (document, syntax) = DeTable::parse_recoverable(&text);
    let found = Found::default();
    for error in &syntax {
        let span = error.span().unwrap_or_default();
        let message = error.message().to_owned();
        found.borrow_mut().push(Problem { severity: Severity::Error, span, message, help: None });
    }
    let read = if syntax.is_empty() {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Reader { folder, found: &found }.config(Section::new("the file", &document, &found))
    } else {
        None
    };
    let problems = Problems { path: path.to_owned(), text: text.clone(), found: found.take() };
    match read {
        Some(config) if !problems.has_errors() => Ok(Config { problems, ..config }),
        _ => Err(ConfigError::Problems(problems)),
    }
}

impl Config {
    /// Reads the files that the configuration names, to see whether they will do.
    pub fn check_files(&self) -> Problems {
        let mut problems = self.problems.clone();
        let mut error = |span: &Range<usize>, message: String| {
            problems.found.push(Problem { severity: Severity::Error, span: span.clone(), message, help: None });
        };
        if let Err(why) = self.read_certificate() {
            error(&self.places.tls, why.to_string());
        }
        let metrics = crate::metrics::Metrics::new().map(Arc::new);
        if let Ok(metrics) = metrics
            && let Err(why) = relay::Relay::new(self.relay.clone(), metrics)
        {
            error(&self.places.upstream, why.to_string());
        }
        if let Some(accounts) = &self.accounts
            && let Err(why) = accounts::file::Users::read(&accounts.file)
        {
            error(&self.places.users, why.to_string());
        }
        problems
    }

    /// The certificate, if listeners need one.
    pub fn read_certificate(&self) -> Result<Option<Certificate>, server::tls::CertificateError> {
        self.certificate.as_ref().map(|paths| Certificate::read(&paths.certificate, &paths.key)).transpose()
    }
}

struct Reader<'a> {
    folder: PathBuf,
    found: &'a RefCell<Vec<Problem>>,
}

/// Settings of `[session]`, which several rooms share out among themselves.
struct SessionSettings {
    max_message_size: u64,
    max_recipients: usize,
    upstream_timeout: Duration,
}

impl Reader<'_> {
    fn config(&self, mut root: Section<'_>) -> Option<Config> {
        let hostname = self.hostname(&mut root);
        let mut places = Places::default();
        let (server, settings) = self.session(root.section("session"));
        let certificate = self.tls(root.section("tls"), &mut places);
        let listeners = self.listeners(&mut root, &hostname, &settings, certificate.is_some());
        let relay = self.upstream(&mut root, &hostname, settings.upstream_timeout, &mut places);
        let accounts = self.accounts(root.section("accounts"), &mut places);
        self.check_accounts(&root, &listeners, accounts.is_some());
        let state = self.state(root.section("state"));
        let admin = self.admin(root.section("admin"));
        let policy = Policy { limits: limit::limits(root.tables("limit")) };
        root.finish();
        let problems = Problems { path: PathBuf::new(), text: String::new(), found: Vec::new() };
        let listeners = listeners.into_iter().map(|listener| listener.value).collect();
        Some(Config { server, listeners, certificate, relay: relay?, accounts, state, admin, policy, problems, places })
    }

    fn hostname(&self, root: &mut Section<'_>) -> String {
        let read = root.read("hostname", |value| {
            let name = section::text(value)?;
            let good = crate::smtp::address::is_domain(name);
            good.then(|| name.to_owned()).ok_or_else(|| format!("\"{name}\" is not a host name"))
        });
        read.map_or_else(system_hostname, |read| read.value)
    }

    fn session(&self, section: Option<Section<'_>>) -> (server::Options, SessionSettings) {
        let empty = DeTable::default();
        let table = toml::Spanned::new(0..0, empty);
        let mut s = section.unwrap_or_else(|| Section::new("[session]", &table, self.found));
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let options = server::Options {
            max_connections: s.count("max-connections", 4000, 1..=1_000_000),
            idle_timeout: s.timeout("idle-timeout", minutes(5)),
            command_timeout: s.timeout("command-timeout", minutes(1)),
            data_timeout: s.timeout("data-timeout", minutes(3)),
        };
        let settings = SessionSettings {
            max_message_size: s.octets("max-message-size", 50 << 20),
            max_recipients: s.count("max-recipients", 1000, 1..=100_000),
            upstream_timeout: s.timeout("upstream-timeout", Duration::from_secs(20)),
        };
        s.finish();
        (options, settings)
    }

    fn tls(&self, section: Option<Section<'_>>, places: &mut Places) -> Option<CertificatePaths> {
        let mut s = section?;
        let (certificate, key) = (s.string("certificate"), s.string("key"));
        if certificate.is_none() {
            s.missing("certificate", "\"certs/fullchain.pem\"");
        }
        if key.is_none() {
            s.missing("key", "\"certs/key.pem\"");
        }
        s.finish();
        let (certificate, key) = (certificate?, key?);
        places.tls = certificate.span;
        Some(CertificatePaths { certificate: self.folder.join(certificate.value), key: self.folder.join(key.value) })
    }

    fn listeners(
        &self,
        root: &mut Section<'_>,
        hostname: &str,
        settings: &SessionSettings,
        has_certificate: bool,
    ) -> Vec<Placed<server::ListenerOptions>> {
        let named = root.named("listener");
        if named.is_empty() {
            root.error(
                &root.span(),
                "there is no listener",
                Some("add [listener.submission] with address = \"[::]:587\"".to_owned()),
            );
        }
        let read = |(name, section)| self.listener(name, section, hostname, settings, has_certificate);
        named.into_iter().filter_map(read).collect()
    }

    fn listener(
        &self,
        name: Placed<&str>,
        mut s: Section<'_>,
        hostname: &str,
        settings: &SessionSettings,
        has_certificate: bool,
    ) -> Option<Placed<server::ListenerOptions>> {
        let address = s.read("address", |value| {
            let text = section::text(value)?;
            let bad = |_| format!("\"{text}\" is not an address and port: write \"[::]:587\" or \"192.0.2.1:587\"");
            text.parse::<SocketAddr>().map_err(bad)
        });
        if address.is_none() {
            s.missing("address", "\"[::]:587\"");
        }
        let securities = [("none", Security::None), ("starttls", Security::StartTls), ("implicit", Security::Implicit)];
        let tls = s.choice("tls", &securities).map_or(Security::StartTls, |tls| tls.value);
        if tls != Security::None && !has_certificate {
            let help = "add [tls] with certificate and key, or say tls = \"none\"";
            s.error(&name.span, format!("listener \"{}\" needs a certificate", name.value), Some(help.to_owned()));
        }
        let requirements =
            [("required", Requirement::Required), ("optional", Requirement::Optional), ("none", Requirement::None)];
        let auth = s.choice("auth", &requirements).map_or(Requirement::Required, |auth| auth.value);
        let trusted = s.list("trusted", network).map_or(Vec::new(), |trusted| trusted.value);
        s.finish();
        let session = session::Options {
            hostname: hostname.to_owned(),
            tls,
            auth,
            trusted,
            max_message_size: settings.max_message_size,
            max_recipients: settings.max_recipients,
        };
        let options =
            server::ListenerOptions { name: name.value.into(), address: address?.value, session: Arc::new(session) };
        Some(Placed { value: options, span: name.span })
    }

    fn upstream(
        &self,
        root: &mut Section<'_>,
        hostname: &str,
        timeout: Duration,
        places: &mut Places,
    ) -> Option<relay::Options> {
        let mut sections = root.tables("upstream").into_iter();
        let Some(mut s) = sections.next() else {
            let help = "add [[upstream]] with address = \"smtp.example.org:25\"".to_owned();
            root.error(&root.span(), "there is no upstream to relay to", Some(help));
            return None;
        };
        if let Some(second) = sections.next() {
            second.error(&second.span(), "there may be only one upstream in this version", None);
        }
        let name = s.string("name").map(|name| name.value.to_owned());
        let address = s.read("address", |value| host_and_port(section::text(value)?));
        if address.is_none() {
            s.missing("address", "\"smtp.example.org:25\"");
        }
        let policies = [
            ("none", relay::TlsPolicy::None),
            ("opportunistic", relay::TlsPolicy::Opportunistic),
            ("required", relay::TlsPolicy::Required),
        ];
        let tls = s.choice("tls", &policies).map_or(relay::TlsPolicy::Opportunistic, |tls| tls.value);
        let ca = s.string("ca").map(|path| self.folder.join(path.value));
        s.finish();
        let Placed { value: (host, port), span } = address?;
        places.upstream = span;
        let name = name.unwrap_or_else(|| host.clone());
        Some(relay::Options { hostname: hostname.to_owned(), name, host, port, tls, ca, timeout })
    }

    fn accounts(&self, section: Option<Section<'_>>, places: &mut Places) -> Option<accounts::Options> {
        let mut s = section?;
        let file = s.string("file");
        if file.is_none() {
            s.missing("file", "\"users\"");
        }
        s.finish();
        let file = file?;
        places.users = file.span;
        Some(accounts::Options { file: self.folder.join(file.value) })
    }

    fn check_accounts(&self, root: &Section<'_>, listeners: &[Placed<server::ListenerOptions>], has_accounts: bool) {
        for listener in listeners.iter().filter(|_| !has_accounts) {
            if listener.value.session.auth != Requirement::None {
                let help = "add [accounts] with file = \"users\", or say auth = \"none\"".to_owned();
                let message =
                    format!("listener \"{}\" asks for logins, and there are no accounts", listener.value.name);
                root.error(&listener.span, message, Some(help));
            }
        }
    }

    fn state(&self, section: Option<Section<'_>>) -> store::Options {
        let mut options = store::Options { path: PathBuf::from(DEFAULT_STATE), durability: store::Durability::Process };
        let Some(mut s) = section else { return options };
        if let Some(path) = s.string("path") {
            options.path = self.folder.join(path.value);
        }
        let kinds = [("process", store::Durability::Process), ("power", store::Durability::Power)];
        if let Some(durability) = s.choice("durability", &kinds) {
            options.durability = durability.value;
        }
        s.finish();
        options
    }

    fn admin(&self, section: Option<Section<'_>>) -> Option<admin::Options> {
        let mut s = section?;
        let address = s.read("address", |value| {
            let text = section::text(value)?;
            let bad = |_| format!("\"{text}\" is not an address and port: write \"127.0.0.1:9587\"");
            text.parse::<SocketAddr>().map_err(bad)
        });
        if address.is_none() {
            s.missing("address", "\"127.0.0.1:9587\"");
        }
        s.finish();
        Some(admin::Options { address: address?.value })
    }
}

/// A network in CIDR, or one address.
fn network(text: &str) -> Result<IpNet, String> {
    let bad = || format!("\"{text}\" is not a network: write \"192.0.2.0/24\", \"2001:db8::/32\" or one address");
    let network = match text.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => text.parse::<IpAddr>().map(IpNet::from).map_err(|_| bad())?,
    };
    if network != network.trunc() {
        return Err(format!("\"{text}\" has bits beyond its prefix; did you mean \"{}\"?", network.trunc()));
    }
    Ok(network)
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let bad = || format!("\"{text}\" is not a host and port: write \"smtp.example.org:25\" or \"[2001:db8::1]:25\"");
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let good = match bracketed {
        true => host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok(),
        false => crate::smtp::address::is_domain(host),
    };
    if good { Ok((host.to_owned(), port)) } else { Err(bad()) }
}

fn system_hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if crate::smtp::address::is_domain(&name) { name } else { "localhost".to_owned() }
}
