//! Password hashes: those of Weir (argon2id), and those of the password files of other programs.

mod digest;
mod keys;
mod md5_crypt;
mod stored;

use crate::smtp::sasl;
use crate::smtp::scram_server::StoredKeys;
use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use digest::Digest;
use keys::DerivedKey;
use sha_crypt::ShaCrypt;
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq as _;
use yescrypt::Yescrypt;

/// Hash that no known password matches. It has the parameters of new hashes.
const DUMMY_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$bm8gc3VjaCB1c2VyIQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Stored hash of a password. `Debug` prints only the scheme.
#[derive(Clone)]
pub enum StoredHash {
    Argon2(Box<str>),
    Bcrypt(Box<str>),
    /// SHA-256-crypt or SHA-512-crypt.
    ShaCrypt(Box<str>),
    Yescrypt(Box<str>),
    Md5Crypt {
        /// `$1$` or `$apr1$`.
        prefix: &'static str,
        salt: Box<str>,
        hash: Box<str>,
    },
    Digest(Digest),
    Derived(DerivedKey),
    /// The password itself (`{PLAIN}`).
    Plain(Box<str>),
    /// No password is right, as with `*` in a shadow file.
    Locked,
}

/// Scheme of a new hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The strongest against guessing by an attacker who has read the users file.
    Argon2,
    /// Keys with which the user can log in by SCRAM-SHA-256, so that the password is not sent.
    Scram,
}

/// Reason why a password cannot be hashed.
#[derive(Debug)]
pub enum HashError {
    /// The password is not allowed.
    Password(&'static str),
    Hash(String),
}

impl FromStr for StoredHash {
    /// Reason why the hash cannot be used.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        stored::parse(text)
    }
}

impl StoredHash {
    /// Returns a hash that no known password matches, to be checked where there is no user.
    pub fn dummy() -> Self {
        Self::Argon2(DUMMY_HASH.into())
    }

    /// Returns whether the password matches. Takes up to some seconds and 1 GiB; for a hash that Weir made, tens
    /// of milliseconds and 19 MiB.
    pub fn matches(&self, password: &str) -> bool {
        let octets = password.as_bytes();
        match self {
            Self::Argon2(hash) => {
                PasswordHash::new(hash).is_ok_and(|hash| Argon2::default().verify_password(octets, &hash).is_ok())
            }
            // Like all programs, bcrypt ignores what comes after 72 octets.
            Self::Bcrypt(hash) => bcrypt::verify(octets, hash).unwrap_or(false),
            Self::ShaCrypt(hash) => sha_crypt::PasswordHashRef::new(hash)
                .is_ok_and(|hash| ShaCrypt::default().verify_password(octets, hash).is_ok()),
            Self::Yescrypt(hash) => yescrypt::PasswordHashRef::new(hash)
                .is_ok_and(|hash| Yescrypt::default().verify_password(octets, hash).is_ok()),
            Self::Md5Crypt { prefix, salt, hash } => {
                is_equal(md5_crypt::md5_crypt(prefix, salt, password).as_bytes(), hash.as_bytes())
            }
            Self::Digest(digest) => is_equal(&digest.of(password), &digest.digest),
            Self::Derived(key) => is_equal(&key.of(password), &key.key),
            Self::Plain(text) => is_equal(octets, text.as_bytes()),
            Self::Locked => false,
        }
    }

    /// Returns the keys for a login by SCRAM-SHA-256, if the hash consists of such keys.
    pub fn scram_sha_256(&self) -> Option<StoredKeys> {
        match self {
            Self::Derived(key) => key.scram_sha_256(),
            _ => None,
        }
    }

    /// Returns the name of the scheme.
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Argon2(_) => "argon2",
            Self::Bcrypt(_) => "bcrypt",
            Self::ShaCrypt(_) => "SHA-crypt",
            Self::Yescrypt(_) => "yescrypt",
            Self::Md5Crypt { .. } => "MD5-crypt",
            Self::Digest(_) => "digest",
            Self::Derived(_) => "PBKDF2",
            Self::Plain(_) => "plain",
            Self::Locked => "locked",
        }
    }
}

impl fmt::Debug for StoredHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredHash({})", self.scheme())
    }
}

/// Compares two texts in a time that depends only on their lengths.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

/// Prepares a password by SASLprep, and hashes it.
pub fn hash(password: &str, scheme: Scheme) -> Result<String, HashError> {
    if !(1..=sasl::MAX_PASSWORD).contains(&password.len()) || password.contains(['\0', '\r', '\n']) {
        return Err(HashError::Password("a password has 1 to 1024 octets, and no line break or NUL"));
    }
    let prepared = sasl::saslprep(password).ok_or(HashError::Password(PROHIBITED))?;
    match scheme {
        Scheme::Argon2 => {
            let hash = Argon2::default().hash_password(prepared.as_bytes());
            hash.map(|hash| hash.to_string()).map_err(|error| HashError::Hash(error.to_string()))
        }
        Scheme::Scram => keys::new_scram(&prepared).map_err(|error| HashError::Hash(error.to_string())),
    }
}

const PROHIBITED: &str = "SASLprep (RFC 4013) prohibits this password: it is empty without its invisible characters, mixes scripts \
    written from the right with others, or has a control character or one that Unicode 3.2 does not have (as most emoji)";
