//! Parser of stored password hashes: PHC strings, the forms of crypt(3) and htpasswd, and Dovecot's `{SCHEME}` prefixes.

use super::digest::{Digest, Form, from_hex};
use super::{StoredHash, keys};
use argon2::password_hash::phc::PasswordHash;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Maximum costs of a hash. A check must not take more memory or time than this, because any client can ask for one.
const MAX_MEMORY_KIB: u64 = 1024 * 1024;
/// Memory in KiB times passes over it.
const MAX_ARGON2_WORK: u64 = 4 * 1024 * 1024;
const MAX_BCRYPT_COST: u32 = 15;
const MAX_SHA_CRYPT_ROUNDS: u32 = 2_000_000;

const UNKNOWN: &str = "the hash is none that Weir knows: argon2id, bcrypt ($2y$), SHA-256-crypt ($5$), SHA-512-crypt \
    ($6$), yescrypt ($y$), MD5-crypt ($apr1$, $1$), or one of Dovecot's {SCHEME} prefixes";
const TOO_COSTLY: &str = "a check of this hash would take too much time or memory";
const NONE: &str = "there is no password hash";

/// Parses a stored hash. The error says why the hash cannot be used.
pub fn parse(text: &str) -> Result<StoredHash, &'static str> {
    if text.is_empty() {
        return Err(NONE);
    }
    // `*` and `!` in a shadow file, and `x` in a passwd file, stand for a user without a password.
    if text == "x" || text.starts_with(['*', '!']) {
        return Ok(StoredHash::Locked);
    }
    match text.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some((scheme, rest)) => with_scheme(scheme, rest),
        None => crypt(text),
    }
}

/// Parses a hash of crypt(3), of htpasswd, or a PHC string: the prefix between dollar signs names the scheme.
fn crypt(text: &str) -> Result<StoredHash, &'static str> {
    let id = text.strip_prefix('$').and_then(|rest| rest.split_once('$')).map(|(id, _)| id);
    match id.ok_or(UNKNOWN)? {
        "argon2id" | "argon2i" => argon2(text),
        "2a" | "2b" | "2y" => bcrypt(text),
        "5" => sha_crypt(text, 43),
        "6" => sha_crypt(text, 86),
        "y" => yescrypt(text),
        "1" => md5_crypt("$1$", text),
        "apr1" => md5_crypt("$apr1$", text),
        _ => Err(UNKNOWN),
    }
}

/// Parses the text after one of Dovecot's prefixes. The name of the scheme is compared without case, and may end with
/// the encoding, as in `{SSHA256.HEX}`.
fn with_scheme(scheme: &str, text: &str) -> Result<StoredHash, &'static str> {
    let scheme = scheme.to_ascii_uppercase();
    let (scheme, encoding) = scheme.split_once('.').unwrap_or((&scheme, ""));
    let digest = |form: Form, size: usize| {
        let hash = match encoding {
            "HEX" => from_hex(text),
            "B64" | "BASE64" => STANDARD.decode(text).ok(),
            // Without an encoding, a text of twice the size is in hexadecimal digits.
            _ if text.len() == 2 * size => from_hex(text),
            _ => STANDARD.decode(text).ok(),
        };
        let hash = hash.filter(|hash| hash.len() >= size).ok_or("the hash is cut off, or is not in base64 or hex")?;
        let (digest, salt) = hash.split_at(size);
        Ok(StoredHash::Digest(Digest { form, digest: digest.into(), salt: salt.into() }))
    };
    match scheme {
        "PLAIN" | "CLEAR" | "CLEARTEXT" => match text {
            "" => Err(NONE),
            _ => Ok(StoredHash::Plain(text.into())),
        },
        "CRYPT" | "BLF-CRYPT" | "SHA256-CRYPT" | "SHA512-CRYPT" | "MD5-CRYPT" | "MD5" | "ARGON2ID" | "ARGON2I" => {
            crypt(text)
        }
        "SHA" | "SHA1" | "SSHA" => digest(Form::Sha1, 20),
        "SHA256" | "SSHA256" => digest(Form::Sha256, 32),
        "SHA512" | "SSHA512" => digest(Form::Sha512, 64),
        "PLAIN-MD5" | "LDAP-MD5" | "SMD5" => digest(Form::Md5, 16),
        "PBKDF2" => keys::parse_pbkdf2(text).map(StoredHash::Derived),
        "SCRAM-SHA-256" => keys::parse_scram(text, keys::Algorithm::Sha256).map(StoredHash::Derived),
        "SCRAM-SHA-1" => keys::parse_scram(text, keys::Algorithm::Sha1).map(StoredHash::Derived),
        _ => Err(UNKNOWN),
    }
}

