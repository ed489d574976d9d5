//! Syntax of owners in commands: `alice`, `user=alice`, `client=192.0.2.7,sender=bob@example.org`, `all`.

use super::Limit;
use crate::policy::address::{AddressNormalizer, domain};
use crate::policy::budgets::Owner;
use crate::policy::matching::{BadPattern, Field, Widths};
use crate::policy::request::{Asn, Country};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Maximum length of an owner in octets: longer than any address or name.
const MAX_OWNER_OCTETS: usize = 1_024;

/// Fields of owners that can be suspended.
const SENDERS: [&str; 4] = ["user", "client", "sender", "user-domain"];

impl Limit {
    /// Parses an owner of this limit's budgets. The values are normalized in the same way as the values of events.
    pub fn owner(&self, text: &str, normalizer: &AddressNormalizer) -> Result<Owner, String> {
        let name = &self.name;
        let per = self.per.iter().map(|field| field.word()).collect::<Vec<_>>().join(" and ");
        let example = self.per.iter().map(|field| format!("{}=…", field.word())).collect::<Vec<_>>().join(",");
        let text = text.trim();
        check(text)?;
        let mut said = match (named(text)?, &self.per[..]) {
            (_, []) if text == "all" => return Ok(Owner::from_stored("")),
            (_, []) => return Err(format!("limit \"{name}\" has one budget for all: write all, and not \"{text}\"")),
            // Refuse `all` even if a user has this name, because the administrator probably means everybody.
            (None, _) if text == "all" => {
                return Err(format!("limit \"{name}\" has no budget for all, it counts per {per}: write {example}"));
            }
            (None, [one]) => BTreeMap::from([(one.word(), text.to_owned())]),
            (None, _) => return Err(format!("limit \"{name}\" counts per {per}: write {example}, and not \"{text}\"")),
            (Some(said), _) => said,
        };
        let mut parts = Vec::new();
        for field in &self.per {
            let value = said.remove(field.word());
            let value = value
                .ok_or_else(|| format!("limit \"{name}\" counts per {per}: \"{text}\" has no {}", field.word()))?;
            parts.push((field.name(), value_of(*field, &value, normalizer)?));
        }
        match said.keys().next() {
            Some(other) => Err(format!("limit \"{name}\" counts per {per}: it knows no {other}")),
            None => Ok(Owner::from_parts(parts.iter().map(|(field, value)| (field.clone(), value.as_str())))),
        }
    }
}

impl Owner {
    /// Returns the fields of `per`; `None` for a field with an unknown name.
    pub fn fields(&self) -> impl Iterator<Item = Option<Field>> {
        self.parts().map(|(field, _)| Field::parse(field))
    }

    /// Parses an owner that can be suspended. A text without `=` is a user.
    pub fn of_sender(text: &str, normalizer: &AddressNormalizer) -> Result<Self, String> {
        let text = text.trim();
        check(text)?;
        let kinds = "user, client, sender or user-domain";
        let said = match named(text)? {
            Some(said) => said,
            None if text.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok()) => {
                return Err(format!("\"{text}\" is an address: write client={text}"));
            }
            None if text == "all" => return Err(format!("\"all\" is nobody: write one {kinds}")),
            None => BTreeMap::from([("user", text.to_owned())]),
        };
        let mut said = said.into_iter();
        let (Some((word, value)), None) = (said.next(), said.next()) else {
            return Err(format!("\"{text}\" is not one: write one {kinds}"));
        };
        let field = Field::parse(word).filter(|_| SENDERS.contains(&word));
        let field = match field.ok_or_else(|| format!("\"{word}\" is not who sends: write one {kinds}"))? {
            Field::Client(_) => Field::Client(widths_of(&value)?),
            field => field,
        };
        let value = value_of(field, &value, normalizer)?;
        Ok(Self::from_parts([(field.name(), value.as_str())].into_iter()))
    }
}

impl Owner {
    /// Normalizes the owner's values again, because an earlier version of Weir may have stored domains and addresses in
    /// other forms.
    pub fn normalized(&self, normalizer: &AddressNormalizer) -> Self {
        let normal = |(name, value): (&str, &str)| {
            let field = Field::parse(name).filter(|field| !matches!(field, Field::Client(_)));
            let normal = field.and_then(|field| value_of(field, value, normalizer).ok());
            (name.to_owned(), normal.unwrap_or_else(|| value.to_owned()))
        };
        let parts: Vec<(String, String)> = self.parts().map(normal).collect();
        Self::from_parts(parts.iter().map(|(name, value)| (name.as_str().into(), value.as_str())))
    }
}

/// Refuses a text that cannot be a value: an empty text, a very long text, or a text with control characters.
fn check(text: &str) -> Result<(), String> {
    match text {
        "" => Err("nobody is named".to_owned()),
        text if text.len() > MAX_OWNER_OCTETS => {
            Err(format!("a name of {} octets is too long: {MAX_OWNER_OCTETS} at most", text.len()))
        }
        text if text.chars().any(char::is_control) => {
            Err(format!("\"{}\" has a control character in it", text.escape_debug()))
        }
        _ => Ok(()),
    }
}

