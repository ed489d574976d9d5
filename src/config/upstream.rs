//! `[[upstream]]` and `[dns]`: the smart hosts, and how their names are looked up.

use super::section::{Placed, Section};
use super::values::{choice, count, flag, host_name, text, timeout};
use crate::relay::login::{self, Kind, Mechanism, SecretSource};
use crate::relay::{self, Announce, PoolOptions, UpstreamOptions, tls};
use crate::smtp::sasl;
use crate::time::format_duration;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use toml::de::DeValue;

/// The port for TLS from the first octet, without STARTTLS (RFC 8314).
const IMPLICIT_TLS_PORT: u16 = 465;

/// Default timeout of one DNS lookup. If half of `upstream-timeout` is shorter, the default is that half.
const DNS_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads all upstreams. Adds to `places` the position of each upstream in the file. `takes_mail`: a listener takes mail,
/// so that Weir needs an upstream.
pub fn read_all(
    root: &mut Section<'_>,
    folder: &Path,
    takes_mail: bool,
    places: &mut Vec<Range<usize>>,
) -> Vec<UpstreamOptions> {
    let sections = root.tables("upstream");
    if sections.is_empty() {
        let help = "add [[upstream]] with address = \"smtp.example.org:25\"";
        if takes_mail && !root.has("upstream") || root.is_list("upstream") {
            root.error_unless(&["upstream"], &root.span(), "there is no upstream to relay to", Some(help));
        }
    }
    let mut upstreams: Vec<UpstreamOptions> = Vec::new();
    for section in sections {
        let Some(Placed { value, span }) = read(section, folder) else { continue };
        if upstreams.iter().any(|other| other.name == value.name) {
            let message = format!("there are two upstreams named \"{}\"", value.name);
            root.error(&span, message, Some("give each a name of its own: name = \"…\""));
        }
        upstreams.push(value);
        places.push(span);
    }
    if let Some(first) = places.first()
        && upstreams.iter().all(|upstream| !upstream.enabled)
    {
        let help = "leave enabled out of one of them";
        root.warn_unless(&["upstream"], first, "no upstream is enabled: clients get 451", Some(help));
    } else if let Some(first) = places.first()
        && upstreams.iter().all(|upstream| upstream.only_routed)
    {
        let help = "leave only-routed out of one of them";
        let message = "there is no upstream for mail that no limit routes";
        root.error_unless(&["upstream"], first, message, Some(help));
    } else if let Some(first) = places.first()
        && upstreams.iter().all(|upstream| upstream.only_routed || !upstream.enabled)
    {
        let help = "enable one without only-routed";
        let message = "no upstream is enabled for mail that no limit routes: clients get 451";
        root.warn_unless(&["upstream"], first, message, Some(help));
    }
    upstreams
}

fn read(mut s: Section<'_>, folder: &Path) -> Option<Placed<UpstreamOptions>> {
    let address = s.required("address", "\"smtp.example.org:25\"", |value| host_and_port(&text(value)?));
    let name = s.optional("name", text).map(|name| name.value);
    let enabled = s.value("enabled", "true", flag);
    let only_routed = s.value("only-routed", "false", flag);
    let mx = s.value("mx", "false", flag);
    let connect_timeout = s.value("connect-timeout", "\"5s\"", timeout);
    let priority = to_u16(s.value("priority", "10", count(0..=1000)));
    let weight = to_u16(s.value("weight", "10", count(1..=1000)));
    let tls = tls(&mut s, folder);
    let login = login(&mut s, folder);
    let announcements = [("none", Announce::None), ("xforward", Announce::Xforward), ("xclient", Announce::Xclient)];
    let announce = s.value("announce-client", "\"none\"", choice(&announcements));
    let max_connections = s.value("max-connections", "0", count(0..=100_000));
    let pool = PoolOptions {
        max_idle: s.value("max-idle-connections", "50", count(0..=100_000)),
        idle_timeout: s.value("idle-timeout", "\"30s\"", timeout),
        max_age: s.value("max-age", "\"5m\"", timeout),
        max_messages: u32::from(to_u16(s.value("max-messages", "100", count(1..=60_000)))),
    };
    if let Some(Placed { value: (host, _), span }) = &address
        && mx
        && host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
    {
        let help = "write the domain, as in \"example.org:25\", or leave mx out";
        s.error(span, format!("mx = true needs a domain name, not {host}"), Some(help));
    }
    if let Some(Placed { value: (_, IMPLICIT_TLS_PORT), span }) = &address
        && matches!(tls.policy, tls::Policy::Opportunistic | tls::Policy::Required)
    {
        // Weir would wait for the greeting of the server, and the server would wait for Weir's TLS handshake.
        s.warn(span, "port 465 is for TLS from the first octet (RFC 8314)", Some("add tls = \"implicit\""));
    }
    if let (Some(address), Some(login)) = (&address, &login) {
        warn_of_exposed_secret(&s, &address.value.0, tls.policy, login);
    }
    s.finish();
    let Placed { value: (host, port), span } = address?;
    let name = name.unwrap_or_else(|| host.clone()).into();
    let value = UpstreamOptions {
        name,
        enabled,
        only_routed,
        host,
        port,
        mx,
        connect_timeout,
        priority,
        weight,
        tls,
        login,
        announce,
        max_connections,
        pool,
    };
    Some(Placed { value, span })
}

