//! SCRAM-SHA-256, the client's side, for logins at an upstream (RFC 5802, RFC 7677). The password is never sent to the
//! server, and the server proves that it knows the password, too.
//!
//! A login goes through three values. [`ClientFirst`] and the server's first message give a [`Challenge`]. The
//! challenge and the derived keys give a [`Proof`], which verifies the server's last message. [`Salting::derive`] can
//! take almost a second, so the caller decides on which thread it runs. Channel binding is not offered.

use super::sasl::Credentials;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};
use std::fmt;
use std::num::NonZeroU32;
use std::str::Split;

/// Minimum number of hash iterations (RFC 7677 §4): with fewer iterations, an eavesdropper could quickly find the
/// password by trying many passwords.
const MIN_ITERATIONS: u32 = 4096;

/// Maximum number of hash iterations. They take less than a second of processor time. An upstream must not be able to
/// make Weir use more processor time (RFC 5802 §9).
const MAX_ITERATIONS: u32 = 1_000_000;

/// Maximum characters of a server's error text in the log. The error texts of RFC 5802 §7 have up to 39 characters.
const MAX_ERROR: usize = 100;

/// Number of random octets in a nonce: the same number as in the example of RFC 5802. It is a multiple of 3, so that
/// the base64 form of the octets needs no padding.
pub const NONCE: usize = 18;

/// `gs2-header` of RFC 5802 §7: no channel binding, and no authorization identity other than the user name.
const GS2_HEADER: &str = "n,,";

/// First message of the client: user name and nonce. The password is kept for the next message.
pub struct ClientFirst {
    bare: String,
    nonce: String,
    password: String,
}

/// The server's challenge (its first message), and the values that are needed to answer it.
pub struct Challenge {
    salting: Salting,
    /// `AuthMessage` of RFC 5802 §3, up to the comma after the server's message.
    auth_message: String,
    /// The client's nonce, followed by the server's nonce.
    nonce: String,
}

/// Input of the key derivation. It is the same for every login until the password, the server's salt or its iteration
/// count changes.
#[derive(Clone, PartialEq, Eq)]
pub struct Salting {
    password: String,
    salt: Vec<u8>,
    iterations: NonZeroU32,
}

/// `ClientKey` and `ServerKey` of RFC 5802 §3, derived from the password.
#[derive(Clone)]
pub struct Keys {
    client: hmac::Tag,
    server: hmac::Tag,
}

/// Last message of the client, and the key to verify the server's last message.
pub struct Proof {
    message: String,
    auth_message: String,
    server_key: hmac::Key,
}

/// Error in a message from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Malformed,
    /// The server requires an extension (`m=`); Weir supports none.
    Extension,
    /// The server's nonce does not begin with the client's nonce, or adds nothing to it. The message is then perhaps an
    /// answer to another login.
    Nonce,
    Iterations,
    /// The server reports an error (`e=`). Holds its text, reduced to printable ASCII.
    Refused(String),
    /// The server's signature is wrong. So the server does not know the password, and is perhaps not the real server.
    Signature,
}

/// Returns the nonce of these random octets: printable, and without commas.
pub fn nonce(random: &[u8; NONCE]) -> String {
    STANDARD.encode(random)
}

impl ClientFirst {
    /// Begins a login. `nonce` must be random, printable, without commas, and new for each login.
    pub fn new(credentials: &Credentials, nonce: &str) -> Self {
        let user = prepared(&credentials.user).replace('=', "=3D").replace(',', "=2C");
        let password = prepared(&credentials.password);
        Self { bare: format!("n={user},r={nonce}"), nonce: nonce.to_owned(), password }
    }

    /// Returns the client's first message.
    pub fn message(&self) -> String {
        format!("{GS2_HEADER}{}", self.bare)
    }

