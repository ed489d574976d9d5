//! Parser of the key of `ratelimit`, such as `$sender_host_address`, `${lc:$sender_address}`,
//! `$authenticated_id-$domain`.

use super::super::limit::{Condition, MatchValue};
use super::braces::{Test, after_word, braced, expansion, whole};
use crate::policy::matching::{Field, Widths};

/// Fields of `per` that a key of Exim stands for, and a condition under which Exim uses this key.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    pub per: Vec<Field>,
    pub only: Option<Condition>,
    /// Difference between Exim and the limit. If there is a difference, the limit is in shadow mode.
    pub difference: Option<&'static str>,
}

/// Parses a key. The two branches of `${if def:authenticated_id {…}{…}}` become two limits: for mail with and without a
/// login.
pub fn owners(key: &str) -> Result<Vec<Owner>, String> {
    if let Some([known, unknown]) = by_login(key) {
        let one = |key: &str, flag| {
            let only = Condition { key: "authenticated", value: MatchValue::Flag(flag) };
            Ok::<_, String>(Owner { only: Some(only), ..owner(key)? })
        };
        return Ok(vec![one(known, true)?, one(unknown, false)?]);
    }
    Ok(vec![owner(key)?])
}

/// Parses a key that has the same expression for all mail.
fn owner(key: &str) -> Result<Owner, String> {
    let whole = ["$authenticated_id", "$sender_address"]
        .into_iter()
        .fold(key.to_owned(), |key, name| key.replace(&format!("${{local_part:{name}}}"), name));
    let difference =
        (whole != key).then_some("Exim counts equal local parts of all domains together; Weir each address");
    Ok(Owner { per: fields(&whole)?, only: None, difference })
}

/// Returns the field of a key, if the key is the unchanged value of one field. Returns `None` if the key is made from
/// such a value, as in `${md5:$domain}`.
pub fn plain(key: &str) -> Option<Field> {
    let is_whole = whole(key).is_some() || key.trim() == "$local_part@$domain";
    let is_made =
        ["md5:", "sha1:", "sha256:", "base64:", "escape:", "quote:", "sg{"].iter().any(|one| key.contains(one));
    let owners = owners(key).ok().filter(|_| is_whole && !is_made)?;
    match &owners[..] {
        [Owner { per, only: None, difference: None }] if per.len() == 1 => per.first().copied(),
        _ => None,
    }
}

/// Returns the two branches of `${if def:authenticated_id {A}{B}}`: first the branch for mail with a login.
fn by_login(text: &str) -> Option<[&str; 2]> {
    let (test, rest) = Test::parse(after_word(whole(text)?, "if")?)?;
    let (yes, rest) = braced(rest.trim_start())?;
    let (no, rest) = braced(rest.trim_start())?;
    let is_login = |name: &str| matches!(name.trim(), "authenticated_id" | "sender_host_authenticated");
    let has_login = match (test.name, &test.arguments[..]) {
        ("def", [name]) if is_login(name) => !test.negated,
        ("eq", [variable, ""] | ["", variable]) if whole(variable).is_some_and(is_login) => test.negated,
        _ => return None,
    };
    rest.trim().is_empty().then_some(if has_login { [yes, no] } else { [no, yes] })
}

/// Returns the fields in a key. The text between the fields is ignored, because it is the same in all keys.
fn fields(key: &str) -> Result<Vec<Field>, String> {
    // The local part and the domain together are the address of the recipient.
    let key = key.replace("${local_part}", "$local_part").replace("${domain}", "$domain");
    let key = key.replace("$local_part@$domain", "${recipient}");
    let key = key.replace("$sender_address_local_part@$sender_address_domain", "$sender_address");
    let mut found = Vec::new();
    let mut rest = &*key;
    while let Some(at) = rest.find('$') {
        rest = &rest[at..];
        let (one, after) = expansion(rest).ok_or_else(|| format!("\"{rest}\" is not understood"))?;
        if let Some(field) = field(one)?
            && !found.contains(&field)
        {
            found.push(field);
        }
        rest = after;
    }
    Ok(found)
}