fn tls(s: &mut Section<'_>, folder: &Path) -> tls::Options {
    let policies = [
        ("none", tls::Policy::None),
        ("opportunistic", tls::Policy::Opportunistic),
        ("required", tls::Policy::Required),
        ("implicit", tls::Policy::Implicit),
    ];
    let policy = s.value("tls", "\"opportunistic\"", choice(&policies));
    let ca = s.optional("ca", text);
    let name = s.optional("certificate-name", |value| host_name(&text(value)?));
    let pins = s.list("certificate-pin", Some("[]"), "", |text| text.parse::<tls::Pin>());
    let pins = pins.filter(|pins| !pins.value.is_empty());
    let certificate = s.optional("client-certificate", text);
    let key = s.optional("client-key", text);

    // An administrator who sets these keys expects that Weir checks the upstream's certificate.
    let checks = [
        ("certificate-name", name.as_ref().map(|name| &name.span)),
        ("certificate-pin", pins.as_ref().map(|pins| &pins.span)),
    ];
    for (key, span) in checks.into_iter().filter(|_| !policy.is_checked()) {
        if let Some(span) = span {
            let message = format!("{key}: the certificate is only checked where tls is \"required\" or \"implicit\"");
            s.error(span, message, Some("add tls = \"required\""));
        }
    }
    if let Some(ca) = ca.as_ref().filter(|_| !policy.is_checked()) {
        let message = "ca: the certificate is only checked where tls is \"required\" or \"implicit\"";
        s.warn(&ca.span, message, Some("add tls = \"required\", or leave ca out"));
    }
    if let (Some(ca), Some(_)) = (&ca, &pins) {
        s.warn(&ca.span, "ca has no effect together with certificate-pin", None);
    }
    let client = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => {
            if policy == tls::Policy::None {
                s.error(&certificate.span, "client-certificate has no effect with tls = \"none\"", None);
            }
            Some(tls::Paths { certificate: folder.join(certificate.value), key: folder.join(key.value) })
        }
        (Some(one), None) | (None, Some(one)) => {
            let help = "add client-certificate = \"weir.pem\" and client-key = \"weir-key.pem\"";
            s.error(&one.span, "client-certificate and client-key go together", Some(help));
            None
        }
    };
    let name = name.map(|name| name.value);
    let pins = pins.map_or(Vec::new(), |pins| pins.value);
    tls::Options { policy, ca: ca.map(|ca| folder.join(ca.value)), name, pins, client }
}

fn login(s: &mut Section<'_>, folder: &Path) -> Option<login::Options> {
    let kinds = [("none", Auth::None), ("fixed", Auth::Fixed), ("client", Auth::Client)];
    let auth = s.value("auth", "\"none\"", choice(&kinds));
    let user = s.optional("user", |value| user_name(&text(value)?));
    let mechanisms = [
        ("any", Mechanism::Any),
        ("scram-sha-256", Mechanism::ScramSha256),
        ("plain", Mechanism::Plain),
        ("login", Mechanism::Login),
    ];
    let mechanism = s.value("mechanism", "\"any\"", choice(&mechanisms));
    let file = |value: &DeValue<'_>| Ok(SecretSource::File(folder.join(text(value)?)));
    let variable = |value: &DeValue<'_>| variable(&text(value)?).map(SecretSource::Variable);
    let keys = ["password-file", "password-env", "token-file", "token-env"];
    let given: Vec<&str> = keys.into_iter().filter(|key| s.has(key)).collect();
    let password = s.optional("password-file", file).or(s.optional("password-env", variable));
    let token = s.optional("token-file", file).or(s.optional("token-env", variable));
    let unused: Vec<&str> = ["user"].into_iter().chain(given.iter().copied()).filter(|key| s.has(key)).collect();
    // An explicit auth = "none" is no mistake: the administrator has turned the login off, and has left the other keys
    // of the login in the file.
    if !unused.is_empty() && (matches!(auth, Auth::Client) || !s.has("auth")) {
        let message = format!("{}: used only with auth = \"fixed\"", unused.join(", "));
        s.warn(&s.span(), message, Some("add auth = \"fixed\", or leave them out"));
    }
    match auth {
        Auth::None => return None,
        Auth::Client => return Some(login::Options::Client(mechanism)),
        Auth::Fixed => {}
    }
    let help = "add user = \"weir\" and password-file = \"upstream-password\"";
    if given.is_empty() || !s.has("user") {
        let message = "auth = \"fixed\" needs a user and a password-file, password-env, token-file or token-env";
        s.error_unless(&["user", keys[0], keys[1], keys[2], keys[3]], &s.span(), message, Some(help));
    } else if given.len() > 1 {
        s.error(&s.span(), format!("only one of {} can be used", given.join(", ")), None);
    } else if token.is_some() && mechanism != Mechanism::Any {
        let help = "leave mechanism out: a token is sent by XOAUTH2";
        s.error(&s.span(), "mechanism works only with passwords", Some(help));
    }
    let (kind, source) = match (password, token) {
        (Some(source), _) => (Kind::Password(mechanism), source.value),
        (None, source) => (Kind::Token, source?.value),
    };
    Some(login::Options::Fixed(login::Fixed { user: user?.value, kind, source }))
}

