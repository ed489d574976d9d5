//! EHLO, HELO, STARTTLS and XCLIENT: the client's name and address, and TLS.

use super::options::{Security, Tls};
use super::record::Record;
use super::replies::{no_hello, within_transaction};
use super::state::State;
use super::step::{GroupLookup, Session, StartTls, Step};
use crate::groups::Groups;
use crate::policy::request::Novelty;
use crate::smtp::command::Hello;
use crate::smtp::extensions::Extensions;
use crate::smtp::line::Input;
use crate::smtp::reply::Reply;
use crate::smtp::xclient::{self, Attribute, Xclient};
use crate::time::Timestamp;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

impl StartTls {
    pub fn session(&mut self) -> &mut Session {
        &mut self.0
    }

    /// Ends the session: the handshake failed, so the connection is unusable.
    pub fn failed(self) -> Step {
        self.0.close()
    }

    /// Continues the session after the handshake. Discards everything that the client sent before the handshake, even
    /// input that is not read yet. An attacker on the network path could have injected this input (RFC 3207 §4.2).
    pub fn established(self, tls: Tls, input: &mut Input, now: Timestamp) -> Step {
        let mut session = self.0;
        input.clear();
        let state = &mut *session.0;
        state.tls = Some(tls);
        state.hello = None;
        state.user = None;
        (state.groups, state.registered_network, state.novelty) = (Groups::default(), None, Novelty::default());
        (state.client, state.is_proxied, state.helo) = (state.peer, false, None);
        state.next_route = None;
        state.now = now;
        Step::Next(session)
    }
}

impl Session {
    pub(super) fn start_tls(mut self) -> Step {
        let state = &mut *self.0;
        if state.options.tls != Security::StartTls {
            state.refuse(&Reply::new(502, "5.5.1 STARTTLS is not offered here"));
        } else if state.tls.is_some() {
            state.refuse(&Reply::new(503, "5.5.1 TLS is in use already"));
        } else if state.hello.is_none() {
            state.refuse(&no_hello());
        } else {
            // RFC 3207 §4.2: the transaction ends here, whether the handshake succeeds or not.
            state.abandon(state.now);
            state.reply(&Reply::new(220, "2.0.0 Ready to start TLS"));
            return Step::StartTls(StartTls(self));
        }
        Step::Next(self)
    }
}

impl Session {
    /// Executes XCLIENT. The session begins again for the client that the proxy names.
    pub(super) fn xclient(mut self, named: Xclient) -> Step {
        let state = &mut *self.0;
        if !state.may_name_clients() {
            state.refuse(&Reply::new(550, "5.7.0 XCLIENT is not for you"));
        } else if state.transaction.is_some() {
            state.refuse(&within_transaction());
        } else {
            let is_another = named.address != Attribute::Absent;
            state.is_proxied = true;
            // An attribute that the command does not give keeps its former value.
            match named.address {
                Attribute::Absent => {}
                // Use 0.0.0.0, so that an unknown client gets neither the trust nor the budgets of the proxy.
                Attribute::Unknown => state.client = IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                Attribute::Known(address) => state.client = address,
            }
            named.helo.put_into(&mut state.helo);
            if named.login != Attribute::Absent {
                state.mechanism = Some("XCLIENT".into());
            }
            named.login.put_into(&mut state.user);
            (state.groups, state.registered_network, state.novelty) = (Groups::default(), None, Novelty::default());
            // The route was for the former client's mail.
            state.next_route = None;
            state.hello = None;
            state.recorder.push(Record::ClientNamed { peer: state.peer });
            let lookup = GroupLookup { session: self, is_another };
            return match lookup.session.0.user {
                Some(_) => Step::LookUpGroups(lookup),
                None => lookup.greet(),
            };
        }
        Step::Next(self)
    }
}

impl GroupLookup {
    pub fn user(&self) -> Option<&Arc<str>> {
        self.session.user()
    }

    pub fn answer(mut self, groups: Groups) -> Step {
        self.session.0.groups = groups;
        self.greet()
    }

    fn greet(mut self) -> Step {
        if self.is_another {
            return self.session.ask_connect();
        }
        self.session.0.greet();
        Step::Next(self.session)
    }
}

impl State {
    /// Executes EHLO or HELO.
    pub(super) fn hello(&mut self, hello: Hello, now: Timestamp) {
        // EHLO during a session is also a RSET (RFC 5321 §4.1.4).
        self.abandon(now);
        // RFC 8689 §2: REQUIRETLS is for clients that use TLS themselves.
        let require_tls = self.offered.require_tls && self.tls.is_some();
        self.announced = Extensions { require_tls, ..self.offered };
        if hello.extended {
            let lines = self.extensions();
            self.reply(&Reply::lines(250, lines));
        } else {
            let hostname = self.options.hostname.clone();
            self.reply(&Reply::new(250, hostname));
        }
        let name = self.helo.clone().unwrap_or(hello.name);
        self.hello = Some(Hello { name, ..hello });
    }

    /// Returns the lines of the reply to EHLO.
    fn extensions(&self) -> Vec<String> {
        let mut lines =
            vec![self.options.hostname.clone(), "PIPELINING".to_owned(), format!("SIZE {}", self.max_message_size())];
        // Weir cannot promise extensions that the upstream does not offer.
        let passed_on = [
            (self.announced.eight_bit_mime, "8BITMIME"),
            (self.announced.smtp_utf8, "SMTPUTF8"),
            (self.announced.dsn, "DSN"),
            (self.announced.require_tls, "REQUIRETLS"),
        ];
        lines.extend(passed_on.iter().filter(|(offered, _)| *offered).map(|(_, name)| (*name).to_owned()));
        lines.extend(["ENHANCEDSTATUSCODES".to_owned(), "CHUNKING".to_owned()]);
        lines.push(format!("LIMITS RCPTMAX={}", self.max_recipients()));
        if self.options.tls == Security::StartTls && self.tls.is_none() {
            lines.push("STARTTLS".to_owned());
        }
        if self.offers_auth() && !self.mechanisms.is_empty() {
            lines.push(format!("AUTH {}", self.mechanisms));
        }
        if self.may_name_clients() {
            lines.push(format!("XCLIENT {}", xclient::ATTRIBUTES));
        }
        lines
    }
}
