//! Tests of reloads of the configuration: by SIGHUP, by Weir itself after a change of the file, and by `weir reload`.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream, run, wait_for};
use crate::state::{TEN, accepted, running, site_with_limits};
use rustix::fs::inotify;
use rustix::process::Signal;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt};
use std::os::unix::process::CommandExt as _;
use std::path::Path;

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);

const TAKEN: &str = "weir_reloads_total{result=\"taken\"}";
const REFUSED: &str = "weir_reloads_total{result=\"refused\"}";
const GOOD: &str = "weir_config_good";

/// Trigger of a reload.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Signal,
    File,
    Command,
}

const WAYS: [Way; 3] = [Way::Signal, Way::File, Way::Command];

fn ten(upstream: &Upstream) -> Site {
    site_with_limits(upstream, TEN).build()
}

fn config(site: &Site) -> String {
    std::fs::read_to_string(site.path("weir.toml")).unwrap()
}

fn change(site: &Site, from: &str, to: &str) {
    let config = config(site);
    assert!(config.contains(from));
    site.put("weir.toml", &config.replace(from, to));
}

/// Runs `weir reload`.
fn reload(site: &Site) -> Outcome {
    site.run(&["reload"], "")
}

/// Changes `from` to `to` in the configuration. Waits until Weir has read the file again and counted this reload in
/// `metric` ([`TAKEN`] or [`REFUSED`]).
fn take(way: Way, site: &Site, weir: &Process, (from, to): (&str, &str), metric: &str) {
    let before = weir.metric(metric);
    change(site, from, to);
    match way {
        Way::Signal => weir.signal(Signal::HUP),
        Way::File => {}
        Way::Command => assert_eq!(reload(site).code, Some(if metric == TAKEN { 0 } else { 78 })),
    }
    weir.wait_for_metric(metric, before + 1.0);
}

fn begin(weir: &Process) -> Client {
    let mut client = Client::connect_from(ALICE, weir.address("s"));
    client.say("EHLO client.example", "250");
    client.say("MAIL FROM:<a@example.org>", "250");
    client
}

/// Sends RCPT until Weir refuses a recipient; returns the number of accepted recipients.
fn until_refused(client: &mut Client) -> usize {
    let recipient = |n| {
        client.send(format!("RCPT TO:<r{n}@example.net>\r\n").as_bytes());
        client.reply().starts_with("250").then_some(())
    };
    (0..100).map_while(recipient).count()
}

#[test]
fn changed_rates_apply_from_the_next_command_and_budgets_keep_their_history() {
    let upstream = Upstream::start();
    for way in WAYS {
        let site = ten(&upstream);
        let weir = site.start();
        let mut client = begin(&weir);
        assert_eq!(until_refused(&mut client), 10);
        take(way, &site, &weir, ("10 / 1d", "25 / 1d"), TAKEN);
        assert_eq!(until_refused(&mut client), 15, "{way:?}");
        client.say("DATA", "354");
        client.say("Subject: the same session\r\n\r\nstill\r\n.", "250");
        assert_eq!((weir.metric(REFUSED), weir.metric(GOOD)), (0.0, 1.0), "{way:?}");
    }
}

#[test]
fn a_bad_file_changes_nothing_however_the_reload_is_triggered() {
    let upstream = Upstream::start();
    for way in WAYS {
        let site = ten(&upstream);
        let weir = site.start();
        let mut client = begin(&weir);
        client.say("RCPT TO:<first@example.net>", "250");
        take(way, &site, &weir, ("10 / 1d", "20 / 1x"), REFUSED);
        let line = weir.logged("configuration refused: the former limits and upstreams stay in force");
        assert!(line.contains("units are") && line.contains("level=error"), "{line}");
        assert_eq!((weir.metric(TAKEN), weir.metric(GOOD)), (0.0, 0.0), "{way:?}");
        assert_eq!(until_refused(&mut client), 9, "{way:?}");
        take(way, &site, &weir, ("20 / 1x", "12 / 1d"), TAKEN);
        assert_eq!(weir.metric(GOOD), 1.0);
        assert_eq!(until_refused(&mut client), 2, "{way:?}");
    }
}

