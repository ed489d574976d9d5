//! Tests of the commands, as an administrator runs them in a terminal.

use crate::harness::{Outcome, PASSWORD, Running, Site, run, wait_for, weir};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

const MINIMAL: &str = "listener.s = { address = \"127.0.0.1:0\" }\nupstream = [{ address = \"127.0.0.1:2525\" }]\n";

/// Returns the outcome of a command that exits with `code` and writes only `err`, to standard error.
fn failure(code: i32, err: &str) -> Outcome {
    Outcome { code: Some(code), out: String::new(), err: err.to_owned() }
}

#[test]
fn check_says_good_and_exits_0() {
    let site = Site::new(MINIMAL);
    let Outcome { code, out, err } = site.run(&["check"], "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.ends_with("weir.toml: good: 1 listener, 0 limits\n"), "{out}");
}

#[test]
fn the_configuration_may_be_named_before_the_command_and_check_takes_it_alone() {
    let site = Site::new(MINIMAL);
    let file = site.path("weir.toml");
    let file = file.to_str().unwrap();
    for arguments in [
        &["-c", file, "check"][..],
        &["--config", file, "check"],
        &["check", "-c", file],
        &["check", file],
        &["-c", file, "user", "list"],
        &["-c", file, "test", "--client", "192.0.2.7", "--mail-from", "a@example.org", "--rcpt-to", "b@example.org"],
    ] {
        let Outcome { code, err, .. } = run(weir().args(arguments), "");
        assert_ne!(code, Some(64), "{arguments:?}: {err}");
        assert_ne!(code, Some(66), "{arguments:?}: {err}");
    }
    let refused = run(weir().args(["-c", file, "completions", "bash"]), "");
    assert_eq!(refused, failure(64, "weir: this command reads no configuration: leave --config out\n"));
    assert_eq!(run(weir().args(["check", file, "-c", file]), "").code, Some(64));
    for arguments in [["-c", file, "check", "-c", file], ["--config", file, "reload", "--config", file]] {
        let twice = run(weir().args(arguments), "");
        assert_eq!(twice, failure(64, "weir: name the configuration once, before the command or after it\n"));
    }
    let twice = run(weir().args(["-c", file, "check", file]), "");
    assert_eq!(twice, failure(64, "weir: name the configuration once, with --config or without\n"));
}

#[test]
fn check_prints_the_name_of_the_machine_and_each_limit_in_words() {
    let limit = "[[limit]]\nname = \"one\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"9 / 1d\"\n";
    let site = Site::new(&format!("{MINIMAL}{limit}"));
    site.edit("hostname = ", "# ");
    let Outcome { code, out, err } = site.run(&["check", "--print"], "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(out.starts_with(&format!("# hostname is \"{name}\", the name of this machine\n")), "{out}");
    let above = out.split("[[limit]]").next().unwrap().lines().rev().take_while(|line| line.starts_with("# "));
    assert!(above.last().unwrap().starts_with("# one: each user: at most 9 recipients in 1d"), "{out}");
}

/// `weir check` run as root tests whether the service's user can read the files. Weir uses the owner of the state
/// file's folder as this user.
#[test]
fn root_is_told_of_files_that_the_user_of_the_service_cannot_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let site = Site::new(MINIMAL);
    site.edit("\"users\"", "\"secret\"");
    site.edit("\"state.db\"", "\"state/state.db\"");
    let (secret, state) = (site.path("secret"), site.path("state"));
    std::fs::write(&secret, "").unwrap();
    std::fs::create_dir(&state).unwrap();
    mode(secret.parent().unwrap(), 0o755);
    mode(&secret, 0o600);
    let words = format!("cannot read {}", secret.display());
    let said = || site.run(&["check"], "").err;
    assert!(!said().contains(&words), "{}", said());
    // Only root can change the owner of a folder. Another user's `weir check` only tests that it can read the files.
    if std::os::unix::fs::chown(&state, Some(65_534), Some(65_534)).is_ok() {
        assert!(said().contains(&words) && said().contains("chmod g+r"), "{}", said());
        mode(&secret, 0o604);
        assert!(!said().contains(&words), "{}", said());
    }
}

/// Reads a configuration file of `conf/`. The files that it names need not exist.
fn shipped(name: &str) -> weir::config::Config {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conf").join(name);
    match weir::config::read(&path) {
        Ok(config) => config,
        Err(weir::config::ConfigError::Diagnostics(problems)) => panic!("{}", problems.render(false)),
        Err(weir::config::ConfigError::Io(path, error)) => panic!("{}: {error}", path.display()),
    }
}

#[test]
fn the_reference_has_every_key_and_states_the_defaults() {
    let (reference, minimal) = (shipped("weir.toml"), shipped("minimal.toml"));
    assert!(reference.problems.found.is_empty() && minimal.problems.found.is_empty());
    assert!(reference.settings.len() > 25);
    for asked in &reference.settings {
        let kind = kind(&asked.section);
        let is_same = |s: &&weir::config::Setting| self::kind(&s.section) == kind && s.key == asked.key;
        let mut stated = reference.settings.iter().filter(is_same);
        let is_stated = stated.any(|setting| !setting.is_default && setting.value.is_some());
        assert!(is_stated || is_explained(kind, asked.key), "{} {} is missing", asked.section, asked.key);
    }
    let defaults = minimal.settings.iter().filter(|setting| setting.is_default && setting.value.is_some());
    // The default of `charge` depends on `count`. The reference states the default for `count = "recipients"`. Only the
    // first limit of the minimal configuration has this count, so the test leaves out `charge` of the other limits.
    let first_charge = minimal.settings.iter().find(|setting| setting.key == "charge").unwrap();
    for default in defaults.filter(|default| default.key != "charge" || default.place == first_charge.place) {
        let stated = reference.settings.iter().find(|s| s.section == default.section && s.key == default.key);
        assert_eq!(stated.unwrap().value, default.value, "{} {}", default.section, default.key);
    }
}

/// Returns the kind of a section. All sections `list.NAME` are of one kind. `except` is of the same kind as `match`,
/// because both have the same keys. A key in one section of a kind is enough for the reference, because some keys
/// exclude each other.
fn kind(section: &str) -> &str {
    match section.trim_matches(['[', ']']) {
        list if list.starts_with("list.") => "list",
        "limit.except" => "limit.match",
        section => section,
    }
}

/// Tests whether a comment of the reference explains a key. A limit's own key must be in the comment as `key = `. For a
/// key of a table within a limit, the name is enough.
fn is_explained(kind: &str, key: &str) -> bool {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/weir.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, limits) = text.split_once("# Limits, as many as you like").unwrap();
    let mut comments = limits.lines().filter_map(|line| line.split_once("# ")).map(|(_, comment)| comment);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    match kind {
        // The files of these keys do not exist on every machine, or the keys exclude others.
        "location" | "accounts" | "notify.postmaster" | "state" => {
            text.lines().any(|line| line.starts_with(&format!("# Example: {key} = ")))
        }
        "limit" => comments.any(|comment| {
            let assigned = comment.strip_prefix("Example: ").unwrap_or(comment);
            assigned.starts_with(&format!("{key} = "))
        }),
        "limit.match" | "limit.action" => {
            comments.any(|comment| comment.split(|c| !is_part(c)).any(|word| word == key))
        }
        _ => false,
    }
}

