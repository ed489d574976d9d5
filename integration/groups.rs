//! Tests of limits that match on groups of the users file: for users who log in, and for users whose name a trusted
//! proxy sends by XCLIENT.

use crate::harness::{Client, Site, Upstream, succeed};

/// Limits each user of the group `students` to two recipients a day. Other users have no limit.
const LIMIT: &str = "[[limit]]\nname = \"students\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"2.5 / 1d\"\n\
    match = { group = \"Students\" }\n";

/// Returns a site with the limit [`LIMIT`].
fn limited_site(upstream: &Upstream) -> Site {
    Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", xclient = [\"127.0.0.2\"]")
        .upstream(upstream.address(), "")
        .more(LIMIT)
        .build()
}

/// Replaces a user's groups by `weir user groups`.
fn put(site: &Site, user: &str, groups: &[&str]) {
    succeed(site.command(&["user", "groups"]).arg(user).args(groups), "");
}

/// Sends up to four messages, each to one recipient, until Weir refuses a message. Returns the number of accepted
/// messages.
fn sent(client: &mut Client) -> usize {
    let is_refused = |client: &mut Client| client.ask("MAIL FROM:<a@example.org>").starts_with("450");
    let send = |_: &usize| {
        if is_refused(client) {
            return false;
        }
        client.say("RCPT TO:<b@example.net>", "250");
        client.say("DATA", "354");
        client.say("hello\r\n.", "250");
        true
    };
    (0..4).take_while(send).count()
}

#[test]
fn a_limit_for_a_group_uses_the_groups_at_login() {
    let upstream = Upstream::start();
    let site = limited_site(&upstream);
    site.add_user("bob");
    put(&site, "bob", &["staff", "students"]);
    let weir = site.start();
    let log_in = |name| Client::logged_in(weir.address("s"), name);
    assert_eq!((sent(&mut log_in("alice")), sent(&mut log_in("BOB"))), (4, 2));
    put(&site, "bob", &["staff"]);
    put(&site, "alice", &["students"]);
    assert_eq!((sent(&mut log_in("alice")), sent(&mut log_in("bob"))), (2, 4));
}

#[test]
fn a_user_named_by_a_proxy_has_the_groups_of_the_users_file() {
    let upstream = Upstream::start();
    let site = limited_site(&upstream);
    site.add_user("bob");
    put(&site, "bob", &["students"]);
    let weir = site.start();
    let mut client = Client::connect_from("127.0.0.2".parse().unwrap(), weir.address("s"));
    client.say("EHLO proxy.example", "250");
    // The last XCLIENT changes only the client's address: the user is still bob, who has used up the limit.
    for (who, expected) in [("LOGIN=alice", 4), ("LOGIN=carol", 4), ("LOGIN=bob", 2), ("ADDR=192.0.2.7", 0)] {
        client.say(&format!("XCLIENT {who}"), "220");
        client.say("EHLO pc.example", "250");
        assert_eq!(sent(&mut client), expected, "{who}");
    }
}
