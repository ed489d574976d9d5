//! Alias files (aliases(5)): a local part, and the addresses to which its mail goes.

use super::lines::{LogicalLine, logical_lines};
use crate::config::files::{LineErrors, check_item};
use crate::policy::matching::senders::Aliases;
use crate::smtp::address::quoted_string_length;
use std::path::Path;

/// Adds the lines of a file. Returns warnings: targets that are no users, such as commands, are ignored.
pub fn read(path: &Path, text: &str, aliases: &mut Aliases) -> Result<Vec<String>, Vec<String>> {
    let (mut errors, mut warnings) = (LineErrors::new(path), LineErrors::new(path));
    for LogicalLine { number, text } in logical_lines(text) {
        let Some((name, targets)) = split(&text) else {
            errors.line(number, "there is no colon: write a name, a colon, and users, as in \"office: alice, bob\"");
            continue;
        };
        let (users, others): (Vec<_>, Vec<_>) = targets.iter().map(|target| target.as_str()).partition(|t| is_user(t));
        let wrong = std::iter::once(&name).chain(&users).find_map(|item| check_item(item).err());
        match wrong {
            Some(why) => errors.line(number, why),
            None if name.is_empty() => errors.line(number, "the alias has no name"),
            None if !aliases.insert(name, users.into_iter()) => {
                warnings.line(number, &format!("{name} is an alias already, and the first line counts"));
            }
            None if !others.is_empty() => {
                let why = format!("{name}: {} is no user, and ignored", others.join(", ").escape_debug());
                warnings.line(number, &why);
            }
            None => {}
        }
    }
    errors.or(())?;
    Ok(warnings.or(()).err().unwrap_or_default())
}

/// Returns whether the target of an alias is a user or an address, and no command, file or list of addresses in a file.
fn is_user(target: &str) -> bool {
    !target.starts_with(['|', '/', ':'])
}

/// Splits a line into the alias and its targets.
fn split(line: &str) -> Option<(&str, Vec<String>)> {
    let quoted = quoted_string_length(line.as_bytes()).unwrap_or(0);
    let end = quoted + line[quoted..].find(':')?;
    Some((line[..end].trim(), targets(&line[end + 1..])))
}

/// Splits targets at the commas outside of quotes. Removes the quotes around a whole target, and the `\` that forbids
/// further expansion.
fn targets(mut text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    loop {
        text = text.trim_start();
        let quoted = quoted_string_length(text.as_bytes()).unwrap_or(0);
        let end = text[quoted..].find(',').map_or(text.len(), |at| quoted + at);
        let target = text[..end].trim();
        let inner = target.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(target);
        let plain = inner.strip_prefix('\\').unwrap_or(inner);
        targets.extend((!plain.is_empty()).then(|| plain.to_owned()));
        match text.get(end + 1..) {
            Some(rest) => text = rest,
            None => return targets,
        }
    }
}
