//! `[[upstream]]`: the smart hosts.

use super::section::{Placed, Section, choice, count, flag, text, timeout};
use crate::relay::{UpstreamOptions, login, resolve, tls};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path;

/// Reads all of them. `places` gets where each is in the file.
pub fn read_all(root: &mut Section<'_>, folder: &Path, places: &mut Vec<Range<usize>>) -> Vec<UpstreamOptions> {
    let sections = root.tables("upstream");
    if sections.is_empty() {
        let help = "add [[upstream]] with address = \"smtp.example.org:25\"";
        if !root.has("upstream") || root.is_list("upstream") {
            root.error(&root.span(), "there is no upstream to relay to", Some(help));
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
    upstreams
}

fn read(mut s: Section<'_>, folder: &Path) -> Option<Placed<UpstreamOptions>> {
    let address = s.required("address", "\"smtp.example.org:25\"", |value| host_and_port(&text(value)?));
    let name = s.optional("name", text).map(|name| name.value);
    let mx = s.value("mx", "false", flag);
    let connect_timeout = s.value("connect-timeout", "\"5s\"", timeout);
    let priority = small(s.value("priority", "10", count(0..=1000)));
    let weight = small(s.value("weight", "10", count(1..=1000)));
    let tls = tls(&mut s, folder);
    let login = login(&mut s, folder);
    if let Some(Placed { value: (host, _), span }) = &address
        && mx
        && host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
    {
        let help = "write the domain, as in \"example.org:25\", or leave mx out";
        s.error(span, format!("mx = true, and {host} is no name that could have mail exchangers"), Some(help));
    }
    s.finish();
    let Placed { value: (host, port), span } = address?;
    let name = name.unwrap_or_else(|| host.clone());
    let value = UpstreamOptions { name, host, port, mx, connect_timeout, priority, weight, tls, login };
    Some(Placed { value, span })
}

fn tls(s: &mut Section<'_>, folder: &Path) -> tls::Options {
    let policies = [
        ("none", tls::Policy::None),
        ("opportunistic", tls::Policy::Opportunistic),
        ("required", tls::Policy::Required),
    ];
    let policy = s.value("tls", "\"opportunistic\"", choice(&policies));
    let ca = s.optional("ca", text).map(|path| folder.join(path.value));
    tls::Options { policy, ca }
}

fn login(s: &mut Section<'_>, folder: &Path) -> Option<login::Options> {
    let asks_login = s.value("auth", "\"none\"", choice(&[("none", false), ("fixed", true)]));
    let user = s.optional("user", text).map(|user| user.value);
    let password_file = s.optional("password-file", text).map(|path| folder.join(path.value));
    let login = user.zip(password_file).filter(|_| asks_login);
    if asks_login && login.is_none() {
        let help = "add user = \"weir\" and password-file = \"upstream-password\"";
        s.error(&s.span(), "auth = \"fixed\" needs a user and a password-file", Some(help));
    }
    login.map(|(user, password_file)| login::Options { user, password_file })
}

/// `[dns]`: how the names of upstreams are looked up.
pub fn dns(mut s: Section<'_>) -> resolve::Options {
    let servers = s.list("servers", Some("[]"), "", name_server).map_or(Vec::new(), |servers| servers.value);
    let timeout = s.value("timeout", "\"5s\"", timeout);
    s.finish();
    resolve::Options { servers, timeout }
}

/// An address, with a port or for port 53.
fn name_server(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse().or_else(|_| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53)));
    let bad =
        || format!("\"{text}\" is not the address of a name server: write \"192.0.2.53\" or \"[2001:db8::53]:5353\"");
    with_port.ok().filter(|address| address.port() > 0).ok_or_else(bad)
}

/// A number that has been read within bounds.
fn small(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
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
