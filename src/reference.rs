//! Reference of a refusal: `mp3x9abc-k3f7q2-1x7k` in the reply and in the log. It has the time of the refusal, a tag of
//! its group, so that it leads to a stored record even if the records of a flood are coalesced, and a number that no
//! other refusal of this time and group has. References of earlier versions are shorter: `mp3x9abc-k3f7q-1`.

use crate::time::Timestamp;
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Reference of a refusal: time in milliseconds since 1970 in base 36, tag of the group, number of the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Time of the refusal, in milliseconds since 1970.
    pub millis: u64,
    pub tag: Tag,
    /// Number of the refusal: see [`number_in`].
    pub number: u64,
}

/// Tag of a group of refusals with the same cause, stage and owner. Two groups can have the same tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Hash of cause and stage, below 36².
    cause: u16,
    /// Hash of the owner, below 36⁴.
    owner: u32,
    /// True for the tags of earlier versions, whose hash of the owner is below 36³.
    is_short: bool,
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
        f.write_str("a reference looks like mp3x9abc-k3f7q-1: letters and digits, a tag of 6, and a number")
    }
}

impl std::error::Error for MalformedReference {}

/// Digits of the two parts of a tag.
const CAUSE_DIGITS: usize = 2;
const OWNER_DIGITS: usize = 4;
/// Digits of the owner in the tags of earlier versions.
const SHORT_OWNER_DIGITS: usize = 3;

/// Last digits of a number, which differ between sessions.
const SESSION_DIGITS: usize = 3;
/// Refusals of a session after which the numbers begin again: as many as have room in a number.
const MAX_COUNT: u64 = 36_u64.pow(6);

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Maximum digits of the time and of the number. Such times are before the year 5200.
const MAX_DIGITS: usize = 9;

impl Reference {
    pub fn new(now: Timestamp, tag: Tag, number: u64) -> Self {
        Self { millis: u64::try_from(now.micros() / 1_000).unwrap_or_default(), tag, number }
    }

    /// Returns the time of the refusal, rounded down to milliseconds.
    pub fn time(&self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.millis).unwrap_or(i64::MAX).saturating_mul(1_000))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = base_36(self.millis, 1);
        match self.tag.is_short {
            true => write!(f, "{time}-{}-{}", self.tag, self.number),
            false => write!(f, "{time}-{}-{}", self.tag, base_36(self.number, SESSION_DIGITS + 1)),
        }
    }
}

impl FromStr for Reference {
    type Err = MalformedReference;

    /// Parses a reference. Accepts capitals, and the parentheses of a reply.
    fn from_str(text: &str) -> Result<Self, MalformedReference> {
        let text = text.trim().trim_matches(['(', ')']);
        // In a flood, Weir parses its own references, which need no copy.
        let has_capitals = text.bytes().any(|b| b.is_ascii_uppercase());
        let text = if has_capitals { Cow::Owned(text.to_ascii_lowercase()) } else { Cow::Borrowed(text) };
        let mut parts = text.split('-');
        let (Some(time), Some(tag), Some(number), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(MalformedReference);
        };
        let tag: Tag = tag.parse()?;
        let number = match tag.is_short {
            true => from_decimal(number)?,
            false if number.len() > SESSION_DIGITS => from_base_36(number)?,
            false => return Err(MalformedReference),
        };
        Ok(Self { millis: from_base_36(time)?, tag, number })
    }
}

/// Returns the number of a refusal: its count in the session, from 1, and the last digits of the session's name. Two
/// sessions of the same time have different last digits, so the references of their refusals differ.
pub fn number_in(session: &str, count: u32) -> u64 {
    let sessions = 36_u64.pow(SESSION_DIGITS as u32);
    let at = session.len().saturating_sub(SESSION_DIGITS);
    let last = session.get(at..).and_then(|last| from_base_36(last).ok());
    let last = last.unwrap_or_else(|| fnv_1a([session.as_bytes()]) % sessions);
    u64::from(count) % MAX_COUNT * sessions + last
}

