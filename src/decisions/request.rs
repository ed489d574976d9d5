//! Request to policy from a record, so that policy can be asked again about a past event.

use super::record::DecisionRecord;
use crate::policy::request::{Event, Facts, Location, Novelty, PolicyRequest, Stage};
use std::sync::Arc;

impl DecisionRecord {
    /// Returns the request that policy decided, with its single event. The request differs from the original one in two
    /// ways. Recipients that the record leaves out are missing. The charges for the declared size are missing, because
    /// Weir has refunded them.
    pub fn policy_request(&self) -> PolicyRequest {
        let Self { country, asn, .. } = self;
        let location = Location {
            country: country.as_ref().and_then(|country| country.parse().ok()),
            asn: asn.as_ref().and_then(|asn| asn.parse().ok()),
        };
        let novelty = Novelty { network: self.new_network, country: self.new_country, helo: self.new_helo };
        let facts = Facts {
            listener: self.listener.as_deref().map(Arc::from),
            client: self.client,
            location,
            tls: self.tls,
            helo: self.helo.as_deref().map(Arc::from),
            user: self.user.as_deref().map(Arc::from),
            authenticated: self.authenticated,
            has_account: self.has_account,
            is_repeated_password: self.repeated_password,
            novelty,
            groups: self.groups.iter().map(|group| group.as_str().into()).collect(),
            registered_network: self.registered_network,
            sender: self.from.as_deref().map(Arc::from),
            size: self.declared_size,
            recipients: self.recipients.iter().map(|recipient| recipient.as_str().into()).collect(),
        };
        PolicyRequest { facts, events: vec![self.event()], ..PolicyRequest::default() }
    }

    fn event(&self) -> Event {
        match self.stage {
            Stage::Connect => Event::Connect,
            Stage::Command => Event::Command,
            Stage::Auth if self.login_right => Event::Login,
            Stage::Auth => Event::Auth,
            Stage::Mail => Event::Mail,
            Stage::Rcpt => Event::Recipient(self.to.as_deref().unwrap_or_default().into()),
            Stage::Data => Event::Message,
            Stage::End => Event::End { size: self.size },
        }
    }
}