/// Returns the field of an expansion; `None` if its value is the same for all mail.
fn field(content: &str) -> Result<Option<Field>, String> {
    let client = Field::Client(Widths::default());
    if let Some(rest) = after_word(content, "sg") {
        return replaced(rest);
    }
    if let Some((operator, operand)) = content.split_once(':') {
        return applied(operator.trim(), operand.trim());
    }
    Ok(Some(match content.trim() {
        "sender_host_address" => client,
        "authenticated_id" => Field::User,
        "sender_address" => Field::Sender,
        "sender_address_domain" => Field::SenderDomain,
        "recipient" => Field::Recipient,
        "domain" => Field::RecipientDomain,
        "sender_helo_name" => Field::Helo,
        "received_port" | "interface_port" => Field::Listener,
        "primary_hostname" | "qualify_domain" | "qualify_recipient" => return Ok(None),
        name if name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') => {
            return Err(format!("the key ${{{name}}} is not understood"));
        }
        name => return Err(format!("limits have no key field for ${name}")),
    }))
}

/// Returns the field of `${sg{FIELD}{[^a-z]}{}}`, which removes unusual characters. Two different values usually still
/// differ afterwards.
fn replaced(rest: &str) -> Result<Option<Field>, String> {
    let unknown = || format!("${{sg{rest}}} is not understood");
    let (operand, rest) = braced(rest).ok_or_else(unknown)?;
    let removes = rest.trim_start().starts_with("{\\N[^") && rest.trim_end().ends_with("]\\N}{}");
    let inner = whole(operand).filter(|_| removes).ok_or_else(unknown)?;
    field(inner)
}

/// Returns the field of an expansion such as `${lc:$sender_address}`: an operator applied to an operand.
fn applied(operator: &str, operand: &str) -> Result<Option<Field>, String> {
    let one = |operand: &str| match whole(operand) {
        Some(inner) => field(inner),
        None => Err(format!("\"${{{operator}:{operand}}}\" is not understood")),
    };
    match operator {
        // Two values that differ (apart from case) still differ after these operators. So a budget per unchanged value
        // counts the same.
        "lc" | "uc" | "md5" | "sha1" | "sha256" | "base64" | "escape" | "quote" => one(operand),
        "domain" => match one(operand)? {
            Some(Field::Sender) => Ok(Some(Field::SenderDomain)),
            Some(Field::User) => Ok(Some(Field::UserDomain)),
            Some(Field::Recipient) => Ok(Some(Field::RecipientDomain)),
            _ => Err(format!("${{domain:{operand}}} is the domain of a value that limits do not know")),
        },
        "mask" => {
            let parts = operand.rsplit_once('/').filter(|(address, _)| one(address) == Ok(Some(client_of_any_width())));
            let width = parts.and_then(|(_, width)| width.trim().parse().ok());
            // Exim applies the same prefix length to IPv4 and to IPv6 addresses.
            let widths = width.and_then(|width: u8| Widths::new(width.min(32), width));
            widths.map(|widths| Some(Field::Client(widths))).ok_or_else(|| format!("${{mask:{operand}}} is no network"))
        }
        _ => Err(format!("${{{operator}:…}} is not understood")),
    }
}

fn client_of_any_width() -> Field {
    Field::Client(Widths::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_expansions_become_key_fields() {
        for (key, names) in [
            ("k", ""),
            ("$sender_host_address", "client"),
            ("${sender_host_address}:${lc:$sender_address}", "client sender"),
            ("user-$authenticated_id/$domain", "user recipient-domain"),
            ("${lc:$local_part@$domain}", "recipient"),
            ("$local_part@$domain", "recipient"),
            ("${domain:$sender_address}", "sender-domain"),
            ("${mask:$sender_host_address/24}", "client/24/24"),
            ("$primary_hostname", ""),
        ] {
            let read = owners(key).map(|mut owners| owners.remove(0).per).unwrap_or_default();
            assert_eq!(read.iter().map(|field| field.name()).collect::<Vec<_>>().join(" "), names, "{key}");
        }
        for key in ["$acl_c_x", "${lookup{a}lsearch{b}}", "$local_part", "${hash{3}{62}{$domain}}", "$", "${domain:x}"]
        {
            assert!(owners(key).is_err(), "{key}");
        }
        assert!(owners("u-${local_part:$authenticated_id}").is_ok_and(|owners| owners[0].difference.is_some()));
        assert_eq!(plain("${lc:$sender_address}"), Some(Field::Sender));
        for key in ["${local_part:$sender_address}", "${md5:$sender_address}", "a-$sender_address"] {
            assert_eq!(plain(key), None, "{key}");
        }
        let two = owners("${if def:authenticated_id {$authenticated_id}{$sender_host_address}}").unwrap();
        assert_eq!(two.iter().map(|owner| owner.per[0].name().into_owned()).collect::<Vec<_>>(), ["user", "client"]);
    }
}
