//! Exchange of a login at an upstream (RFC 4954), with the strongest mechanism that the upstream offers and the
//! configuration allows. Does no input or output: the caller sends the lines and reads the replies.

use super::redaction::Redaction;
use crate::relay::error::RelayError;
use crate::relay::login_secret::{Login, Mechanism, Secret};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use crate::smtp::sasl;
use crate::smtp::scram::{Challenge, ClientFirst, Error, Keys, Proof, Salting};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::VecDeque;

/// A login in progress.
pub struct Authentication {
    /// The initial response, if it did not fit into the AUTH line. Weir sends it when the server asks for it.
    pending: Option<String>,
    stage: Stage,
    sent: Redaction,
}

enum Stage {
    /// PLAIN or LOGIN: the answers to the server's next challenges.
    Answers(VecDeque<String>),
    Token,
    /// The server has given this reason why it refuses the token; the refusal itself is the next reply.
    TokenRefused(String),
    ScramFirst(ClientFirst),
    ScramKeys(Challenge),
    ScramFinal(Proof),
    /// The server has proven that it knows the password; the acceptance of the login is the next reply.
    ScramVerified,
    Over,
}

/// The next step of a login.
pub enum Step {
    /// Send this line, with CRLF added.
    Send(String),
    /// Derive the SCRAM keys, then call [`Authentication::keys`].
    Derive(Salting),
    Done,
    Failed(RelayError),
}

/// Maximum octets of a command line, without its CRLF (RFC 5321 §4.5.3.1.4). If the AUTH line with the initial response
/// would be longer, Weir sends the response when the server asks for it (RFC 4954 §4).
const MAX_COMMAND: usize = 510;

/// Maximum number of characters that the log shows of a server's reason to refuse a token.
const MAX_DETAIL: usize = 300;

impl Authentication {
    /// Begins a login with the strongest mechanism that is offered and allowed. Returns the exchange and its first
    /// line.
    pub fn begin(login: Login, offered: &Extensions) -> Result<(Self, String), RelayError> {
        let mut sent = Redaction::default();
        sent.add(login.secret.in_clear());
        let (name, initial, stage) = match login.secret {
            Secret::Token(bearer) if offered.auth_xoauth2 => ("XOAUTH2", Some(sasl::xoauth2(&bearer)), Stage::Token),
            Secret::Token(_) => return Err(RelayError::NoLogin("XOAUTH2")),
            Secret::Password(credentials, mechanism) => match choose(mechanism, offered)? {
                Mechanism::ScramSha256 => {
                    let first = ClientFirst::new(&credentials, &login.nonce);
                    ("SCRAM-SHA-256", Some(STANDARD.encode(first.message())), Stage::ScramFirst(first))
                }
                Mechanism::Login => ("LOGIN", None, Stage::Answers(sasl::login(&credentials).into())),
                Mechanism::Plain | Mechanism::Any => {
                    ("PLAIN", Some(sasl::plain(&credentials)), Stage::Answers(VecDeque::new()))
                }
            },
        };
        let Some(initial) = initial else { return Ok((Self { pending: None, stage, sent }, format!("AUTH {name}"))) };
        sent.add(&initial);
        let line = format!("AUTH {name} {initial}");
        match line.len() <= MAX_COMMAND {
            true => Ok((Self { pending: None, stage, sent }, line)),
            false => Ok((Self { pending: Some(initial), stage, sent }, format!("AUTH {name}"))),
        }
    }

    /// Processes the reply to the last line sent. Returns the next step.
    pub fn reply(&mut self, reply: Reply) -> Step {
        match self.heard(reply) {
            Step::Failed(RelayError::Login(reply, detail)) => {
                Step::Failed(RelayError::Login(reply.map(|text| self.sent.apply(text)), self.sent.apply(&detail)))
            }
            Step::Failed(RelayError::Scram(Error::Refused(error))) => {
                Step::Failed(RelayError::Scram(Error::Refused(self.sent.apply(&error))))
            }
            step => step,
        }
    }

    fn heard(&mut self, reply: Reply) -> Step {
        match (std::mem::replace(&mut self.stage, Stage::Over), reply.code()) {
            // The server accepts the login, but has not proven that it knows the password. It is perhaps not the real
            // server, and would get all mail.
            (Stage::ScramFirst(_) | Stage::ScramFinal(_) | Stage::ScramKeys(_), 235) => {
                Step::Failed(RelayError::Scram(Error::Signature))
            }
            (_, 235) => Step::Done,
            (stage, 334) => self.challenged(stage, reply),
            (Stage::TokenRefused(detail), _) => Step::Failed(RelayError::Login(reply, detail)),
            _ => Step::Failed(RelayError::Login(reply, String::new())),
        }
    }

