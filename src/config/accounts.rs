//! `[accounts]`: the sources of users, and their order.

use super::section::{Placed, Section};
use super::values::{choose, flag, text};
use crate::accounts::{Options, Source, dovecot};
use crate::relay::UpstreamOptions;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The sources that are configured.
pub struct Accounts {
    pub options: Options,
    /// The sources that a listener asks if it names none, in this order.
    pub sources: Vec<Source>,
    pub places: Places,
}

/// Positions of keys of `[accounts]`; empty if the key is missing.
#[derive(Default)]
pub struct Places {
    pub file: Range<usize>,
    pub dovecot: Range<usize>,
    pub sources: Range<usize>,
    pub scram: Range<usize>,
    pub certificates: Range<usize>,
}

/// Names of the sources, as lists of the configuration have them. The first two are the keys of `[accounts]` that
/// configure these sources; the last is configured by an upstream with `auth = "client"`.
const SOURCES: [(&str, Source); 3] =
    [("file", Source::File), ("dovecot", Source::Dovecot), ("upstream", Source::Upstream)];

/// Reads `[accounts]`. Relative paths are relative to `folder`. Returns `None` if there is no such section, or if it has
/// no source.
pub fn read(mut s: Section<'_>, folder: &Path) -> Option<Accounts> {
    if !s.exists() {
        return None;
    }
    let file = s.optional("file", |value| match text(value)? {
        name if name.is_empty() => Err("it is empty".to_owned()),
        name => Ok(folder.join(name)),
    });
    let dovecot = s.optional("dovecot", |value| socket(&text(value)?));
    if let Some(Placed { value: dovecot::Address::Tcp { host, .. }, span }) = &dovecot
        && !is_this_machine(host)
    {
        let message = format!("passwords go to {host} without encryption, as Dovecot's protocol has none");
        s.warn(span, message, Some("let a tunnel, or a network that nobody else reaches, protect them"));
    }
    let configured: Vec<Source> = [file.as_ref().map(|_| Source::File), dovecot.as_ref().map(|_| Source::Dovecot)]
        .into_iter()
        .flatten()
        .collect();
    let permitted = [&configured[..], &[Source::Upstream]].concat();
    let sources = list(&mut s, "sources", &permitted, &configured);
    if sources.value.is_empty() {
        let help = "add file = \"users\", or dovecot = \"/run/dovecot/auth-client\", or sources = [\"upstream\"]";
        let message = "[accounts] has neither \"file\" nor \"dovecot\"";
        s.error_unless(&["file", "dovecot", "sources"], &s.span(), message, Some(help));
    }
    let scram = s.optional("scram", flag);
    if let (Some(scram), None) = (&scram, &file) {
        s.warn(&scram.span, "scram has no effect: it is for the users of \"file\", which is not set", None);
    }
    let certificates = s.optional("certificates", |value| Ok(folder.join(text(value)?)));
    s.finish();
    let places = Places {
        sources: sources.span,
        file: place(&file),
        dovecot: place(&dovecot),
        scram: place(&scram),
        certificates: place(&certificates),
    };
    let options = Options {
        file: file.map(|file| file.value),
        dovecot: dovecot.map(|dovecot| dovecot.value),
        upstream: sources.value.contains(&Source::Upstream),
        certificates: certificates.map(|certificates| certificates.value),
        scram: scram.map(|scram| scram.value),
    };
    (!sources.value.is_empty()).then_some(Accounts { options, sources: sources.value, places })
}

impl Accounts {
    /// Checks that other sections have what these accounts need. `asks`: a listener asks clients for a certificate.
    pub fn check(&self, root: &Section<'_>, upstreams: &[UpstreamOptions], asks: bool) {
        let is_asked = self.options.upstream && !upstreams.iter().any(UpstreamOptions::wants_credentials);
        if is_asked {
            let help = "add auth = \"client\" to the upstream whose users they are";
            let message = "sources: no upstream has auth = \"client\", so none can check a password";
            root.error_unless(&["upstream"], &self.places.sources, message, Some(help));
        }
        if self.options.certificates.is_some() && !asks {
            let help = "add client-certificates = \"client-ca.pem\" to a listener";
            root.warn(&self.places.certificates, "no listener asks clients for a certificate", Some(help));
        }
    }
}

fn place<T>(key: &Option<Placed<T>>) -> Range<usize> {
    key.as_ref().map(|key| key.span.clone()).unwrap_or_default()
}

/// Reads a list of sources, which may be the `permitted` ones. An empty list stands for the sources in `default`.
pub fn list(s: &mut Section<'_>, key: &'static str, permitted: &[Source], default: &[Source]) -> Placed<Vec<Source>> {
    let read = |name: &str| {
        let source = choose(name, &SOURCES)?;
        if permitted.contains(&source) { Ok(source) } else { Err(format!("[accounts] has no source \"{name}\"")) }
    };
    let read = s.list(key, Some("[]"), "", read);
    let Placed { value: sources, span } = read.unwrap_or_else(|| Placed { value: Vec::new(), span: s.span() });
    if sources.iter().enumerate().any(|(n, source)| sources[..n].contains(source)) {
        s.error(&span, format!("{key}: a source occurs twice"), None);
    }
    Placed { value: if sources.is_empty() { default.to_vec() } else { sources }, span }
}

/// Parses the address of Dovecot's socket: an absolute path, or a host and port.
fn socket(address: &str) -> Result<dovecot::Address, String> {
    let examples = "write \"/run/dovecot/auth-client\" or \"dovecot.example.org:12345\"";
    if address.is_empty() {
        return Err(format!("it is empty: {examples}"));
    }
    if address.starts_with('/') {
        return Ok(dovecot::Address::Unix(PathBuf::from(address)));
    }
    if address.contains('/') || !address.contains(':') {
        return Err(format!("\"{address}\" is neither an absolute path nor a host and port: {examples}"));
    }
    let (host, port) = super::upstream::host_and_port(address)?;
    // The system's resolver takes addresses without brackets.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(dovecot::Address::Tcp { host, port })
}

fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
