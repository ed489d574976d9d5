//! Login networks: finds out whether the client is in a login network of the user, and tells the session.

use super::services::Server;
use crate::groups::Groups;
use crate::session::{Admit, GroupLookup, LoginPlace};
use std::net::IpAddr;

/// Tells a question about a login whether the client is in a login network of the user. Returns false if the user may
/// not log in from there: only after the right password, so that a guesser learns nothing.
pub async fn permits(server: &Server, admit: &mut Admit) -> bool {
    let Some(LoginPlace { user, groups }) = admit.login_place() else { return true };
    let is_right = groups.is_some();
    let is_registered = registered_network(server, admit.client(), user, groups).await;
    admit.set_registered_network(is_registered);
    !is_right || is_registered != Some(false) || !server.store.policy().login_networks.refuses_others
}

/// Tells the session of a user that a proxy named whether the client is in a login network of this user.
pub async fn note(server: &Server, lookup: &mut GroupLookup, groups: &[Box<str>]) {
    let Some(user) = lookup.user().cloned() else { return };
    let is_registered = registered_network(server, lookup.client(), &user, Some(groups)).await;
    lookup.set_registered_network(is_registered);
}

/// Returns whether the client is in a login network of the user. Looks up the user's groups if they are not given.
pub async fn registered_network(
    server: &Server,
    client: IpAddr,
    user: &str,
    groups: Option<&[Box<str>]>,
) -> Option<bool> {
    let (mut own, mut found) = (None, Groups::default());
    if let Some(accounts) = &server.accounts {
        own = accounts.login_networks(user).await;
        if groups.is_none() {
            found = accounts.groups(user).await;
        }
    }
    server.store.policy().registered_network(client, user, groups.unwrap_or(&found), own.as_deref())
}
