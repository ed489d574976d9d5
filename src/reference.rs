//! Reference of a refusal: `mp3x9abc-k3f7q-1` in the reply and in the log. It has the time of the refusal, and a tag of
//! its group, so that it leads to a stored record even if the records of a flood are coalesced.

use crate::time::Timestamp;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Reference of a refusal: time in milliseconds since 1970 in base 36, tag of the group, number of the refusal in its
/// session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Time of the refusal, in milliseconds since 1970.
    pub millis: u64,
    pub tag: Tag,
    /// Number of the refusal in its session, from 1.
    pub number: u32,
}

/// Tag of a group of refusals with the same cause, stage and owner. Two groups can have the same tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Hash of cause and stage, below 36².
    cause: u16,
    /// Hash of the owner, below 36³.
    owner: u16,
}

/// Owner of a refused event: the user, or else the client.
#[derive(Clone, Copy, Debug)]
pub enum Refusee<'a> {
    User(&'a str),
    Client(IpAddr),
}

/// Cause of the refusals of suspended clients, users, senders and user domains. No limit has this name.
pub const SUSPENDED: &str = "suspended ";
/// Cause of the refusals of senders as which a user may not send. No limit has this name.
pub const SENDER_MISMATCH: &str = "sender-mismatch ";

/// Error: a text is not a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedReference;

impl fmt::Display for MalformedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a reference looks like mp3x9abc-k3f7q-1: letters and digits, a tag of 5, and a number")
    }
}

impl std::error::Error for MalformedReference {}

/// Digits of the two parts of a tag.
const CAUSE_DIGITS: usize = 2;
const OWNER_DIGITS: usize = 3;

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Maximum digits of the time: such times are before the year 5200.
const MAX_TIME_DIGITS: usize = 9;

impl Reference {
    pub fn new(now: Timestamp, tag: Tag, number: u32) -> Self {
        Self { millis: u64::try_from(now.micros() / 1_000).unwrap_or_default(), tag, number }
    }

    /// Returns the time of the refusal, rounded down to milliseconds.
    pub fn time(&self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.millis).unwrap_or(i64::MAX).saturating_mul(1_000))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", base_36(self.millis, 1), self.tag, self.number)
    }
}

impl FromStr for Reference {
    type Err = MalformedReference;

    /// Parses a reference. Accepts capitals, and the parentheses of a reply.
    fn from_str(text: &str) -> Result<Self, MalformedReference> {
        let text = text.trim().trim_matches(['(', ')']).to_ascii_lowercase();
        let mut parts = text.split('-');
        let (Some(time), Some(tag), Some(number), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(MalformedReference);
        };
        let is_number = number.len() <= 10 && number.bytes().all(|b| b.is_ascii_digit());
        let number = number.parse().ok().filter(|_| is_number).ok_or(MalformedReference)?;
        if time.len() > MAX_TIME_DIGITS {
            return Err(MalformedReference);
        }
        Ok(Self { millis: from_base_36(time)?, tag: tag.parse()?, number })
    }
}

impl Tag {
    /// Returns the tag of a group. `cause` is the name of a limit, [`SUSPENDED`] or [`SENDER_MISMATCH`].
    pub fn new(cause: &str, stage: &str, refusee: Refusee<'_>) -> Self {
        let owner = match refusee {
            Refusee::User(user) => fnv_1a([b"user ", user.as_bytes()]),
            Refusee::Client(client) => fnv_1a([b"client ", &network(client)]),
        };
        let cause = fnv_1a([stage.as_bytes(), cause.as_bytes()]);
        let short = |hash: u64, digits: usize| (hash % 36_u64.pow(digits as u32)) as u16;
        Self { cause: short(cause, CAUSE_DIGITS), owner: short(owner, OWNER_DIGITS) }
    }

    /// Returns the part of the tag that is the same for all owners, as text.
    pub fn cause(self) -> String {
        base_36(u64::from(self.cause), CAUSE_DIGITS)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.cause(), base_36(u64::from(self.owner), OWNER_DIGITS))
    }
}

impl FromStr for Tag {
    type Err = MalformedReference;

    fn from_str(text: &str) -> Result<Self, MalformedReference> {
        let (cause, owner) = text.split_at_checked(CAUSE_DIGITS).ok_or(MalformedReference)?;
        if owner.len() != OWNER_DIGITS {
            return Err(MalformedReference);
        }
        // Both numbers fit, because 36³ is below 2^16.
        Ok(Self { cause: from_base_36(cause)? as u16, owner: from_base_36(owner)? as u16 })
    }
}

