//! MD5-crypt, which Poul-Henning Kamp wrote for FreeBSD: `$1$` of crypt(3), and `$apr1$` of Apache's htpasswd.
//!
//! Both are the same except for the prefix, which is hashed, too. They are weak today, and are read because many
//! password files still have them.

use md5::{Digest as _, Md5};

/// Alphabet of crypt(3), in which each character holds six bits, the lowest bits first.
const ALPHABET: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Order in which the octets of the digest are written: three octets for four characters, the last octet alone.
const ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];

/// Returns the 22 characters of the hash. `prefix` is `$1$` or `$apr1$`; only the first 8 octets of the salt count.
pub fn md5_crypt(prefix: &str, salt: &str, password: &str) -> String {
    let (password, salt) = (password.as_bytes(), salt.as_bytes());
    let salt = &salt[..salt.len().min(8)];
    let inner: [u8; 16] = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize().into();
    let mut outer = Md5::new().chain_update(password).chain_update(prefix).chain_update(salt);
    // As many octets of `inner`, repeated, as the password has.
    password.chunks(16).for_each(|chunk| outer.update(&inner[..chunk.len()]));
    // One octet for each bit of the password's length, from the lowest bit on.
    let mut length = password.len();
    while length > 0 {
        outer.update(if length & 1 == 1 { &[0][..] } else { &password[..1] });
        length >>= 1;
    }
    let mut digest: [u8; 16] = outer.finalize().into();
    for round in 0..1000 {
        digest = next(digest, round, password, salt);
    }
    encode(&digest)
}

/// One of the thousand rounds that slow the hash down.
fn next(digest: [u8; 16], round: u32, password: &[u8], salt: &[u8]) -> [u8; 16] {
    let is_odd = round % 2 == 1;
    let mut hash = Md5::new();
    hash.update(if is_odd { password } else { &digest });
    if !round.is_multiple_of(3) {
        hash.update(salt);
    }
    if !round.is_multiple_of(7) {
        hash.update(password);
    }
    hash.update(if is_odd { &digest } else { password });
    hash.finalize().into()
}

fn encode(digest: &[u8; 16]) -> String {
    let mut text = String::with_capacity(22);
    let mut write = |mut bits: u32, characters: u32| {
        for _ in 0..characters {
            text.push(ALPHABET[(bits & 63) as usize].into());
            bits >>= 6;
        }
    };
    for order in ORDER {
        let [high, middle, low] = order.map(|at| u32::from(digest[at]));
        write(high << 16 | middle << 8 | low, 4);
    }
    write(digest[11].into(), 2);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_openssl() {
        // openssl passwd -1 -salt SALT PASSWORD, and with -apr1.
        for (prefix, salt, password, hash) in [
            ("$1$", "saltsalt", "password", "qjXMvbEw8oaL.CzflDtaK/"),
            ("$apr1$", "TQI5nslu", "sesame", "MOSiEaTNavlcc6yOqDlcR/"),
            ("$1$", "a", "x", "TYcRT0JumNkKBBlirG1X4/"),
            ("$apr1$", "12345678", "p\u{e4}ssword-longer-than-sixteen-octets", "Q149./aIL4OmSF9Qd9d14."),
        ] {
            assert_eq!(md5_crypt(prefix, salt, password), hash, "{prefix}{salt}${hash}");
        }
    }
}
