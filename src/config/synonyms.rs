//! Words of other programs (Exim, Postfix, rspamd, postfwd) that correspond to words of Weir's configuration. With this
//! table, an error about an unknown word can suggest the right word.

/// Words of Weir's configuration. Each word has a list of the words that other programs use instead, in lower case and
/// with hyphens.
const SYNONYMS: [(&str, &[&str]); 25] = [
    (
        "client",
        &[
            "ip",
            "client-ip",
            "client-address",
            "client-name",
            "address",
            "host",
            "hosts",
            "network",
            "networks",
            "remote-ip",
            "remote-addr",
            "sender-host-address",
            "source-ip",
        ],
    ),
    (
        "user",
        &["username", "user-name", "sasl-username", "sasl-user", "login", "account", "authenticated-id", "auth-user"],
    ),
    ("password-file", &["password", "pass", "secret"]),
    ("group", &["groups", "role", "class"]),
    ("sender", &["from", "mail-from", "mailfrom", "sender-address", "envelope-from", "return-path", "senders"]),
    ("recipient", &["rcpt", "to", "rcpt-to", "recipient-address", "local-part"]),
    ("sender-domain", &["sender-address-domain", "from-domain", "domain", "domains"]),
    ("recipient-domain", &["rcpt-domain", "to-domain"]),
    ("country", &["countries", "country-code", "geo", "geoip", "geoip-country", "iso-code"]),
    ("asn", &["as", "as-number", "autonomous-system", "autonomous-system-number", "asnum"]),
    ("helo", &["ehlo", "helo-name", "sender-helo-name"]),
    ("recipients", &["rcpt", "rcpts", "per-rcpt"]),
    ("messages", &["mail", "mails", "email", "emails", "msgs", "per-mail"]),
    ("connections", &["conn", "conns", "per-conn"]),
    ("bytes", &["size", "octets", "volume", "per-byte", "traffic"]),
    ("login-failures", &["auth-failures", "failed-logins", "wrong-passwords"]),
    ("attempts", &["strict"]),
    ("accepted", &["leaky"]),
    ("shadow", &["dry-run", "test", "log", "monitor", "readonly", "off"]),
    ("enforce", &["on", "deny", "active", "reject", "block"]),
    ("implicit", &["ssl", "smtps", "wrapper", "on-connect"]),
    ("deny", &["reject", "refuse", "block"]),
    ("defer", &["tempfail", "soft-reject", "delay-reject", "greylist"]),
    ("except", &["exempt", "unless", "whitelist", "allowlist", "exclude"]),
    ("match", &["if", "when", "where", "condition", "conditions"]),
];

/// Words of other programs that stand for a key of Weir together with a value.
const SETTINGS: [(&str, Setting); 2] =
    [("strict", Setting { key: "charge", value: "attempts" }), ("leaky", Setting { key: "charge", value: "accepted" })];

/// A key of Weir's configuration with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub key: &'static str,
    value: &'static str,
}

impl Setting {
    /// Returns the remedy of an error about the other program's word: `Exim's strict is charge = "attempts"`.
    pub fn help(&self) -> String {
        let word = SETTINGS.iter().find(|(_, setting)| setting == self).map_or("", |(word, _)| word);
        format!("Exim's {word} is {} = \"{}\"", self.key, self.value)
    }
}

/// Returns the word in `known` that corresponds to `word`, a word of another program.
pub fn key<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word = word.to_lowercase().replace('_', "-");
    let is_known = |(ours, theirs): &&(&str, &[&str])| theirs.contains(&&*word) && known.contains(ours);
    let (ours, _) = SYNONYMS.iter().find(is_known)?;
    known.iter().copied().find(|known| known == ours)
}

/// Returns the setting that corresponds to `word`, a word of another program.
pub fn setting(word: &str) -> Option<Setting> {
    SETTINGS.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|(_, setting)| *setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_another_program_leads_to_one_that_is_allowed() {
        let fields = ["user", "client", "sender", "sender-domain", "recipient"];
        for (word, meant) in [
            ("ip", Some("client")),
            ("username", Some("user")),
            ("sasl_username", Some("user")),
            ("Client_Address", Some("client")),
            ("rcpt", Some("recipient")),
            ("strict", None),
            ("color", None),
        ] {
            assert_eq!(key(word, &fields), meant, "{word}");
        }
        assert_eq!(key("rcpt", &["recipients", "messages"]), Some("recipients"));
        assert_eq!(key("strict", &["accepted", "sent", "attempts"]), Some("attempts"));
        assert_eq!(
            setting("leaky").map(|setting| setting.help()),
            Some("Exim's leaky is charge = \"accepted\"".into())
        );
    }
}