#[test]
fn check_prints_the_effective_configuration_which_can_be_read_again() {
    let limit = "[[limit]]\nname = \"NAME\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"9 / 1d\"\n";
    let limits = limit.replace("NAME", "one") + &limit.replace("NAME", "two");
    let site = Site::new(&format!("{MINIMAL}listener.\"a b\" = {{ address = \"127.0.0.1:0\" }}\n{limits}"));
    let Outcome { code, out, err } = site.run(&["check", "--print"], "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("idle-timeout = \"5m\"                      # default\n"), "{out}");
    std::fs::write(site.path("printed.toml"), &out).unwrap();
    let Outcome { code, out: again, err } =
        run(weir().args(["check", "--print", "-c"]).arg(site.path("printed.toml")), "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(" #").next().unwrap().trim_end().to_owned()).collect()
    };
    assert_eq!(values(&again), values(&out));
}

#[test]
fn the_default_limit_is_a_hundred_connections_per_client_and_nine_tenths_for_trusted_ones() {
    for (given, found, trusted) in [
        ("max-connections = 1", 1, 1),
        ("max-connections = 50", 45, 45),
        ("max-connections = 1000", 100, 900),
        ("max-connections-per-client = 7", 7, 3600),
        ("max-connections-per-client = 3900", 3900, 3900),
        ("max-connections-per-trusted-client = 7", 100, 7),
    ] {
        let site = Site::new(&format!("{MINIMAL}session = {{ {given} }}\n"));
        let config = weir::config::read(&site.path("weir.toml")).ok().unwrap();
        assert_eq!(config.server.max_connections_per_client, found, "{given}");
        assert_eq!(config.server.max_connections_per_trusted_client, trusted, "{given}");
    }
}

