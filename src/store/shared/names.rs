//! Names of budgets in Redis.
//!
//! The budget of a key has up to three entries in Redis, whose names begin alike: `weir:1:{TAG}:HASH` is the state (see
//! [`value`](super::value)), the same with `:f` is the filter of the values seen, and the same with `:l` is the log of the
//! values that the filter has learnt since it was written. `1` is the version of this format. A Cluster puts all entries
//! with one tag into one slot. The tag is that of the user, if the key has one, so that all limits of a user change in
//! one step; otherwise it is that of the first field.
//!
//! Names contain no address in clear text, unless the configuration wants it: the tag and the hash are keyed hashes, and
//! the text of the key is sealed (ChaCha20-Poly1305, RFC 8439). Both keys derive from the secret of the site.

use crate::policy::budgets::KeyRef;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use std::hash::Hasher as _;
use std::sync::Arc;

/// Version of the names and values. Nodes of different versions share nothing.
const FORMAT: u32 = 1;

/// Names all budgets of a site.
#[derive(Clone)]
pub struct Namer {
    prefix: String,
    secrets: Option<Secrets>,
}

#[derive(Clone)]
struct Secrets {
    hash_key: [u8; 16],
    seal_key: Arc<LessSafeKey>,
}

/// How many transactions share the budgets of a tag; the most shared first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The budget has no owner: all transactions share it.
    All,
    /// Transactions of many users, such as those of one client, can share the budgets.
    Many,
    /// Only transactions of one user share the budgets.
    User,
}

/// Names of one budget in Redis.
#[derive(Debug)]
pub struct Names {
    /// Name of the state, of which the other names are extensions.
    pub state: Box<[u8]>,
    /// Text of the budget's key, perhaps sealed.
    pub text: Box<[u8]>,
    /// Hash of the tag. Names with the same hash are in the same slot of a Cluster.
    pub tag: u64,
    pub reach: Reach,
}

impl Names {
    pub fn filter(&self) -> Vec<u8> {
        [&self.state, &b":f"[..]].concat()
    }

    pub fn log(&self) -> Vec<u8> {
        [&self.state, &b":l"[..]].concat()
    }
}

impl Namer {
    /// `secret`: the secret of the site; `None` for names in clear text.
    pub fn new(prefix: &str, secret: Option<&[u8]>) -> Self {
        Self { prefix: prefix.to_owned(), secrets: secret.map(Secrets::derive) }
    }

    /// Returns the names of a key's budget.
    pub fn names(&self, key: KeyRef<'_>) -> Names {
        let (tag_text, text) = (key.neighbourhood(), key.text());
        let reach = match tag_text {
            user if user.starts_with("user=") => Reach::User,
            whole if whole == text => Reach::All,
            _ => Reach::Many,
        };
        match &self.secrets {
            Some(secrets) => {
                let (tag, hash) = (secrets.hash(tag_text) as u64, secrets.hash(text));
                let (tag_name, hash_name) = (encode(&tag.to_le_bytes()), encode(&hash.to_le_bytes()));
                Names { state: self.name(&tag_name, &hash_name), text: secrets.seal(text, hash).into(), tag, reach }
            }
            None => {
                let mut hasher = siphasher::sip::SipHasher13::new();
                hasher.write(tag_text.as_bytes());
                let (state, tag) = (self.name(tag_text, text), hasher.finish());
                Names { state, text: text.as_bytes().into(), tag, reach }
            }
        }
    }

    /// Seals a text, unless names are in clear text.
    pub fn seal(&self, text: &str) -> Vec<u8> {
        match &self.secrets {
            Some(secrets) => secrets.seal(text, secrets.hash(text)),
            None => text.as_bytes().to_vec(),
        }
    }

    /// Hashes a text, unless names are in clear text.
    pub fn field(&self, text: &str) -> String {
        match &self.secrets {
            Some(secrets) => encode(&secrets.hash(text).to_le_bytes()),
            None => text.to_owned(),
        }
    }

    /// Returns a text that was sealed; `None` if it was sealed with another secret.
    pub fn open(&self, text: &[u8]) -> Option<String> {
        let text = match &self.secrets {
            Some(secrets) => secrets.open(text)?,
            None => text.to_vec(),
        };
        String::from_utf8(text).ok()
    }

    /// Returns the name of an entry that is no budget. All such entries are in one slot.
    pub fn common(&self, name: &str) -> Box<[u8]> {
        self.name("common", name)
    }

    /// Returns a pattern for the names of all entries.
    pub fn pattern(&self) -> String {
        let prefix: String = self.prefix.chars().flat_map(|c| ['\\', c]).collect();
        format!("{prefix}:{FORMAT}:{{*")
    }

    /// Returns whether the entry of this name, which fits the pattern, may be the state of a budget. If names are in clear
    /// text, a filter can have the same form of name as a state; its value is then no state of this name.
    pub fn may_be_state(&self, name: &[u8]) -> bool {
        let is_common = name.starts_with(&self.common(""));
        let is_hidden = self.secrets.is_some();
        !is_common && !(is_hidden && (name.ends_with(b":f") || name.ends_with(b":l")))
    }

