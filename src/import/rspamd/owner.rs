//! Parser of the owner of an rspamd bucket: words of rspamd (`to_ip_from`), or a selector (`user.lower`).

use super::super::limit::{Condition, MatchValue};
use super::selector::{self, Selected};
use crate::policy::matching::{Field, Widths};

/// Fields of `per` for a bucket, and the conditions under which rspamd uses the bucket.
#[derive(Debug, Default, PartialEq)]
pub struct Owner {
    pub per: Vec<Field>,
    pub matches: Vec<Condition>,
    pub except: Vec<Condition>,
    pub comments: Vec<&'static str>,
}

/// Networks that rspamd treats as local.
const LOCAL: [&str; 8] =
    ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "::1", "fc00::/7", "fe80::/10"];

/// Parses a name: words separated by `_`. rspamd uses the bucket only for mail that has a value for each word.
pub fn of_name(name: &str, bounce_senders: &[String]) -> Result<Owner, String> {
    let mut owner = Owner::default();
    for word in name.split('_') {
        match word {
            "ip" => owner.add(Field::Client(Widths::default())),
            "rip" => {
                owner.add(Field::Client(Widths::default()));
                let local = LOCAL.map(str::to_owned).to_vec();
                owner.except.push(Condition { key: "client", value: MatchValue::Texts(local) });
            }
            "from" => owner.add(Field::Sender),
            "user" => owner.add(Field::User),
            "to" => {
                owner.add(Field::Recipient);
                owner.comments.push("rspamd charges one recipient of a message for all; Weir charges each for itself.");
            }
            "bounce" => {
                owner.matches.push(Condition { key: "sender", value: MatchValue::Texts(bounce_senders.to_vec()) });
            }
            "asn" => {
                return Err(
                    "write a limit with per = [\"asn\"], and name a database of autonomous systems in [location]"
                        .to_owned(),
                );
            }
            "digest" | "attachments" | "files" => {
                return Err(format!("{word} is of the content, which limits do not see"));
            }
            _ => return Err(format!("\"{word}\" is no keyword of rspamd's, and no selector says what it means")),
        }
    }
    Ok(owner)
}

/// Parses one selector, or several selectors separated by semicolons.
pub fn of_selector(text: &str) -> Result<Owner, String> {
    let mut owner = Owner::default();
    for one in selector::split(text) {
        let Selected { field, among } = selector::parse(one)?;
        let Some(field) = field else { continue };
        owner.add(field);
        if let Some(values) = among {
            // A condition on `client` compares whole addresses, so a selector of client networks cannot become such a
            // condition.
            let key = Some(field.word()).filter(|word| field.name() == *word);
            let key = key.ok_or_else(|| format!("the selector {one} is not understood"))?;
            owner.matches.push(Condition { key, value: MatchValue::Texts(values) });
        }
    }
    if owner.per.iter().any(|field| field.is_of_recipient()) {
        owner.comments.push("rspamd charges each recipient for all of a message; Weir charges each for itself.");
    }
    Ok(owner)
}

impl Owner {
    fn add(&mut self, field: Field) {
        if !self.per.contains(&field) {
            self.per.push(field);
        }
    }
}

/// Returns the name of a bucket as the name of a limit. Replaces the characters that the name of a limit cannot have.
pub fn limit_name(name: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    format!(
        "rspamd-{}",
        name.chars().map(fits).collect::<String>().chars().take(50).collect::<String>().replace('_', "-")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_selectors_become_key_fields() {
        let names =
            |owner: &Owner| owner.per.iter().map(|field| field.name().into_owned()).collect::<Vec<_>>().join(" ");
        for (name, per) in [("to", "recipient"), ("to_ip_from", "recipient client sender"), ("user", "user")] {
            assert_eq!(names(&of_name(name, &[]).unwrap()), per);
        }
        let bounces = of_name("bounce_to", &["<>".to_owned()]).unwrap();
        assert_eq!((names(&bounces).as_str(), bounces.matches[0].key), ("recipient", "sender"));
        for (selector, per) in [("user.lower", "user"), ("from('smtp'):domain;ip", "sender-domain client")] {
            assert_eq!(names(&of_selector(selector).unwrap()), per);
        }
        assert_eq!(names(&of_selector("ip.ipmask(24, 56)").unwrap()), "client/24/56");
        assert!(of_name("asn", &[]).is_err() && of_name("foo", &[]).is_err() && of_selector("header(x)").is_err());
    }
}
