//! `[session]` and `[listener.NAME]`: the addresses that clients connect to, and the settings that all sessions share.

use super::section::{Placed, Section};
use super::values::{choice, count, network, octets, socket_address, text, timeout};
use super::{accounts, certificates, exposure, policy_listener};
use crate::server::{self, ListenerAddress, Protocol};
use crate::session::{self, Requirement, Security, SenderMismatch};
use ipnet::IpNet;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeValue;

/// Settings that several modules share.
pub struct Shared {
    pub hostname: String,
    pub max_message_size: u64,
    pub max_recipients: usize,
    /// Default of the listeners.
    pub sender_mismatch: SenderMismatch,
    pub upstream_timeout: Duration,
    pub upstream_data_timeout: Duration,
}

/// Default maximum number of concurrent connections from one client. The mail programs behind one address open fewer
/// connections. The number is so low that only dozens of hosts together can use up all connections of Weir.
const CONNECTIONS_PER_CLIENT: usize = 100;

const SENDER_MISMATCHES: [(&str, SenderMismatch); 3] =
    [("allow", SenderMismatch::Allow), ("warn", SenderMismatch::Warn), ("refuse", SenderMismatch::Refuse)];

/// Reads `[session]`.
pub fn session(mut s: Section<'_>, hostname: String) -> (server::Options, Shared) {
    let max_connections = s.value("max-connections", "4000", count(1..=1_000_000));
    // Nine tenths of all connections, so that no single client can use up all of them.
    let of_trusted = (max_connections * 9 / 10).max(1);
    let of_one = of_trusted.min(CONNECTIONS_PER_CLIENT).to_string();
    let per_client = s.placed("max-connections-per-client", &of_one, count(1..=1_000_000));
    if per_client.value > max_connections {
        let message =
            format!("one client never has {} connections: max-connections is {max_connections}", per_client.value);
        s.warn_unless(&["max-connections"], &per_client.span, message, None);
    }
    let max_connections_per_client = per_client.value;
    let of_trusted = of_trusted.max(max_connections_per_client).to_string();
    let options = server::Options {
        max_connections,
        max_connections_per_client,
        max_connections_per_trusted_client: s.value(
            "max-connections-per-trusted-client",
            &of_trusted,
            count(1..=1_000_000),
        ),
        login_timeout: s.value("login-timeout", "\"2m\"", timeout),
        idle_timeout: s.value("idle-timeout", "\"5m\"", timeout),
        command_timeout: s.value("command-timeout", "\"1m\"", timeout),
        data_timeout: s.value("data-timeout", "\"3m\"", timeout),
        min_data_rate: s.value("min-data-rate", "\"1K\"", octets),
        message_timeout: s.value("message-timeout", "\"1h\"", timeout),
        drain_timeout: s.value("drain-timeout", "\"30s\"", timeout),
        certificate_pace: certificates::CHECK_INTERVAL,
    };
    let shared = Shared {
        hostname,
        max_message_size: max_message_size(&mut s),
        max_recipients: s.value("max-recipients", "1000", count(1..=100_000)),
        sender_mismatch: s.value("sender-mismatch", "\"allow\"", choice(&SENDER_MISMATCHES)),
        upstream_timeout: s.value("upstream-timeout", "\"20s\"", upstream_timeout),
        upstream_data_timeout: s.value("upstream-data-timeout", "\"2m\"", upstream_timeout),
    };
    s.finish();
    (options, shared)
}

/// Reads the maximum size of a message. A server must accept messages of at least 64 K (RFC 5321 §4.5.3.1.7).
fn max_message_size(s: &mut Section<'_>) -> u64 {
    let size = s.placed("max-message-size", "\"50M\"", octets);
    if size.value < 65_536 {
        let message = format!("max-message-size: {} octets are too few for ordinary messages", size.value);
        s.warn(&size.span, message, Some("sizes have a unit, as in \"50M\""));
    }
    size.value
}

/// Reads a timeout for answers of the upstream. Clients wait 5 minutes for most replies (RFC 5321 §4.5.3.2), so the
/// timeout must be shorter.
fn upstream_timeout(value: &DeValue<'_>) -> Result<Duration, String> {
    let duration = timeout(value)?;
    let too_long = duration > Duration::from_secs(240);
    if too_long { Err("at most 4m is allowed, as clients wait for 5 minutes".to_owned()) } else { Ok(duration) }
}

/// All listeners.
#[derive(Default)]
pub struct Listeners {
    pub all: Vec<server::ListenerOptions>,
    /// The names of all listeners in lower case, including the names of listeners with errors.
    pub names: Vec<String>,
    /// The files of the authorities that issue clients' certificates.
    pub authorities: Vec<Placed<PathBuf>>,
    /// Position at which a listener says that it checks senders, if any does.
    pub checks_senders: Option<Range<usize>>,
}

