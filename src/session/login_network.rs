//! Login networks: whether a user logs in from a network that is registered for the user.

use super::record::Record;
use super::step::{Admit, GroupLookup, Purpose, Step};
use crate::smtp::reply::Reply;
use std::net::IpAddr;

/// Login for which the driver finds out whether the client is in a login network of the user.
pub struct LoginPlace<'a> {
    /// The user; before the password is checked, the user that the client claims to be.
    pub user: &'a str,
    /// Groups of the user; `None` before the password is checked.
    pub groups: Option<&'a [Box<str>]>,
}

impl Admit {
    /// Returns the address of the client.
    pub fn client(&self) -> IpAddr {
        self.session.0.client
    }

    /// Returns the login that the question is about, if it is about a login.
    pub fn login_place(&self) -> Option<LoginPlace<'_>> {
        match &self.purpose {
            Purpose::Auth(attempt) => Some(LoginPlace { user: attempt.user()?, groups: None }),
            Purpose::Login { user, groups } => Some(LoginPlace { user, groups: Some(groups) }),
            _ => None,
        }
    }

    /// Tells policy, and the session if the password was right, whether the client is in a login network of the user;
    /// `None` if the user has no login networks.
    pub fn set_registered_network(&mut self, is_registered: Option<bool>) {
        self.asked.facts.registered_network = is_registered;
        if let Purpose::Login { .. } = self.purpose {
            self.session.0.registered_network = is_registered;
        }
    }

    /// Refuses a login with the right password because of the client's network. Policy is not asked, so no limit counts
    /// this login.
    ///
    /// The reply is not 535 5.7.8, with which mail programs ask for another password (RFC 4954 §6), nor 525 5.7.13,
    /// which states that the account is disabled (RFC 5248 §2). 550 5.7.1 is also the reply to a suspended user, and it
    /// is permanent, as trying again from the same network does not help.
    pub fn refuse_network(self: Box<Self>) -> Step {
        let Self { mut session, purpose, .. } = *self;
        let state = &mut *session.0;
        state.registered_network = None;
        if let Purpose::Login { user, .. } = purpose {
            state.recorder.push(Record::OtherNetwork { user: user.to_string() });
        }
        let text = format!("5.7.1 This account may not log in from {} ({})", state.client, state.id);
        state.refuse(&Reply::new(550, text));
        Step::Pause(session)
    }
}

impl GroupLookup {
    /// Returns the address of the client.
    pub fn client(&self) -> IpAddr {
        self.session.0.client
    }

    /// Tells the session whether the client that a proxy named is in a login network of the user that the proxy named.
    /// The login is not refused, because the proxy has decided on it.
    pub fn set_registered_network(&mut self, is_registered: Option<bool>) {
        self.session.0.registered_network = is_registered;
    }
}