fn argon2(text: &str) -> Result<StoredHash, &'static str> {
    let malformed = "the hash is not a complete PHC string ($argon2id$v=19$m=…,t=…,p=…$salt$hash)";
    let hash = PasswordHash::new(text).map_err(|_| malformed)?;
    let parameters = argon2::Params::try_from(&hash).map_err(|_| malformed)?;
    if hash.salt.is_none() || hash.hash.is_none() {
        return Err(malformed);
    }
    let memory = u64::from(parameters.m_cost());
    if memory > MAX_MEMORY_KIB || memory.saturating_mul(parameters.t_cost().into()) > MAX_ARGON2_WORK {
        return Err(TOO_COSTLY);
    }
    Ok(StoredHash::Argon2(text.into()))
}

fn bcrypt(text: &str) -> Result<StoredHash, &'static str> {
    let parts: bcrypt::HashParts = text.parse().map_err(|_| "the bcrypt hash ($2y$) is not complete")?;
    match parts.get_cost() {
        4..=MAX_BCRYPT_COST => Ok(StoredHash::Bcrypt(text.into())),
        0..4 => Err("the cost of the bcrypt hash is below 4"),
        _ => Err(TOO_COSTLY),
    }
}

/// Parses `$5$salt$hash` or `$5$rounds=N$salt$hash`, and the same with `$6$`. `size` is the length of the hash.
fn sha_crypt(text: &str, size: usize) -> Result<StoredHash, &'static str> {
    let malformed = "the hash is not complete ($5$salt$hash or $6$salt$hash)";
    let mut fields: Vec<&str> = text.split('$').skip(2).collect();
    if let Some(rounds) = fields.first().and_then(|field| field.strip_prefix("rounds=")) {
        if rounds.parse::<u32>().map_err(|_| malformed)? > MAX_SHA_CRYPT_ROUNDS {
            return Err(TOO_COSTLY);
        }
        fields.remove(0);
    }
    match fields[..] {
        [salt, hash] if (1..=16).contains(&salt.len()) && hash.len() == size => Ok(StoredHash::ShaCrypt(text.into())),
        _ => Err(malformed),
    }
}

/// Parses `$y$parameters$salt$hash`.
fn yescrypt(text: &str) -> Result<StoredHash, &'static str> {
    let malformed = "the hash is not complete ($y$parameters$salt$hash)";
    let [parameters, salt, hash] = text.split('$').skip(2).collect::<Vec<_>>()[..] else { return Err(malformed) };
    let parameters: yescrypt::Params = parameters.parse().map_err(|_| malformed)?;
    // A hash that is cut off would match many passwords.
    if salt.is_empty() || hash.len() != 43 {
        return Err(malformed);
    }
    let memory = parameters.n().saturating_mul(u64::from(parameters.r())).saturating_mul(128);
    match memory.saturating_mul(u64::from(parameters.p())) / 1024 <= MAX_MEMORY_KIB {
        true => Ok(StoredHash::Yescrypt(text.into())),
        false => Err(TOO_COSTLY),
    }
}

/// Parses `$1$salt$hash` or `$apr1$salt$hash`.
fn md5_crypt(prefix: &'static str, text: &str) -> Result<StoredHash, &'static str> {
    let parts = text.strip_prefix(prefix).and_then(|rest| rest.split_once('$'));
    match parts {
        Some((salt, hash)) if !salt.is_empty() && hash.len() == 22 => {
            Ok(StoredHash::Md5Crypt { prefix, salt: salt.into(), hash: hash.into() })
        }
        _ => Err("the hash is not complete ($apr1$salt$hash or $1$salt$hash)"),
    }
}
