//! `[listener.NAME]` with `protocol = "postfix-policy"`: Postfix asks Weir by its policy delegation protocol.

use super::exposure;
use super::section::{Placed, Section};
use super::values::{choice, socket_address, text, unix_socket};
use crate::delegation::{LastStage, Options, Refunds};
use crate::server::{ListenerAddress, ListenerOptions, Protocol};
use crate::session;
use std::path::Path;
use std::sync::Arc;
use toml::de::DeValue;

/// Keys of SMTP listeners, which have no meaning here.
const SMTP_KEYS: [&str; 8] =
    ["tls", "auth", "trusted", "xclient", "proxy-protocol", "client-certificates", "accounts", "sender-mismatch"];

/// Keys that only a listener for Postfix has.
const POLICY_KEYS: [&str; 2] = ["last-stage", "socket-mode"];

/// Beginning of an address that is the path of a Unix socket.
const UNIX: &str = "unix:";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Smtp,
    PostfixPolicy,
}

/// Reads the protocol of a listener.
pub fn kind(s: &mut Section<'_>) -> Kind {
    let kinds = [("smtp", Kind::Smtp), ("postfix-policy", Kind::PostfixPolicy)];
    let kind = s.value("protocol", "\"smtp\"", choice(&kinds));
    if kind == Kind::Smtp {
        let message = |key: &str| format!("{key} needs protocol = \"postfix-policy\"");
        refuse(s, &POLICY_KEYS, message, None);
    }
    kind
}

/// Reports each of these keys that the section has.
fn refuse(s: &mut Section<'_>, keys: &[&'static str], message: impl Fn(&str) -> String, help: Option<&str>) {
    for key in keys {
        // A key that is read is printed with the configuration in force, even if the file does not have it.
        let found = if s.has(key) { s.optional(key, |_| Ok(())) } else { None };
        if let Some(Placed { span, .. }) = found {
            s.error(&span, message(key), help);
        }
    }
}

/// Reads a listener for Postfix. `session` are the options with which `weir test` rehearses a message.
pub fn read(mut s: Section<'_>, folder: &Path, session: session::Options) -> Option<ListenerOptions> {
    let message = |key: &str| format!("{key} has no meaning with protocol = \"postfix-policy\"");
    refuse(&mut s, &SMTP_KEYS, message, Some("Postfix itself speaks SMTP with the clients"));
    let mode = s.optional("socket-mode", mode);
    let address = s.required("address", "\"127.0.0.1:10031\"", |value| match text(value)?.strip_prefix(UNIX) {
        Some(path) => {
            let (path, mode) = (unix_socket(path, folder)?.into(), mode.as_ref().map_or(0o660, |mode| mode.value));
            Ok(ListenerAddress::Unix { path, mode })
        }
        None => socket_address(&text(value)?).map(ListenerAddress::Tcp),
    });
    if let Some(Placed { value: address, span }) = &address {
        if let (Some(mode), Some(_)) = (&mode, address.tcp()) {
            s.error(&mode.span, "socket-mode needs address = \"unix:/path\"", None);
        }
        if let Some(address) = address.tcp().filter(|address| !exposure::is_loopback(*address)) {
            let message = format!("every host that reaches {address} can use up the budgets of any user");
            s.warn(span, message, Some("admit only your own Postfix with a firewall, or use a loopback address"));
        }
    }
    let last_stage = s.value("last-stage", "\"rcpt\"", choice(&LastStage::NAMES));
    s.finish();
    let policy = Options {
        name: session.name.clone(),
        hostname: session.hostname.as_str().into(),
        last_stage,
        refunds: Refunds::default(),
        max_recipients: session.max_recipients,
    };
    Some(ListenerOptions {
        name: policy.name.clone(),
        address: address?.value,
        protocol: Protocol::PostfixPolicy(Arc::new(policy)),
        proxies: Arc::default(),
        client_certificates: None,
        session: Arc::new(session),
        accounts: Arc::default(),
    })
}

/// Reads the permissions of a socket's file.
fn mode(value: &DeValue<'_>) -> Result<u32, String> {
    let text = text(value)?;
    u32::from_str_radix(&text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("\"{text}\" is no mode of a file, as in \"0660\""))
}
