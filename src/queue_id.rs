//! Queue id of a message, in a server's reply to the message.

/// Texts before a queue id in the replies of Postfix, Exim and Exchange, with the characters of an id other than letters
/// and digits.
const BEFORE: [(&str, &str); 3] = [("queued as ", "._-"), (" id=", "-"), ("[InternalId=", "")];

/// Text after a queue id in the replies of Sendmail and OpenSMTPD.
const AFTER: &str = " Message accepted for delivery";

/// Maximum length of a queue id in octets.
pub const MAX_LENGTH: usize = 64;

/// Returns the queue id from the text of a reply: `2.0.0 Ok: queued as 4A8D2280F15` (Postfix), `OK
/// id=1tKz0D-000000003p2-1Gxn` (Exim), `2.0.0 4AP8Q2x1 Message accepted for delivery` (Sendmail, OpenSMTPD),
/// `[InternalId=2199023255552, Hostname=…]` (Exchange).
pub fn of_reply(reply: &str) -> Option<&str> {
    let after = BEFORE.into_iter().find_map(|(mark, others)| {
        let (_, rest) = reply.rsplit_once(mark)?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !others.contains(c)).unwrap_or(rest.len());
        Some(rest[..end].trim_end_matches('.'))
    });
    let before = || reply.split_once(AFTER)?.0.rsplit(' ').next();
    after.or_else(before).filter(|id| is_queue_id(id))
}

/// Returns whether a text can be a queue id.
pub fn is_queue_id(text: &str) -> bool {
    (4..=MAX_LENGTH).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_ids_of_the_known_servers_are_found_in_their_replies() {
        for (reply, id) in [
            ("250 2.0.0 Ok: queued as 4A8D2280F15", Some("4A8D2280F15")),
            ("250 2.0.0 from MTA(smtp:[127.0.0.1]:10025): 250 2.0.0 Ok: queued as 3zYx2K0bVvz4", Some("3zYx2K0bVvz4")),
            ("250 OK id=1tKz0D-000000003p2-1Gxn", Some("1tKz0D-000000003p2-1Gxn")),
            ("250 2.0.0 4AP8Q2x1003211 Message accepted for delivery", Some("4AP8Q2x1003211")),
            ("250 2.6.0 <a@b> [InternalId=2199023255552, Hostname=x] Queued mail for delivery", Some("2199023255552")),
            ("250 2.0.0 Ok", None),
            ("250 queued as ", None),
            ("250 queued as \u{e4}", None),
            ("", None),
        ] {
            assert_eq!(of_reply(reply), id, "{reply}");
        }
        assert_eq!(of_reply(&format!("250 queued as {}", "A".repeat(1000))), None);
    }
}