#[test]
fn the_default_dns_timeout_is_at_most_half_of_the_upstream_timeout() {
    for (whole, more, found) in [
        ("20s", "", "5s"),
        ("4s", "", "2s"),
        ("4s", "dns = { timeout = \"3.9s\" }\n", "3.9s"),
        ("0.000001s", "", "0.0005s"),
    ] {
        let site = Site::new(&format!("{MINIMAL}session = {{ upstream-timeout = \"{whole}\" }}\n{more}"));
        let config = weir::config::read(&site.path("weir.toml")).ok().unwrap();
        assert_eq!(config.relay.dns.timeout, weir::time::parse_duration(found).unwrap(), "{whole} {more}");
    }
}

#[test]
fn world_readable_files_are_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::new(MINIMAL);
    std::fs::set_permissions(site.path("users"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let Outcome { code, err, .. } = site.run(&["check"], "");
    assert_eq!(code, Some(0));
    assert!(err.contains("warning: ") && err.contains("users can be read by everybody: chmod o= it"), "{err}");
}

/// Returns the warnings about a configuration whose only upstream has these keys.
fn warnings(keys: &str) -> String {
    let text = format!(
        "listener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n[[upstream]]\n{keys}\n"
    );
    match weir::config::parse(std::path::Path::new("weir.toml"), text) {
        Ok(config) => config.problems.render(false),
        Err(weir::config::ConfigError::Diagnostics(problems)) => panic!("{keys}: {}", problems.render(false)),
        Err(weir::config::ConfigError::Io(..)) => unreachable!(),
    }
}

#[test]
fn a_password_at_risk_is_warned_of() {
    let fixed = "auth = \"fixed\"\nuser = \"weir\"\npassword-file = \"password\"";
    let client = "auth = \"client\"";
    let scram = "mechanism = \"scram-sha-256\"";
    let anybody = "the password goes to any server, as no certificate is checked";
    for (host, keys, words) in [
        ("smtp.example.org", fixed.to_owned(), anybody),
        ("smtp.example.org", format!("{fixed}\nmechanism = \"plain\""), anybody),
        ("192.0.2.1", format!("{fixed}\ntls = \"none\""), "the password goes in plain text"),
        ("[2001:db8::1]", client.to_owned(), "clients' passwords go to any server"),
        ("localhost.example", client.to_owned(), "clients' passwords go"),
        ("smtp.example.org", format!("{fixed}\n{scram}"), ""),
        ("smtp.example.org", format!("{client}\n{scram}"), ""),
        ("smtp.example.org", format!("{fixed}\ntls = \"required\""), ""),
        ("smtp.example.org", format!("{client}\ntls = \"implicit\""), ""),
        ("localhost", format!("{fixed}\ntls = \"none\""), ""),
        ("127.1.2.3", fixed.to_owned(), ""),
        ("[::1]", client.to_owned(), ""),
    ] {
        let said = warnings(&format!("address = \"{host}:587\"\n{keys}"));
        assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{host} {keys}: {said}");
    }
}

#[test]
fn keys_that_have_no_effect_are_warned_of() {
    let secret = "user = \"weir\"\npassword-file = \"password\"";
    let login = "user, password-file: used only with auth = \"fixed\"";
    let ca = "ca: the certificate is only checked where tls is \"required\" or \"implicit\"";
    for (keys, words) in [
        (secret.to_owned(), login),
        (format!("auth = \"client\"\n{secret}"), login),
        (format!("auth = \"none\"\n{secret}"), ""),
        (format!("auth = \"fixed\"\n{secret}"), ""),
        ("ca = \"ca.pem\"".to_owned(), ca),
        ("tls = \"none\"\nca = \"ca.pem\"".to_owned(), ca),
        ("tls = \"implicit\"\nca = \"ca.pem\"".to_owned(), ""),
    ] {
        let said = warnings(&format!("address = \"localhost:587\"\n{keys}"));
        assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{keys}: {said}");
    }
}

#[test]
fn starttls_on_the_port_of_implicit_tls_is_warned_of() {
    for (port, tls, is_warned_of) in [
        (465, "required", true),
        (465, "opportunistic", true),
        (465, "implicit", false),
        (465, "none", false),
        (587, "required", false),
    ] {
        let said = warnings(&format!("address = \"smtp.example.org:{port}\"\ntls = \"{tls}\""));
        assert_eq!(said.contains("port 465 is for TLS from the first octet"), is_warned_of, "{port} {tls}: {said}");
    }
}

#[test]
fn an_expired_client_certificate_is_warned_of() {
    let site = Site::new(
        &MINIMAL.replace("2525\"", "2525\", client-certificate = \"weir.pem\", client-key = \"weir-key.pem\""),
    );
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["weir.example".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    std::fs::write(site.path("weir.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(site.path("weir-key.pem"), key.serialize_pem()).unwrap();
    let Outcome { code, err, .. } = site.run(&["check"], "");
    assert!(code == Some(0) && err.contains("weir.pem: its validity ended on 2020-01-02T00:00:00Z"), "{err}");
}

#[test]
fn misuse_exits_64_with_usage_and_help_exits_0() {
    for arguments in [&["sevre"][..], &[], &["check", "--nonsense"]] {
        let Outcome { code, out, err } = run(weir().args(arguments), "");
        assert_eq!((code, out.as_str()), (Some(64), ""), "{arguments:?}");
        assert!(err.contains("Usage"), "{err}");
    }
    let Outcome { code, out, .. } = run(weir().arg("--help"), "");
    assert!(code == Some(0) && out.contains("serve") && out.contains("demo"), "{out}");
}

#[test]
fn an_unwritable_output_does_not_panic() {
    let site = Site::new(MINIMAL);
    let config = site.path("weir.toml");
    let config = config.to_str().unwrap();
    for arguments in [&["check", "-c", config][..], &["user", "list", "-c", config], &["man"], &["completions", "bash"]]
    {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" >/dev/full"]).arg(weir().get_program()).args(arguments);
        let Outcome { code, err, .. } = run(&mut command, "");
        assert_eq!((code, err.as_str()), (Some(74), "weir: standard output: No space left on device (os error 28)\n"));
    }
    let full = std::fs::File::create("/dev/full").unwrap();
    assert_eq!(weir().arg("nonsense").stderr(full).status().unwrap().code(), Some(64));
}

#[test]
fn manual_pages_and_completions_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let Outcome { code, out: page, .. } = run(weir().arg("man"), "");
    assert!(code == Some(0) && page.contains(".TH weir 1") && page.contains("weir\\-serve(1)"), "{page}");
    assert_eq!(run(weir().arg("man").arg(folder.path()), "").code, Some(0));
    assert!(folder.path().join("weir-user-add.1").exists());
    let page = std::fs::read_to_string(folder.path().join("weir.toml.5")).unwrap();
    assert!(page.contains(".TH weir.toml 5") && page.contains("idle\\-timeout"), "{page}");
    // Each man page must match a pattern in Cargo.toml that selects the pages for the Debian package.
    let manifest = include_str!("../Cargo.toml");
    for page in std::fs::read_dir(folder.path()).unwrap().map(|page| page.unwrap().path()) {
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains("Example:"), "{}: no example", page.display());
        let section = page.extension().unwrap().to_string_lossy();
        assert!(
            manifest.contains(&format!("[\"target/man/*.{section}\", \"usr/share/man/man{section}/\"")),
            "{page:?}"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        let Outcome { code, out: script, .. } = run(weir().args(["completions", shell]), "");
        assert!(code == Some(0) && script.contains("demo"), "{shell}: {script}");
    }
}

#[test]
fn the_openapi_file_is_that_of_the_types() {
    let Outcome { code, out, .. } = run(weir().args(["man", "--openapi"]), "");
    let file = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/conf/openapi.json")).unwrap();
    assert!(
        code == Some(0) && out == file,
        "conf/openapi.json is stale: cargo run -- man --openapi > conf/openapi.json"
    );
}

#[test]
fn the_reference_page_is_that_of_the_comments() {
    let Outcome { code, out: page, err } = run(weir().args(["man", "--reference"]), "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/REFERENCE.md");
    let is_same = std::fs::read_to_string(path).is_ok_and(|kept| kept == page);
    assert!(is_same, "conf/REFERENCE.md is stale: weir man --reference > conf/REFERENCE.md");
}

#[test]
fn a_missing_configuration_exits_66() {
    for command in ["check", "serve"] {
        let Outcome { code, err, .. } = run(weir().args([command, "-c", "no/such.toml"]), "");
        assert_eq!(
            (code, err.as_str()),
            (Some(66), "weir: configuration no/such.toml: No such file or directory (os error 2)\n")
        );
    }
}

#[test]
fn a_port_that_is_taken_exits_69_and_names_the_listener() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let site = Site::new(&MINIMAL.replace("127.0.0.1:0", &address.to_string()));
    let Outcome { code, err, .. } = site.run(&["serve"], "");
    assert_eq!(code, Some(69));
    assert!(err.contains(&format!("weir: listener \"s\" cannot listen on {address}: Address already in use")), "{err}");
}

