//! Normalized facts of a run of events. Each fact is normalized once, even if many limits compare it.

use super::client_network::Widths;
use super::hours::Zone;
use super::senders::Senders;
use crate::engine::distinct::Value;
use crate::policy::address::{AddressNormalizer, domain};
use crate::policy::request::{Asn, Country, Facts, LoginTrait, NULL_SENDER};
use crate::time::Timestamp;
use jiff::civil::Weekday;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

/// Normalized facts, for limits to compare.
pub struct NormalizedFacts<'a> {
    facts: &'a Facts,
    normalizer: &'a AddressNormalizer,
    senders: &'a Senders,
    own_sender: OnceCell<Option<bool>>,
    listener: Option<Cow<'a, str>>,
    user: Option<Cow<'a, str>>,
    // Many policies ask for neither.
    helo: OnceCell<Option<Cow<'a, str>>>,
    sender: OnceCell<Option<Cow<'a, str>>>,
    /// Accepted recipients.
    recipients: OnceCell<Vec<NormalizedRecipient<'a>>>,
    /// Network of the client in the usual widths, which most limits per client use.
    network: OnceCell<String>,
    now: Timestamp,
    zone: &'a Zone,
    civil: OnceCell<(Weekday, u16)>,
}

/// Recipient that is normalized and hashed on first use: many policies compare no recipient.
pub struct NormalizedRecipient<'a> {
    given: &'a str,
    normalizer: &'a AddressNormalizer,
    address: OnceCell<Cow<'a, str>>,
    hash: OnceCell<Value>,
}

impl<'a> NormalizedRecipient<'a> {
    pub fn new(given: &'a str, normalizer: &'a AddressNormalizer) -> Self {
        Self { given, normalizer, address: OnceCell::new(), hash: OnceCell::new() }
    }

    /// Returns the normalized address.
    pub fn address(&self) -> &str {
        self.address.get_or_init(|| self.normalizer.address(self.given))
    }

    /// Returns the hash of the normalized address.
    pub fn value(&self) -> Value {
        *self.hash.get_or_init(|| Value::of(self.address()))
    }
}

impl<'a> NormalizedFacts<'a> {
    pub fn new(
        facts: &'a Facts,
        normalizer: &'a AddressNormalizer,
        senders: &'a Senders,
        zone: &'a Zone,
        now: Timestamp,
    ) -> Self {
        Self {
            facts,
            normalizer,
            senders,
            own_sender: OnceCell::new(),
            listener: facts.listener.as_deref().map(lower_case),
            user: facts.user.as_deref().map(|user| normalizer.user(user)),
            helo: OnceCell::new(),
            sender: OnceCell::new(),
            recipients: OnceCell::new(),
            network: OnceCell::new(),
            now,
            zone,
            civil: OnceCell::new(),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub fn listener(&self) -> Option<&str> {
        self.listener.as_deref()
    }

    pub fn client(&self) -> Option<IpAddr> {
        self.facts.client
    }

    pub fn country(&self) -> Option<&str> {
        self.facts.location.country.as_ref().map(Country::as_str)
    }

    pub fn asn(&self) -> Option<Asn> {
        self.facts.location.asn
    }

    pub fn tls(&self) -> Option<bool> {
        self.facts.tls
    }

    pub fn helo(&self) -> Option<&str> {
        self.helo.get_or_init(|| self.facts.helo.as_deref().map(domain::normal)).as_deref()
    }

    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub fn authenticated(&self) -> bool {
        self.facts.authenticated
    }

    pub fn registered_network(&self) -> Option<bool> {
        self.facts.registered_network
    }

    /// Returns whether a property of the login is new for the user; `None` if this is unknown.
    pub fn is_new(&self, property: LoginTrait) -> Option<bool> {
        self.facts.novelty.of(property)
    }

    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.facts.groups.iter().map(|group| &**group)
    }

    pub fn sender(&self) -> Option<&str> {
        let normalized = || self.facts.sender.as_deref().map(|sender| self.normalizer.address(sender));
        self.sender.get_or_init(normalized).as_deref()
    }

    /// Returns whether the user may send as the sender; `None` without a user, or if the sender is unknown or null.
    pub fn own_sender(&self) -> Option<bool> {
        *self.own_sender.get_or_init(|| {
            let sender = self.facts.sender.as_deref().filter(|sender| *sender != NULL_SENDER)?;
            self.facts.user.as_deref().map(|user| self.senders.permit(user, &self.facts.groups, sender))
        })
    }

    /// Returns the accepted recipients.
    pub fn recipients(&self) -> &[NormalizedRecipient<'a>] {
        let recipient = |given: &'a Arc<str>| NormalizedRecipient::new(given, self.normalizer);
        self.recipients.get_or_init(|| self.facts.recipients.iter().map(recipient).collect())
    }

    /// Returns the declared size, in octets.
    pub fn size(&self) -> Option<u64> {
        self.facts.size
    }

    /// Returns the day of the week and the minute of the day, in the policy's time zone.
    pub fn civil(&self) -> (Weekday, u16) {
        *self.civil.get_or_init(|| self.zone.civil(self.now))
    }

    /// Returns the client's network.
    pub fn network(&self, widths: Widths) -> Option<Cow<'_, str>> {
        let client = self.facts.client?;
        Some(match widths == Widths::default() {
            true => self.network.get_or_init(|| widths.network(client)).as_str().into(),
            false => widths.network(client).into(),
        })
    }
}

fn lower_case(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|b| b.is_ascii_uppercase()) { text.to_ascii_lowercase().into() } else { text.into() }
}