/// Returns the leading octets of an address: an IPv4 /24 or IPv6 /56, the networks of the login history.
fn network(client: IpAddr) -> Vec<u8> {
    match client.to_canonical() {
        IpAddr::V4(client) => client.octets().into_iter().take(3).collect(),
        IpAddr::V6(client) => client.octets().into_iter().take(7).collect(),
    }
}

/// Returns the hash of the parts, by FNV-1a. Its values are in replies and in the state file, so they must stay the
/// same in all versions of Weir. A client can choose a user name with the tag of another user: such refusals share a
/// coalesced record, as those of a chance collision do.
fn fnv_1a<const N: usize>(parts: [&[u8]; N]) -> u64 {
    // The octet 0 ends each part, so that two lists of parts never run together to the same octets.
    let octets = parts.iter().flat_map(|part| part.iter().copied().chain([0]));
    let hash =
        octets.fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| (hash ^ u64::from(octet)).wrapping_mul(0x100_0000_01b3));
    // The low bits of FNV-1a are weak: mix the high bits in.
    hash ^ (hash >> 32)
}

/// Formats a number with at least `width` digits.
fn base_36(mut number: u64, width: usize) -> String {
    let mut digits = Vec::new();
    while number > 0 || digits.len() < width {
        digits.push(DIGITS.get((number % 36) as usize).copied().unwrap_or_default());
        number /= 36;
    }
    digits.iter().rev().map(|digit| char::from(*digit)).collect()
}

/// Parses at most [`MAX_TIME_DIGITS`] digits.
fn from_base_36(text: &str) -> Result<u64, MalformedReference> {
    let is_fit = !text.is_empty() && text.len() <= MAX_TIME_DIGITS && text.bytes().all(|b| DIGITS.contains(&b));
    if is_fit { u64::from_str_radix(text, 36).map_err(|_| MalformedReference) } else { Err(MalformedReference) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_was_written() {
        let tag = Tag::new("user-recipients", "rcpt", Refusee::User("alice"));
        let reference = Reference::new(Timestamp::from_micros(1_700_000_000_123_456), tag, 7);
        let text = reference.to_string();
        assert_eq!(text, format!("loyw3v5n-{tag}-7"));
        assert_eq!((text.parse(), text.to_uppercase().parse()), (Ok(reference), Ok(reference)));
        assert_eq!(format!(" ({text})").parse(), Ok(reference));
        assert_eq!(reference.time(), Timestamp::from_micros(1_700_000_000_123_000));
        for wrong in [
            "",
            "-",
            "loyw3v5n",
            "hocvofwl8x005-1",
            "loyw3v5n-abcd-1",
            "loyw3v5n-abcdef-1",
            "loyw3v5n-abcde-",
            "loyw3v5n-abcde--1",
            "loyw3v5n-abcde-+1",
            "loyw3v5n-abcde-1-1",
            "loyw3v5n-abcde-4294967296",
            "loyw3v5nxx-abcde-1",
            "loyw3v5n-ab\u{e9}de-1",
            "-abcde-1",
            "\u{1b}[2J-abcde-1",
        ] {
            assert_eq!(wrong.parse::<Reference>(), Err(MalformedReference), "{wrong:?}");
        }
    }

    #[test]
    fn a_tag_stays_the_same_in_all_versions() {
        // References of earlier versions must find their records: do not change these values.
        let network = |client: &str| Refusee::Client(client.parse().unwrap());
        for (cause, stage, refusee, tag) in [
            ("user-recipients", "rcpt", Refusee::User("alice"), "jj3rf"),
            ("user-recipients", "rcpt", Refusee::User("bob"), "jj5vs"),
            ("user-recipients", "mail", Refusee::User("alice"), "wg3rf"),
            (SUSPENDED, "rcpt", network("192.0.2.7"), "75k6f"),
            (SUSPENDED, "rcpt", network("::ffff:192.0.2.250"), "75k6f"),
            (SENDER_MISMATCH, "mail", network("2001:db8:0:1ff::7"), "91xi9"),
        ] {
            assert_eq!(Tag::new(cause, stage, refusee).to_string(), tag);
        }
    }
}
