//! Login maps in the text format of Postfix (`smtpd_sender_login_maps`, postmap(1)): an address, and the logins that own
//! it.

use super::lines::{LogicalLine, logical_lines};
use crate::config::files::{LineErrors, check_item};
use crate::policy::matching::senders::LoginMaps;
use crate::smtp::address::quoted_string_length;
use std::path::Path;

/// Adds the lines of a file to the map. Returns warnings.
pub fn read(
    path: &Path,
    text: &str,
    maps: &mut LoginMaps,
    has_default_domain: bool,
) -> Result<Vec<String>, Vec<String>> {
    let (mut errors, mut warnings) = (LineErrors::new(path), LineErrors::new(path));
    for LogicalLine { number, text } in logical_lines(text) {
        let (key, logins) = split(&text);
        let logins = || logins.split(|c: char| c == ',' || c.is_whitespace()).filter(|login| !login.is_empty());
        let wrong = std::iter::once(key).chain(logins()).find_map(|item| check_item(item).err());
        match wrong {
            Some(why) => errors.line(number, why),
            None if logins().next().is_none() => {
                errors.line(number, &format!("{key} has no login: write an address or @domain, then the logins"));
            }
            None if !maps.insert(key, logins()) => {
                warnings.line(number, &format!("{key} is in a login map already, and the first line counts"));
            }
            None if !has_default_domain && !key.contains('@') => {
                let why = format!("{key} has no domain, and there is no default-domain in [addresses]");
                warnings.line(number, &why);
            }
            None => {}
        }
    }
    errors.or(())?;
    Ok(warnings.or(()).err().unwrap_or_default())
}

/// Splits a line into the key, which can have a quoted local part, and the logins.
fn split(line: &str) -> (&str, &str) {
    let quoted = quoted_string_length(line.as_bytes()).unwrap_or(0);
    let end = line[quoted..].find(char::is_whitespace).map_or(line.len(), |at| quoted + at);
    (&line[..end], line[end..].trim())
}