#[test]
fn a_reload_on_command_runs_without_a_changed_file() {
    let (_upstream, site, weir) = running(TEN);
    weir.signal(Signal::HUP);
    weir.wait_for_metric(TAKEN, 1.0);
    let Outcome { code, out, err } = reload(&site);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.ends_with("weir.toml: read again: 1 limit\n"), "{out}");
    assert_eq!(weir.metric(TAKEN), 2.0);
}

#[test]
fn a_bad_file_is_reported_as_by_check() {
    let (_upstream, site, weir) = running(TEN);
    change(&site, "10 / 1d", "20 / 1x");
    let checked = site.run(&["check"], "");
    let Outcome { code, out, err } = reload(&site);
    assert_eq!((code, out.as_str()), (Some(78), ""));
    let (drawn, _) = checked.err.rsplit_once("\n\n").unwrap();
    assert!(drawn.contains("20 / 1x") && err.starts_with(drawn), "{err}\n{}", checked.err);
    assert!(err.ends_with("weir.toml: refused: the former limits and upstreams stay in force\n"), "{err}");
    // Weir also logs an error if the file does not exist.
    std::fs::remove_file(site.path("weir.toml")).unwrap();
    assert!(weir.logged("No such file").contains("configuration refused"));
    assert_eq!(reload(&site).code, Some(66));
}

#[test]
fn a_bad_file_is_reported_once_until_it_changes_again() {
    let (_upstream, site, weir) = running(TEN);
    take(Way::File, &site, &weir, ("10 / 1d", "20 / 1x"), REFUSED);
    let watching = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watching, site.path("weir.toml"), inotify::WatchFlags::OPEN).unwrap();
    let mut space = [MaybeUninit::uninit(); 1024];
    let mut opened = inotify::Reader::new(&watching, &mut space);
    // When Weir has opened the unchanged file twice, the first of these two reads is complete. Weir must not count this
    // read.
    opened.next().unwrap();
    opened.next().unwrap();
    assert_eq!(weir.metric(REFUSED), 1.0);
    take(Way::File, &site, &weir, ("20 / 1x", "20 / 1y"), REFUSED);
    // A separate thread writes the log line, some time after the metric has changed.
    weir.logged_times("configuration refused", 2);
}

#[test]
fn a_bad_file_is_read_again_until_it_is_valid() {
    let (_upstream, site, weir) = running(TEN);
    take(Way::File, &site, &weir, ("10 / 1d", "20 / 1x"), REFUSED);
    let modified = std::fs::metadata(site.path("weir.toml")).unwrap().modified().unwrap();
    let good = config(&site).replace("20 / 1x", "20 / 1d");
    std::fs::write(site.path("weir.toml"), good).unwrap();
    std::fs::File::options().write(true).open(site.path("weir.toml")).unwrap().set_modified(modified).unwrap();
    weir.wait_for_metric(TAKEN, 1.0);
    assert_eq!(weir.metric(GOOD), 1.0);
}

#[test]
fn reloaded_limits_keep_their_history() {
    let (_upstream, site, weir) = running(TEN);
    let gone = |name: &str| format!("limit removed: {name}: its budgets are kept for 30d, in case it comes back\n");
    let reload = |from, to| {
        change(&site, from, to);
        let Outcome { code, out, err } = reload(&site);
        assert_eq!(code, Some(0), "{err}");
        out
    };
    assert_eq!(accepted(&weir, ALICE, 4), 4);
    assert!(!reload("10 / 1d", "20 / 1d").contains("limit removed"));
    assert_eq!(accepted(&weir, ALICE, 20), 16, "other numbers, the same history");
    let out = reload("\"ten\"", "\"twenty\"");
    assert!(out.contains(&gone("ten/recipients/token-bucket/client")), "{out}");
    let told = weir.logged("limit removed");
    assert!(told.contains("limit=ten/recipients/token-bucket/client") && told.contains("kept for 30d"), "{told}");
    assert_eq!(accepted(&weir, ALICE, 30), 20, "another limit begins anew");
    let out = reload("\"twenty\"", "\"ten\"");
    assert!(out.contains(&gone("twenty/recipients/token-bucket/client")), "{out}");
    assert_eq!(accepted(&weir, ALICE, 20), 0, "and this one is remembered");
    let out = reload("token-bucket", "ewma");
    assert!(out.contains(&gone("ten/recipients/token-bucket/client")), "{out}");
    assert_ne!(accepted(&weir, ALICE, 20), 0, "of another meaning: it begins anew");
}

