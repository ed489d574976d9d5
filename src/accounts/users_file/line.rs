//! A line of the users file. The number of its columns tells which program it is from:
//!
//! * two or three columns: `name:hash` or `name:hash:group,group` of Weir, or `name:hash` of htpasswd. A `!` before the
//!   hash disables the user;
//! * nine columns, all from the third on empty or numbers: shadow(5). The eighth is the day on which the account expires;
//! * four columns or more: Dovecot's passwd-file, or passwd(5). From the eighth column on come Dovecot's extra fields.

use crate::accounts::login_networks::{self, Networks};
use crate::accounts::password_hash::StoredHash;
use crate::clock;
use crate::groups::Groups;
use crate::smtp::sasl::{self, Verified};
use crate::time::Timestamp;
use ring::hmac;
use std::collections::BTreeSet;
use std::fmt;

/// A user of the users file. `Debug` prints no hash, since the hash of `{PLAIN}` is the password.
#[derive(Clone)]
pub struct User {
    pub name: String,
    is_disabled: bool,
    /// When the account expires, if it does.
    expires: Option<Timestamp>,
    /// The hash as it is in the file.
    text: Box<str>,
    hash: StoredHash,
    groups: Groups,
    login_networks: Option<Networks>,
    /// The whole line, if it is from another program.
    foreign: Option<Box<str>>,
}

impl User {
    /// Creates a user of Weir with this hash.
    pub fn new(name: &str, hash: &str, groups: Groups) -> Result<Self, &'static str> {
        let (name, text) = (name.to_owned(), hash.into());
        let (hash, login_networks) = (hash.parse()?, None);
        Ok(Self { name, is_disabled: false, expires: None, text, hash, groups, login_networks, foreign: None })
    }

    pub fn parse(line: &str) -> Result<Self, &'static str> {
        let (name, rest) = line.split_once(':').ok_or("a line is name:hash, or name:hash:group,group")?;
        check_name(name)?;
        let (hash, columns) = rest.split_once(':').unwrap_or((rest, ""));
        let columns: Vec<&str> = if columns.is_empty() { Vec::new() } else { columns.split(':').collect() };
        let is_disabled = hash.starts_with('!');
        // `!` alone stands for a user without a password, as `*` does.
        let text = hash.strip_prefix('!').map_or(hash, |text| if text.is_empty() { "*" } else { text });
        let user = Self { is_disabled, ..Self::new(name, text, Groups::default())? };
        match columns[..] {
            [] => Ok(user),
            [groups] => Ok(Self { groups: parse_groups(groups)?, ..user }),
            _ => {
                let user = Self { foreign: Some(line.into()), ..user };
                if is_shadow(&columns) { Ok(user.shadow(&columns)) } else { user.dovecot(&columns) }
            }
        }
    }

    /// Takes the day of expiry from the columns of a shadow file.
    fn shadow(self, columns: &[&str]) -> Self {
        let day = columns.get(5).and_then(|day| day.parse::<i64>().ok());
        Self { expires: day.map(|day| Timestamp::from_micros(day.saturating_mul(86_400_000_000))), ..self }
    }

    /// Takes groups and restrictions from the extra fields of a Dovecot passwd-file.
    fn dovecot(mut self, columns: &[&str]) -> Result<Self, &'static str> {
        // An extra field can have colons.
        let extra = columns.get(5..).unwrap_or_default().join(":");
        for field in extra.split_ascii_whitespace() {
            match field.split_once('=').unwrap_or((field, "")) {
                ("groups", groups) => self.groups = parse_groups(groups)?,
                ("nologin", _) => self.is_disabled = true,
                ("allow_nets", networks) => self.login_networks = Some(login_networks::parse(networks)?),
                // These networks are of the proxy that connects to Dovecot, not of the client.
                ("allow_real_nets", _) => {
                    return Err("Weir cannot restrict a user to the proxies of allow_real_nets; allow_nets works");
                }
                _ => {}
            }
        }
        Ok(self)
    }

    /// Returns whether the user is disabled, or has expired.
    pub fn is_disabled(&self) -> bool {
        self.is_disabled || self.expires.is_some_and(|expires| clock::now() >= expires)
    }

    /// Returns whether the line is from another program, so that Weir must not change it.
    pub fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    pub(super) fn has_password(&self) -> bool {
        !matches!(self.hash, StoredHash::Locked)
    }

    /// Group names in lower case, in alphabetical order.
    pub fn groups(&self) -> &[Box<str>] {
        &self.groups
    }

    /// Returns the result of a right login of this user.
    pub fn right(&self) -> Verified {
        Verified::Right { user: self.name.as_str().into(), groups: self.shared_groups() }
    }

    pub fn shared_groups(&self) -> Groups {
        self.groups.clone()
    }

    /// Networks from which the user is expected to log in, if the line names them.
    pub fn login_networks(&self) -> Option<Networks> {
        self.login_networks.clone()
    }

    pub(super) fn hash(&self) -> &StoredHash {
        &self.hash
    }

    /// The hash of the password, as it is in the file.
    pub fn hash_text(&self) -> &str {
        &self.text
    }

    /// Returns a fingerprint of the hash, by which a change is found; `None` if the user has no password. It has 16 bits
    /// only, and is always the same for a hash. So a copy of many fingerprints confirms no guess, even if the file has
    /// unsalted hashes or plain passwords. One change in 65,536 is not found.
    pub fn password_fingerprint(&self) -> Option<u16> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.name.to_lowercase().as_bytes());
        let tag = hmac::sign(&key, self.text.as_bytes());
        let short = tag.as_ref().first_chunk().map(|octets| u16::from_be_bytes(*octets));
        short.filter(|_| self.has_password())
    }

    /// Returns the user with another hash, which Weir made.
    pub(super) fn with_hash(self, hash: &str) -> Result<Self, &'static str> {
        Ok(Self { text: hash.into(), hash: hash.parse()?, ..self })
    }

    pub(super) fn with_groups(self, groups: Groups) -> Self {
        Self { groups, ..self }
    }

    pub(super) fn with_disabled(self, is_disabled: bool) -> Self {
        Self { is_disabled, ..self }
    }
}

