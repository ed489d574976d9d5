//! Novelty of a login: whether its network, its country and its EHLO name are new for the user.

/// Property of a login that the login history remembers for each user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginTrait {
    /// Network of the client: an IPv4 /24 or an IPv6 /56.
    Network,
    Country,
    /// Name in EHLO or HELO.
    Helo,
}

impl LoginTrait {
    pub const ALL: [Self; 3] = [Self::Network, Self::Country, Self::Helo];

    /// Returns the key in the configuration.
    pub fn key(self) -> &'static str {
        match self {
            Self::Network => "new-network",
            Self::Country => "new-country",
            Self::Helo => "new-helo",
        }
    }
}

/// Novelty of each property of a login: true if the property is new for the user, false if the user has logged in with
/// it before. `None` if this is unknown, because the user has no history, or only a short one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Novelty {
    pub network: Option<bool>,
    pub country: Option<bool>,
    pub helo: Option<bool>,
}

impl Novelty {
    pub fn of(self, property: LoginTrait) -> Option<bool> {
        match property {
            LoginTrait::Network => self.network,
            LoginTrait::Country => self.country,
            LoginTrait::Helo => self.helo,
        }
    }
}
