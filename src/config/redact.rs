//! Redaction of a configuration's text before it is printed with error messages: a password that was written into
//! `weir.toml` by mistake must not appear in the system journal.

/// Replaces the path and the query of a quoted URL, which may contain a token: `"https://hooks.example.org/***"`.
pub fn redact_url(quoted: &str) -> String {
    let host = quoted.find("://").map_or(0, |at| at + 3);
    let path = quoted.get(host..).and_then(|rest| rest.find(['/', '?', '#'])).map(|at| host + at);
    match path.and_then(|at| quoted.split_at_checked(at)) {
        Some((_, "/\"" | "/'")) | None => quoted.to_owned(),
        Some((before, _)) => format!("{before}/***\""),
    }
}

/// Replaces each octet of a value that may be a secret by a star, so that positions in the text stay the same. If the
/// name of a key ends in "file", its value is a file name and no secret. The text may also be another file, which was
/// given as the configuration by mistake: a file with hashes of passwords, or a private key.
pub fn redact(text: &str) -> String {
    redact_hashes(&redact_keys(&redact_values(text)))
}

fn starred(secret: &str) -> impl Iterator<Item = char> {
    secret.bytes().map(|b| if b.is_ascii_whitespace() { char::from(b) } else { '*' })
}

/// Replaces private keys in PEM.
fn redact_keys(text: &str) -> String {
    let Some((before, rest)) = text.split_once("PRIVATE KEY-----") else { return text.to_owned() };
    let (secret, after) = rest.split_at(rest.find("-----END").unwrap_or(rest.len()));
    before.chars().chain("PRIVATE KEY-----".chars()).chain(starred(secret)).chain(after.chars()).collect()
}

/// Replaces hashes of passwords in the forms `$argon2id$…` and `$6$…`.
fn redact_hashes(text: &str) -> String {
    let is_hash = |word: &str| {
        let kind = word.strip_prefix('$').and_then(|rest| rest.split_once('$')).map(|(kind, _)| kind);
        kind.is_some_and(|kind| !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    };
    let words = text.split_inclusive(|c: char| c.is_whitespace() || "\"':!".contains(c));
    words.map(|word| if is_hash(word) { starred(word).collect() } else { word.to_owned() }).collect()
}

/// Replaces the values of keys that may be secrets.
fn redact_values(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['=', ':']) {
        let (before, after) = rest.split_at(at + 1);
        shown.push_str(before);
        rest = after;
        if is_secret(before.trim_end_matches(['=', ':'])) {
            let secret = value_end(rest);
            let (value, left) = rest.split_at(secret);
            shown.extend(starred(value));
            rest = left;
        }
    }
    shown + rest
}

/// Returns whether the value of the key at the end of `before` may be a secret. The key may be misspelt, or may be
/// unknown to Weir.
fn is_secret(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default().trim_end().trim_end_matches(['"', '\'']);
    let is_of_key = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let key = line.rsplit(|c| !is_of_key(c)).next().unwrap_or_default().to_lowercase();
    let named = ["pass", "pwd", "token", "secret", "webhook"].iter().any(|word| key.contains(word));
    let first = key.split(['-', '_']).next().unwrap_or_default();
    let meant =
        first.len() > 3 && ["password", "token"].iter().any(|word| strsim::damerau_levenshtein(first, word) <= 2);
    (named || meant) && !key.ends_with("file")
}

/// Returns the position at which a value ends: at its closing quote, or at the end of the line if there is no closing
/// quote.
fn value_end(text: &str) -> usize {
    let line = text.find('\n').unwrap_or(text.len());
    let start = text.len() - text.trim_start_matches([' ', '\t']).len();
    let value = text.get(start..).unwrap_or_default();
    for long in ["\"\"\"", "'''"] {
        if let Some(inner) = value.strip_prefix(long) {
            return inner.find(long).map_or(text.len(), |end| start + 2 * long.len() + end);
        }
    }
    let Some(quote) = value.chars().next().filter(|c| matches!(c, '"' | '\'')) else { return line };
    let mut is_escaped = false;
    for (at, c) in value.char_indices().skip(1).take_while(|(at, _)| start + at < line) {
        if c == quote && !is_escaped {
            return start + at + 1;
        }
        is_escaped = c == '\\' && quote == '"' && !is_escaped;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_of_a_webhook_is_shown() {
        for (url, shown) in [
            ("\"https://a.example\"", "\"https://a.example\""),
            ("\"https://a.example:8443/\"", "\"https://a.example:8443/\""),
            ("\"https://a.example/services/T0/x\"", "\"https://a.example/***\""),
            ("\"https://a.example?token=x\"", "\"https://a.example/***\""),
        ] {
            assert_eq!(redact_url(url), shown);
        }
    }

    #[test]
    fn possible_secrets_are_starred_and_positions_stay() {
        for (text, shown) in [
            ("password = \"hunter2\" # mine", "password = ********* # mine"),
            ("password-env = 'a\\' , user = 'b'", "password-env = **** , user = 'b'"),
            ("[x]\nPassword=\"a\\\"b\"\nuser = \"b\"", "[x]\nPassword=******\nuser = \"b\""),
            ("{ user = \"b\", \"tokn\" = \"\u{e4}\", mx = true }", "{ user = \"b\", \"tokn\" = ****, mx = true }"),
            ("pasword = \"open\nuser = \"b\"", "pasword = *****\nuser = \"b\""),
            ("token: hunter2\nuser = \"b\"", "token: *******\nuser = \"b\""),
            ("smtp_passwd = \"\"\"\nhunter2\n\"\"\"\nx = 1", "smtp_passwd = ***\n*******\n***\nx = 1"),
            ("secret = '''\nhunter2", "secret = ***\n*******"),
            ("password-file = \"p\"\ntoken-file = \"t\"", "password-file = \"p\"\ntoken-file = \"t\""),
            ("algorithm = \"token-bucket\"\naddress = \"a:25\"", "algorithm = \"token-bucket\"\naddress = \"a:25\""),
            (
                "notify.n = { webhook = \"https://a/b\", mail = [] }",
                "notify.n = { webhook = *************, mail = [] }",
            ),
            ("password =", "password ="),
            ("alice:$argon2id$v=19$m=1,t=2$ab:staff\n", "alice:**************************staff\n"),
            ("root:!$6$ab$cd:1:", "root:!*********1:"),
            ("x = \"$5 and 6$\"", "x = \"$5 and 6$\""),
            ("-----BEGIN PRIVATE KEY-----\nab+/\ncd\n-----END P", "-----BEGIN PRIVATE KEY-----\n****\n**\n-----END P"),
            ("", ""),
        ] {
            let redacted = redact(text);
            assert_eq!(redacted, shown);
            assert_eq!(redacted.len(), text.len());
        }
    }
}
