//! Patterns that most probably do not match what their author expects, such as regular expressions, names of files, and
//! networks.

use super::key::Key;
use crate::config::values::any_network;
use crate::policy::matching::{Field, Shape};

/// Returns a warning and a remedy if a pattern most probably does not match the values that its author expects.
pub(super) fn hint(key: Key, pattern: &str) -> Option<(String, String)> {
    if let Key::Client = key {
        let network = any_network(pattern).ok().filter(|network| *network != network.trunc())?;
        let why = format!("\"{pattern}\" has bits beyond its prefix: it is the whole network {}", network.trunc());
        return Some((why, format!("write \"{}\", or \"{}\" for one address", network.trunc(), network.addr())));
    }
    let Key::Field(field, name) = key else { return None };
    if let Field::Country = field {
        // Codes that are usual on the Internet and in the European Union, but not of ISO 3166.
        let meant = [("uk", "gb"), ("el", "gr")].into_iter().find(|(wrong, _)| pattern.eq_ignore_ascii_case(wrong));
        return meant.map(|(_, right)| {
            (format!("\"{pattern}\" is the code of no country"), format!("did you mean \"{right}\"?"))
        });
    }
    if let Field::Listener | Field::Asn = field {
        return None;
    }
    // An EHLO name can be an IP address in brackets. `any_network` does not accept brackets, so such a name is not
    // reported here.
    if any_network(pattern).is_ok() {
        let kind = if pattern.contains('/') { "a network" } else { "the address of a client" };
        let why = format!("\"{pattern}\" is {kind}, and is compared with the {name}");
        return Some((why, "did you mean \"client\"?".to_owned()));
    }
    if key.shape() == Shape::Domain && pattern.starts_with('.') && !is_expression(pattern) {
        let why = format!("\"{pattern}\" matches no {name}");
        return Some((why, format!("did you mean \"*{pattern}\"?")));
    }
    if is_expression(pattern) {
        let why = format!("\"{pattern}\" looks like a regular expression, and is a plain pattern for the {name}");
        return Some((why, example(key)));
    }
    if is_file(pattern) {
        let why = format!("\"{pattern}\" looks like the name of a file, and is a plain pattern for the {name}");
        let help = "[list.NAME] with file = \"…\" reads a file; name it here as \"list:NAME\"";
        return Some((why, help.to_owned()));
    }
    if pattern.starts_with('!') {
        let why = format!("\"{pattern}\" negates nothing: it is a plain pattern for the {name}");
        return Some((why, "\"except\" has the events to which the limit does not apply".to_owned()));
    }
    // User names are not checked here: they often have a dot, and they are looked up in the users file.
    (matches!(field, Field::Sender | Field::Recipient) && is_domain(pattern)).then(|| {
        let why = format!("\"{pattern}\" has no @: it is compared with the local part of the {name}");
        (why, format!("did you mean \"*@{pattern}\"? {name}-domain = \"{pattern}\" says the same"))
    })
}

/// Last labels of usual domains, except the last labels of countries, which have two letters.
const TOP_DOMAINS: [&str; 14] = [
    "com",
    "org",
    "net",
    "edu",
    "gov",
    "mil",
    "int",
    "info",
    "biz",
    "example",
    "test",
    "local",
    "localdomain",
    "internal",
];

/// Returns whether a pattern without `@` looks like a domain.
fn is_domain(pattern: &str) -> bool {
    let Some((before, last)) = pattern.rsplit_once('.').filter(|_| !pattern.contains('@')) else { return false };
    let last = last.to_ascii_lowercase();
    let is_country = last.len() == 2 && last.bytes().all(|b| b.is_ascii_lowercase());
    !before.is_empty() && (is_country || TOP_DOMAINS.contains(&&*last))
}

fn example(key: Key) -> String {
    let example = match key.shape() {
        Shape::Address => "\"*@example.org\", \"news-*@example.org\"",
        Shape::Domain => "\"*.example.org\"",
        Shape::Name | Shape::Country | Shape::Asn => "\"mx*.example.org\"",
    };
    format!("\"*\" stands for any run of characters, and nothing else is special: {example}")
}