#[test]
fn changes_that_need_a_restart_are_named_until_then() {
    let (_upstream, site, weir) = running(TEN);
    let session = "session = { idle-timeout = \"7m\" }\nlog = { format = \"json\" }\nhostname = \"other.example\"";
    change(&site, "hostname = \"weir.example\"", session);
    let words = "needs a restart: [log] format, [session] idle-timeout, hostname";
    for _ in 0..2 {
        let Outcome { code, out, .. } = reload(&site);
        assert!(code == Some(0) && out.ends_with(&format!("read again: 1 limit\n{words}\n")), "{out}");
        assert!(weir.logged(words).contains("level=warn"));
    }
    change(&site, session, "hostname = \"weir.example\"");
    assert!(!reload(&site).out.contains("needs a restart"));
}

#[test]
fn limits_are_reloaded_despite_another_bad_file_which_is_reported() {
    let (_upstream, site, weir) = running(TEN);
    std::fs::write(site.path("certificate.pem"), "nonsense").unwrap();
    std::fs::write(site.path("users"), "nonsense").unwrap();
    change(&site, "10 / 1d", "20 / 1d");
    let Outcome { code, err, .. } = reload(&site);
    assert_eq!(code, Some(78));
    for words in
        ["there is no certificate in it", "line 1: a line is name:hash", "read again: 1 limit", "the former in place"]
    {
        assert!(err.contains(words), "{words}: {err}");
    }
    let trail = site.run(&["exceptions", "--audit"], "").out;
    assert!(
        trail.contains("reloaded ") && trail.contains("(only partly in force: other parts were refused)"),
        "{trail}"
    );
    weir.logged("certificates refused");
    weir.logged("users file refused");
    assert_eq!(accepted(&weir, ALICE, 30), 20);
    let mut client = Client::connect_from(ALICE, weir.address("s"));
    client.say("EHLO client.example", "250");
    assert_eq!((weir.metric(GOOD), weir.metric(REFUSED)), (1.0, 0.0));
}

#[test]
fn a_missing_weir_is_reported() {
    let upstream = Upstream::start();
    let site = ten(&upstream);
    let Outcome { code, out, err } = reload(&site);
    assert_eq!((code, out.as_str()), (Some(69), ""));
    assert!(err.contains("no running Weir answers at ") && err.contains("state.sock"), "{err}");
}

#[test]
fn the_running_weir_is_found_by_the_readable_part_of_a_bad_file() {
    let upstream = Upstream::start();
    let site = ten(&upstream);
    change(&site, "admin = { ", "admin = { socket = \"orders\", ");
    let weir = site.start();
    let good = config(&site);
    for bad in ["nonsense", "limit = 7 7", "limit = [ { name = \"open", "session = 7", "\u{1}"] {
        let before = weir.metric(REFUSED);
        let others: Vec<&str> = good.lines().filter(|line| !line.starts_with("limit")).collect();
        site.put("weir.toml", &format!("{}\n{bad}\n", others.join("\n")));
        let Outcome { code, err, .. } = reload(&site);
        assert_eq!(code, Some(78), "{bad}: {err}");
        assert!(weir.metric(REFUSED) > before, "{bad}");
    }
}

