//! Dovecot's authentication protocol, version 1: lines to and from the socket `auth-client`, without input and output.
//!
//! A line is a command and its parameters, separated by tabs. The octet 1 escapes NUL, tab, line ends and itself. Both
//! sides begin with a handshake: `VERSION` and `CPID` of the client, `VERSION`, `MECH`, `SPID`, `CUID`, `COOKIE` and
//! `DONE` of Dovecot. Then each request (`AUTH`) has an id, and Dovecot answers it with `OK`, `FAIL`, or `CONT` with a
//! challenge, which the client answers with `CONT`. Unknown commands and parameters are ignored, as the protocol
//! demands.

use crate::accounts::users_file::parse_groups;
use crate::groups::Groups;
use crate::smtp::mechanism::Mechanism;
use crate::smtp::sasl::{Response, is_user_name};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Maximum octets of a line that Dovecot accepts.
const MAX_SENT: usize = 16_384;

/// Maximum octets of a line that Weir accepts. The lines of Dovecot are about as long as those that it accepts.
pub const MAX_LINE: usize = 32_768;

/// Maximum octets of a challenge. In base64 it must fit into the 12,288 octets of RFC 4954 §4.
const MAX_CHALLENGE: usize = 9000;

/// Maximum parameters of a line.
const MAX_PARAMETERS: usize = 256;

/// Client of Weir that logs in, as Dovecot is told.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// The client's address.
    pub address: IpAddr,
    /// Address of Weir to which the client has connected.
    pub local: Option<SocketAddr>,
    /// The session's id in Weir's log.
    pub session: &'a str,
    /// True if the client uses TLS.
    pub is_encrypted: bool,
}

/// A line of Dovecot. `Debug` prints no message to the client, from which a password perhaps can be guessed.
#[derive(PartialEq, Eq)]
pub enum Line {
    Version {
        major: Box<str>,
    },
    /// A mechanism that Weir can offer to its clients. Other mechanisms are [`Line::Other`].
    Mechanism(Mechanism),
    /// The end of the handshake.
    Done,
    /// A challenge.
    Continue {
        id: u32,
        challenge: Vec<u8>,
    },
    Ok {
        id: u32,
        user: Arc<str>,
        groups: Groups,
        /// Last message of the server, which the client expects before the success.
        last: Option<Vec<u8>>,
    },
    Fail {
        id: u32,
        failure: Failure,
    },
    /// A line that Weir does not need.
    Other,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { major } => write!(f, "Version({major:?})"),
            Self::Mechanism(mechanism) => write!(f, "Mechanism({mechanism:?})"),
            Self::Done => f.write_str("Done"),
            Self::Continue { id, .. } => write!(f, "Continue({id}, <redacted>)"),
            Self::Ok { id, user, groups, .. } => write!(f, "Ok({id}, {user:?}, {groups:?}, <redacted>)"),
            Self::Fail { id, failure } => write!(f, "Fail({id}, {failure:?})"),
            Self::Other => f.write_str("Other"),
        }
    }
}

/// Reason why a login has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The user is unknown, or the credentials are wrong. Dovecot does not say which.
    Wrong,
    /// Dovecot cannot answer now.
    Temporary,
    /// The credentials are right, but Dovecot refuses the login, for this reason.
    Refused(&'static str),
}

/// Error in a line of Dovecot. The text is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// Returns the client's part of the handshake. Dovecot uses the process id only in its log.
pub fn handshake(process: u32) -> String {
    format!("VERSION\t1\t2\nCPID\t{process}\n")
}

/// Returns the line that begins a request. Returns `None` if the line would be too long for Dovecot.
///
/// With `no-penalty`, Dovecot does not delay logins because of the client's earlier failures: Weir has its own limits
/// and pauses, and a login that waits in Dovecot would keep a connection from the logins of other clients.
pub fn auth(id: u32, mechanism: &Mechanism, peer: &Peer<'_>, response: Option<&Response>) -> Option<String> {
    let mut line = format!("AUTH\t{id}\t{}\tservice=smtp\tnologin\tno-penalty", mechanism.name());
    if peer.is_encrypted {
        line.push_str("\tsecured");
    }
    line.push_str(&format!("\tsession={}\trip={}", escaped(peer.session), peer.address.to_canonical()));
    if let Some(local) = peer.local {
        line.push_str(&format!("\tlip={}\tlport={}", local.ip().to_canonical(), local.port()));
    }
    match response {
        None => {}
        // An equals sign is an empty response.
        Some(Response(octets)) if octets.is_empty() => line.push_str("\tresp=="),
        // Dovecot requires that this is the last parameter.
        Some(Response(octets)) => line.push_str(&format!("\tresp={}", STANDARD.encode(octets))),
    }
    finished(line)
}

