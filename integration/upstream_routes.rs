//! Tests of routes: if a limit routes mail to an upstream, Weir sends this mail to no other upstream, even if the first
//! upstream fails.

use crate::harness::{Client, Fault, PASSWORD, Process, Site, SiteBuilder, Stage, Upstream, auth_plain, wait_for};

/// Returns the builder of a site whose limit routes all mail to "slow". `keys` has first the keys of the usual
/// upstream, then the keys of "slow".
fn site_with_route(usual: &Upstream, slow: &Upstream, keys: [&str; 2]) -> SiteBuilder {
    Site::builder()
        .open_listener()
        .upstream(usual.address(), &format!("name = \"usual\", {}", keys[0]))
        .upstream(slow.address(), &format!("name = \"slow\", {}", keys[1]))
        .more(
            "[[limit]]\nname = \"all\"\ncount = \"messages\"\nper = [\"client\"]\nrate = \"100 / 1d\"\nmode = \"enforce\"\n\
             [[limit.action]]\nat = 0.01\nroute = \"slow\"\n",
        )
}

fn acknowledged(upstreams: [&Upstream; 2]) -> [usize; 2] {
    upstreams.map(|upstream| upstream.acknowledged().len())
}

/// Waits until Weir knows the extensions of this many upstreams.
fn all_are_known(weir: &Process, count: usize) {
    weir.logged_times("upstream offers", count);
}

#[test]
fn a_routed_message_goes_to_no_other_upstream_after_two_faults() {
    let [usual, slow] = [Upstream::start(), Upstream::start()];
    let site = site_with_route(&usual, &slow, ["", "only-routed = true"]).build();
    let weir = site.start();
    let mut client = Client::in_transaction(&weir);
    slow.fail(Some((Stage::Data, Fault::Say("451 4.3.0 not now"))));
    slow.cut_all();
    client.say("DATA", "451 4.3.0");
    slow.fail(None);
    slow.cut_all();
    client.say("DATA", "354");
    client.say("hello\r\n.", "250 2.0.0 Queued");
    assert_eq!(acknowledged([&usual, &slow]), [0, 1]);
}

#[test]
fn a_refused_message_is_routed_again_when_the_client_retries() {
    let [usual, slow] = [Upstream::start(), Upstream::start()];
    let large = "[[limit]]\nname = \"large\"\ncount = \"recipients\"\nper = [\"sender\"]\nrate = \"1 / message\"\n\
                 [[limit.action]]\nroute = \"slow\"\n";
    let site = site_with_route(&usual, &slow, ["", "only-routed = true"]).more(large).build();
    site.edit("mode = \"enforce\"", "mode = \"shadow\"");
    let weir = site.start();
    let mut client = Client::in_transaction(&weir);
    client.say("RCPT TO:<c@example.net>", "250");
    client.say("DATA", "354");
    client.say("hello\r\n.", "250 2.0.0 Queued");
    slow.fail(Some((Stage::End, Fault::Say("451 4.3.0 not now"))));
    client.begin_transaction();
    client.say("DATA", "354");
    client.say("hello\r\n.", "451 4.3.0");
    slow.fail(None);
    client.send_message();
    assert_eq!(acknowledged([&usual, &slow]), [1, 1]);
    client.send_message();
    assert_eq!(acknowledged([&usual, &slow]), [2, 1]);
}

#[test]
fn ehlo_counts_upstreams_that_limits_route_to_and_no_unused_ones() {
    let [usual, slow, unused] = [Upstream::start(), Upstream::start(), Upstream::start()];
    usual.offer(&["PIPELINING", "8BITMIME", "SIZE 1000000"]);
    slow.offer(&["PIPELINING", "SIZE 900000"]);
    unused.offer(&["PIPELINING", "8BITMIME", "SIZE 500", "LIMITS RCPTMAX=3"]);
    let site = site_with_route(&usual, &slow, ["priority = 1", "priority = 2"])
        .upstream(unused.address(), "name = \"unused\", only-routed = true")
        .build();
    let weir = site.start();
    all_are_known(&weir, 3);
    let promised = || Client::connect(weir.address("s")).ask("EHLO client.example");
    let said = promised();
    assert!(said.contains("250-SIZE 900000\n") && !said.contains("8BITMIME") && !said.contains("RCPTMAX=3"), "{said}");
    // In shadow mode the limit routes no mail, so EHLO need not announce the extensions of "slow".
    site.reload(&weir, "mode = \"enforce\"", "mode = \"shadow\"", "limits read again");
    wait_for("8BITMIME", || {
        let said = promised();
        (said.contains("250-SIZE 1000000\n") && said.contains("250-8BITMIME\n")).then_some(())
    });
}

#[test]
fn pipelined_commands_change_neither_the_user_nor_the_upstream_of_a_message() {
    let [usual, slow] = [Upstream::start(), Upstream::start()];
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", trusted = [\"127.0.0.0/8\"]")
        .upstream(usual.address(), "name = \"usual\"")
        .upstream(slow.address(), "name = \"slow\", only-routed = true")
        .more(
            "[[limit]]\nname = \"lists\"\ncount = \"messages\"\nper = [\"client\"]\nrate = \"100 / 1d\"\n\
             match = { sender = \"list@example.org\" }\n[[limit.action]]\nat = 0.01\nroute = \"slow\"\n",
        )
        .build();
    let weir = site.start();
    let mut client = Client::greeted(weir.address("s"));
    let login = auth_plain("alice", PASSWORD);
    client.begin_transaction();
    client.send(format!("BDAT 7 LAST\r\nhello\r\n{login}\r\n").as_bytes());
    client.expect("250 2.0.0 Queued");
    client.expect("235");
    client.begin_transaction();
    client.say("DATA", "354");
    client.send(b"hello\r\n.\r\nMAIL FROM:<list@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\n");
    for reply in ["250 2.0.0 Queued", "250", "250", "354"] {
        client.expect(reply);
    }
    client.say("bye\r\n.", "250");
    let line = |number| {
        wait_for("the line", || weir.log_lines().into_iter().filter(|line| line.contains("message ended")).nth(number))
    };
    assert!(!line(0).contains(" user=") && line(0).contains(" via=usual "), "{}", line(0));
    assert!(line(1).contains(" user=alice ") && line(1).contains(" via=usual "), "{}", line(1));
    assert!(line(2).contains(" via=slow "), "{}", line(2));
}