/// Splits a text such as `user=alice,client=192.0.2.7` into the values of its fields; `None` if the text names no
/// field. An address can also contain a comma.
fn named(text: &str) -> Result<Option<BTreeMap<&'static str, String>>, String> {
    check_words(text)?;
    let mut said: Vec<(&'static str, String)> = Vec::new();
    for piece in text.split(',') {
        let field =
            piece.trim_start().split_once('=').and_then(|(word, value)| Some((Field::parse(word)?.word(), value)));
        match (field, said.last_mut()) {
            (Some((word, value)), _) => said.push((word, value.to_owned())),
            (None, Some((_, value))) => *value += &format!(",{piece}"),
            (None, None) => return Ok(None),
        }
    }
    let mut values = BTreeMap::new();
    for (word, value) in said {
        if values.insert(word, value.trim().to_owned()).is_some() {
            return Err(format!("\"{text}\" says {word} twice"));
        }
    }
    Ok(Some(values))
}

/// Refuses a text such as `usr=alice`, which would be a user of this name: the word is probably a misspelt field. Then
/// `user=usr=alice` is the user. A text in quotes may contain anything.
fn check_words(text: &str) -> Result<(), String> {
    let pairs = text.split(',').filter_map(|piece| piece.trim_start().split_once('='));
    for (word, value) in pairs.filter(|(word, _)| Field::parse(word).is_none() && !text.contains('"')) {
        let distance = |field: &Field| strsim::damerau_levenshtein(&word.to_lowercase(), field.word());
        let meant = Field::ALL.into_iter().min_by_key(distance);
        if let Some(field) = meant.filter(|field| distance(field) <= field.word().len() / 3) {
            return Err(format!("there is no \"{word}\": did you mean {}={value}?", field.word()));
        }
    }
    Ok(())
}

/// Normalizes a value of this field.
fn value_of(field: Field, text: &str, normalizer: &AddressNormalizer) -> Result<String, String> {
    if text.is_empty() {
        return Err(format!("{}= is followed by nothing", field.word()));
    }
    Ok(match field {
        Field::User => normalizer.user(text).into_owned(),
        Field::Sender | Field::Recipient => normalizer.address(text).into_owned(),
        Field::UserDomain | Field::SenderDomain | Field::RecipientDomain | Field::Helo => {
            domain::normal(text).into_owned()
        }
        Field::Listener | Field::Destination => text.to_ascii_lowercase(),
        Field::Country => {
            text.parse::<Country>().map_err(|()| BadPattern::NotACountry(text.into()).to_string())?.to_string()
        }
        Field::Asn => text.parse::<Asn>().map_err(|()| BadPattern::NotAnAsn(text.into()).to_string())?.to_string(),
        Field::Client(widths) => {
            let (address, bits) = network(text)?;
            let own = widths.of(address);
            if bits.is_some_and(|bits| bits != own) {
                let counted = widths.network(address);
                return Err(format!("\"{text}\" is not how clients are counted here: that would be {counted}"));
            }
            widths.network(address)
        }
    })
}

/// Parses an address, with its prefix length if it has one.
fn network(text: &str) -> Result<(IpAddr, Option<u8>), String> {
    let wrong = || format!("\"{text}\" is no address of a client, and no network");
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let bits = bits.map(str::parse).transpose().map_err(|_| wrong())?;
    Ok((address.to_canonical(), bits))
}