    /// Continues with the derived SCRAM keys.
    pub fn keys(&mut self, keys: &Keys) -> Step {
        let Stage::ScramKeys(challenge) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Step::Failed(RelayError::Scram(Error::Signature));
        };
        let proof = challenge.prove(keys);
        let message = STANDARD.encode(proof.message());
        self.advance(Stage::ScramFinal(proof), message)
    }

    /// Answers a reply 334, with which the server demands a further message.
    fn challenged(&mut self, stage: Stage, reply: Reply) -> Step {
        if let Some(initial) = self.pending.take() {
            return self.advance(stage, initial);
        }
        match stage {
            Stage::Answers(mut left) => match left.pop_front() {
                Some(answer) => self.advance(Stage::Answers(left), answer),
                None => Step::Failed(RelayError::Login(reply, String::new())),
            },
            // The reply 334 contains the reason why the token is refused. The server sends the refusal itself after an
            // empty answer.
            Stage::Token => self.advance(Stage::TokenRefused(detail(&reply)), String::new()),
            Stage::ScramFirst(first) => match first.challenged(&text(&reply)) {
                Ok(challenge) => {
                    let salting = challenge.salting().clone();
                    self.stage = Stage::ScramKeys(challenge);
                    Step::Derive(salting)
                }
                Err(error) => Step::Failed(RelayError::Scram(error)),
            },
            Stage::ScramFinal(proof) => match proof.verify(&text(&reply)) {
                Ok(()) => self.advance(Stage::ScramVerified, String::new()),
                Err(error) => Step::Failed(RelayError::Scram(error)),
            },
            Stage::TokenRefused(_) | Stage::ScramKeys(_) | Stage::ScramVerified | Stage::Over => {
                Step::Failed(RelayError::Login(reply, String::new()))
            }
        }
    }

    fn advance(&mut self, stage: Stage, line: String) -> Step {
        self.stage = stage;
        self.sent.add(&line);
        Step::Send(line)
    }
}

/// Returns the strongest mechanism for a password that is allowed and offered; never [`Mechanism::Any`].
fn choose(allowed: Mechanism, offered: &Extensions) -> Result<Mechanism, RelayError> {
    let strongest_first = [
        (Mechanism::ScramSha256, offered.auth_scram_sha_256),
        (Mechanism::Plain, offered.auth_plain),
        (Mechanism::Login, offered.auth_login),
    ];
    let mut usable = strongest_first
        .into_iter()
        .filter(|(mechanism, offered)| *offered && (allowed == Mechanism::Any || allowed == *mechanism));
    usable.next().map(|(mechanism, _)| mechanism).ok_or(RelayError::NoLogin(match allowed {
        Mechanism::Any => "SCRAM-SHA-256, PLAIN or LOGIN",
        Mechanism::ScramSha256 => "SCRAM-SHA-256",
        Mechanism::Plain => "PLAIN",
        Mechanism::Login => "LOGIN",
    }))
}

