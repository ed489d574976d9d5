//! Mail that a limit routes to an upstream: it goes by no other, whatever becomes of it.

use crate::harness::{Client, Fault, Process, Site, Stage, Upstream};

/// A site whose limit routes all mail to "slow". `keys` are those of the usual upstream and of this one; `more` is put after the limit.
fn site(usual: &Upstream, slow: &Upstream, keys: [&str; 2], more: &str) -> Site {
    Site::new(&format!(
        "listener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n\
         [[upstream]]\nname = \"usual\"\naddress = \"{}\"\ntls = \"none\"\n{}\n\
         [[upstream]]\nname = \"slow\"\naddress = \"{}\"\ntls = \"none\"\n{}\n\
         [[limit]]\nname = \"all\"\ncount = \"messages\"\nper = [\"client\"]\nrate = \"100 / 1d\"\nmode = \"enforce\"\n\
         [[limit.action]]\nat = 0.01\nroute = \"slow\"\n{more}",
        usual.address(),
        keys[0],
        slow.address(),
        keys[1],
    ))
}

fn connect(weir: &Process) -> Client {
    let mut client = Client::connect(weir.address("s"));
    client.say("EHLO client.example", "250");
    client
}

fn acknowledged(upstreams: [&Upstream; 2]) -> [usize; 2] {
    upstreams.map(|upstream| upstream.acknowledged().len())
}

#[test]
fn a_routed_message_goes_by_no_other_though_its_upstream_goes_away_twice() {
    let [usual, slow] = [Upstream::start(), Upstream::start()];
    let site = site(&usual, &slow, ["", "only-routed = true"], "");
    let weir = site.start();
    let mut client = connect(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "250");
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
fn a_message_that_the_routed_upstream_does_not_take_is_routed_when_it_comes_again() {
    let [usual, slow] = [Upstream::start(), Upstream::start()];
    let large = "[[limit]]\nname = \"large\"\ncount = \"recipients\"\nper = [\"sender\"]\nrate = \"1 / message\"\n\
                 [[limit.action]]\nroute = \"slow\"\n";
    let site = site(&usual, &slow, ["", "only-routed = true"], large);
    site.edit("mode = \"enforce\"", "mode = \"shadow\"");
    let weir = site.start();
    let mut client = connect(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "250");
    client.say("RCPT TO:<c@example.net>", "250");
    client.say("DATA", "354");
    client.say("hello\r\n.", "250 2.0.0 Queued");
    slow.fail(Some((Stage::End, Fault::Say("451 4.3.0 not now"))));
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "250");
    client.say("DATA", "354");
    client.say("hello\r\n.", "451 4.3.0");
    slow.fail(None);
    client.send_message();
    assert_eq!(acknowledged([&usual, &slow]), [1, 1]);
    client.send_message();
    assert_eq!(acknowledged([&usual, &slow]), [2, 1]);
}