/// The line of the file, without a line end.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = &self.foreign {
            return f.write_str(line);
        }
        write!(f, "{}:{}{}", self.name, if self.is_disabled { "!" } else { "" }, self.text)?;
        if self.groups.is_empty() { Ok(()) } else { write!(f, ":{}", self.groups.join(",")) }
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({})", self.name)
    }
}

/// Returns whether these are the columns of a shadow file after the hash: seven, each empty or a number.
fn is_shadow(columns: &[&str]) -> bool {
    columns.len() == 7 && columns.iter().all(|column| column.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
}

/// Parses group names with commas between them.
pub fn parse_groups(names: &str) -> Result<Groups, &'static str> {
    let names: Vec<&str> = match names.trim() {
        "" => Vec::new(),
        names => names.split(',').map(str::trim).collect(),
    };
    sorted(&names).map_err(|_| GROUP_NAMES)
}

pub fn check_name(name: &str) -> Result<(), &'static str> {
    if !sasl::is_user_name(name) || name.starts_with('#') {
        return Err(
            "a user name has up to 255 letters, digits and signs; no colon, no space, and no \"#\" at its beginning",
        );
    }
    Ok(())
}

/// Returns the group names in lower case, sorted and without duplicates. Returns the first invalid name as an error.
pub fn sorted<'a>(names: &[&'a str]) -> Result<Groups, &'a str> {
    let is_good = |name: &str| {
        let is_fit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        (1..=64).contains(&name.len()) && name.bytes().all(is_fit)
    };
    match names.iter().find(|name| !is_good(name)) {
        Some(bad) => Err(bad),
        None => {
            let groups: BTreeSet<Box<str>> = names.iter().map(|name| name.to_ascii_lowercase().into()).collect();
            Ok(groups.into_iter().collect())
        }
    }
}

pub const GROUP_NAMES: &str = "groups have up to 64 letters, digits, hyphens, dots and underscores";
