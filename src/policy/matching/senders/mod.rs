//! Senders: which user may send as which address. The condition `own-sender` of limits, and the check of senders in a
//! session, decide with it.

mod aliases;
mod login_maps;
mod permit;

pub use aliases::Aliases;
pub use login_maps::LoginMaps;
pub use permit::Permit;

use crate::policy::address::{AddressNormalizer, NULL_SENDER, domain_of};

/// Addresses as which users may send. An address is permitted if at least one part of the table permits it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Senders {
    normalizer: AddressNormalizer,
    /// Normalizer that keeps sub-addresses.
    exact: AddressNormalizer,
    own: Own,
    permits: Vec<Permit>,
    login_maps: LoginMaps,
    aliases: Aliases,
}

/// Text that stands for any address: of all patterns, only those that are `*` in each part match it.
const ANY_ADDRESS: &str = "@";

/// Addresses that every user may use because of the login alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Own {
    None,
    /// The login itself.
    Address,
    /// The login itself, and its sub-addresses.
    #[default]
    SubAddresses,
    /// All addresses in the domain of the login.
    Domain,
}

impl Senders {
    /// Creates a table in which each user may use the own address and its sub-addresses.
    pub fn new(normalizer: &AddressNormalizer) -> Self {
        let exact = normalizer.with_subaddresses();
        Self { normalizer: normalizer.clone(), exact, ..Self::default() }
    }

    /// Sets which addresses a user may use because of the login alone.
    #[must_use]
    pub fn with_own(self, own: Own) -> Self {
        Self { own, ..self }
    }

    /// Adds permits, login maps and aliases.
    #[must_use]
    pub fn with_tables(self, permits: Vec<Permit>, login_maps: LoginMaps, aliases: Aliases) -> Self {
        Self { permits, login_maps, aliases, ..self }
    }

    /// Returns whether only the login decides as which addresses a user may send.
    pub fn is_of_logins_alone(&self) -> bool {
        self.own != Own::None && self.permits.is_empty() && self.login_maps.is_empty() && self.aliases.is_empty()
    }

    /// Returns whether a user of these groups may send as this address. The login and the address are in the client's
    /// spelling. Everybody may use the null sender.
    pub fn permit(&self, login: &str, groups: &[Box<str>], address: &str) -> bool {
        if address.is_empty() || address == NULL_SENDER {
            return true;
        }
        let user = self.normalizer.user(login);
        self.is_own(login, &user, address)
            || self.login_maps.permit(&user, &self.spellings(address))
            || self.aliases.permit(&user, &self.spellings(address))
            || self.permits.iter().any(|permit| permit.holds(&user, groups, &self.normalizer.address(address)))
    }

    /// Returns whether a permit of these users has the sender `*`.
    pub fn permit_any(&self, login: &str, groups: &[Box<str>]) -> bool {
        let user = self.normalizer.user(login);
        self.permits.iter().any(|permit| permit.holds(&user, groups, ANY_ADDRESS))
    }

    fn is_own(&self, login: &str, user: &str, address: &str) -> bool {
        // A login that has a sub-address is another user than the login without it.
        let login = self.exact.address(login);
        let is_same = || login == self.exact.address(address);
        let is_below = || is_same() || login == self.normalizer.address(address);
        match self.own {
            Own::None => false,
            Own::Address => is_same(),
            Own::SubAddresses => is_below(),
            Own::Domain => {
                let domain = self.normalizer.address(address);
                is_below() || domain_of(user).is_some_and(|own| domain_of(&domain) == Some(own))
            }
        }
    }

    /// Returns the normal form of an address with its sub-address, and without it.
    fn spellings(&self, address: &str) -> [String; 2] {
        [self.exact.address(address).into_owned(), self.normalizer.address(address).into_owned()]
    }
}

#[cfg(test)]
mod tests;
