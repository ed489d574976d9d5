//! Login networks that an account itself names: `allow_nets` in a Dovecot passwd-file.

use super::Accounts;
use ipnet::IpNet;
use std::sync::Arc;

/// Networks from which a user is expected to log in.
pub type Networks = Arc<[IpNet]>;

impl Accounts {
    /// Returns the login networks that the account of this user names; `None` if there is no such account, or if it
    /// names none.
    pub async fn login_networks(&self, name: &str) -> Option<Networks> {
        self.file.as_ref()?.login_networks(name).await
    }
}

/// Parses the value of Dovecot's extra field `allow_nets`: addresses and networks, separated by commas.
pub fn parse(text: &str) -> Result<Networks, &'static str> {
    let network = |item: &str| match item.parse::<IpNet>() {
        Ok(network) => Ok(network.trunc()),
        Err(_) => item.parse().map(|address: std::net::IpAddr| IpNet::from(address.to_canonical())),
    };
    // A client of Weir always has an IP address, so `local`, which stands for clients without one, allows nothing.
    let items = text.split(',').map(str::trim).filter(|item| *item != "local");
    let networks: Result<Vec<IpNet>, _> = items.map(network).collect();
    networks
        .map(Into::into)
        .map_err(|_| "allow_nets is a list of addresses and networks, as in 192.0.2.0/24,2001:db8::/32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allow_nets_is_read_as_dovecot_reads_it() {
        for (text, networks) in [
            ("192.0.2.0/24", Some("192.0.2.0/24")),
            ("192.0.2.7,2001:db8::/32", Some("192.0.2.7/32 2001:db8::/32")),
            ("192.0.2.7/24", Some("192.0.2.0/24")),
            ("::ffff:192.0.2.7", Some("192.0.2.7/32")),
            ("127.0.0.0/8,local,2001:db8::1", Some("127.0.0.0/8 2001:db8::1/128")),
            ("local", Some("")),
            ("", None),
            ("192.0.2.0/24,", None),
            ("192.0.2", None),
            ("192.0.2.0/33", None),
            ("example.org", None),
        ] {
            let read = parse(text).ok();
            let read = read.map(|read| read.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            assert_eq!(read.as_deref(), networks, "{text}");
        }
    }
}
