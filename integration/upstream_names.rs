//! Tests of upstreams given by name: names with several addresses, names whose addresses change, mail exchangers (MX),
//! and name servers that fail.

use crate::harness::{Client, Fault, NameServer, Outcome, Process, Site, Stage, Upstream, free_port, wait_for};
use std::net::{SocketAddr, UdpSocket};

/// Returns a site whose upstream has this name and port.
fn site_with_upstream_name(host: &str, port: u16, more: &str, name_servers: &[SocketAddr]) -> Site {
    let name_servers: Vec<String> = name_servers.iter().map(|address| format!("\"{address}\"")).collect();
    Site::builder()
        .open_listener()
        .upstream(format!("{host}:{port}"), &format!("max-idle-connections = 0{more}"))
        .more(&format!(
            "session = {{ upstream-timeout = \"4s\" }}\ndns = {{ servers = [{}], timeout = \"1s\" }}\n",
            name_servers.join(", ")
        ))
        .build()
}

/// Starts upstreams at 127.0.0.2, 127.0.0.3, …, all on the same port.
fn upstreams<const COUNT: usize>() -> ([Upstream; COUNT], u16) {
    let hosts: [String; COUNT] = std::array::from_fn(|at| format!("127.0.0.{}", at + 2));
    Upstream::start_at_one_port(hosts.each_ref().map(String::as_str))
}

/// Sends MAIL, RCPT and a message until a step fails; returns the last reply.
fn send(weir: &Process) -> String {
    let mut client = Client::greeted_by(weir);
    client.try_message()
}

/// Sends a message, which must be accepted.
fn deliver(weir: &Process) {
    let reply = send(weir);
    assert!(reply.starts_with("250 2.0.0 Queued"), "{reply}");
}

fn messages(upstreams: &[Upstream]) -> Vec<usize> {
    upstreams.iter().map(|upstream| upstream.acknowledged().len()).collect()
}

#[test]
fn a_record_that_changes_is_followed_while_weir_runs() {
    let (upstreams, port) = upstreams::<2>();
    let names = NameServer::start("127.0.0.2 smart.example\n", &[]);
    let site = site_with_upstream_name("smart.example", port, "", &[names.address()]);
    let weir = site.start();
    deliver(&weir);
    assert_eq!(messages(&upstreams), [1, 0]);
    names.change("127.0.0.3 smart.example\n");
    wait_for("message at the other upstream", || {
        deliver(&weir);
        (messages(&upstreams)[1] == 1).then_some(())
    });
    deliver(&weir);
    assert_eq!(messages(&upstreams)[1], 2);
}

#[test]
fn the_next_address_serves_after_any_fault_of_the_first() {
    let (upstreams, port) = upstreams::<2>();
    let names = NameServer::start(
        "127.0.0.9 refused.example\n127.0.0.3 refused.example\n127.0.0.2 smart.example\n127.0.0.3 smart.example\n",
        &[],
    );
    let refused = site_with_upstream_name("refused.example", port, "", &[names.address()]);
    deliver(&refused.start());
    assert_eq!(messages(&upstreams), [0, 1]);

    let site = site_with_upstream_name("smart.example", port, "", &[names.address()]);
    for (at, fault) in [
        (Stage::Greeting, Fault::SayAndClose("421 4.3.2 Too busy")),
        (Stage::Greeting, Fault::SayAndClose("554 5.3.2 No")),
        (Stage::Greeting, Fault::Say("HTTP/1.1 400 Bad Request")),
        (Stage::Greeting, Fault::Cut),
        (Stage::Ehlo, Fault::SayAndClose("421 4.3.2 Shutting down")),
        // A silent address must leave Weir enough time to try the next address.
        (Stage::Greeting, Fault::Silence),
    ] {
        upstreams[0].fail(None);
        upstreams.iter().for_each(Upstream::forget);
        let weir = site.start();
        deliver(&weir);
        assert_eq!(messages(&upstreams), [1, 0]);
        upstreams[0].fail(Some((at, fault)));
        deliver(&weir);
        assert_eq!(messages(&upstreams), [1, 1], "{at:?} {fault:?}");
    }
}