#[test]
fn only_weirs_own_user_and_root_may_use_the_control_socket() {
    let (_upstream, site, weir) = running(TEN);
    let mode = std::fs::metadata(site.path("state.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Let every user read all other files, so that only the socket's permissions matter. A test that does not run as
    // root cannot change its user, so it removes its own permission for the socket.
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(&site.path(""), 0o755);
    open(&site.path("weir.toml"), 0o644);
    let program = site.path("weir");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    match rustix::process::geteuid().is_root() {
        true => drop(command.uid(65_534).gid(65_534)),
        false => open(&site.path("state.sock"), 0),
    }
    let Outcome { code, out, err } = run(command.args(["reload", "-c"]).arg(site.path("weir.toml")), "");
    assert_eq!((code, out.as_str()), (Some(77), ""), "{err}");
    assert!(err.contains("only root and the user that Weir runs as may control it"), "{err}");
    assert_eq!(weir.metric(TAKEN), 0.0);
}

#[test]
fn the_socket_of_a_dead_weir_is_replaced_and_removed_at_the_end() {
    let upstream = Upstream::start();
    let site = ten(&upstream);
    site.start().kill();
    assert!(std::fs::metadata(site.path("state.sock")).unwrap().file_type().is_socket());
    assert_eq!(reload(&site).code, Some(69));
    let weir = site.start();
    assert_eq!(reload(&site).code, Some(0));
    assert_eq!(weir.terminate(), Some(0));
    assert!(!site.path("state.sock").exists());
}

#[test]
fn the_socket_of_another_weir_and_other_files_are_left_alone() {
    let upstream = Upstream::start();
    let (first, second) = (ten(&upstream), ten(&upstream));
    let running = first.start();
    let socket = first.path("state.sock");
    change(&second, "admin = { ", &format!("admin = {{ socket = \"{}\", ", socket.display()));
    let other = second.start();
    let line = other.logged("the control socket cannot be opened");
    assert!(line.contains("another process has this socket open") && line.contains("level=error"), "{line}");
    assert_eq!(accepted(&other, ALICE, 20), 10, "mail flows all the same");
    assert_eq!(other.terminate(), Some(0));
    assert_eq!(reload(&first).code, Some(0));
    assert_eq!(running.metric(TAKEN), 1.0);
    assert_eq!(running.terminate(), Some(0));

    std::fs::write(&socket, "precious").unwrap();
    let running = first.start();
    assert!(running.logged("the control socket cannot be opened").contains("there is a file that is not a socket"));
    assert_eq!(running.terminate(), Some(0));
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}

#[test]
fn a_second_weir_on_one_state_file_leaves_the_first_its_socket() {
    let (_upstream, site, weir) = running(TEN);
    let Outcome { code, err, .. } = site.run(&["serve"], "");
    assert_eq!(code, Some(74), "{err}");
    assert_eq!(reload(&site).code, Some(0));
    assert_eq!(weir.metric(TAKEN), 1.0);
}

#[test]
fn control_commands_work_without_http_over_tcp() {
    let upstream = Upstream::start();
    let site = ten(&upstream);
    change(&site, "admin = { address = \"127.0.0.1:0\" }", "admin = { socket = \"orders\" }");
    let mut child = site.serve().stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_for("answer", || (reload(&site).code == Some(0)).then_some(()));
    child.kill().unwrap();
    let log = child.wait_with_output().unwrap().stderr;
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("control socket open") && !log.contains("administration listening"), "{log}");
}

#[test]
fn users_of_a_reloaded_file_may_log_in() {
    let (_upstream, site, weir) = running(TEN);
    assert_eq!(weir.get("/v1/exceptions").0, 401, "the API over TCP needs a token");
    site.add_user("bob");
    assert_eq!(reload(&site).code, Some(0));
    weir.logged("users file read again");
    let mut client = Client::connect_silently(weir.address("s"));
    client.expect("220");
    client.say("EHLO client.example", "250");
    client.log_in("bob", PASSWORD);
}
