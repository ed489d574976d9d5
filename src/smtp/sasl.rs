//! SASL messages (RFC 4954, RFC 4616).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;

/// A name and a password. Neither is ever printed by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(<redacted>)")
    }
}

/// Longest user name or password taken: RFC 4616 §2 leaves it open; hashing more would be work given away.
const MAX_PART: usize = 1024;

/// Reads the one message of PLAIN, base64 of `[authzid] NUL authcid NUL password` (RFC 4616 §2).
///
/// An authorization identity other than the user's own is refused: nobody sends as somebody else. `None` for all that is
/// malformed, control characters among it, so that a name is fit for headers and logs.
pub fn parse_plain(message: &str) -> Option<Credentials> {
    let bytes = STANDARD.decode(message).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let mut parts = text.split('\0');
    let (authorized, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let well_formed = parts.next().is_none()
        && (authorized.is_empty() || authorized == user)
        && [user, password].iter().all(|part| (1..=MAX_PART).contains(&part.len()))
        && !user.chars().any(char::is_control);
    well_formed.then(|| Credentials { user: user.to_owned(), password: password.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_plain() {
        let good = Credentials { user: "alice".into(), password: "p w\u{e9}".into() };
        for (message, expected) in [
            ("\0alice\0p wé", Some(good.clone())),
            ("alice\0alice\0p wé", Some(good)),
            ("bob\0alice\0p", None),
            ("\0alice\0", None),
            ("\0\0p", None),
            ("alice\0p", None),
            ("\0alice\0p\0", None),
            ("\0al\nice\0p", None),
            ("", None),
        ] {
            assert_eq!(parse_plain(&STANDARD.encode(message)), expected, "{message:?}");
        }
        for message in ["*", "=", "AAA", "\u{e9}", "AGFsaWNlAP8="] {
            assert_eq!(parse_plain(message), None, "{message:?}");
        }
    }

    #[test]
    fn credentials_are_never_printed() {
        let credentials = parse_plain(&STANDARD.encode("\0alice\0sesame")).unwrap();
        assert_eq!(format!("{credentials:?}"), "Credentials(<redacted>)");
    }
}
