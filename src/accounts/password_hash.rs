//! Password hashes: argon2id, in PHC form.

use crate::smtp::sasl::{self, Credentials};
use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use std::borrow::Cow;

/// Hash that no known password matches. Weir checks it for users that do not exist. It has the parameters of new
/// hashes, so that the check takes the same time as for an existing user.
const DUMMY_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$bm8gc3VjaCB1c2VyIQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Reason why a password cannot be hashed.
#[derive(Debug)]
pub enum HashError {
    /// The password is not allowed.
    Password(&'static str),
    Hash(String),
}

/// Returns the form of the password that matches the hash, if the password is right. `hash` is `None` if the user does
/// not exist. Takes tens of milliseconds and 19 MiB for each form of the password, even if `hash` is `None`.
pub fn verify<'a>(hash: Option<&str>, credentials: &'a Credentials) -> Option<Cow<'a, str>> {
    let hash = PasswordHash::new(hash.unwrap_or(DUMMY_HASH)).ok()?;
    let is_right = |form: &str| Argon2::default().verify_password(form.as_bytes(), &hash).is_ok();
    credentials.password_forms().into_iter().find(|form| is_right(form))
}

/// Checks that a stored hash is an argon2id hash in PHC form.
pub fn check(hash: &str) -> Result<(), &'static str> {
    let parsed = PasswordHash::new(hash).map_err(|_| "the hash is no PHC string ($argon2id$…)")?;
    if parsed.algorithm.as_str() != "argon2id" {
        return Err("the hash is not argon2id");
    }
    Ok(())
}

/// Prepares a password by SASLprep, and hashes it.
pub fn hash(password: &str) -> Result<String, HashError> {
    if !(1..=sasl::MAX_PASSWORD).contains(&password.len()) || password.contains(['\0', '\r', '\n']) {
        return Err(HashError::Password("a password has 1 to 1024 octets, and no line break or NUL"));
    }
    let prepared = sasl::saslprep(password).ok_or(HashError::Password(PROHIBITED))?;
    let hash = Argon2::default().hash_password(prepared.as_bytes());
    hash.map(|hash| hash.to_string()).map_err(|error| HashError::Hash(error.to_string()))
}

const PROHIBITED: &str = "SASLprep (RFC 4013) prohibits this password: it is empty without its invisible characters, mixes scripts \
    written from the right with others, or has a control character or one that Unicode 3.2 does not have (as most emoji)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_does_not_exist_is_hashed_all_the_same() {
        assert!(PasswordHash::new(DUMMY_HASH).is_ok());
    }
}
