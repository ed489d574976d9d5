//! Login maps: the logins that own an address, as in `smtpd_sender_login_maps` of Postfix.

use crate::policy::address::{AddressNormalizer, domain, split};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Map from addresses, local parts and domains to logins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoginMaps {
    owners: HashMap<Box<str>, Box<[Box<str>]>, RandomState>,
    normalizer: AddressNormalizer,
}

impl LoginMaps {
    pub fn new(normalizer: &AddressNormalizer) -> Self {
        Self { owners: HashMap::default(), normalizer: normalizer.clone() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Adds the logins that own `key`: an address, a local part in the default domain, or `@` and a domain. Returns
    /// false, and changes nothing, if the map has the key already.
    pub fn insert<'a>(&mut self, key: &str, logins: impl Iterator<Item = &'a str>) -> bool {
        let key = match key.strip_prefix('@') {
            Some(domain) => format!("@{}", domain::normal(domain)),
            // Without a default domain, a local part stays a local part.
            None => AddressNormalizer::default().address(key).into_owned(),
        };
        if self.owners.contains_key(&*key) {
            return false;
        }
        let logins = logins.map(|login| self.normalizer.user(login).into()).collect();
        self.owners.insert(key.into(), logins);
        true
    }

    /// Returns whether a user, who is normalized, owns an address. `spellings`: the normal form of the address with its
    /// sub-address, and without it. The first key that the map has decides, as in Postfix: the address with and without
    /// its sub-address, then, in the default domain, its local part, then its domain.
    pub(super) fn permit(&self, user: &str, spellings: &[String; 2]) -> bool {
        if self.owners.is_empty() {
            return false;
        }
        let parts = spellings.each_ref().map(|address| split(address));
        let locals = parts.into_iter().filter(|(_, domain)| self.normalizer.is_default_domain(*domain));
        let locals = locals.map(|(local, _)| local.to_owned());
        let domain = parts[0].1.map(|domain| format!("@{domain}"));
        let mut keys = spellings.iter().cloned().chain(locals).chain(domain);
        let owners = keys.find_map(|key| self.owners.get(&*key));
        owners.is_some_and(|owners| owners.iter().any(|owner| **owner == *user))
    }
}
