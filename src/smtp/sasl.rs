//! Logins by SASL (RFC 4954): credentials, the answer of the accounts, and parsers and writers of the messages of PLAIN
//! (RFC 4616), LOGIN and XOAUTH2. SCRAM is in [`scram`](super::scram).

use crate::groups::Groups;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// User name and password. `Debug` prints neither of them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(<redacted>)")
    }
}

/// A client's message in an exchange, decoded. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Response(pub Vec<u8>);

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Response(<redacted>)")
    }
}

/// A client's initial response, in base64. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct InitialResponse(pub String);

impl fmt::Debug for InitialResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InitialResponse(<redacted>)")
    }
}

/// Answer of the accounts to credentials, or to a client's message in an exchange.
#[derive(Clone, PartialEq, Eq)]
pub enum Verified {
    /// The exchange continues: the client gets this challenge, which is not encoded yet.
    Challenge(Vec<u8>),
    /// The login is right.
    Right {
        /// Name of the user as the accounts know it, which can differ from the name that the client gave. It is a valid
        /// user name ([`is_user_name`]).
        user: Arc<str>,
        /// The groups of which the user is a member.
        groups: Groups,
    },
    Wrong {
        /// The reason, if it is another than wrong credentials, for the log alone: `account disabled`.
        reason: Option<&'static str>,
    },
    /// The login cannot be checked now, because too many other logins wait, because the users file is being written at
    /// this moment, or because the accounts do not answer.
    Unavailable,
    /// The message is not a message of the mechanism.
    Malformed,
    /// The client closed the connection while its login waited, so the login was not checked.
    ClientLeft,
}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Challenge(_) => f.write_str("Challenge(<redacted>)"),
            Self::Right { user, groups } => {
                f.debug_struct("Right").field("user", user).field("groups", groups).finish()
            }
            Self::Wrong { reason } => f.debug_struct("Wrong").field("reason", reason).finish(),
            Self::Unavailable => f.write_str("Unavailable"),
            Self::Malformed => f.write_str("Malformed"),
            Self::ClientLeft => f.write_str("ClientLeft"),
        }
    }
}

/// User name and access token of OAuth 2.0 (RFC 6750). `Debug` prints neither of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer {
    user: String,
    token: String,
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(<redacted>)")
    }
}

/// Maximum octets of a password. RFC 4616 §2 sets no maximum, but a client must not be able to make Weir hash very long
/// passwords.
pub const MAX_PASSWORD: usize = 1024;

/// Maximum octets of a token. The token, together with the user name and encoded in base64, must fit into the 12,288
/// octets of an AUTH line (RFC 4954 §4).
pub const MAX_TOKEN: usize = 8192;

/// Maximum octets of a user name.
const MAX_NAME: usize = 255;

/// Returns whether this is a valid user name: letters and digits of any script, and printable ASCII except space and
/// colon. Control characters, spaces, colons and marks that change the direction of writing are refused, because
/// programs or people would misread them in headers, logs and the users file.
pub fn is_user_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && text.chars().all(|c| c.is_alphanumeric() || (c.is_ascii_graphic() && c != ':'))
}

/// Prompts of the server in LOGIN, which clients expect (draft-murchison-sasl-login).
pub const LOGIN_USER: &[u8] = b"Username:";
pub const LOGIN_PASSWORD: &[u8] = b"Password:";

impl Credentials {
    /// Creates credentials. Returns `None` if the user name is invalid, or if the password is empty, too long or
    /// contains a NUL.
    pub fn new(user: &str, password: &str) -> Option<Self> {
        let well_formed =
            is_user_name(user) && (1..=MAX_PASSWORD).contains(&password.len()) && !password.contains('\0');
        well_formed.then(|| Self { user: user.to_owned(), password: password.to_owned() })
    }

    /// Returns the forms of the password to compare with a stored hash: the password normalized by SASLprep and, if it
    /// differs, the password as the client sent it. The second form is needed because earlier versions of Weir hashed
    /// passwords without SASLprep. A password that SASLprep prohibits has only the form that the client sent.
    pub fn password_forms(&self) -> Vec<Cow<'_, str>> {
        let prepared = saslprep(&self.password).filter(|prepared| **prepared != self.password);
        prepared.into_iter().chain([Cow::Borrowed(&*self.password)]).collect()
    }
}

/// Normalizes a password by SASLprep (RFC 4013), so that different encodings of the same character, as different
/// systems send them, compare equal. Returns `None` if SASLprep prohibits the password, or if the normalized password
/// is empty.
pub fn saslprep(password: &str) -> Option<Cow<'_, str>> {
    stringprep::saslprep(password).ok().filter(|prepared| !prepared.is_empty())
}

impl Bearer {
    /// Creates a bearer. Returns `None` if the user name is invalid, or if the token is empty, too long, or contains a
    /// space or anything other than printable ASCII.
    pub fn new(user: &str, token: &str) -> Option<Self> {
        // RFC 6750 §2.1 allows fewer characters. This check only excludes the characters that would end the field in
        // the message.
        let is_token = (1..=MAX_TOKEN).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
        (is_user_name(user) && is_token).then(|| Self { user: user.to_owned(), token: token.to_owned() })
    }

    pub fn token(&self) -> &str {
        &self.token
    }
}