/// Returns whether a pattern looks like a regular expression. Most characters of regular expressions are also permitted
/// in a local part (RFC 5321 §4.1.2), but few addresses have these combinations of characters.
fn is_expression(pattern: &str) -> bool {
    let (local, domain) = pattern.rsplit_once('@').unwrap_or((pattern, ""));
    // An IP address in brackets (RFC 5321 §4.1.3), as the domain of a mail address or as the name in EHLO.
    let is_literal = |part: &str| {
        let inner = part.strip_prefix('[').and_then(|part| part.strip_suffix(']'));
        inner.is_some_and(|inner| any_network(inner.trim_start_matches("IPv6:")).is_ok())
    };
    let begins = pattern.starts_with(['^', '~']) || pattern.starts_with(".*") || pattern.starts_with("regex:");
    let ends =
        pattern.ends_with(['$', '\\']) || pattern.len() > 2 && pattern.starts_with('/') && pattern.ends_with('/');
    let has_class = |part: &&str| !is_literal(part) && part.contains(['[', ']', '(', ')', '|']);
    let classes = [local, domain].iter().any(has_class);
    // A user name may be DOMAIN\dave, so a backslash before a letter does not prove that the pattern is a regular
    // expression.
    let signs = ["\\.", "\\@", "\\d+", "\\w+", "\\d*", "\\w*", "@.*", "@.+", ".+@"];
    let escapes = signs.iter().any(|sign| pattern.contains(sign));
    let is_quoted = local.starts_with('"');
    !is_quoted && (begins || ends || classes || escapes)
}

fn is_file(pattern: &str) -> bool {
    let endings = [".txt", ".csv", ".list", ".lst", ".conf", ".db"];
    let begins = ["/", "./", "../", "file:", "lists:", "lsearch;", "hash:", "texthash:"];
    let is_path = begins.iter().any(|begin| pattern.starts_with(begin));
    is_path || !pattern.contains('@') && endings.iter().any(|ending| pattern.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_mean_something_else_are_found_and_others_are_not() {
        for (key, pattern, words) in [
            ("sender", "192.0.2.0/24", Some("is a network")),
            ("user", "2001:db8::1", Some("is the address")),
            ("sender-domain", "192.0.2.1", Some("is the address")),
            ("sender-domain", ".example.org", Some("matches no sender-domain")),
            ("sender", r"^.*@example\.org$", Some("regular expression")),
            ("sender", ".*@example.org", Some("regular expression")),
            ("sender", "[a-z]+@example.org", Some("regular expression")),
            ("sender", "bob@(a|b).example", Some("regular expression")),
            ("sender", "/^bob/", Some("regular expression")),
            ("recipient-domain", r".*\.example\.org", Some("regular expression")),
            ("helo", "^mx[0-9]+$", Some("regular expression")),
            ("sender", "/etc/weir/senders", Some("name of a file")),
            ("user", "users.txt", Some("name of a file")),
            ("sender", "!bob@example.org", Some("negates nothing")),
            ("sender", "example.org", Some("has no @")),
            ("sender", "*.example.org", Some("has no @")),
            ("recipient", "Students.Example.AT", Some("has no @")),
            ("sender", "first.last", None),
            ("sender", "postmaster", None),
            ("user", "li.an", None),
            ("sender-domain", "example.org", None),
            ("client", "192.0.2.0/24", None),
            ("client", "192.0.2.7", None),
            ("client", "192.0.2.7/24", Some("the whole network 192.0.2.0/24")),
            ("listener", "a|b", None),
            ("group", "a|b", None),
            ("sender", "*", None),
            ("sender", "<>", None),
            ("sender", "*@*.example.org", None),
            ("sender", "news-*@example.org", None),
            ("sender", "o'neil+x@example.org", None),
            ("sender", "root@[192.0.2.1]", None),
            ("sender", "\"a(b\"@example.org", None),
            ("user", "first.last", None),
            ("user", "bob.*@example.org", None),
            ("helo", "[192.0.2.1]", None),
            ("helo", "[IPv6:2001:db8::1]", None),
            ("user", r"CORP\dave", None),
            ("helo", "mx1.example.org", None),
            ("sender-domain", "*.example.org", None),
            ("country", "UK", Some("the code of no country")),
            ("country", "gb", None),
            ("asn", "1853", None),
        ] {
            let said = hint(Key::named(key).unwrap(), pattern);
            assert_eq!(said.is_some(), words.is_some(), "{key} {pattern}: {said:?}");
            assert!(said.is_none_or(|(why, _)| why.contains(words.unwrap())), "{key} {pattern}");
        }
    }
}