#[test]
fn a_second_weir_on_the_same_state_is_refused() {
    let site = Site::new(MINIMAL);
    let _first = site.start();
    let Outcome { code, err, .. } = site.run(&["serve"], "");
    assert_eq!(code, Some(74));
    assert!(err.contains("state.db: another Weir is using it"), "{err}");
}

#[test]
fn user_add_reads_the_password_from_standard_input_and_refuses_invalid_names() {
    let site = Site::new(MINIMAL);
    let add = |name: &str, input: &str| site.run(&["user", "add", name], input);
    assert_eq!(add("bob", "a b:c").code, Some(0));
    for (name, input, words) in [
        ("alice", "x\n", "weir: there is a user \"alice\" already\n"),
        ("carol", "", "weir: a password has 1 to 1024 octets, and no line break or NUL\n"),
        (
            "a:b",
            "x\n",
            "weir: a user name has up to 255 letters, digits and signs; no colon, no space, and no \"#\" at its beginning\n",
        ),
    ] {
        assert_eq!(add(name, input), failure(65, words));
    }
    assert_eq!(site.run(&["user", "disable", "bob"], "").code, Some(0));
    assert_eq!(site.run(&["user", "list"], "").out, "alice\nbob  (disabled)\n");
    assert_eq!(site.run(&["user", "enable", "bob"], "").code, Some(0));
    assert_eq!(site.run(&["user", "passwd", "bob"], "other\n").code, Some(0));
    assert_eq!(site.run(&["user", "delete", "dave"], ""), failure(67, "weir: there is no user \"dave\"\n"));
    assert_eq!(site.run(&["user", "list"], "").out, "alice\nbob\n");
    let users = std::fs::read_to_string(site.path("users")).unwrap();
    assert!(users.starts_with("alice:$argon2id$") && users.contains("\nbob:$argon2id$") && !users.contains(PASSWORD));
}