/// Returns the only message of XOAUTH2, in base64, as Google and Microsoft describe it: `user=NAME ^A auth=Bearer TOKEN
/// ^A ^A`.
pub fn xoauth2(bearer: &Bearer) -> String {
    STANDARD.encode(format!("user={}\x01auth=Bearer {}\x01\x01", bearer.user, bearer.token))
}

/// Returns the only message of PLAIN, in base64.
pub fn plain(credentials: &Credentials) -> String {
    STANDARD.encode(format!("\0{}\0{}", credentials.user, credentials.password))
}

/// Returns the two messages of LOGIN, user name and password, each in base64.
pub fn login(credentials: &Credentials) -> [String; 2] {
    [&credentials.user, &credentials.password].map(|text| STANDARD.encode(text))
}

/// Parses the only message of PLAIN, base64 of `[authzid] NUL authcid NUL password` (RFC 4616 §2). `None` if the
/// message is malformed.
///
/// An authorization identity (`authzid`) that differs from the user name is refused, too: no user is permitted to act
/// as another user.
pub fn parse_plain(message: &str) -> Option<Credentials> {
    let text = decode(message)?;
    let mut parts = text.splitn(3, '\0');
    let (authorized, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let same = authorized.is_empty() || authorized == user;
    Credentials::new(user, password).filter(|_| same)
}

/// Parses the two messages of LOGIN: user name and password, each in base64.
pub fn parse_login(user: &str, password: &str) -> Option<Credentials> {
    Credentials::new(&decode(user)?, &decode(password)?)
}

/// Decodes a message of a client. Returns `None` if it is not base64.
pub fn response(message: &str) -> Option<Response> {
    STANDARD.decode(message).ok().map(Response)
}

fn decode(message: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(message).ok()?).ok()
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
            ("\0\u{202e}alice\0p", None),
            ("", None),
        ] {
            assert_eq!(parse_plain(&STANDARD.encode(message)), expected, "{message:?}");
        }
        for message in ["*", "=", "AAA", "\u{e9}", "AGFsaWNlAP8="] {
            assert_eq!(parse_plain(message), None, "{message:?}");
        }
    }

    #[test]
    fn reads_login() {
        let encode = |text: &str| STANDARD.encode(text);
        let read = |user: &str, password: &str| parse_login(&encode(user), &encode(password));
        assert_eq!(read("alice", "p w"), Some(Credentials { user: "alice".into(), password: "p w".into() }));
        for (user, password) in [("", "p"), ("alice", ""), ("al\rice", "p"), ("alice", "p\0")] {
            assert_eq!(read(user, password), None, "{user:?} {password:?}");
        }
        assert_eq!(parse_login("alice", &encode("p")), None);
    }

    #[test]
    fn a_password_is_prepared_as_rfc_4013_says() {
        let forms = |password: &str| {
            let credentials = Credentials::new("alice", password).unwrap();
            credentials.password_forms().into_iter().map(Cow::into_owned).collect::<Vec<_>>()
        };
        // The first seven passwords are the examples of RFC 4013 §3. SASLprep prohibits the last two of these examples.
        assert_eq!(forms("I\u{ad}X"), ["IX", "I\u{ad}X"]);
        assert_eq!(forms("user"), ["user"]);
        assert_eq!(forms("USER"), ["USER"]);
        assert_eq!(forms("\u{aa}"), ["a", "\u{aa}"]);
        assert_eq!(forms("\u{2168}"), ["IX", "\u{2168}"]);
        assert_eq!(forms("\u{7}"), ["\u{7}"]);
        assert_eq!(forms("\u{627}1"), ["\u{627}1"]);
        assert_eq!(forms("\u{ad}"), ["\u{ad}"]);
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let credentials = Credentials::new("alice", "p w\u{e9}").unwrap();
        assert_eq!(parse_plain(&plain(&credentials)), Some(credentials.clone()));
        let [user, password] = login(&credentials);
        assert_eq!(parse_login(&user, &password), Some(credentials));
    }

    #[test]
    fn writes_xoauth2() {
        // The example of Google's description of the protocol.
        let bearer = Bearer::new("someuser@example.com", "ya29.vF9dft4qmTc2Nvb3RlckBhdHRhdmlzdGEuY29tCg").unwrap();
        assert_eq!(
            xoauth2(&bearer),
            "dXNlcj1zb21ldXNlckBleGFtcGxlLmNvbQFhdXRoPUJlYXJlciB5YTI5LnZGOWRmdDRxbVRjMk52YjNSbGNrQmhkSFJoZG1semRHRXVZMjl0Q2cBAQ=="
        );
        assert_eq!(format!("{bearer:?}"), "Bearer(<redacted>)");
        for (user, token) in [("", "t"), ("u", ""), ("u", "a b"), ("u", "a\x01"), ("u\x01", "t"), ("u", "\u{e9}")] {
            assert_eq!(Bearer::new(user, token), None, "{user:?} {token:?}");
        }
        assert!(Bearer::new("u", &"t".repeat(MAX_TOKEN)).is_some());
        assert!(Bearer::new("u", &"t".repeat(MAX_TOKEN + 1)).is_none());
    }

    #[test]
    fn credentials_are_never_printed() {
        let credentials = parse_plain(&STANDARD.encode("\0alice\0sesame")).unwrap();
        assert_eq!(format!("{credentials:?}"), "Credentials(<redacted>)");
        let initial = InitialResponse("AGFsaWNlAHNlc2FtZQ==".into());
        assert_eq!(format!("{initial:?}"), "InitialResponse(<redacted>)");
    }
}
