//! Digests of passwords, with or without a salt: `{SHA}` of htpasswd, and Dovecot's `{SSHA256}` and the like.

use md5::{Digest as _, Md5};
use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};

/// Digest of a password, followed by the salt.
#[derive(Clone)]
pub struct Digest {
    pub form: Form,
    pub digest: Box<[u8]>,
    /// Empty for a scheme without a salt.
    pub salt: Box<[u8]>,
}

/// Hash function of a digest.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

impl Digest {
    /// Returns the digest of a password with this salt.
    pub fn of(&self, password: &str) -> Vec<u8> {
        let text = [password.as_bytes(), &self.salt].concat();
        let algorithm = match self.form {
            Form::Md5 => return Md5::digest(&text).to_vec(),
            Form::Sha1 => &SHA1_FOR_LEGACY_USE_ONLY,
            Form::Sha256 => &SHA256,
            Form::Sha512 => &SHA512,
        };
        digest::digest(algorithm, &text).as_ref().to_vec()
    }
}

/// Returns the octets of a text of hexadecimal digits.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let octet = |pair: &[u8]| Some((digit(pair[0])? * 16 + digit(*pair.get(1)?)?) as u8);
    digits.chunks(2).map(octet).collect()
}