#[test]
fn an_address_that_failed_is_asked_last_for_a_while() {
    let (upstreams, port) = upstreams::<2>();
    let names = NameServer::start("127.0.0.2 smart.example\n127.0.0.3 smart.example\n", &[]);
    let site = site_with_upstream_name("smart.example", port, "", &[names.address()]);
    let weir = site.start();
    weir.logged("upstream offers");
    upstreams[0].fail(Some((Stage::Greeting, Fault::Silence)));
    deliver(&weir);
    let asked = upstreams[0].connections();
    for _ in 0..3 {
        deliver(&weir);
    }
    assert_eq!((upstreams[0].connections(), messages(&upstreams)), (asked, vec![0, 4]));
    upstreams[0].fail(None);
    upstreams[1].fail(Some((Stage::Greeting, Fault::SayAndClose("421 4.3.2 Too busy"))));
    deliver(&weir);
    assert_eq!(messages(&upstreams), [1, 4]);
    // Weir logs the failure of 127.0.0.2 once and its recovery once, not for each message.
    let counts = || (weir.times_logged("address=127.0.0.2"), weir.times_logged("address works again"));
    wait_for("the line of the recovery", || (counts().1 > 0).then_some(()));
    assert_eq!(counts(), (2, 1));
    let line = weir.logged("address fails; trying the next");
    assert!(line.contains(&format!("address=127.0.0.2:{port} reason=\"it does not answer")), "{line}");
}

#[test]
fn when_all_addresses_fail_the_last_fault_is_reported() {
    let port = free_port();
    let names = NameServer::start("127.0.0.9 smart.example\n127.0.0.10 smart.example\n", &[]);
    let site = site_with_upstream_name("smart.example", port, "", &[names.address()]);
    let weir = site.start();
    let reply = send(&weir);
    assert!(reply.starts_with("451 4.4.1"), "{reply}");
    let line = weir.logged("upstream away");
    assert!(line.contains(&format!("127.0.0.10:{port}: Connection refused")), "{line}");
}

#[test]
fn ipv6_is_tried_first_and_a_working_address_of_either_kind_is_enough() {
    let ([six, four], port) = Upstream::start_at_one_port(["::1", "127.0.0.2"]);
    let names = NameServer::start(
        "127.0.0.2 both.example\n::1 both.example\n127.0.0.9 six.example\n::1 six.example\n\
         2001:db8::1 four.example\n127.0.0.2 four.example\n",
        &[],
    );
    // A connection to 2001:db8::1 fails at once or times out, depending on the host: shorten the time-out.
    let quick = ", connect-timeout = \"1s\"";
    for (name, expected) in [("both", [1, 0]), ("six", [1, 0]), ("four", [0, 1])] {
        let site = site_with_upstream_name(&format!("{name}.example"), port, quick, &[names.address()]);
        deliver(&site.start());
        assert_eq!([six.acknowledged().len(), four.acknowledged().len()], expected, "{name}");
        six.forget();
        four.forget();
    }
}

#[test]
fn mail_exchangers_are_tried_in_the_order_of_preference() {
    let (upstreams, port) = upstreams::<3>();
    let names = NameServer::start(
        "127.0.0.2 a.example\n127.0.0.3 b.example\n127.0.0.4 b.example\n127.0.0.4 plain.example\n",
        &[
            "--mx-host=corp.example,a.example,10",
            "--mx-host=corp.example,lost.example,5",
            "--mx-host=corp.example,b.example,20",
            "--dns-rr=null.example,15,000000",
        ],
    );
    let corp = site_with_upstream_name("corp.example", port, ", mx = true", &[names.address()]);
    let weir = corp.start();
    deliver(&weir);
    assert_eq!(messages(&upstreams), [1, 0, 0]);
    upstreams[0].fail(Some((Stage::Greeting, Fault::SayAndClose("421 4.3.2 Too busy"))));
    deliver(&weir);
    assert_eq!(messages(&upstreams), [1, 1, 0]);
    upstreams[1].fail(Some((Stage::Greeting, Fault::Cut)));
    deliver(&weir);
    assert_eq!(messages(&upstreams), [1, 1, 1]);

    let plain = site_with_upstream_name("plain.example", port, ", mx = true", &[names.address()]);
    deliver(&plain.start());
    assert_eq!(messages(&upstreams), [1, 1, 2]);

    let null = site_with_upstream_name("null.example", port, ", mx = true", &[names.address()]);
    let weir = null.start();
    assert!(send(&weir).starts_with("451 4.4.1"));
    let line = weir.logged("upstream away");
    assert!(line.contains("null.example takes no mail: it has a null MX record"), "{line}");
}

#[test]
fn mail_flows_on_while_name_servers_are_away() {
    let (upstreams, port) = upstreams::<2>();
    let mut names = NameServer::start("127.0.0.2 mx1.example\n", &["--mx-host=corp.example,mx1.example,10"]);
    let site = site_with_upstream_name("corp.example", port, ", mx = true", &[names.address()]);
    let weir = site.start();
    deliver(&weir);
    names.stop();
    wait_for("warning", || {
        deliver(&weir);
        (weir.times_logged("DNS fails; the last answers are used") > 0).then_some(())
    });
    names.resume();
    names.change("127.0.0.3 mx1.example\n");
    wait_for("message at the new address", || {
        deliver(&weir);
        (messages(&upstreams)[1] > 0).then_some(())
    });
    assert!(weir.logged("name servers answer again").contains("corp.example"));
    weir.logged_times("DNS fails; the last answers are used", 1);
}

