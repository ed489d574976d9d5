//! `[admin]`: the HTTP address for metrics and health, and the control socket.

use super::section::Section;
use super::values::{quoted, socket_address, text};
use crate::admin::Options;
use std::ops::Range;
use std::path::Path;

/// The path of a Unix socket has 108 octets, including the final NUL (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// Reads the section. By default the socket is beside the state file, `state`.
pub fn read(mut s: Section<'_>, folder: &Path, state: &Path, state_place: &Range<usize>) -> Options {
    let address = s.optional("address", |value| socket_address(&text(value)?));
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
    Options { address: address.map(|address| address.value), socket }
}
