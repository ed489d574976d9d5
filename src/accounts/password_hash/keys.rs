//! Keys derived from a password with PBKDF2: Dovecot's `{PBKDF2}`, and the stored keys of SCRAM (RFC 5802 §3).

use super::digest::from_hex;
use crate::smtp::scram_server::StoredKeys;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};
use std::num::NonZeroU32;

/// Maximum iterations: they take less than a second of processor time.
const MAX_ITERATIONS: u32 = 1_000_000;

/// Maximum octets of a SCRAM salt, which is sent to clients. Salts of other programs have 10 to 64 octets.
const MAX_SALT: usize = 256;

/// Key that is derived from a password.
#[derive(Clone)]
pub struct DerivedKey {
    algorithm: Algorithm,
    salt: Box<[u8]>,
    iterations: NonZeroU32,
    /// The key itself, or for SCRAM its `StoredKey`.
    pub key: Box<[u8]>,
    /// The `ServerKey` of SCRAM, which a check of a password does not need.
    server_key: Option<Box<[u8]>>,
}

/// Iterations for new keys. A mail program derives its keys from the password with as many, in about 50 ms on a
/// telephone, and an attacker who has read the users file needs as many for each guess. RFC 7677 §4 demands at least
/// 4096.
const NEW_ITERATIONS: NonZeroU32 = NonZeroU32::MIN.saturating_add(99_999);

/// Octets of a new salt.
const NEW_SALT: usize = 16;

/// Hash function of the derivation.
#[derive(Clone, Copy, Debug)]
pub enum Algorithm {
    Sha1,
    Sha256,
}

impl DerivedKey {
    /// Derives the key of a password with this salt. Takes up to a second.
    pub fn of(&self, password: &str) -> Vec<u8> {
        let (derivation, mac, hash) = match self.algorithm {
            Algorithm::Sha1 => {
                (pbkdf2::PBKDF2_HMAC_SHA1, hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &digest::SHA1_FOR_LEGACY_USE_ONLY)
            }
            Algorithm::Sha256 => (pbkdf2::PBKDF2_HMAC_SHA256, hmac::HMAC_SHA256, &digest::SHA256),
        };
        let mut key = vec![0; hash.output_len()];
        pbkdf2::derive(derivation, self.iterations, &self.salt, password.as_bytes(), &mut key);
        if self.server_key.is_none() {
            return key;
        }
        let client = hmac::sign(&hmac::Key::new(mac, &key), b"Client Key");
        digest::digest(hash, client.as_ref()).as_ref().to_vec()
    }

    /// Returns the keys for a login by SCRAM-SHA-256, if these are keys of that mechanism.
    pub fn scram_sha_256(&self) -> Option<StoredKeys> {
        match self.algorithm {
            Algorithm::Sha1 => None,
            Algorithm::Sha256 => StoredKeys::new(&self.salt, self.iterations, &self.key, self.server_key.as_ref()?),
        }
    }
}

/// Derives new keys from a password that is prepared by SASLprep; returns them as they are in the users file. Takes tens
/// of milliseconds.
pub fn new_scram(prepared: &str) -> Result<String, getrandom::Error> {
    let mut salt = [0; NEW_SALT];
    getrandom::fill(&mut salt)?;
    Ok(format!("{{SCRAM-SHA-256}}{}", StoredKeys::derive(prepared, &salt, NEW_ITERATIONS).to_text()))
}

const MALFORMED: &str = "the hash after {PBKDF2} is $1$salt$rounds$key, and after {SCRAM-SHA-256} \
    iterations,salt,StoredKey,ServerKey";

/// Parses `$1$salt$rounds$key`: the salt as it is, the key in hexadecimal digits.
pub fn parse_pbkdf2(text: &str) -> Result<DerivedKey, &'static str> {
    let [salt, rounds, key] = text.strip_prefix("$1$").ok_or(MALFORMED)?.split('$').collect::<Vec<_>>()[..] else {
        return Err(MALFORMED);
    };
    let key = from_hex(key).filter(|key| key.len() == 20).ok_or(MALFORMED)?;
    let (salt, iterations) = (salt.as_bytes().into(), iterations(rounds)?);
    Ok(DerivedKey { algorithm: Algorithm::Sha1, salt, iterations, key: key.into(), server_key: None })
}

/// Parses `iterations,salt,StoredKey,ServerKey`, all but the number in base64.
pub fn parse_scram(text: &str, algorithm: Algorithm) -> Result<DerivedKey, &'static str> {
    let [rounds, salt, stored, server] = text.split(',').collect::<Vec<_>>()[..] else { return Err(MALFORMED) };
    let size = match algorithm {
        Algorithm::Sha1 => 20,
        Algorithm::Sha256 => 32,
    };
    let decode = |text: &str| STANDARD.decode(text).map_err(|_| MALFORMED);
    let (salt, key, server) = (decode(salt)?, decode(stored)?, decode(server)?);
    if !(1..=MAX_SALT).contains(&salt.len()) || key.len() != size || server.len() != size {
        return Err(MALFORMED);
    }
    let (iterations, server_key) = (iterations(rounds)?, Some(server.into()));
    Ok(DerivedKey { algorithm, salt: salt.into(), iterations, key: key.into(), server_key })
}

fn iterations(text: &str) -> Result<NonZeroU32, &'static str> {
    let number: NonZeroU32 = text.parse().map_err(|_| MALFORMED)?;
    match number.get() <= MAX_ITERATIONS {
        true => Ok(number),
        false => Err("the hash has more than 1,000,000 iterations, which take too much time"),
    }
}