/// Returns the line that answers a challenge. Returns `None` if the line would be too long for Dovecot.
pub fn continuation(id: u32, response: &Response) -> Option<String> {
    finished(format!("CONT\t{id}\t{}", STANDARD.encode(&response.0)))
}

/// Returns the line that ends a request.
pub fn cancellation(id: u32) -> String {
    format!("CANCEL\t{id}\n")
}

fn finished(mut line: String) -> Option<String> {
    line.push('\n');
    (line.len() <= MAX_SENT).then_some(line)
}

/// Parses a line of Dovecot, without its line end.
pub fn parse(line: &[u8]) -> Result<Line, Malformed> {
    let text = std::str::from_utf8(line).map_err(|_| Malformed("a line is not UTF-8"))?;
    let mut parameters = text.split('\t');
    let command = parameters.next().unwrap_or_default();
    if parameters.clone().nth(MAX_PARAMETERS).is_some() {
        return Err(Malformed("a line has too many parameters"));
    }
    match command {
        "VERSION" => Ok(Line::Version { major: parameters.next().unwrap_or_default().into() }),
        "MECH" => Ok(mechanism(parameters)),
        "DONE" => Ok(Line::Done),
        "CONT" => {
            let id = id(parameters.next())?;
            let challenge = message(parameters.next().unwrap_or_default(), "a challenge is not base64")?;
            Ok(Line::Continue { id, challenge })
        }
        "OK" => success(id(parameters.next())?, parameters),
        "FAIL" => Ok(Line::Fail { id: id(parameters.next())?, failure: failure(parameters) }),
        _ => Ok(Line::Other),
    }
}

/// Decodes a message to the client. `why` is the error if it is not base64.
fn message(text: &str, why: &'static str) -> Result<Vec<u8>, Malformed> {
    let message = STANDARD.decode(text).map_err(|_| Malformed(why))?;
    if message.len() > MAX_CHALLENGE { Err(Malformed("a challenge is too long")) } else { Ok(message) }
}

fn id(parameter: Option<&str>) -> Result<u32, Malformed> {
    parameter.and_then(|id| id.parse().ok()).ok_or(Malformed("a reply has no id"))
}

/// Parses the parameters of `MECH`: name and flags. Leaves out the mechanisms that must not be offered: anonymous and
/// private ones, EXTERNAL, whose certificate Dovecot does not see, and those with channel binding, which would bind to
/// the connection between Weir and Dovecot.
fn mechanism<'a>(mut parameters: impl Iterator<Item = &'a str>) -> Line {
    let name = parameters.next().unwrap_or_default();
    let is_hidden = parameters.any(|flag| ["anonymous", "private", "channel-binding"].contains(&flag));
    let usable = Mechanism::new(name).filter(|mechanism| {
        let name = mechanism.name();
        !is_hidden && !["ANONYMOUS", "EXTERNAL"].contains(&&**name) && !name.ends_with("-PLUS")
    });
    usable.map_or(Line::Other, Line::Mechanism)
}

/// Parses the parameters of `OK`. The groups are those of the extra field `groups`, as in a users file.
///
/// The credentials are right, but some extra fields say that the login is not: `nologin` refuses it, and with `proxy`,
/// Dovecot has perhaps not checked the password, because another server will.
fn success<'a>(id: u32, parameters: impl Iterator<Item = &'a str>) -> Result<Line, Malformed> {
    let (mut user, mut groups, mut last, mut failure) = (None, Groups::default(), None, None);
    for parameter in parameters {
        match parameter.split_once('=').unwrap_or((parameter, "")) {
            ("user", name) => user = Some(unescaped(name)),
            ("groups", names) => {
                groups = parse_groups(&unescaped(names)).map_err(|_| Malformed("the field groups has bad names"))?;
            }
            ("nologin", _) => failure = failure.or(Some(Failure::Refused("account disabled"))),
            ("anonymous", _) => failure = failure.or(Some(Failure::Refused("anonymous login"))),
            ("proxy", _) => {
                return Err(Malformed("a login has the field proxy, so its password is perhaps not checked"));
            }
            ("resp", text) => last = Some(message(text, "a last message is not base64")?),
            _ => {}
        }
    }
    if let Some(failure) = failure {
        return Ok(Line::Fail { id, failure });
    }
    let user = user.filter(|name| is_user_name(name)).ok_or(Malformed("a login has no valid user name"))?;
    Ok(Line::Ok { id, user: user.as_ref().into(), groups, last: last.filter(|last| !last.is_empty()) })
}