/// How Weir logs in at an upstream.
#[derive(Clone, Copy)]
enum Auth {
    None,
    Fixed,
    Client,
}

/// Warns if the connection to the upstream could reveal a password to an impostor or an eavesdropper. For a token,
/// reports an error instead. SCRAM reveals no password.
fn warn_of_exposed_secret(s: &Section<'_>, host: &str, policy: tls::Policy, login: &login::Options) {
    if policy.is_checked() || is_loopback(host) {
        return;
    }
    let kind = match login {
        login::Options::Fixed(login) => login.kind,
        login::Options::Client(mechanism) => Kind::Password(*mechanism),
    };
    let recipient = match policy {
        tls::Policy::None => "in plain text, where attackers can read it",
        _ => "to any server, as no certificate is checked",
    };
    match (kind, login) {
        (Kind::Token, _) => {
            let message = format!("the token would go {recipient}");
            s.error(&s.span(), message, Some("add tls = \"required\""));
        }
        (Kind::Password(Mechanism::ScramSha256), _) => {}
        (Kind::Password(_), login) => {
            let subject =
                if let login::Options::Client(_) = login { "clients' passwords go" } else { "the password goes" };
            let help = "add tls = \"required\", or mechanism = \"scram-sha-256\"";
            s.warn(&s.span(), format!("{subject} {recipient}"), Some(help));
        }
    }
}

fn is_loopback(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
    }
}

fn user_name(text: &str) -> Result<String, String> {
    let bad = || format!("{text:?} is no user name: it has a space, a colon, a control, or too many letters");
    sasl::is_user_name(text).then(|| text.to_owned()).ok_or_else(bad)
}

/// Reads the name of an environment variable. An error does not quote the text, because the administrator may have
/// written the secret itself instead of a name.
fn variable(name: &str) -> Result<String, String> {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let good = name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit());
    let bad = || "this is not the name of an environment variable, as WEIR_UPSTREAM_PASSWORD is".to_owned();
    good.then(|| name.to_owned()).ok_or_else(bad)
}

/// Reads `[dns]`. `whole` is the timeout of the whole handshake with an upstream, including DNS lookups.
pub fn dns(mut s: Section<'_>, whole: Duration) -> relay::dns::Options {
    let servers = s.list("servers", Some("[]"), "", name_server).map_or(Vec::new(), |servers| servers.value);
    // Use at least 1 ms, so that half of it is not too short to be written in the configuration.
    let whole = whole.max(Duration::from_millis(1));
    let default = format!("\"{}\"", format_duration((whole / 2).min(DNS_TIMEOUT)));
    let timeout = s.placed("timeout", &default, timeout);
    if timeout.value >= whole {
        let message = format!(
            "timeout: it must be below upstream-timeout, {}, which includes the look-up and all that follows",
            format_duration(whole)
        );
        s.source().error_unless(&["session.upstream-timeout"], &timeout.span, message, None);
    }
    s.finish();
    relay::dns::Options { servers, timeout: timeout.value }
}

/// Reads the address of a name server; the default port is 53.
fn name_server(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse().or_else(|_| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53)));
    let bad =
        || format!("\"{text}\" is not the address of a name server: write \"192.0.2.53\" or \"[2001:db8::53]:5353\"");
    with_port.ok().filter(|address| address.port() > 0).ok_or_else(bad)
}

/// Converts a number that was checked to be at most 65,535 when it was read.
fn to_u16(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

pub fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let bad = || format!("\"{text}\" is not a host and port: write \"smtp.example.org:25\" or \"[2001:db8::1]:25\"");
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    if !host.is_ascii() {
        return Err(format!("\"{host}\" has letters beyond ASCII: write the form of it that DNS has, with xn--"));
    }
    let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let good = match bracketed {
        true => host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok(),
        false => crate::smtp::address::is_domain(host),
    };
    if good { Ok((host.to_owned(), port)) } else { Err(bad()) }
}