/// Starts a command whose terminal is a pseudo-terminal. Returns the process, and the other side of this terminal.
fn at_a_terminal(site: &Site, arguments: &[&str]) -> (Running, OwnedFd) {
    let other_side = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&other_side).unwrap();
    unlockpt(&other_side).unwrap();
    let name = ptsname(&other_side, Vec::new()).unwrap();
    let terminal = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let command = site.command(arguments);
    let mut child = Command::new("setsid");
    child.arg("--ctty").arg(command.get_program()).args(command.get_args());
    child.stdin(terminal.try_clone().unwrap()).stdout(terminal.try_clone().unwrap()).stderr(terminal);
    (Running(child.spawn().unwrap()), other_side)
}

#[test]
fn ctrl_c_at_a_password_leaves_the_terminal_as_it_was() {
    let site = Site::new(MINIMAL);
    let (mut child, terminal) = at_a_terminal(&site, &["user", "add", "carol"]);
    let shows_input = || tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO);
    wait_for("a terminal that shows no input", || (!shows_input()).then_some(()));
    rustix::io::write(&terminal, b"\x03").unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(74));
    assert!(shows_input());
    assert_eq!(site.run(&["user", "list"], "").out, "alice\n");
}

#[test]
fn a_confirmed_doubt_is_named_once() {
    let site = Site::new(MINIMAL);
    let _weir = site.start();
    let suspend = ["suspend", "alcie", "--for", "1d", "--reason", "x"];
    let (mut child, terminal) = at_a_terminal(&site, &suspend);
    let (mut said, mut is_answered) = (String::new(), false);
    let mut buffer = [0; 4096];
    // The terminal cannot be read any more after the command has ended.
    while let Ok(length @ 1..) = rustix::io::read(&terminal, &mut buffer) {
        said += &String::from_utf8_lossy(&buffer[..length]);
        if said.contains("[y/N]") && !is_answered {
            rustix::io::write(&terminal, b"y\n").unwrap();
            is_answered = true;
        }
    }
    assert_eq!(child.0.wait().unwrap().code(), Some(0), "{said}");
    assert!(said.contains("suspended: user=alcie") && said.matches("has user=alcie").count() == 1, "{said}");
}