    /// Reads the server's first message (`server-first-message`).
    pub fn challenged(self, message: &str) -> Result<Challenge, Error> {
        let mut attributes = Attributes::of(message);
        let (nonce, salt, iterations) = (attributes.take('r')?, attributes.take('s')?, attributes.take('i')?);
        attributes.ignore_others()?;
        if !is_nonce(nonce) {
            return Err(Error::Malformed);
        }
        let theirs = nonce.strip_prefix(&self.nonce).ok_or(Error::Nonce)?;
        if theirs.is_empty() {
            return Err(Error::Nonce);
        }
        let salt = STANDARD.decode(salt).map_err(|_| Error::Malformed)?;
        let salting = Salting { password: self.password, salt, iterations: count(iterations)? };
        Ok(Challenge { salting, auth_message: format!("{},{message},", self.bare), nonce: nonce.to_owned() })
    }
}

impl Challenge {
    pub fn salting(&self) -> &Salting {
        &self.salting
    }

    /// Computes the answer with these `keys`. The caller has derived them from [`Challenge::salting`].
    pub fn prove(self, keys: &Keys) -> Proof {
        let bare = format!("c={},r={}", STANDARD.encode(GS2_HEADER), self.nonce);
        let auth_message = self.auth_message + &bare;
        let stored_key = digest::digest(&digest::SHA256, keys.client.as_ref());
        let signature = hmac::sign(&key(stored_key.as_ref()), auth_message.as_bytes());
        let proof: Vec<u8> = keys.client.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        let message = format!("{bare},p={}", STANDARD.encode(proof));
        Proof { message, auth_message, server_key: key(keys.server.as_ref()) }
    }
}

impl Salting {
    /// Creates the input for a password that is prepared by SASLprep already.
    pub fn new(password: &str, salt: &[u8], iterations: NonZeroU32) -> Self {
        Self { password: password.to_owned(), salt: salt.to_owned(), iterations }
    }

    /// Derives the keys with the server's number of iterations. Takes between a millisecond and almost a second of
    /// processor time.
    pub fn derive(&self) -> Keys {
        let mut salted = [0; digest::SHA256_OUTPUT_LEN];
        let password = self.password.as_bytes();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, self.iterations, &self.salt, password, &mut salted);
        let salted = key(&salted);
        Keys { client: hmac::sign(&salted, b"Client Key"), server: hmac::sign(&salted, b"Server Key") }
    }
}

impl Keys {
    pub(super) fn client(&self) -> &[u8] {
        self.client.as_ref()
    }

    pub(super) fn server(&self) -> &[u8] {
        self.server.as_ref()
    }
}

impl Proof {
    /// Returns the client's last message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Checks the server's last message (`server-final-message`), which proves that the server knows the password, too.
    /// The comparison takes constant time.
    pub fn verify(&self, message: &str) -> Result<(), Error> {
        let mut attributes = message.split(',').map(attribute);
        let signature = match attributes.next().flatten() {
            Some(('v', signature)) => STANDARD.decode(signature).map_err(|_| Error::Malformed)?,
            Some(('e', error)) => return Err(Error::Refused(printable(error))),
            _ => return Err(Error::Malformed),
        };
        if attributes.any(|further| further.is_none()) {
            return Err(Error::Malformed);
        }
        hmac::verify(&self.server_key, self.auth_message.as_bytes(), &signature).map_err(|_| Error::Signature)
    }
}

/// The attributes of a message that are not read yet.
pub(super) struct Attributes<'a>(Split<'a, char>);

/// Error in the attributes of a message.
pub(super) enum AttributeError {
    Malformed,
    /// An attribute `m=` requires an extension.
    Extension,
}

impl<'a> Attributes<'a> {
    pub fn of(message: &'a str) -> Self {
        Self(message.split(','))
    }

    /// Returns the value of the next attribute, which must have this name.
    pub fn take(&mut self, name: char) -> Result<&'a str, AttributeError> {
        match self.0.next().and_then(attribute) {
            Some((found, value)) if found == name => Ok(value),
            Some(('m', _)) => Err(AttributeError::Extension),
            _ => Err(AttributeError::Malformed),
        }
    }

    /// Ignores the other attributes, unless one is malformed or requires an extension (RFC 5802 §5.1).
    pub fn ignore_others(self) -> Result<(), AttributeError> {
        for other in self.0 {
            match attribute(other) {
                Some(('m', _)) => return Err(AttributeError::Extension),
                Some(_) => {}
                None => return Err(AttributeError::Malformed),
            }
        }
        Ok(())
    }
}

