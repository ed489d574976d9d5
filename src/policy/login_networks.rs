//! Login networks: the networks from which each user is expected to log in.

use super::matching::{PatternTable, Shape};
use ipnet::IpNet;
use std::net::IpAddr;

/// Login networks of users or of groups.
#[derive(Clone, Debug)]
pub struct LoginNetworks {
    pub rows: LoginNetworkRows,
    /// Networks of all other users: the pattern `*`.
    pub others: Option<Vec<IpNet>>,
    /// True if a user may not log in from other networks.
    pub refuses_others: bool,
}

/// Networks by pattern. The most literal pattern that matches a user decides. A user of several groups has the networks
/// of all of them.
#[derive(Clone, Debug)]
pub enum LoginNetworkRows {
    User(PatternTable<Vec<IpNet>>),
    Group(PatternTable<Vec<IpNet>>),
}

/// Without a table, only the users file can give login networks to a user.
impl Default for LoginNetworks {
    fn default() -> Self {
        Self::new(LoginNetworkRows::User(PatternTable::new(Shape::Address)), None, true)
    }
}

impl LoginNetworks {
    pub fn new(rows: LoginNetworkRows, others: Option<Vec<IpNet>>, refuses_others: bool) -> Self {
        Self { rows, others, refuses_others }
    }

    /// Returns whether the client is in a login network of a user, whose name is normalized. `own`: the login networks
    /// that the user's account itself names; they take the place of the table's. `None`: the user has no login networks.
    pub(super) fn contain(
        &self,
        client: IpAddr,
        user: &str,
        groups: &[Box<str>],
        own: Option<&[IpNet]>,
    ) -> Option<bool> {
        let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&client));
        if let Some(own) = own {
            return Some(is_in(own));
        }
        let found: Vec<&Vec<IpNet>> = match &self.rows {
            LoginNetworkRows::User(table) => table.find(user).into_iter().collect(),
            LoginNetworkRows::Group(table) => groups.iter().filter_map(|group| table.find(group)).collect(),
        };
        match found.is_empty() {
            true => self.others.as_deref().map(is_in),
            false => Some(found.into_iter().any(|networks| is_in(networks))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(text: &str) -> Vec<IpNet> {
        text.split(' ').map(|network| network.parse().unwrap()).collect()
    }

    fn table(shape: Shape, rows: &[(&str, &str)]) -> PatternTable<Vec<IpNet>> {
        let mut table = PatternTable::new(shape);
        rows.iter().for_each(|(pattern, text)| table.insert(pattern, networks(text)).unwrap());
        table
    }

    fn contain(all: &LoginNetworks, client: &str, user: &str, groups: &[&str]) -> Option<bool> {
        let groups: Vec<Box<str>> = groups.iter().map(|group| (*group).into()).collect();
        all.contain(client.parse().unwrap(), user, &groups, None)
    }

    #[test]
    fn the_most_literal_pattern_gives_a_user_its_networks() {
        let rows = [("alice@example.org", "192.0.2.0/24 2001:db8::/32"), ("*@example.org", "198.51.100.0/24")];
        let rows = LoginNetworkRows::User(table(Shape::Address, &rows));
        let all = LoginNetworks::new(rows.clone(), Some(networks("203.0.113.7/32")), true);
        for (client, user, expected) in [
            ("192.0.2.7", "alice@example.org", Some(true)),
            ("2001:db8::7", "alice@example.org", Some(true)),
            ("198.51.100.7", "alice@example.org", Some(false)),
            ("198.51.100.7", "bob@example.org", Some(true)),
            ("203.0.113.7", "bob@example.org", Some(false)),
            ("203.0.113.7", "carol", Some(true)),
            ("203.0.113.8", "carol", Some(false)),
        ] {
            assert_eq!(contain(&all, client, user, &[]), expected, "{client} {user}");
        }
        let all = LoginNetworks::new(rows, None, true);
        assert_eq!(contain(&all, "203.0.113.8", "carol", &[]), None);
        let own = networks("203.0.113.0/24");
        let of_account = |client: &str| all.contain(client.parse().unwrap(), "alice@example.org", &[], Some(&own));
        assert_eq!((of_account("203.0.113.8"), of_account("192.0.2.7")), (Some(true), Some(false)));
    }

    #[test]
    fn a_user_of_several_groups_has_the_networks_of_each() {
        let rows = [("staff", "192.0.2.0/24"), ("students", "198.51.100.0/24")];
        let rows = LoginNetworkRows::Group(table(Shape::Name, &rows));
        let all = LoginNetworks::new(rows, Some(networks("10.0.0.0/8")), true);
        assert_eq!(contain(&all, "198.51.100.7", "alice", &["staff", "students"]), Some(true));
        assert_eq!(contain(&all, "198.51.100.7", "alice", &["staff"]), Some(false));
        assert_eq!(contain(&all, "10.0.0.1", "alice", &["staff"]), Some(false));
        assert_eq!(contain(&all, "10.0.0.1", "alice", &["guests"]), Some(true));
        assert_eq!(contain(&all, "10.0.0.1", "alice", &[]), Some(true));
    }
}