impl Tag {
    /// Returns the tag of a group. `cause` is the name of a limit, [`SUSPENDED`] or [`SENDER_MISMATCH`].
    pub fn new(cause: &str, stage: &str, refusee: Refusee<'_>) -> Self {
        let owner = match refusee {
            Refusee::User(user) => fnv_1a([b"user ", user.as_bytes()]),
            Refusee::Client(client) => fnv_1a([b"client ", &network(client)]),
        };
        let cause = fnv_1a([stage.as_bytes(), cause.as_bytes()]);
        let short = |hash: u64, digits: usize| hash % 36_u64.pow(digits as u32);
        let (cause, owner) = (short(cause, CAUSE_DIGITS) as u16, short(owner, OWNER_DIGITS) as u32);
        Self { cause, owner, is_short: false }
    }

    /// Returns the part of the tag that is the same for all owners, as text.
    pub fn cause(self) -> String {
        base_36(u64::from(self.cause), CAUSE_DIGITS)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.is_short { SHORT_OWNER_DIGITS } else { OWNER_DIGITS };
        write!(f, "{}{}", self.cause(), base_36(u64::from(self.owner), digits))
    }
}

impl FromStr for Tag {
    type Err = MalformedReference;

    fn from_str(text: &str) -> Result<Self, MalformedReference> {
        let (cause, owner) = text.split_at_checked(CAUSE_DIGITS).ok_or(MalformedReference)?;
        let is_short = match owner.len() {
            OWNER_DIGITS => false,
            SHORT_OWNER_DIGITS => true,
            _ => return Err(MalformedReference),
        };
        // Both numbers fit, because 36² is below 2^16, and 36⁴ below 2^32.
        Ok(Self { cause: from_base_36(cause)? as u16, owner: from_base_36(owner)? as u32, is_short })
    }
}

impl Refusee<'_> {
    /// Returns the owner as text: `user=alice`, or the network of the client that refusals have in common:
    /// `client=192.0.2.0/24`.
    pub fn text(self) -> String {
        match self {
            Self::User(user) => format!("user={user}"),
            Self::Client(client) => match Self::network(client) {
                network @ IpAddr::V4(_) => format!("client={network}/24"),
                network @ IpAddr::V6(_) => format!("client={network}/56"),
            },
        }
    }

    /// Returns the first address of the IPv4 /24 or IPv6 /56 of a client: the networks of the login history.
    pub fn network(client: IpAddr) -> IpAddr {
        match client.to_canonical() {
            IpAddr::V4(client) => IpAddr::V4(Ipv4Addr::from_bits(client.to_bits() & (u32::MAX << 8))),
            IpAddr::V6(client) => IpAddr::V6(Ipv6Addr::from_bits(client.to_bits() & (u128::MAX << 72))),
        }
    }
}

/// Returns the octets of the network of a client.
fn network(client: IpAddr) -> Vec<u8> {
    match Refusee::network(client) {
        IpAddr::V4(network) => network.octets().into_iter().take(3).collect(),
        IpAddr::V6(network) => network.octets().into_iter().take(7).collect(),
    }
}

/// Returns the hash of the parts, by FNV-1a. Its values are in replies and in the state file, so they must stay the
/// same in all versions of Weir. Two owners can have the same tag, by chance or because a client chose its address so:
/// the store keeps their records apart, and says that several refusals have the reference.
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

/// Parses the number of an earlier version: at most 10 digits, below 2^32.
fn from_decimal(text: &str) -> Result<u64, MalformedReference> {
    let is_number = text.len() <= 10 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse::<u32>().ok().filter(|_| is_number).map(u64::from).ok_or(MalformedReference)
}