impl From<AttributeError> for Error {
    fn from(error: AttributeError) -> Self {
        match error {
            AttributeError::Malformed => Self::Malformed,
            AttributeError::Extension => Self::Extension,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("its message is malformed"),
            Self::Extension => f.write_str("it insists on an extension"),
            Self::Nonce => f.write_str("its nonce does not continue Weir's"),
            Self::Iterations => {
                write!(f, "it asks for an iteration count that is not from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
            }
            Self::Refused(error) => write!(f, "it reports \"{error}\""),
            Self::Signature => f.write_str("it has not shown that it knows the password"),
        }
    }
}

impl fmt::Debug for Salting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Salting(<redacted>, {} iterations)", self.iterations)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(<redacted>)")
    }
}

/// Normalizes a user name or password by SASLprep (RFC 4013). A text that SASLprep prohibits, for example because of
/// characters that are not in Unicode 3.2, is used unchanged. The reason is that a server that allows such a password
/// has stored it unchanged.
fn prepared(text: &str) -> String {
    stringprep::saslprep(text).map_or_else(|_| text.to_owned(), |prepared| prepared.into_owned())
}

/// Returns whether a nonce is printable; the caller has split it from its message at the commas.
pub(super) fn is_nonce(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_graphic())
}

/// Parses `attr-val` of RFC 5802 §7: a letter, `=`, and a value that is not empty.
fn attribute(text: &str) -> Option<(char, &str)> {
    let (name, value) = text.split_once('=')?;
    let mut letters = name.chars();
    let name = letters.next().filter(char::is_ascii_alphabetic)?;
    (letters.next().is_none() && !value.is_empty() && !value.contains('\0')).then_some((name, value))
}

/// Returns at most [`MAX_ERROR`] characters of a server's text, with `?` instead of all characters except printable
/// ASCII. So the text cannot harm a log line or a terminal.
fn printable(text: &str) -> String {
    text.chars().take(MAX_ERROR).map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect()
}

/// Parses an iteration count (`posit-number` of RFC 5802 §7) from [`MIN_ITERATIONS`] to [`MAX_ITERATIONS`].
fn count(digits: &str) -> Result<NonZeroU32, Error> {
    if digits.starts_with('0') || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Error::Malformed);
    }
    let count = digits.parse().ok().filter(|count| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(count));
    count.and_then(NonZeroU32::new).ok_or(Error::Iterations)
}