    fn name(&self, tag: &str, rest: &str) -> Box<[u8]> {
        format!("{}:{FORMAT}:{{{tag}}}:{rest}", self.prefix).into_bytes().into()
    }
}

impl Secrets {
    #[expect(clippy::expect_used, reason = "a derived key has the 32 octets that the algorithm demands")]
    fn derive(secret: &[u8]) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = |label: &str| hmac::sign(&secret, label.as_bytes());
        let mut hash_key = [0; 16];
        hash_key.copy_from_slice(&derived("weir: names of budgets").as_ref()[..16]);
        let seal_key = UnboundKey::new(&CHACHA20_POLY1305, derived("weir: texts of keys").as_ref());
        Self { hash_key, seal_key: Arc::new(LessSafeKey::new(seal_key.expect("HMAC-SHA256 has 32 octets"))) }
    }

    fn hash(&self, text: &str) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(text.as_bytes());
        hasher.finish128().as_u128()
    }

    /// Seals a text. The nonce depends on the text alone: one text always gives the same octets, and two texts never
    /// share a nonce, except by a collision of 96 bits of a keyed hash.
    fn seal(&self, text: &str, hash: u128) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&hash.to_le_bytes()[..NONCE_LEN]);
        let mut sealed = text.as_bytes().to_vec();
        let tag =
            self.seal_key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed);
        // Sealing fails only for texts of many gigabytes.
        tag.map_or_else(|_| Vec::new(), |tag| [&nonce[..], &sealed, tag.as_ref()].concat())
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk()?;
        let mut text = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        Some(self.seal_key.open_in_place(nonce, Aad::empty(), &mut text).ok()?.to_vec())
    }
}

fn encode(octets: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(octets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::budgets::Key;

    fn namer(secret: Option<&str>) -> Namer {
        Namer::new("weir", secret.map(str::as_bytes))
    }

    fn names(namer: &Namer, key: &str) -> Names {
        namer.names(Key::from_stored(&key.replace('/', "\u{1f}")).borrowed())
    }

    #[test]
    fn names_hide_the_key_and_only_the_secret_opens_it() {
        let (ours, others) = (namer(Some("a secret of this site")), namer(Some("a secret of another site")));
        let name = names(&ours, "l/recipients/ewma/user=alice@example.org");
        assert!(!String::from_utf8_lossy(&name.state).contains("alice"));
        assert!(!String::from_utf8_lossy(&name.text).contains("alice"));
        assert_eq!(ours.open(&name.text).unwrap(), "l\u{1f}recipients\u{1f}ewma\u{1f}user=alice@example.org");
        assert_eq!(others.open(&name.text), None);
        assert_eq!(ours.open(b"short"), None);
        assert_ne!(names(&others, "l/recipients/ewma/user=alice@example.org").state, name.state);
    }

    #[test]
    fn all_limits_of_a_user_have_one_tag() {
        for namer in [namer(Some("a secret of this site")), namer(None)] {
            let tag = |key| names(&namer, key).tag;
            assert_eq!(tag("l/recipients/ewma/user=a"), tag("m/bytes/ewma/client=192.0.2.7/user=a/grant=5"));
            assert_eq!(tag("l/recipients/ewma/client=192.0.2.7"), tag("m/bytes/ewma/client=192.0.2.7/sender=b"));
            assert_ne!(tag("l/recipients/ewma/user=a"), tag("l/recipients/ewma/user=b"));
            assert_ne!(tag("l/recipients/ewma"), tag("m/recipients/ewma"));
            let reach = |key| names(&namer, key).reach;
            assert_eq!(reach("m/bytes/ewma/client=192.0.2.7/user=a/grant=5"), Reach::User);
            assert_eq!(reach("l/recipients/ewma/client=192.0.2.7"), Reach::Many);
            assert_eq!(reach("l/recipients/ewma"), Reach::All);
        }
    }

    #[test]
    fn entries_beside_a_state_are_told_from_it() {
        let (hidden, clear) = (namer(Some("a secret of this site")), namer(None));
        let name = names(&hidden, "l/recipients/ewma/user=alice");
        assert!(hidden.may_be_state(&name.state));
        assert!(!hidden.may_be_state(&name.filter()) && !hidden.may_be_state(&name.log()));
        assert!(clear.may_be_state(&names(&clear, "l/recipients/ewma/client=2001:db8::f").state));
        for namer in [hidden, clear] {
            assert!(!namer.may_be_state(&namer.common("exceptions")));
        }
    }

    #[test]
    fn clear_names_can_be_read() {
        let name = names(&namer(None), "l/recipients/ewma/user=alice");
        assert_eq!(&*name.state, b"weir:1:{user=alice}:l\x1frecipients\x1fewma\x1fuser=alice");
    }
}