/// Parses at most [`MAX_DIGITS`] digits.
fn from_base_36(text: &str) -> Result<u64, MalformedReference> {
    let is_digit = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
    let is_fit = !text.is_empty() && text.len() <= MAX_DIGITS && text.bytes().all(is_digit);
    if is_fit { u64::from_str_radix(text, 36).map_err(|_| MalformedReference) } else { Err(MalformedReference) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_was_written() {
        let tag = Tag::new("user-recipients", "rcpt", Refusee::User("alice"));
        let number = number_in("loyw3v28abcx7k", 1);
        let reference = Reference::new(Timestamp::from_micros(1_700_000_000_123_456), tag, number);
        let text = reference.to_string();
        assert_eq!(text, format!("loyw3v5n-{tag}-1x7k"));
        assert_eq!((text.parse(), text.to_uppercase().parse()), (Ok(reference), Ok(reference)));
        assert_eq!(format!(" ({text})").parse(), Ok(reference));
        assert_eq!(reference.time(), Timestamp::from_micros(1_700_000_000_123_000));
        for wrong in [
            "",
            "-",
            "loyw3v5n",
            "hocvofwl8x005-1",
            "loyw3v5n-abcd-1",
            "loyw3v5n-abcdefg-1",
            "loyw3v5n-abcde-",
            "loyw3v5n-abcdef-",
            "loyw3v5n-abcde--1",
            "loyw3v5n-abcde-+1",
            "loyw3v5n-abcdef-+1",
            "loyw3v5n-abcdef-1x7",
            "whoever-logged-in",
            "loyw3v5n-abcde-x1",
            "loyw3v5n-abcde-1-1",
            "loyw3v5n-abcde-4294967296",
            "loyw3v5n-abcdef-1234567890",
            "loyw3v5nxx-abcde-1",
            "loyw3v5n-ab\u{e9}de-1",
            "-abcde-1",
            "\u{1b}[2J-abcde-1",
        ] {
            assert_eq!(wrong.parse::<Reference>(), Err(MalformedReference), "{wrong:?}");
        }
    }

    #[test]
    fn a_reference_of_an_earlier_version_is_read_as_it_was_written() {
        let reference: Reference = "mp3x9abc-k3f7q-1234".parse().unwrap();
        assert_eq!((reference.number, reference.to_string().as_str()), (1234, "mp3x9abc-k3f7q-1234"));
        assert_ne!(reference.tag, "k3f7q0".parse().unwrap());
        assert_ne!(reference.tag, "k30f7q".parse().unwrap());
    }

    #[test]
    fn refusals_of_different_sessions_or_counts_have_different_numbers() {
        assert_eq!(number_in("loyw3v28abcx7k", 2) - number_in("loyw3v28abcx7k", 1), 46_656);
        assert_ne!(number_in("loyw3v28abcx7k", 1), number_in("loyw3v28abcx7m", 1));
        // A session's name can be any text.
        assert!([0, 1, u32::MAX].iter().all(|count| number_in("\u{e9}", *count) < 36_u64.pow(9)));
    }

    #[test]
    fn the_text_of_a_client_is_its_network() {
        let text = |client: &str| Refusee::Client(client.parse().unwrap()).text();
        assert_eq!(text("::ffff:192.0.2.250"), "client=192.0.2.0/24");
        assert_eq!(text("2001:db8:0:1ff::7"), "client=2001:db8:0:100::/56");
        assert_eq!(Refusee::User("alice").text(), "user=alice");
    }

    #[test]
    fn a_tag_stays_the_same_in_all_versions() {
        // References of earlier versions must find their records: do not change these values.
        let network = |client: &str| Refusee::Client(client.parse().unwrap());
        for (cause, stage, refusee, tag) in [
            ("user-recipients", "rcpt", Refusee::User("alice"), "jj53rf"),
            ("user-recipients", "rcpt", Refusee::User("bob"), "jjs5vs"),
            ("user-recipients", "mail", Refusee::User("alice"), "wg53rf"),
            (SUSPENDED, "rcpt", network("192.0.2.7"), "75ak6f"),
            (SUSPENDED, "rcpt", network("::ffff:192.0.2.250"), "75ak6f"),
            (SENDER_MISMATCH, "mail", network("2001:db8:0:1ff::7"), "91nxi9"),
        ] {
            assert_eq!(Tag::new(cause, stage, refusee).to_string(), tag);
        }
    }
}