pub(super) fn key(value: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Example of RFC 7677 §3.
    const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn first() -> ClientFirst {
        ClientFirst::new(&Credentials::new("user", "pencil").unwrap(), CLIENT_NONCE)
    }

    fn proof() -> Proof {
        let challenge = first().challenged(SERVER_FIRST).unwrap();
        let keys = challenge.salting().derive();
        challenge.prove(&keys)
    }

    #[test]
    fn produces_the_messages_of_the_example_of_rfc_7677() {
        assert_eq!(first().message(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        assert_eq!(
            proof().message(),
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(proof().verify(SERVER_FINAL), Ok(()));
        assert_eq!(proof().verify(&format!("{SERVER_FINAL},x=further")), Ok(()));
    }

    #[test]
    fn a_server_that_does_not_know_the_password_is_found_out() {
        for (message, error) in [
            ("v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", Error::Signature),
            ("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95A==", Error::Signature),
            ("v=AA==", Error::Signature),
            ("v=", Error::Malformed),
            ("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4", Error::Malformed),
            ("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=,", Error::Malformed),
            ("x=1,v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", Error::Malformed),
            ("e=invalid-proof", Error::Refused("invalid-proof".to_owned())),
            ("e=\u{1b}[2J\u{e9}\nts=1", Error::Refused("?[2J??ts=1".to_owned())),
            (&format!("e={}", "x".repeat(3000)), Error::Refused("x".repeat(MAX_ERROR))),
            ("", Error::Malformed),
        ] {
            assert_eq!(proof().verify(message), Err(error), "{message}");
        }
    }

    #[test]
    fn malformed_challenges_are_refused() {
        let salt = "s=W22ZaJ0SNY7soEsUEjb6gQ==";
        let nonce = format!("r={CLIENT_NONCE}x");
        for (message, error) in [
            (format!("m=ext,{nonce},{salt},i=4096"), Error::Extension),
            (format!("{nonce},{salt},i=4096,m=ext"), Error::Extension),
            (format!("r={CLIENT_NONCE},{salt},i=4096"), Error::Nonce),
            (format!("r=x{CLIENT_NONCE},{salt},i=4096"), Error::Nonce),
            (format!("r=other,{salt},i=4096"), Error::Nonce),
            (format!("r=,{salt},i=4096"), Error::Malformed),
            (format!("{nonce} ,{salt},i=4096"), Error::Malformed),
            (format!("{nonce}\u{e9},{salt},i=4096"), Error::Malformed),
            (format!("{nonce},s=,i=4096"), Error::Malformed),
            (format!("{nonce},s=W22Z*,i=4096"), Error::Malformed),
            (format!("{nonce},i=4096,{salt}"), Error::Malformed),
            (format!("{nonce},{salt},i=4095"), Error::Iterations),
            (format!("{nonce},{salt},i=1"), Error::Iterations),
            (format!("{nonce},{salt},i=1000001"), Error::Iterations),
            (format!("{nonce},{salt},i=99999999999999999999"), Error::Iterations),
            (format!("{nonce},{salt},i=0"), Error::Malformed),
            (format!("{nonce},{salt},i=+4096"), Error::Malformed),
            (format!("{nonce},{salt},i=04096"), Error::Malformed),
            (format!("{nonce},{salt},i=-1"), Error::Malformed),
            (format!("{nonce},{salt},i="), Error::Malformed),
            (format!("{nonce},{salt},i=4096,"), Error::Malformed),
            (format!("{nonce},{salt},i=4096,xx=1"), Error::Malformed),
            (format!("{nonce},{salt}"), Error::Malformed),
            ("e=other-error".to_owned(), Error::Malformed),
            (String::new(), Error::Malformed),
        ] {
            assert_eq!(first().challenged(&message).err(), Some(error), "{message}");
        }
        for message in [
            format!("{nonce},{salt},i=1000000"),
            format!("{nonce},s=AA==,i=4096"),
            format!("{nonce},{salt},i=4096,x=y=z"),
        ] {
            assert!(first().challenged(&message).is_ok(), "{message}");
        }
    }

    #[test]
    fn names_and_passwords_are_prepared_and_escaped() {
        let first = |user: &str, password: &str| ClientFirst::new(&Credentials::new(user, password).unwrap(), "n");
        assert_eq!(first("a=b,c", "p").message(), "n,,n=a=3Db=2Cc,r=n");
        // Examples of RFC 4013 §3.
        for (password, prepared) in [("I\u{ad}X", "IX"), ("\u{aa}", "a"), ("\u{2168}", "IX"), ("a\u{a0}b", "a b")] {
            assert_eq!(first("u", password).password, prepared);
        }
        // A character that SASLprep prohibits, and a character that is not in Unicode 3.2.
        for password in ["a\u{7}", "\u{1f600}"] {
            assert_eq!(first("u", password).password, password);
        }
    }

    #[test]
    fn secrets_are_never_printed() {
        let challenge = first().challenged(SERVER_FIRST).unwrap();
        assert_eq!(format!("{:?}", challenge.salting()), "Salting(<redacted>, 4096 iterations)");
        assert_eq!(format!("{:?}", challenge.salting().derive()), "Keys(<redacted>)");
    }
}