#[test]
fn an_error_shows_no_secret_of_a_file_that_is_no_configuration() {
    let site = Site::new(MINIMAL);
    let users = std::fs::read_to_string(site.path("users")).unwrap();
    let hash = users.trim().rsplit('$').next().unwrap();
    let Outcome { code, err, .. } = run(weir().args(["check", "-c"]).arg(site.path("users")), "");
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("alice:") && !err.contains(hash), "{err}");
}

#[test]
fn groups_of_a_user_are_given_listed_and_replaced() {
    let site = Site::new(MINIMAL);
    let user = |arguments: &[&str], input: &str| site.run(&[&["user"], arguments].concat(), input);
    assert_eq!(user(&["add", "bob", "--group", "students", "--group", "Staff"], "sesame\n").code, Some(0));
    assert_eq!(user(&["list"], "").out, "alice\nbob  staff, students\n");
    assert_eq!(user(&["groups", "alice", "guests"], "").code, Some(0));
    assert_eq!(user(&["groups", "bob"], "").code, Some(0));
    assert_eq!(user(&["disable", "alice"], "").code, Some(0));
    assert_eq!(user(&["list"], "").out, "alice  guests  (disabled)\nbob\n");
    let words = "weir: \"list:x\" is no name for a group: groups have up to 64 letters, digits, hyphens, dots and underscores\n";
    assert_eq!(user(&["groups", "bob", "list:x"], ""), failure(65, words));
    assert_eq!(user(&["add", "carol", "--group", "list:x"], "sesame\n"), failure(65, words));
    let nobody = "weir: there is no user \"dave\"\n";
    assert_eq!(user(&["groups", "dave", "staff"], ""), failure(67, nobody));
}

/// Starts `weir demo`; returns the process, and the lines that it prints up to the line that names Ctrl-C.
fn demo() -> (Running, Vec<String>) {
    let mut child = weir().arg("demo").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        lines.push(line);
        if lines.last().is_some_and(|line| line.contains("Ctrl-C")) {
            break;
        }
    }
    (Running(child), lines)
}

#[test]
fn the_demo_does_what_it_says() {
    let (mut demo, lines) = demo();
    // The indented lines of the output are the commands that the demo suggests. A shell runs them unchanged.
    let commands: String = lines.iter().filter(|line| line.starts_with("  ")).map(|line| format!("{line}\n")).collect();
    let Outcome { code, out, err } = run(Command::new("bash").args(["-c", &commands]), "");
    assert_eq!(code, Some(0), "{out}\n{err}");
    for n in 1..=5 {
        assert!(out.contains(&format!("message {n} sent\n")), "{out}\n{err}");
    }
    assert!(!out.contains("message 6 sent") && err.contains("MAIL failed: 450"), "{out}\n{err}");
    assert!(out.contains("< 450 4.7.1 5 of 5 recipients used, 5 more per 10 minutes; try again in "), "{out}");
    assert_eq!(out.lines().filter(|line| line.ends_with(".demo")).count(), 5, "{out}");
    assert!(out.contains("weir_messages_total{result=\"delivered\"} 5"), "{out}");

    let folder = lines.iter().find_map(|line| line.rsplit("in ").next()?.strip_suffix("/Maildir.")).unwrap();
    assert!(std::path::Path::new(folder).exists());
    let id = rustix::process::Pid::from_child(&demo.0);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    assert_eq!(demo.0.wait().unwrap().code(), Some(0));
    assert!(!std::path::Path::new(folder).exists());
}