/// Decodes the text of a reply 334. Returns an empty string if the text is not base64 of UTF-8.
fn text(reply: &Reply) -> String {
    let decoded = STANDARD.decode(reply.texts().next().unwrap_or_default().trim());
    decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// Decodes the text of a reply 334 for a log line: shortens the text, and replaces all characters except printable
/// ASCII by `?`.
fn detail(reply: &Reply) -> String {
    text(reply).chars().take(MAX_DETAIL).map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smtp::sasl::{Bearer, Credentials};

    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    /// Example of RFC 7677 §3, for the user `user` and the password `pencil`.
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn offered(mechanisms: &str) -> Extensions {
        Extensions::from_ehlo(&Reply::lines(250, ["up", &format!("AUTH {mechanisms}")]))
    }

    fn password(mechanism: Mechanism) -> Secret {
        Secret::Password(Credentials::new("user", "pencil").unwrap(), mechanism)
    }

    fn token(token: &str) -> Secret {
        Secret::Token(Bearer::new("user", token).unwrap())
    }

    fn encoded(text: &str) -> String {
        STANDARD.encode(text)
    }

    fn challenge(text: &str) -> String {
        format!("334 {}", encoded(text))
    }

    /// Runs a login with these replies of the server. Returns the lines that were sent, with base64 decoded, and the
    /// result as text.
    fn play(secret: Secret, mechanisms: &str, replies: &[&str]) -> (Vec<String>, String) {
        let decoded = |text: &str| match STANDARD.decode(text) {
            Ok(bytes) => String::from_utf8(bytes).unwrap(),
            Err(_) => text.to_owned(),
        };
        let login = Login { secret, nonce: NONCE.to_owned() };
        let (mut login, line) = match Authentication::begin(login, &offered(mechanisms)) {
            Ok(begun) => begun,
            Err(error) => return (Vec::new(), error.to_string()),
        };
        let mut sent = vec![match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
            [auth, name, initial] => format!("{auth} {name} {}", decoded(initial)),
            _ => line,
        }];
        for reply in replies {
            let mut step = login.reply(Reply::new(reply[..3].parse().unwrap(), &reply[4..]));
            if let Step::Derive(salting) = step {
                step = login.keys(&salting.derive());
            }
            match step {
                Step::Send(line) => sent.push(decoded(&line)),
                Step::Done => return (sent, "done".to_owned()),
                Step::Failed(error) => return (sent, error.to_string()),
                Step::Derive(_) => unreachable!(),
            }
        }
        panic!("not ended after {sent:?}");
    }

    #[test]
    fn the_strongest_mechanism_offered_and_allowed_is_used() {
        use Mechanism::{Any, Login, Plain, ScramSha256};
        let scram = "AUTH SCRAM-SHA-256 n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
        let plain = "AUTH PLAIN \0user\0pencil";
        for (allowed, mechanisms, begins) in [
            (Any, "LOGIN PLAIN XOAUTH2 SCRAM-SHA-256", scram),
            (Any, "LOGIN SCRAM-SHA-1 PLAIN", plain),
            (Any, "CRAM-MD5 LOGIN", "AUTH LOGIN"),
            (ScramSha256, "PLAIN LOGIN SCRAM-SHA-256", scram),
            (Plain, "PLAIN LOGIN SCRAM-SHA-256", plain),
            (Login, "PLAIN LOGIN SCRAM-SHA-256", "AUTH LOGIN"),
        ] {
            assert_eq!(play(password(allowed), mechanisms, &["535 no"]).0, [begins], "{allowed:?} {mechanisms}");
        }
        assert_eq!(
            play(token("t"), "PLAIN XOAUTH2", &["535 no"]).0,
            ["AUTH XOAUTH2 user=user\x01auth=Bearer t\x01\x01"]
        );
        for (secret, mechanisms, usable) in [
            (password(ScramSha256), "PLAIN LOGIN SCRAM-SHA-1", "SCRAM-SHA-256"),
            (password(Plain), "LOGIN SCRAM-SHA-256", "PLAIN"),
            (password(Login), "PLAIN SCRAM-SHA-256", "LOGIN"),
            (password(Any), "XOAUTH2 GSSAPI", "SCRAM-SHA-256, PLAIN or LOGIN"),
            (token("t"), "PLAIN LOGIN SCRAM-SHA-256 OAUTHBEARER", "XOAUTH2"),
        ] {
            let (sent, ended) = play(secret, mechanisms, &[]);
            assert_eq!((sent.len(), ended), (0, format!("it offers no login that Weir may use: {usable}")));
        }
    }

    #[test]
    fn scram_ends_well_only_if_the_server_has_shown_that_it_knows_the_password() {
        let (first, last) = (challenge(SERVER_FIRST), challenge(SERVER_FINAL));
        let not_shown = "it has not shown that it knows the password";
        let wrong = challenge("v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        let extension = challenge(&format!("m=x,{SERVER_FIRST}"));
        let other = challenge(&SERVER_FIRST.replace("rOpr", "rOps"));
        let burning = challenge(&SERVER_FIRST.replace("i=4096", "i=4294967295"));
        let refused = challenge("e=invalid-proof");
        for (replies, lines, end) in [
            (&[&*first, &last, "235 ok"][..], 3, "done"),
            (&["235 ok"], 1, not_shown),
            (&[&first, "235 ok"], 2, not_shown),
            (&[&first, &wrong], 2, not_shown),
            (&[&first, &last, "535 disabled"], 3, "it refuses Weir's login: 535 disabled"),
            (&[&first, &last, &last], 3, "it refuses Weir's login: 334"),
            (&[&first, "535 5.7.8 no"], 2, "it refuses Weir's login: 535 5.7.8 no"),
            (&["504 5.5.4 what?"], 1, "it refuses Weir's login: 504 5.5.4 what?"),
            (&[&first, &refused], 2, "it reports \"invalid-proof\""),
            (&["334 "], 1, "its message is malformed"),
            (&["334 r=nonsense"], 1, "its message is malformed"),
            (&["334 /////w=="], 1, "its message is malformed"),
            (&[&extension], 1, "it insists on an extension"),
            (&[&other], 1, "its nonce does not continue Weir's"),
            (&[&burning], 1, "it asks for an iteration count that is not from 4096 to 1000000"),
        ] {
            let (sent, ended) = play(password(Mechanism::Any), "SCRAM-SHA-256", replies);
            assert!(ended.ends_with(end) || (end.ends_with("334") && ended.contains(end)), "{replies:?}: {ended}");
            assert_eq!(sent.len(), lines, "{replies:?}: {sent:?}");
            assert!(sent.get(2).is_none_or(String::is_empty), "{sent:?}");
        }
    }

    #[test]
    fn keys_without_a_request_are_no_login() {
        let challenge = ClientFirst::new(&Credentials::new("user", "pencil").unwrap(), NONCE);
        let keys = challenge.challenged(SERVER_FIRST).unwrap().salting().derive();
        let login = Login { secret: password(Mechanism::Any), nonce: NONCE.to_owned() };
        let (mut login, _) = Authentication::begin(login, &offered("SCRAM-SHA-256")).unwrap();
        assert!(matches!(login.keys(&keys), Step::Failed(RelayError::Scram(Error::Signature))));
    }

    #[test]
    fn a_refused_token_is_reported_with_the_servers_reason_in_one_log_line() {
        let why = challenge("{\"status\":\"401\",\n\u{1b}[31m\"schemes\":\"Bearer\"}");
        let (sent, ended) = play(token("t"), "XOAUTH2", &[&why, "535 5.7.8 no"]);
        assert_eq!(sent[1..], [""]);
        assert_eq!(
            ended,
            "it refuses Weir's login: 535 5.7.8 no; before that: {\"status\":\"401\",??[31m\"schemes\":\"Bearer\"}"
        );
        let long = challenge(&"x".repeat(360));
        let (_, ended) = play(token("t"), "XOAUTH2", &[&long, "535 no"]);
        assert!(ended.len() < 400, "{ended}");
        let (_, ended) = play(token("t"), "XOAUTH2", &["334 not base64", "535 no"]);
        assert_eq!(ended, "it refuses Weir's login: 535 no");
        let (_, ended) = play(token("t"), "XOAUTH2", &[&why, &why]);
        assert!(ended.starts_with("it refuses Weir's login: 334 "), "{ended}");
        assert_eq!(play(token("t"), "XOAUTH2", &["235 ok"]).1, "done");
    }

    #[test]
    fn an_initial_response_too_long_for_the_command_is_sent_on_request() {
        let long = "t".repeat(2000);
        let message = format!("user=user\x01auth=Bearer {long}\x01\x01");
        let (sent, ended) = play(token(&long), "XOAUTH2", &["334 ", "334 e30=", "535 no"]);
        assert_eq!(sent, ["AUTH XOAUTH2", &message, ""]);
        assert!(ended.ends_with("535 no; before that: {}"), "{ended}");
        // After `AUTH PLAIN ` 499 octets are left. The length of base64 is a multiple of 4, so 496 octets fit, and 500
        // octets do not.
        for (length, lines) in [(366, 1), (367, 2)] {
            let credentials = Credentials::new("user", &"p".repeat(length)).unwrap();
            let (sent, ended) = play(
                Secret::Password(credentials, Mechanism::Any),
                "PLAIN",
                if lines == 1 { &["235 ok"] } else { &["334 ", "235 ok"] },
            );
            assert_eq!((sent.len(), ended.as_str()), (lines, "done"), "{length}");
        }
    }

    #[test]
    fn secrets_are_never_printed() {
        for secret in [password(Mechanism::Any), token("pencil")] {
            let login = Login { secret, nonce: NONCE.to_owned() };
            assert!(!format!("{login:?}").contains("pencil"));
        }
    }
    #[test]
    fn secrets_that_a_server_repeats_are_redacted() {
        let secret = || Secret::Password(Credentials::new("user", "open sesame").unwrap(), Mechanism::Any);
        let (plain, login) = (encoded("\0user\0open sesame"), encoded("open sesame"));
        for (mechanisms, replies) in [
            ("PLAIN", &[format!("500 Command unrecognized: \"AUTH PLAIN {plain}\"")][..]),
            ("PLAIN", &[format!("535 {}", plain.to_uppercase())]),
            ("PLAIN", &[format!("535 user, open sesame: {}", &plain[..16])]),
            ("LOGIN", &["334 a".to_owned(), "334 b".to_owned(), format!("500 {login}")]),
        ] {
            let replies: Vec<&str> = replies.iter().map(String::as_str).collect();
            let (_, ended) = play(secret(), mechanisms, &replies);
            let lower = ended.to_lowercase();
            assert!(ended.contains("<redacted>") && !lower.contains("sesame"), "{ended}");
            assert!(![&plain, &login].iter().any(|line| lower.contains(&line.to_lowercase()[..10])), "{ended}");
        }
        let token = "ya29.a0ARrdaM-very-long";
        let repeats = challenge(&format!("{{\"token\":\"{token}\"}}"));
        let line = encoded(&format!("user=user\x01auth=Bearer {token}\x01\x01"));
        let (_, ended) = play(self::token(token), "XOAUTH2", &[&repeats, &format!("535 {line}")]);
        assert_eq!(ended, "it refuses Weir's login: 535 <redacted>; before that: {\"token\":\"<redacted>\"}");
    }
}
