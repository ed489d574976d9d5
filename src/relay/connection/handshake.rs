//! Handshake at the start of a connection to an upstream: greeting, EHLO, TLS, XCLIENT and login. Does no input or
//! output: the caller sends the lines and reads the replies.

use crate::relay::client::Client;
use crate::relay::error::RelayError;
use crate::relay::login::{Authentication, Login, Step};
use crate::relay::tls::{NoTlsReason, Policy};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use crate::smtp::scram::{Keys, Salting};
use std::collections::VecDeque;
use std::sync::Arc;

/// A handshake: greeting, EHLO, STARTTLS and a second EHLO. With implicit TLS, the greeting and EHLO are sent within
/// TLS.
pub struct Handshake {
    hostname: String,
    tls: Policy,
    login: Option<Login>,
    /// The client that the handshake has still to announce by XCLIENT.
    client: Option<Client>,
    /// The client's name, for the EHLO after XCLIENT.
    client_helo: Option<Arc<str>>,
    secured: bool,
    /// The reason why the connection has no TLS, if it continues without TLS.
    no_tls: NoTlsReason,
    stage: Stage,
}

enum Stage {
    Greeting,
    Ehlo,
    Helo,
    StartTls(Extensions),
    /// The XCLIENT lines that are still to be sent.
    Xclient(Extensions, VecDeque<String>),
    /// Waiting for the reply to the EHLO that follows XCLIENT. Holds the extensions that were offered before XCLIENT.
    EhloAfterXclient(Extensions),
    Auth(Extensions, Box<Authentication>),
}

/// The next step of a handshake. It must not be printed, because a line can contain a password.
pub enum Next {
    Send(String),
    /// Establish TLS, then call [`Handshake::secured`]. The extensions that were offered before TLS are no longer
    /// valid.
    StartTls,
    /// Derive the SCRAM keys, which can take almost a second, then call [`Handshake::keys`].
    Derive(Salting),
    Ready(Extensions),
    Failed(RelayError),
}

impl Handshake {
    /// Creates a handshake that waits for the greeting. `hostname` is Weir's name for EHLO; `login` is the login to use
    /// at the upstream.
    pub fn new(hostname: &str, tls: Policy, login: Option<Login>) -> Self {
        Self {
            hostname: hostname.to_owned(),
            tls,
            login,
            client: None,
            client_helo: None,
            secured: tls == Policy::Implicit,
            no_tls: if tls == Policy::None { NoTlsReason::Unwanted } else { NoTlsReason::NotOffered },
            stage: Stage::Greeting,
        }
    }

    /// Makes the handshake announce this client, with those XCLIENT attributes that the upstream accepts.
    pub fn announcing(self, client: Option<Client>) -> Self {
        Self { client, ..self }
    }

    /// Returns whether TLS is established, or must be established before the greeting (implicit TLS).
    pub fn is_within_tls(&self) -> bool {
        self.secured
    }

    /// Returns the reason why the connection has no TLS after the handshake; `None` if it has TLS.
    pub fn no_tls(self) -> Option<NoTlsReason> {
        if self.secured { None } else { Some(self.no_tls) }
    }

    /// Continues after TLS was established.
    pub fn secured(&mut self) -> Next {
        self.secured = true;
        self.send_ehlo()
    }