/// Reads all listeners.
pub fn listeners(
    root: &mut Section<'_>,
    folder: &Path,
    shared: &Shared,
    has_certificate: bool,
    accounts: Option<&accounts::Accounts>,
) -> Listeners {
    let named = root.named("listener");
    if !root.has("listener") {
        let help = "add [listener.submission] with address = \"[::]:587\"";
        root.error_unless(&["listener"], &root.span(), "there is no listener", Some(help));
    }
    let names = named.iter().map(|(name, _)| name.value.to_ascii_lowercase()).collect();
    let mut listeners = Listeners { names, ..Listeners::default() };
    for (name, mut section) in named {
        if policy_listener::kind(&mut section) == policy_listener::Kind::PostfixPolicy {
            if let Some(listener) = policy_listener::read(section, folder, session_of_postfix(&name, shared)) {
                listeners.add(root, &name, listener);
            }
            continue;
        }
        let (tls, auth) = (section.path("tls"), section.path("auth"));
        let authorities = authorities(&mut section, folder);
        let Some(mut listener) = listener(&name, section, shared, accounts, &mut listeners.checks_senders) else {
            continue;
        };
        if let Some(authorities) = authorities {
            check_authorities(root, &authorities, &listener, accounts);
            listener.client_certificates = Some(authorities.value.as_path().into());
            listeners.authorities.push(authorities);
        }
        if listener.session.tls != Security::None && !has_certificate {
            let help = "add [tls] with certificate and key, or say tls = \"none\"";
            let message = format!("listener \"{}\" needs a certificate", name.value);
            root.error_unless(&["tls", &tls], &name.span, message, Some(help));
        }
        if listener.session.auth != Requirement::None && accounts.is_none() {
            let help = "add [accounts] with file = \"users\", or say auth = \"none\"";
            let message = format!("listener \"{}\" asks for logins, and there are no accounts", name.value);
            root.error_unless(&["accounts", &auth], &name.span, message, Some(help));
        }
        listeners.add(root, &name, listener);
    }
    listeners
}

impl Listeners {
    /// Adds a listener. Checks that no other has its address or name.
    fn add(&mut self, root: &Section<'_>, name: &Placed<&str>, listener: server::ListenerOptions) {
        for other in &self.all {
            check_pair(root, name, &listener, other);
        }
        self.all.push(listener);
    }

    /// Returns whether a listener takes mail, for which Weir needs an upstream.
    pub fn take_mail(&self) -> bool {
        self.all.is_empty() || self.all.iter().any(|listener| !listener.is_policy())
    }
}

/// Reads the name of the file of the authorities that issue clients' certificates.
fn authorities(s: &mut Section<'_>, folder: &Path) -> Option<Placed<PathBuf>> {
    let Placed { value, span } = s.optional("client-certificates", text)?;
    Some(Placed { value: folder.join(value), span })
}

/// Checks that clients can log in with the certificates that the listener asks for.
fn check_authorities(
    root: &Section<'_>,
    authorities: &Placed<PathBuf>,
    listener: &server::ListenerOptions,
    accounts: Option<&accounts::Accounts>,
) {
    if listener.session.tls == Security::None || listener.session.auth == Requirement::None {
        let help = "set tls and auth, or leave client-certificates out";
        let message = "client-certificates needs tls and auth: clients log in with their certificates, over TLS";
        root.error(&authorities.span, message, Some(help));
    } else if accounts.is_some_and(|accounts| accounts.options.certificates.is_none()) {
        let help = "add certificates = \"certificates\" to [accounts]: a file with lines \"subject:NAME user\"";
        root.error(&authorities.span, "client-certificates: no user has a certificate", Some(help));
    }
}

/// Checks that a listener has an address and a name that no other listener has.
fn check_pair(
    root: &Section<'_>,
    name: &Placed<&str>,
    listener: &server::ListenerOptions,
    other: &server::ListenerOptions,
) {
    let both = format!("listeners \"{}\" and \"{}\"", other.name, name.value);
    let is_free_port = |address: &ListenerAddress| address.tcp().is_some_and(|address| address.port() == 0);
    if other.address.is_same_place(&listener.address) && !is_free_port(&other.address) {
        root.error(&name.span, format!("{both} have the same address"), None);
    } else if let (Some(other), Some(own)) = (other.address.tcp(), listener.address.tcp())
        && overlap(other, own)
    {
        let message = format!("{both} have the same port, {}, and one of them takes it on all addresses", own.port());
        root.warn(&name.span, message, Some("leave one of them out: \"[::]\" is every address, also of IPv4"));
    }
    if other.name.eq_ignore_ascii_case(name.value) {
        root.warn(&name.span, format!("{both} differ only in case: match takes them for one"), None);
    }
}

