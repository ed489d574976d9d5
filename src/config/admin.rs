//! `[admin]`: the HTTP address for metrics, health and API, and the control socket.

use super::exposure;
use super::listeners::overlap;
use super::section::{Placed, Section};
use super::values::{MAX_SOCKET_PATH, host_name, quoted, socket_address, text};
use crate::admin::Options;
use crate::server::ListenerOptions;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path;

/// The section, with positions of its keys.
pub struct Admin {
    pub options: Options,
    /// Position of the key `socket`. If this key is missing, the position of the state file's path.
    pub socket: Range<usize>,
    /// Position of the key `tokens`; empty if the key is missing.
    pub tokens: Range<usize>,
}

/// Reads the section. By default, the control socket is in the folder of the state file, whose path is `state`, and
/// whose position is `state_place`.
pub fn read(
    mut s: Section<'_>,
    folder: &Path,
    state: &Path,
    state_place: &Range<usize>,
    listeners: &[ListenerOptions],
) -> Admin {
    let address = s.optional("address", |value| socket_address(&text(value)?));
    let tokens = s.optional("tokens", |value| match text(value)? {
        name if name.is_empty() => Err("it is empty".to_owned()),
        name => Ok(folder.join(name)),
    });
    let hosts = s.list("hosts", Some("[]"), "[\"weir.example.org\"]", host);
    if let Some(address) = &address {
        exposure::warn_of_admin(&s, address, tokens.is_some());
        check_port(&s, address, listeners);
    } else if let Some(tokens) = &tokens {
        s.warn(&tokens.span, "tokens has no effect without \"address\": the socket needs no tokens", None);
    }
    let default = state.strip_prefix(folder).unwrap_or(state).with_extension("sock");
    let socket = s.placed("socket", &quoted(&default.to_string_lossy()), |value| match text(value)? {
        path if path.is_empty() => Err("it is empty".to_owned()),
        path => Ok(path),
    });
    let place = if s.has("socket") { socket.span } else { state_place.clone() };
    let socket = folder.join(socket.value);
    let length = socket.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        let message =
            format!("the path of a Unix socket has at most {MAX_SOCKET_PATH} octets, and this one has {length}");
        let help = format!("{}; \"socket\" of [admin] names another, as in \"/run/weir.sock\"", socket.display());
        s.error(&place, message, Some(&help));
    }
    if socket == state {
        let help = "\"socket\" of [admin] names another";
        s.error(&place, format!("{} cannot be both state file and socket", socket.display()), Some(help));
    }
    s.finish();
    let options = Options {
        address: address.map(|address| address.value),
        tokens: tokens.as_ref().map(|tokens| tokens.value.clone()),
        hosts: hosts.map(|hosts| hosts.value).unwrap_or_default(),
        socket,
    };
    Admin { options, socket: place, tokens: tokens.map(|tokens| tokens.span).unwrap_or_default() }
}

/// Parses a name or address that requests may have in `Host`, without a port.
fn host(text: &str) -> Result<String, String> {
    match text.parse::<IpAddr>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => host_name(text),
    }
}

/// Checks that no listener uses the address and port of `[admin]`: only one socket can be bound to them.
fn check_port(s: &Section<'_>, address: &Placed<SocketAddr>, listeners: &[ListenerOptions]) {
    let Placed { value: own, span } = address;
    let help = "give [admin] a port of its own, as in \"127.0.0.1:9587\"";
    for other in listeners.iter().filter(|other| other.address.tcp().is_some_and(|other| overlap(*own, other))) {
        let message = format!("[admin] and listener \"{}\" have the same port, {}", other.name, own.port());
        match other.address.tcp() == Some(*own) {
            true => s.error(span, message, Some(help)),
            false => s.warn(span, message, Some(help)),
        }
    }
}