    /// Processes the greeting, or the reply to the last line sent. Returns the next step.
    pub fn reply(&mut self, reply: Reply) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Greeting) {
            Stage::Greeting if reply.code() == 220 => self.send_ehlo(),
            Stage::Ehlo if reply.is_positive() => self.offered(Extensions::from_ehlo(&reply)),
            // To a server that does not know EHLO, send HELO, unless TLS or a login is required: after HELO, a client
            // cannot use STARTTLS or AUTH.
            Stage::Ehlo if reply.code() / 100 == 5 && !self.tls.is_checked() && self.login.is_none() => {
                self.stage = Stage::Helo;
                Next::Send(format!("HELO {}\r\n", self.hostname))
            }
            Stage::Helo if reply.is_positive() => Next::Ready(Extensions::default()),
            Stage::StartTls(_) if reply.code() == 220 => Next::StartTls,
            // The server offered STARTTLS, but refuses it: continue without TLS, if that is allowed.
            Stage::StartTls(offered) if self.tls == Policy::Opportunistic && self.login.is_none() => {
                self.no_tls = NoTlsReason::Refused(reply);
                self.log_in(offered)
            }
            Stage::StartTls(_) => Next::Failed(RelayError::StartTls(reply)),
            Stage::Xclient(offered, left) if reply.code() == 220 => self.send_xclient(offered, left),
            // The upstream refuses the announced client.
            Stage::Xclient(..) => Next::Failed(RelayError::Xclient(reply)),
            Stage::EhloAfterXclient(before) if reply.is_positive() => {
                // Postfix now offers the extensions that the announced client would see. XCLIENT and XFORWARD are not
                // among them, but Weir is still permitted to use both commands.
                let Extensions { xclient, xforward, .. } = before;
                let offered = Extensions { xclient, xforward, ..Extensions::from_ehlo(&reply) };
                self.log_in(offered)
            }
            Stage::EhloAfterXclient(_) => Next::Failed(RelayError::Xclient(reply)),
            Stage::Auth(offered, mut authentication) => {
                let step = authentication.reply(reply);
                self.advance(offered, authentication, step)
            }
            _ => Next::Failed(RelayError::Refused(reply)),
        }
    }

    /// Continues with the keys that the caller has derived after [`Next::Derive`].
    pub fn keys(&mut self, keys: &Keys) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Greeting) {
            Stage::Auth(offered, mut authentication) => {
                let step = authentication.keys(keys);
                self.advance(offered, authentication, step)
            }
            // The caller has keys for which the handshake did not ask.
            _ => Next::Failed(RelayError::Closed),
        }
    }

    fn advance(&mut self, offered: Extensions, authentication: Box<Authentication>, step: Step) -> Next {
        let next = match step {
            Step::Done => return self.ready(offered),
            Step::Failed(error) => return Next::Failed(error),
            Step::Send(line) => Next::Send(format!("{line}\r\n")),
            Step::Derive(salting) => Next::Derive(salting),
        };
        self.stage = Stage::Auth(offered, authentication);
        next
    }

    fn ready(&self, mut offered: Extensions) -> Next {
        // RFC 8689 §4.2.1: mail with REQUIRETLS must be sent only to a server whose certificate has been checked.
        offered.require_tls &= self.tls.is_checked();
        Next::Ready(offered)
    }

    fn send_ehlo(&mut self) -> Next {
        self.stage = Stage::Ehlo;
        Next::Send(format!("EHLO {}\r\n", self.hostname))
    }

    fn offered(&mut self, offered: Extensions) -> Next {
        match self.tls {
            _ if self.secured => self.log_in(offered),
            Policy::None => self.log_in(offered),
            Policy::Required | Policy::Implicit if !offered.start_tls => Next::Failed(RelayError::NoTls),
            Policy::Opportunistic if !offered.start_tls => self.log_in(offered),
            Policy::Opportunistic | Policy::Required | Policy::Implicit => {
                self.stage = Stage::StartTls(offered);
                Next::Send("STARTTLS\r\n".to_owned())
            }
        }
    }

    /// Sends the next XCLIENT line, or EHLO after the last XCLIENT line. After XCLIENT the dialogue begins again, now
    /// in the name of the client (XCLIENT_README). This EHLO has the client's name, because Postfix uses the name from
    /// the last EHLO, not from the attribute HELO.
    fn send_xclient(&mut self, offered: Extensions, mut lines: VecDeque<String>) -> Next {
        match lines.pop_front() {
            Some(line) => {
                self.stage = Stage::Xclient(offered, lines);
                Next::Send(line)
            }
            None => {
                self.stage = Stage::EhloAfterXclient(offered);
                Next::Send(format!("EHLO {}\r\n", self.client_helo.as_deref().unwrap_or(&self.hostname)))
            }
        }
    }

    /// Sends XCLIENT if the client has still to be announced. Otherwise sends AUTH if Weir has to log in (RFC 4954).
    /// Sends no password without TLS, unless the configuration says "no TLS".
    fn log_in(&mut self, offered: Extensions) -> Next {
        if let Some(client) = self.client.take() {
            // Send the attribute LOGIN only if Weir does not log in. After this attribute the upstream treats the
            // session as logged in, and so it would refuse AUTH.
            let lines = client.xclient(offered.xclient, self.login.is_none());
            if !lines.is_empty() {
                self.client_helo = client.helo;
                return self.send_xclient(offered, lines.into());
            }
        }
        let Some(login) = self.login.take() else { return self.ready(offered) };
        if !self.secured && self.tls != Policy::None {
            return Next::Failed(RelayError::NoTls);
        }
        match Authentication::begin(login, &offered) {
            Ok((authentication, line)) => self.advance(offered, Box::new(authentication), Step::Send(line)),
            Err(error) => Next::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::client::tests::alice;
    use crate::relay::login::{Mechanism, Secret};
    use crate::smtp::sasl::Credentials;

    /// Runs a handshake with these replies. Returns the lines that were sent, and the result as text.
    fn open(tls: Policy, replies: &[&[&str]]) -> (Vec<String>, String) {
        play(Handshake::new("weir.example", tls, None), replies)
    }

    fn play(mut handshake: Handshake, replies: &[&[&str]]) -> (Vec<String>, String) {
        let mut sent = Vec::new();
        for lines in replies {
            let code = lines[0][..3].parse().unwrap();
            let mut next = handshake.reply(Reply::lines(code, lines.iter().map(|line| &line[4..])));
            if matches!(next, Next::StartTls) {
                sent.push("(handshake)".to_owned());
                next = handshake.secured();
            }
            match next {
                Next::Send(line) => sent.push(line.trim_end().to_owned()),
                Next::StartTls | Next::Derive(_) => unreachable!(),
                Next::Ready(offered) => return (sent, format!("ready, pipelining {}", offered.pipelining)),
                Next::Failed(error) => return (sent, error.to_string()),
            }
        }
        panic!("not ended after {sent:?}");
    }

    #[test]
    fn handshakes_end_ready_or_with_the_reason() {
        use Policy::{None, Opportunistic, Required};
        let ehlo: &[&str] = &["250-up", "250-PIPELINING", "250 STARTTLS"];
        let bare: &[&str] = &["250 up"];
        for (tls, replies, sent, end) in [
            (None, &[&["220 hi"][..], ehlo][..], "EHLO weir.example", "ready, pipelining true"),
            (
                None,
                &[&["220 hi"], &["502 what"], &["250 ok"]],
                "EHLO weir.example|HELO weir.example",
                "ready, pipelining false",
            ),
            (None, &[&["554 no"]], "", "554 no"),
            (Required, &[&["220 hi"], &["502 what"]], "EHLO weir.example", "502 what"),
            (Required, &[&["220 hi"], bare], "EHLO weir.example", "it offers no STARTTLS, which is required"),
            (Required, &[&["220 hi"], ehlo, &["454 no"]], "EHLO weir.example|STARTTLS", "it refuses STARTTLS: 454 no"),
            (
                Required,
                &[&["220 hi"], ehlo, &["220 go"], bare],
                "EHLO weir.example|STARTTLS|(handshake)|EHLO weir.example",
                "ready, pipelining false",
            ),
            (Opportunistic, &[&["220 hi"], bare], "EHLO weir.example", "ready, pipelining false"),
            (Opportunistic, &[&["220 hi"], ehlo, &["454 no"]], "EHLO weir.example|STARTTLS", "ready, pipelining true"),
        ] {
            let (said, ended) = open(tls, replies);
            assert_eq!(said.join("|"), sent);
            assert!(ended.contains(end), "{ended}");
        }
    }

    #[test]
    fn a_login_is_sent_within_tls_or_where_plain_text_is_configured() {
        use Policy::{Implicit, None, Opportunistic, Required};
        let both: &[&str] = &["250-up", "250-AUTH PLAIN LOGIN", "250 STARTTLS"];
        let login: &[&str] = &["250-up", "250 AUTH XOAUTH2 LOGIN"];
        let plain = "AUTH PLAIN AHdlaXIAc2VzYW1l";
        for (tls, replies, sent, end) in [
            (None, &[&["220 hi"][..], both, &["235 ok"]][..], format!("EHLO weir.example|{plain}"), "ready"),
            (
                None,
                &[&["220 hi"], both, &["535 no"]],
                format!("EHLO weir.example|{plain}"),
                "it refuses Weir's login: 535 no",
            ),
            (
                None,
                &[&["220 hi"], both, &["334 more"]],
                format!("EHLO weir.example|{plain}"),
                "it refuses Weir's login",
            ),
            (
                None,
                &[&["220 hi"], login, &["334 VXNlcm5hbWU6"], &["334 UGFzc3dvcmQ6"], &["235 ok"]],
                "EHLO weir.example|AUTH LOGIN|d2Vpcg==|c2VzYW1l".to_owned(),
                "ready",
            ),
            (
                None,
                &[&["220 hi"], &["250 up"]],
                "EHLO weir.example".to_owned(),
                "it offers no login that Weir may use: SCRAM-SHA-256, PLAIN or LOGIN",
            ),
            (None, &[&["220 hi"], &["502 what"]], "EHLO weir.example".to_owned(), "502 what"),
            (Implicit, &[&["220 hi"], both, &["235 ok"]], format!("EHLO weir.example|{plain}"), "ready"),
            (Opportunistic, &[&["220 hi"], login], "EHLO weir.example".to_owned(), "it offers no STARTTLS"),
            (
                Opportunistic,
                &[&["220 hi"], both, &["454 no"]],
                "EHLO weir.example|STARTTLS".to_owned(),
                "it refuses STARTTLS: 454 no",
            ),
            (
                Required,
                &[&["220 hi"], both, &["220 go"], both, &["235 ok"]],
                format!("EHLO weir.example|STARTTLS|(handshake)|EHLO weir.example|{plain}"),
                "ready",
            ),
        ] {
            let secret = Secret::Password(Credentials::new("weir", "sesame").unwrap(), Mechanism::Any);
            let handshake = Handshake::new("weir.example", tls, Some(Login { secret, nonce: "nonce".to_owned() }));
            let (said, ended) = play(handshake, replies);
            assert_eq!(said.join("|"), sent);
            assert!(ended.contains(end), "{ended}");
        }
    }

    #[test]
    fn xclient_comes_after_tls_and_before_the_login() {
        use Policy::{Opportunistic, Required};
        let offers: &[&str] = &["250-up", "250-AUTH PLAIN", "250-XCLIENT ADDR LOGIN", "250 STARTTLS"];
        let fewer: &[&str] = &["250-up", "250 AUTH PLAIN"];
        let (hi, weir, anew) = (&["220 hi"][..], "EHLO weir.example", "EHLO pc.example");
        let xclient = "XCLIENT ADDR=192.0.2.7 LOGIN=alice";
        let plain = "AUTH PLAIN AHdlaXIAc2VzYW1l";
        for (tls, login, replies, sent, end) in [
            (Policy::None, false, &[hi, offers, hi, fewer][..], format!("{weir}|{xclient}|{anew}"), "ready"),
            (Policy::None, false, &[hi, fewer], weir.to_owned(), "ready"),
            (
                Required,
                true,
                &[hi, offers, &["220 go"], offers, hi, fewer, &["235 ok"]],
                format!("{weir}|STARTTLS|(handshake)|{weir}|XCLIENT ADDR=192.0.2.7|{anew}|{plain}"),
                "ready",
            ),
            (
                Opportunistic,
                false,
                &[hi, offers, &["454 no"], hi, offers],
                format!("{weir}|STARTTLS|{xclient}|{anew}"),
                "ready",
            ),
            (
                Policy::None,
                false,
                &[hi, offers, &["550 no"]],
                format!("{weir}|{xclient}"),
                "to be told who the client is: 550",
            ),
            (Policy::None, false, &[hi, offers, &["421 no"]], format!("{weir}|{xclient}"), "who the client is: 421 no"),
            (
                Policy::None,
                false,
                &[hi, offers, hi, &["501 no"]],
                format!("{weir}|{xclient}|{anew}"),
                "who the client is: 501 no",
            ),
        ] {
            let secret = Secret::Password(Credentials::new("weir", "sesame").unwrap(), Mechanism::Any);
            let login = login.then(|| Login { secret, nonce: "nonce".to_owned() });
            let handshake = Handshake::new("weir.example", tls, login).announcing(Some(alice()));
            let (said, ended) = play(handshake, replies);
            assert_eq!(said.join("|"), sent);
            assert!(ended.contains(end), "{ended}");
        }
    }
}