/// Returns whether sockets with these two addresses would use the same port on the same address. A socket that is bound
/// to 0.0.0.0 uses its port on every IPv4 address of the machine. A socket that is bound to [::] uses its port on every
/// IPv6 and IPv4 address.
pub fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let has_all = |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    one.port() == other.port() && one.port() != 0 && (one == other || has_all(one, other) || has_all(other, one))
}

fn listener(
    name: &Placed<&str>,
    mut s: Section<'_>,
    shared: &Shared,
    accounts: Option<&accounts::Accounts>,
    checks_senders: &mut Option<Range<usize>>,
) -> Option<server::ListenerOptions> {
    let address = s.required("address", "\"[::]:587\"", |value| socket_address(&text(value)?));
    let securities = [("none", Security::None), ("starttls", Security::StartTls), ("implicit", Security::Implicit)];
    let requirements =
        [("required", Requirement::Required), ("optional", Requirement::Optional), ("none", Requirement::None)];
    let tls = s.placed("tls", "\"starttls\"", choice(&securities));
    let auth = s.placed("auth", "\"required\"", choice(&requirements));
    let [trusted, xclient, proxies] = ["trusted", "xclient", "proxy-protocol"].map(|key| networks(&mut s, key));
    if let Some(Placed { value: address, .. }) = address {
        let (tls, auth, trusted, xclient, proxies) = (&tls, &auth, &trusted, &xclient, &proxies);
        exposure::Listener { address, tls, auth, trusted, xclient, proxies }.warn(&s);
    }
    let has_users = auth.value != Requirement::None || !xclient.value.is_empty();
    let sender_mismatch = sender_mismatch(&mut s, shared, has_users);
    if has_users && sender_mismatch.value != SenderMismatch::Allow {
        checks_senders.get_or_insert(sender_mismatch.span);
    }
    let session = session::Options {
        sender_mismatch: sender_mismatch.value,
        report_address: None,
        name: name.value.into(),
        hostname: shared.hostname.clone(),
        tls: tls.value,
        auth: auth.value,
        trusted: trusted.value,
        xclient: xclient.value,
        max_message_size: shared.max_message_size,
        max_recipients: shared.max_recipients,
    };
    let sources = accounts.map(|accounts| &*accounts.sources).unwrap_or_default();
    let accounts = accounts::list(&mut s, "accounts", sources, sources).value.into();
    s.finish();
    Some(server::ListenerOptions {
        name: name.value.into(),
        address: ListenerAddress::Tcp(address?.value),
        protocol: Protocol::Smtp,
        proxies: proxies.value.into(),
        client_certificates: None,
        session: Arc::new(session),
        accounts,
    })
}

/// Returns the options of a session that Postfix has with its client.
fn session_of_postfix(name: &Placed<&str>, shared: &Shared) -> session::Options {
    session::Options {
        sender_mismatch: SenderMismatch::Allow,
        report_address: None,
        name: name.value.into(),
        hostname: shared.hostname.clone(),
        tls: Security::None,
        auth: Requirement::Optional,
        trusted: Vec::new(),
        xclient: Vec::new(),
        max_message_size: shared.max_message_size,
        max_recipients: shared.max_recipients,
    }
}

/// Reads the consequence of a sender as which the user may not send. `has_users`: clients of the listener can have a
/// user.
fn sender_mismatch(s: &mut Section<'_>, shared: &Shared, has_users: bool) -> Placed<SenderMismatch> {
    let default = SENDER_MISMATCHES.iter().find(|(_, value)| *value == shared.sender_mismatch);
    let default = default.map_or_else(String::new, |(word, _)| format!("\"{word}\""));
    let mismatch = s.placed("sender-mismatch", &default, choice(&SENDER_MISMATCHES));
    if s.has("sender-mismatch") && mismatch.value != SenderMismatch::Allow && !has_users {
        let message = "sender-mismatch has no effect: this listener has no logins";
        s.warn_unless(&["auth", "xclient"], &mismatch.span, message, None);
    }
    mismatch
}

/// Reads a list of networks, by default none.
fn networks(s: &mut Section<'_>, key: &'static str) -> Placed<Vec<IpNet>> {
    s.list(key, Some("[]"), "", network).unwrap_or_else(|| Placed { value: Vec::new(), span: s.span() })
}

/// Returns the system's host name.
pub fn system_hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if crate::smtp::address::is_domain(&name) { name } else { "localhost".to_owned() }
}
