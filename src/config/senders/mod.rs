//! `[senders]`: which user may send as which address.

mod aliases;
mod lines;
mod login_maps;

use super::limit::{Context, pattern_tables};
use super::section::{Placed, Section};
use super::values::choice;
use crate::policy::matching::Senders;
use crate::policy::matching::senders::{Aliases, LoginMaps, Own, Permit};
use std::ops::Range;
use std::path::Path;

/// Prefixes of tables that Postfix does not read from a text file, or reads from the result of postmap.
const TABLE_TYPES: [&str; 14] = [
    "btree:",
    "cdb:",
    "hash:",
    "inline:",
    "ldap:",
    "lmdb:",
    "memcache:",
    "mysql:",
    "pcre:",
    "pgsql:",
    "proxy:",
    "regexp:",
    "sqlite:",
    "texthash:",
];

/// Reads `[senders]`, and the files that it names.
pub fn read(mut s: Section<'_>, cx: &mut Context<'_>) -> Senders {
    let choices =
        [("none", Own::None), ("address", Own::Address), ("sub-addresses", Own::SubAddresses), ("domain", Own::Domain)];
    let own = s.placed("own", "\"sub-addresses\"", choice(&choices));
    let has_default_domain = !cx.normalizer.is_default_domain(None);
    let mut maps = LoginMaps::new(cx.normalizer);
    let named =
        files(&mut s, cx, "login-maps", |path, text| login_maps::read(path, text, &mut maps, has_default_domain));
    let mut alias_table = Aliases::new(cx.normalizer);
    let alias_files = files(&mut s, cx, "aliases", |path, text| aliases::read(path, text, &mut alias_table));
    if let Some(span) = alias_files.as_ref().filter(|_| !has_default_domain) {
        let help = "add default-domain to [addresses]: the aliases are addresses in this domain";
        s.error_unless(&["addresses"], span, "aliases: there is no default-domain", Some(help));
    }
    let permits: Vec<Permit> = s.tables("permit").into_iter().map(|one| permit(one, cx)).collect();
    if own.value == Own::None && permits.is_empty() && named.is_none() && alias_files.is_none() {
        let help = "add [[senders.permit]], login-maps or aliases";
        s.warn(&own.span, "own = \"none\": no user may send as any address", Some(help));
    }
    s.finish();
    Senders::new(cx.normalizer).with_own(own.value).with_tables(permits, maps, alias_table)
}

/// Reads the files that a key names, each with `read`, which returns warnings or errors. Returns the position of the key
/// if it names a file.
fn files(
    s: &mut Section<'_>,
    cx: &mut Context<'_>,
    key: &'static str,
    mut read: impl FnMut(&Path, &str) -> Result<Vec<String>, Vec<String>>,
) -> Option<Range<usize>> {
    let Placed { value: names, span } = s.list(key, Some("[]"), "", file_name)?;
    for name in &names {
        let text = cx.files.read(name).map_err(|why| vec![why]);
        match text.and_then(|(path, text)| read(&path, &text)) {
            Ok(warnings) => warnings.into_iter().for_each(|why| s.warn(&span, format!("{key}: {why}"), None)),
            Err(errors) => errors.into_iter().for_each(|why| s.error(&span, format!("{key}: {why}"), None)),
        }
    }
    (!names.is_empty()).then_some(span)
}

fn file_name(name: &str) -> Result<String, String> {
    match TABLE_TYPES.into_iter().find(|kind| name.starts_with(kind)) {
        _ if name.is_empty() => Err("it is empty".to_owned()),
        Some(kind) => {
            Err(format!("\"{name}\" is not a path: Weir reads text files; leave \"{kind}\" out if it is one"))
        }
        None => Ok(name.to_owned()),
    }
}

/// Reads one `[[senders.permit]]`.
fn permit(mut s: Section<'_>, cx: &mut Context<'_>) -> Permit {
    let mut tables = |key| pattern_tables(&mut s, key, cx);
    let permit = Permit {
        user: tables("user"),
        user_domain: tables("user-domain"),
        group: tables("group"),
        sender: tables("sender"),
        sender_domain: tables("sender-domain"),
    };
    if !s.has_any(&["sender", "sender-domain"]) {
        let help = "add sender = \"*@example.org\"; \"*\" is every address";
        s.error_unless(&["sender", "sender-domain"], &s.span(), "[[senders.permit]] has no \"sender\"", Some(help));
    }
    s.finish();
    permit
}

#[cfg(test)]
mod tests;