/// Returns the widths with which this network counts as one client.
fn widths_of(text: &str) -> Result<Widths, String> {
    let usual = Widths::default();
    let wrong = || format!("\"{text}\" is no network");
    match network(text)? {
        (_, None) => Ok(usual),
        (IpAddr::V4(address), Some(bits)) => {
            Widths::new(bits, usual.of(IpAddr::from(address.to_ipv6_mapped()))).ok_or_else(wrong)
        }
        (IpAddr::V6(_), Some(bits)) => Widths::new(usual.of(IpAddr::from([0; 4])), bits).ok_or_else(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::limit::{Count, Quota};

    fn limit(per: &[Field]) -> Limit {
        Limit::new("l", Count::Recipients, per.to_vec(), Quota::Never)
    }

    fn normalizer() -> AddressNormalizer {
        AddressNormalizer::new(Some('+'), Some("example.org"))
    }

    #[test]
    fn a_parsed_owner_equals_the_owner_of_events() {
        let narrow = Field::Client(Widths::new(24, 56).unwrap());
        let usual = Field::Client(Widths::default());
        for (per, text, owner) in [
            (&[Field::User][..], "Alice", "user=alice@example.org"),
            (&[Field::User], " user=ALICE@example.org ", "user=alice@example.org"),
            (&[Field::UserDomain], "Example.ORG", "user-domain=example.org"),
            (&[Field::Sender], "Bob+lists@D", "sender=bob@d"),
            (&[Field::Sender], "<>", "sender=<>"),
            (&[Field::Sender], "a=b@d", "sender=a=b@d"),
            (&[Field::Sender], "\"a,b\"@d", "sender=\"a,b\"@d"),
            (&[Field::Sender], "prvs=12=a@d", "sender=prvs=12=a@d"),
            (&[Field::Sender], "sender=sendr=a@d", "sender=sendr=a@d"),
            (&[Field::Helo], "MX.example", "helo=mx.example"),
            (&[usual], "192.0.2.7", "client=192.0.2.7"),
            (&[usual], "::ffff:192.0.2.7", "client=192.0.2.7"),
            (&[usual], "2001:DB8::7", "client=2001:db8::/64"),
            (&[usual], "2001:db8::/64", "client=2001:db8::/64"),
            (&[narrow], "192.0.2.7", "client=192.0.2.0/24"),
            (&[narrow], "client=192.0.2.0/24", "client=192.0.2.0/24"),
            (&[], "all", "all"),
            (&[Field::Sender, usual], "sender=\"a,b\"@d, client=192.0.2.7", "client=192.0.2.7, sender=\"a,b\"@d"),
            (&[Field::User, usual], "client=192.0.2.7,user=alice", "client=192.0.2.7, user=alice@example.org"),
        ] {
            let got = limit(per).owner(text, &normalizer()).map(|owner| owner.to_string());
            assert_eq!(got.as_deref(), Ok(owner), "{text}");
            // The displayed form can be parsed.
            assert_eq!(limit(per).owner(owner, &normalizer()).unwrap().to_string(), owner);
        }
    }

    #[test]
    fn a_text_that_names_no_budget_is_refused_with_the_reason() {
        let usual = Field::Client(Widths::default());
        for (per, text, words) in [
            (&[Field::User][..], "", "nobody is named"),
            (&[Field::User], "user=", "user= is followed by nothing"),
            (&[Field::User], "a\u{1f}b", "\"a\\u{1f}b\" has a control character"),
            (&[Field::User], &"x".repeat(1025), "1025 octets is too long"),
            (&[Field::User], "all", "has no budget for all, it counts per user: write user=…"),
            (&[Field::User], "user=a,user=b", "says user twice"),
            (&[Field::User], "client=192.0.2.7", "\"client=192.0.2.7\" has no user"),
            (&[Field::User], "user=a,client=192.0.2.7", "counts per user: it knows no client"),
            (&[], "alice", "one budget for all: write all, and not \"alice\""),
            (&[Field::User, usual], "alice", "counts per client and user: write client=…,user=…, and not \"alice\""),
            (&[Field::User, usual], "user=alice", "\"user=alice\" has no client"),
            (&[Field::User], "usr=alice", "there is no \"usr\": did you mean user=alice?"),
            (&[Field::User], "User=alice", "did you mean user=alice?"),
            (&[Field::User, usual], "user=alice,cleint=192.0.2.7", "did you mean client=192.0.2.7?"),
            (&[usual], "alice", "\"alice\" is no address of a client"),
            (&[usual], "192.0.2.7/x", "\"192.0.2.7/x\" is no address of a client"),
            (&[usual], "192.0.2.0/24", "that would be 192.0.2.0"),
        ] {
            let got = limit(per).owner(text, &normalizer()).unwrap_err();
            assert!(got.contains(words), "{text}: {got}");
        }
    }

    #[test]
    fn only_a_sender_can_be_suspended() {
        for (text, expected) in [
            ("alice", Ok("user=alice@example.org")),
            ("client=192.0.2.7", Ok("client=192.0.2.7")),
            ("client=192.0.2.7/24", Ok("client=192.0.2.0/24")),
            ("client=2001:db8::1/48", Ok("client=2001:db8::/48")),
            ("sender=Bob@d", Ok("sender=bob@d")),
            ("user-domain=D", Ok("user-domain=d")),
            ("192.0.2.7", Err("\"192.0.2.7\" is an address: write client=192.0.2.7")),
            ("all", Err("\"all\" is nobody")),
            ("usr=alice", Err("there is no \"usr\": did you mean user=alice?")),
            ("sendre=a@d", Err("did you mean sender=a@d?")),
            ("helo=x", Err("\"helo\" is not who sends")),
            ("user=a,client=192.0.2.7", Err("is not one")),
            ("client=192.0.2.7/33", Err("\"192.0.2.7/33\" is no network")),
            ("client=x", Err("\"x\" is no address of a client")),
        ] {
            match (Owner::of_sender(text, &normalizer()), expected) {
                (Ok(owner), Ok(expected)) => assert_eq!(owner.to_string(), expected),
                (Err(got), Err(words)) => assert!(got.contains(words), "{text}: {got}"),
                (got, _) => panic!("{text}: {got:?}"),
            }
        }
    }
}