#[test]
fn a_failed_lookup_of_an_exchanger_leaves_time_for_the_next() {
    let (upstreams, port) = upstreams::<1>();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let forward = format!("--server=/dead.test/127.0.0.1#{}", silent.local_addr().unwrap().port());
    let dead = (1..=5).map(|at| format!("--mx-host=corp.example,mx{at}.dead.test,{at}"));
    let records: Vec<String> = dead.chain([forward, "--mx-host=corp.example,good.example,9".to_owned()]).collect();
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let names = NameServer::start("127.0.0.2 good.example\n", &records);
    let with_good = site_with_upstream_name("corp.example", port, ", mx = true", &[names.address()]);
    deliver(&with_good.start());
    assert_eq!(messages(&upstreams), [1]);
    // If no name server answers, the log names the name server, and does not say that the upstream's name is wrong.
    let names = NameServer::start("", &records[..6]);
    let without = site_with_upstream_name("corp.example", port, ", mx = true", &[names.address()]);
    let weir = without.start();
    assert!(send(&weir).starts_with("451 4.4.1"));
    let line = weir.logged("upstream away");
    assert!(line.contains(&format!("the name server {} does not answer", names.address())), "{line}");
}

#[test]
fn one_working_name_server_is_enough() {
    let (upstreams, port) = upstreams::<1>();
    let names = NameServer::start("127.0.0.2 smart.test\n", &["--local=/test/"]);
    let refusing = NameServer::start("", &[]);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    for other in [refusing.address(), silent.local_addr().unwrap(), SocketAddr::from(([127, 0, 0, 9], 9))] {
        let site = site_with_upstream_name("smart.test", port, "", &[other, names.address()]);
        deliver(&site.start());
    }
    assert_eq!(messages(&upstreams), [3]);
}

#[test]
fn a_lookup_failure_is_logged_and_the_client_gets_451() {
    let names = NameServer::start("127.0.0.2 exists.example\n", &["--mx-host=lame.example,nowhere.example,10"]);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let does_not_answer = format!("the name server {silent} does not answer");
    for (name, more, name_server, words) in [
        ("nowhere.example", "", names.address(), "there is no such name as nowhere.example"),
        ("nowhere.example", ", mx = true", names.address(), "there is no such name as nowhere.example"),
        ("lame.example", "", names.address(), "lame.example has no address"),
        ("lame.example", ", mx = true", names.address(), "there is no such name as nowhere.example"),
        ("relay.test", "", names.address(), "refuses to answer (REFUSED)"),
        ("exists.example", "", silent, &does_not_answer),
        ("exists.example", ", mx = true", silent, &does_not_answer),
    ] {
        let site = site_with_upstream_name(name, 25, more, &[name_server]);
        let weir = site.start();
        let reply = send(&weir);
        assert!(reply.starts_with("451 4.4.1"), "{name}{more}: {reply}");
        let line = weir.logged("upstream away");
        assert!(line.contains(words), "{name}{more}: {line}");
    }
}

#[test]
fn check_online_tells_what_a_name_resolves_to() {
    let (_upstreams, port) = upstreams::<1>();
    let names = NameServer::start(
        "127.0.0.2 smart.example\n127.0.0.9 smart.example\n::1 smart.example\n",
        &["--mx-host=corp.example,nowhere.example,5", "--mx-host=corp.example,smart.example,10"],
    );
    for (host, more, code, words) in [
        ("smart.example", "", 0, "resolves to ::1, 127.0.0.2, 127.0.0.9\n"),
        ("smart.example", "", 0, "its address [::1]:PORT fails: it cannot be reached: [::1]:PORT: Connection refused"),
        ("corp.example", ", mx = true", 0, "resolves to there is no such name as nowhere.example, ::1, 127.0.0.2"),
        ("127.0.0.2", "", 0, ") answers\n"),
        ("nowhere.example", "", 69, ""),
    ] {
        let site = site_with_upstream_name(host, port, more, &[names.address()]);
        let Outcome { code: got, out, .. } = site.run(&["check", "--online"], "");
        assert_eq!(got, Some(code), "{out}");
        assert!(out.contains(&words.replace("PORT", &port.to_string())), "{out}");
        assert_eq!(out.contains("resolves to"), host.ends_with(".example") && code == 0, "{out}");
    }
}