/// Parses the parameters of `FAIL`: flags of earlier versions, or the parameter `code`.
fn failure<'a>(parameters: impl Iterator<Item = &'a str>) -> Failure {
    let mut failure = Failure::Wrong;
    for parameter in parameters {
        failure = match parameter {
            "temp" | "code=temp_fail" => return Failure::Temporary,
            "user_disabled" | "code=user_disabled" => Failure::Refused("account disabled"),
            "pass_expired" | "code=pass_expired" => Failure::Refused("password expired"),
            "authz" | "code=authz_fail" => Failure::Refused("not permitted to log in as this user"),
            _ => failure,
        };
    }
    failure
}

/// Escapes the octets that would end a parameter or a line.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\x01', '\t', '\r', '\n']) {
        return text.into();
    }
    let escape = |c: char| match c {
        '\0' => "\x010".to_owned(),
        '\x01' => "\x011".to_owned(),
        '\t' => "\x01t".to_owned(),
        '\r' => "\x01r".to_owned(),
        '\n' => "\x01n".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect::<String>().into()
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\x01') {
        return text.into();
    }
    let mut chars = text.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        plain.extend(match c {
            '\x01' => chars.next().map(|code| match code {
                '0' => '\0',
                '1' => '\x01',
                't' => '\t',
                'r' => '\r',
                'n' => '\n',
                other => other,
            }),
            c => Some(c),
        });
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer<'static> {
        Peer {
            address: "192.0.2.7".parse().unwrap(),
            local: "[::ffff:198.51.100.1]:587".parse().ok(),
            session: "abc",
            is_encrypted: true,
        }
    }

    #[test]
    fn a_request_says_who_logs_in_from_where() {
        let plain = Mechanism::new("PLAIN").unwrap();
        let request = |peer, response: Option<&[u8]>| {
            auth(7, &plain, &peer, response.map(|octets| Response(octets.to_vec())).as_ref())
        };
        let begin = "AUTH\t7\tPLAIN\tservice=smtp\tnologin\tno-penalty";
        let end = "session=abc\trip=192.0.2.7";
        assert_eq!(
            request(peer(), Some(b"\0a\0b")),
            Some(format!("{begin}\tsecured\t{end}\tlip=198.51.100.1\tlport=587\tresp=AGEAYg==\n"))
        );
        let unknown = Peer { local: None, is_encrypted: false, session: "a\tb\n", ..peer() };
        let end = "session=a\x01tb\x01n\trip=192.0.2.7";
        assert_eq!(request(unknown, None), Some(format!("{begin}\t{end}\n")));
        assert_eq!(request(unknown, Some(b"")), Some(format!("{begin}\t{end}\tresp==\n")));
        assert!(request(peer(), Some(&[0; 12_000])).is_some() && request(peer(), Some(&[0; 12_288])).is_none());
        assert_eq!(continuation(7, &Response(b"x".to_vec())), Some("CONT\t7\teA==\n".to_owned()));
        assert_eq!(continuation(7, &Response(Vec::new())), Some("CONT\t7\t\n".to_owned()));
        assert_eq!(handshake(9), "VERSION\t1\t2\nCPID\t9\n");
    }

    #[test]
    fn mechanisms_that_must_not_be_offered_are_left_out() {
        for (line, offered) in [
            ("MECH\tPLAIN\tplaintext", true),
            ("MECH\tSCRAM-SHA-256\tmutual-auth", true),
            ("MECH\tX-NEW", true),
            ("MECH\tANONYMOUS\tanonymous", false),
            ("MECH\tanonymous", false),
            ("MECH\tEXTERNAL", false),
            ("MECH\tAPOP\tprivate\tdictionary\tactive", false),
            ("MECH\tSCRAM-SHA-256-PLUS\tmutual-auth\tchannel-binding", false),
            ("MECH\tSCRAM-SHA-1-PLUS", false),
            ("MECH\tTWO WORDS", false),
            ("MECH", false),
        ] {
            assert_eq!(matches!(parse(line.as_bytes()), Ok(Line::Mechanism(_))), offered, "{line:?}");
        }
    }

    #[test]
    fn lines_of_dovecot_are_read() {
        let ok = |user: &str, groups: &[&str], last: Option<&[u8]>| {
            let groups = groups.iter().map(|group| Box::from(*group)).collect();
            Ok(Line::Ok { id: 3, user: user.into(), groups, last: last.map(<[u8]>::to_vec) })
        };
        let fail = |failure| Ok(Line::Fail { id: 3, failure });
        for (line, expected) in [
            ("VERSION\t1\t2", Ok(Line::Version { major: "1".into() })),
            ("VERSION", Ok(Line::Version { major: "".into() })),
            ("DONE", Ok(Line::Done)),
            ("SPID\t9", Ok(Line::Other)),
            ("", Ok(Line::Other)),
            ("CONT\t3\teA==", Ok(Line::Continue { id: 3, challenge: b"x".to_vec() })),
            ("CONT\t3\t", Ok(Line::Continue { id: 3, challenge: Vec::new() })),
            ("CONT\t3", Ok(Line::Continue { id: 3, challenge: Vec::new() })),
            ("OK\t3\tuser=alice", ok("alice", &[], None)),
            ("OK\t3\tuser=alice\tgroups=Staff,admins,staff\tx=y\ty", ok("alice", &["admins", "staff"], None)),
            ("OK\t3\tuser=alice\tnologin\treason=left", fail(Failure::Refused("account disabled"))),
            ("OK\t3\tuser=alice\tanonymous", fail(Failure::Refused("anonymous login"))),
            ("OK\t3\tresp=dj0x\tuser=alice", ok("alice", &[], Some(b"v=1"))),
            ("FAIL\t3", fail(Failure::Wrong)),
            ("FAIL\t3\tuser=alice\treason=no", fail(Failure::Wrong)),
            ("FAIL\t3\tuser=alice\ttemp", fail(Failure::Temporary)),
            ("FAIL\t3\tcode=user_disabled\tcode=temp_fail", fail(Failure::Temporary)),
            ("FAIL\t3\tuser=alice\tuser_disabled", fail(Failure::Refused("account disabled"))),
            ("FAIL\t3\tcode=pass_expired", fail(Failure::Refused("password expired"))),
            ("FAIL\t3\tuser=a\x01\tauthz", fail(Failure::Refused("not permitted to log in as this user"))),
        ] {
            assert_eq!(parse(line.as_bytes()), expected, "{line:?}");
        }
        assert_eq!(unescaped("a\x01tb\x01n\x011\x010\x01x\x01"), "a\tb\n\x01\0x");
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        for line in [
            "OK\t3",
            "OK\t3\tuser=",
            "OK\t3\tuser=a\x01nb",
            "OK\t3\tuser=a b",
            "OK\t3\tuser=a\tproxy",
            "OK\tx\tuser=a",
            "OK\t3\tuser=a\tgroups=two words",
            "OK\t3\tuser=a\tresp=!",
            "CONT\t3\tnot base64",
            "CONT",
            "FAIL\t-1",
            &format!("CONT\t3\t{}", "AAAA".repeat(3001)),
            &format!("OK\t3\tuser=a\tresp={}", "AAAA".repeat(3001)),
            &format!("OK\t3\tuser=a{}", "\tx".repeat(300)),
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line:?}");
        }
        assert!(parse(b"OK\t3\tuser=\xff").is_err());
    }

    #[test]
    fn messages_to_the_client_are_never_printed() {
        for line in ["CONT\t3\tc2VjcmV0", "OK\t3\tuser=alice\tresp=c2VjcmV0"] {
            let printed = format!("{:?}", parse(line.as_bytes()));
            // The octets of `secret`, as a list.
            assert!(printed.contains("<redacted>") && !printed.contains("115, 101, 99"), "{printed}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_panic(line in "(OK|FAIL|CONT|MECH|VERSION)?[\t\x01-\x03a-z0-9=,]{0,60}") {
            let _ = parse(line.as_bytes());
        }

        #[test]
        fn escapes_are_undone(text in "[\\x00-\\x0f\t\r\na-c]{0,20}") {
            let escaped = escaped(&text).into_owned();
            proptest::prop_assert!(!escaped.contains(['\t', '\n', '\0', '\r']));
            proptest::prop_assert_eq!(&*unescaped(&escaped), &text);
        }
    }
}
