//! SCRAM-SHA-256, the client's side (RFC 5802, RFC 7677): the server never gets the password, and proves that it knows
//! the password, too.
//!
//! Each message of the server turns one value into the next: [`ClientFirst`], [`Challenge`], [`Proof`].
//! [`Salting::derive`] takes long, so the caller decides on which thread it runs. Channel binding is not offered.

use super::sasl::Credentials;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};
use std::fmt;
use std::num::NonZeroU32;

/// Minimum iterations (RFC 7677 §4): with fewer, an eavesdropper could guess the password cheaply.
const MIN_ITERATIONS: u32 = 4096;

/// Maximum iterations, under a second of work: an upstream must not be able to waste more (RFC 5802 §9).
const MAX_ITERATIONS: u32 = 1_000_000;

/// Maximum characters of a server's error that are logged: those of RFC 5802 §7 have up to 39.
const MAX_ERROR: usize = 100;

/// `gs2-header` of RFC 5802 §7: no channel binding, and no identity but the user's own.
const GS2_HEADER: &str = "n,,";

/// First message of the client: user name and nonce.
pub struct ClientFirst {
    bare: String,
    nonce: String,
    password: String,
}

/// Challenge of the server.
pub struct Challenge {
    salting: Salting,
    /// `AuthMessage`, up to the comma after the server's message.
    auth_message: String,
    /// Nonce of both sides.
    nonce: String,
}

/// Input of the key derivation. The same for each login, until the password or the server's salt changes.
#[derive(Clone, PartialEq, Eq)]
pub struct Salting {
    password: String,
    salt: Vec<u8>,
    iterations: NonZeroU32,
}

/// `ClientKey` and `ServerKey`.
#[derive(Clone)]
pub struct Keys {
    client: hmac::Tag,
    server: hmac::Tag,
}

/// Last message of the client, and the key to verify the server's answer.
pub struct Proof {
    message: String,
    auth_message: String,
    server_key: hmac::Key,
}

/// Error in a message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Malformed,
    /// The server requires an extension (`m=`); Weir supports none.
    Extension,
    /// Its nonce does not begin with the client's, or adds nothing: an answer to another login.
    Nonce,
    Iterations,
    /// The server reports an error (`e=`), here in printable ASCII.
    Refused(String),
    /// The server does not know the password: it may be an impostor.
    Signature,
}

impl ClientFirst {
    /// Begins a login. `nonce` is random, printable, without commas, and used for one login only.
    pub fn new(credentials: &Credentials, nonce: &str) -> Self {
        let user = prepared(&credentials.user).replace('=', "=3D").replace(',', "=2C");
        let password = prepared(&credentials.password);
        Self { bare: format!("n={user},r={nonce}"), nonce: nonce.to_owned(), password }
    }

    /// The message to send first.
    pub fn message(&self) -> String {
        format!("{GS2_HEADER}{}", self.bare)
    }

    /// Takes `server-first-message`.
    pub fn challenged(self, message: &str) -> Result<Challenge, Error> {
        let mut attributes = message.split(',').map(attribute);
        let mut take = |name| match attributes.next() {
            Some(Some((found, value))) if found == name => Ok(value),
            Some(Some(('m', _))) => Err(Error::Extension),
            _ => Err(Error::Malformed),
        };
        let (nonce, salt, iterations) = (take('r')?, take('s')?, take('i')?);
        for further in attributes {
            match further {
                Some(('m', _)) => return Err(Error::Extension),
                Some(_) => {}
                None => return Err(Error::Malformed),
            }
        }
        if !nonce.bytes().all(|b| b.is_ascii_graphic()) {
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

    /// Answers with the keys derived from its salting.
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
    /// Derives the keys with the server's number of iterations: from a millisecond to most of a second of work.
    pub fn derive(&self) -> Keys {
        let mut salted = [0; digest::SHA256_OUTPUT_LEN];
        let password = self.password.as_bytes();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, self.iterations, &self.salt, password, &mut salted);
        let salted = key(&salted);
        Keys { client: hmac::sign(&salted, b"Client Key"), server: hmac::sign(&salted, b"Server Key") }
    }
}

impl Proof {
    /// The message to send last.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Takes `server-final-message`. Checks that the server knows the password, too, in constant time.
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

/// Prepares a text by SASLprep (RFC 4013). A text that it prohibits, such as one with characters younger than Unicode
/// 3.2, is sent as it is: servers that accept such a password have stored it so.
fn prepared(text: &str) -> String {
    stringprep::saslprep(text).map_or_else(|_| text.to_owned(), |prepared| prepared.into_owned())
}

/// Reads `attr-val`: a letter, `=`, and a value that is not empty.
fn attribute(text: &str) -> Option<(char, &str)> {
    let (name, value) = text.split_once('=')?;
    let mut letters = name.chars();
    let name = letters.next().filter(char::is_ascii_alphabetic)?;
    (letters.next().is_none() && !value.is_empty() && !value.contains('\0')).then_some((name, value))
}

/// Returns a server's text as printable ASCII of bounded length, safe for a log line and a terminal.
fn printable(text: &str) -> String {
    text.chars().take(MAX_ERROR).map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect()
}

/// Reads `posit-number`, an iteration count within the bounds.
fn count(digits: &str) -> Result<NonZeroU32, Error> {
    if digits.starts_with('0') || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Error::Malformed);
    }
    let count = digits.parse().ok().filter(|count| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(count));
    count.and_then(NonZeroU32::new).ok_or(Error::Iterations)
}

fn key(value: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7677 §3.
    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn first() -> ClientFirst {
        ClientFirst::new(&Credentials::new("user", "pencil").unwrap(), NONCE)
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
        let nonce = format!("r={NONCE}x");
        for (message, error) in [
            (format!("m=ext,{nonce},{salt},i=4096"), Error::Extension),
            (format!("{nonce},{salt},i=4096,m=ext"), Error::Extension),
            (format!("r={NONCE},{salt},i=4096"), Error::Nonce),
            (format!("r=x{NONCE},{salt},i=4096"), Error::Nonce),
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
        // RFC 4013 §3.
        for (password, prepared) in [("I\u{ad}X", "IX"), ("\u{aa}", "a"), ("\u{2168}", "IX"), ("a\u{a0}b", "a b")] {
            assert_eq!(first("u", password).password, prepared);
        }
        // Prohibited, and younger than Unicode 3.2.
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
