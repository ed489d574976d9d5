//! Tests of users files with hashes that other programs have made: htpasswd, `doveadm pw` and mkpasswd.

use crate::harness::{Client, Site, Upstream, succeed};
use std::path::Path;
use std::process::Command;
use weir::accounts::users_file::Users;
use weir::smtp::sasl::Credentials;

/// Password of all users. It is longer than 16 octets, a block of MD5-crypt, and has a letter beyond ASCII.
const PASSWORD: &str = "s\u{e9}same, eine l\u{e4}ngere Passphrase";

/// Runs a command, and returns its standard output.
fn stdout_of(command: &mut Command) -> String {
    succeed(command, "").out
}

/// Reads a users file with these lines.
fn users(lines: &str) -> Result<Users, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    std::fs::write(&path, lines).unwrap();
    Users::read(&path).map(|(users, _)| users).map_err(|error| error.to_string())
}

fn may_log_in(users: &Users, user: &str, password: &str) -> bool {
    users.verify(&Credentials::new(user, password).unwrap()).is_some()
}

/// Checks that a user with this hash can log in with the password, and with no other password.
fn assert_matches(hash: &str) {
    let users = users(&format!("alice:{hash}\n")).unwrap_or_else(|error| panic!("{hash}: {error}"));
    assert!(may_log_in(&users, "alice", PASSWORD), "{hash}");
    let almost = [&PASSWORD[1..], &PASSWORD[..PASSWORD.len() - 1], &format!("{PASSWORD} ")].map(str::to_owned);
    for wrong in almost {
        assert!(!may_log_in(&users, "alice", &wrong), "{hash} {wrong:?}");
    }
    if hash.starts_with("{SCRAM") {
        // The end of the hash is a key of the server, which does not depend on the client.
        return;
    }
    // A hash with one character changed matches no more, or is refused.
    let end = hash.len() - 2;
    let other = if matches!(hash.as_bytes()[end], b'A' | b'a') { "B" } else { "A" };
    let changed = format!("alice:{}{other}{}\n", &hash[..end], &hash[end + 1..]);
    assert!(self::users(&changed).map_or(true, |users| !may_log_in(&users, "alice", PASSWORD)), "{changed}");
}

fn assert_refused(hash: &str) {
    let error = users(&format!("# comment\nalice:{hash}\n")).err();
    let error = error.unwrap_or_else(|| panic!("{hash} is read"));
    assert!(error.contains("line 2: the hash is none that Weir knows"), "{error}");
    assert!(!error.contains(hash), "{error}");
}

#[test]
fn the_hashes_of_htpasswd_match() {
    let hash = |option: &str| {
        let line = stdout_of(Command::new("htpasswd").args(["-nb", option, "alice", PASSWORD]));
        line.trim().strip_prefix("alice:").unwrap().to_owned()
    };
    for (option, prefix) in [("-m", "$apr1$"), ("-B", "$2y$"), ("-s", "{SHA}"), ("-2", "$5$"), ("-5", "$6$")] {
        let hash = hash(option);
        assert!(hash.starts_with(prefix), "{hash}");
        assert_matches(&hash);
    }
    let rounds = stdout_of(Command::new("htpasswd").args(["-nb5", "-r", "12345", "alice", PASSWORD]));
    assert_matches(rounds.trim().strip_prefix("alice:").unwrap());
    // DES, which looks at 8 characters, and no hash at all.
    assert_refused(&hash("-d"));
    assert_refused(&hash("-p"));
}

#[test]
fn the_hashes_of_mkpasswd_match() {
    let hash = |method: &str, options: &[&str]| {
        stdout_of(Command::new("mkpasswd").args(["-m", method]).args(options).arg(PASSWORD)).trim().to_owned()
    };
    for (method, prefix) in [
        ("yescrypt", "$y$"),
        ("bcrypt", "$2b$"),
        ("bcrypt-a", "$2a$"),
        ("sha512crypt", "$6$"),
        ("sha256crypt", "$5$"),
        ("md5crypt", "$1$"),
    ] {
        let hash = hash(method, &[]);
        assert!(hash.starts_with(prefix), "{hash}");
        assert_matches(&hash);
    }
    assert_matches(&hash("sha512crypt", &["-R", "1000"]));
    assert_matches(&hash("yescrypt", &["-R", "3"]));
    for method in ["gost-yescrypt", "scrypt", "sunmd5", "bsdicrypt", "descrypt", "nt"] {
        assert_refused(&hash(method, &[]));
    }
}

#[test]
fn the_hashes_of_dovecot_match() {
    let hash = |scheme: &str| {
        stdout_of(Command::new("doveadm").args(["-O", "pw", "-s", scheme, "-p", PASSWORD])).trim().to_owned()
    };
    for scheme in [
        "ARGON2ID",
        "ARGON2I",
        "BLF-CRYPT",
        "CRYPT",
        "SHA512-CRYPT",
        "SHA256-CRYPT",
        "MD5-CRYPT",
        "MD5",
        "SSHA512",
        "SSHA256",
        "SSHA",
        "SMD5",
        "SHA512",
        "SHA256",
        "SHA1",
        "SHA",
        "PLAIN-MD5",
        "LDAP-MD5",
        "PBKDF2",
        "SCRAM-SHA-256",
        "SCRAM-SHA-1",
        "PLAIN",
        "CLEARTEXT",
        "CLEAR",
        "SSHA256.HEX",
        "SHA512.B64",
    ] {
        let hash = hash(scheme);
        assert!(hash.starts_with(&format!("{{{scheme}}}")), "{hash}");
        assert_matches(&hash);
    }
    for scheme in ["DES-CRYPT", "CRAM-MD5", "DIGEST-MD5", "HMAC-MD5", "PLAIN-MD4", "PLAIN-TRUNC", "OTP"] {
        // Some of these schemes hash the user's name, too.
        let made =
            Command::new("doveadm").args(["-O", "pw", "-s", scheme, "-p", PASSWORD, "-u", "alice"]).output().unwrap();
        assert_refused(String::from_utf8(made.stdout).unwrap().trim());
    }
}

#[test]
fn lines_of_shadow_and_passwd_files_are_read() {
    let hash = stdout_of(Command::new("mkpasswd").args(["-m", "sha512crypt", PASSWORD]));
    let hash = hash.trim();
    let today = weir::clock::now().micros() / 86_400_000_000;
    let tomorrow = today + 1;
    let lines = format!(
        "daemon:*:19000:0:99999:7:::\n\
         plain:{hash}:19000:0:99999:7:::\n\
         locked:!{hash}:19000:0:99999:7:::\n\
         never:!:19000::::::\n\
         expired:{hash}:19000:0:99999:7::{today}:\n\
         lasts:{hash}:19000:0:99999:7::{tomorrow}:\n\
         elsewhere:x:1000:1000:Elsewhere,,,:/home/elsewhere:/bin/sh\n\
         dovecot:{{SHA512-CRYPT}}{hash}:1000:1000::/home/d::userdb_quota_rule=*:storage=1G groups=staff,students\n\
         short:{{SHA512-CRYPT}}{hash}::::::\n\
         closed:{{SHA512-CRYPT}}{hash}::::::nologin\n"
    );
    let users = users(&lines).unwrap();
    let all = ["daemon", "plain", "locked", "never", "expired", "lasts", "elsewhere", "dovecot", "short", "closed"];
    let mut can = Vec::from(all);
    can.retain(|user| may_log_in(&users, user, PASSWORD));
    assert_eq!(can, ["plain", "lasts", "dovecot", "short"]);
    assert!(all.iter().all(|user| !may_log_in(&users, user, "wrong") && !may_log_in(&users, user, "x")));
    assert_eq!(users.groups("dovecot").join(" "), "staff students");
    let extra = |field: &str| self::users(&format!("alice:{hash}::::::{field} groups=staff\n"));
    let networks = extra("allow_nets=192.0.2.0/24,2001:db8::/32").unwrap().user("alice").unwrap().login_networks();
    assert_eq!(
        networks.unwrap().iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["192.0.2.0/24", "2001:db8::/32"]
    );
    for (field, words) in [
        ("allow_nets=campus", "line 1: allow_nets is a list of addresses and networks"),
        ("allow_nets=", "line 1: allow_nets is a list of addresses and networks"),
        ("allow_real_nets=192.0.2.0/24", "line 1: Weir cannot restrict a user to the proxies of allow_real_nets"),
    ] {
        assert!(extra(field).unwrap_err().contains(words), "{field}");
    }
}

#[test]
fn a_line_of_another_program_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let hash = stdout_of(Command::new("mkpasswd").args(["-m", "sha512crypt", PASSWORD]));
    let hash = hash.trim();
    let text = format!(
        "alice:{hash}:19000:0:99999:7:::\nbob:{hash}\ncarol:!:19000::::::\ndave:{hash}::::::nologin\n\
         erin:x:1000:1000::/home/erin:/bin/sh\n"
    );
    std::fs::write(&path, &text).unwrap();
    for refused in [
        Users::set_password(&path, "alice", "open"),
        Users::set_disabled(&path, "alice", true),
        Users::set_groups(&path, "alice", &["staff".to_owned()]),
        Users::delete(&path, "alice"),
    ] {
        assert!(refused.unwrap_err().to_string().contains("columns of a shadow or passwd file"));
    }
    Users::set_groups(&path, "bob", &["staff".to_owned()]).unwrap();
    let changed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(changed, text.replace(&format!("bob:{hash}"), &format!("bob:{hash}:staff")));
}

#[test]
fn a_hash_that_costs_too_much_is_refused() {
    for hash in [
        "$2y$16$abcdefghijklmnopqrstuuabcdefghijklmnopqrstuvwxyzabcde",
        "$6$rounds=5000000$abcdefgh$Bk2D4uYVcw0FbFPsWa0iJZ1DNfy8v6OjKcRcuBfMkWD1KdADPVnmQf5cr0O8HfAYpq1XrrjdgIRINkwgSKJ8/1",
        "$argon2id$v=19$m=2097152,t=2,p=1$bm8gc3VjaCB1c2VyIQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "$argon2id$v=19$m=19456,t=2000,p=1$bm8gc3VjaCB1c2VyIQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "{SCRAM-SHA-256}2000000,c2FsdA==,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "$y$jHT$abcdefgh$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ] {
        let error = users(&format!("alice:{hash}\n")).expect_err(hash);
        assert!(error.contains("too much time"), "{hash}: {error}");
    }
    // A hash that is cut off would match many passwords, or none.
    for hash in [
        "$y$j9T$abcdefgh$",
        "$y$j9T$abcdefgh$AAAA",
        "$6$abcdefgh$",
        "$6$abcdefgh$Bk2D",
        "$apr1$qrst$",
        "$2y$05$abc",
        "{SSHA256}",
        "{SSHA256}AAAA",
        "{SHA}",
        "{PBKDF2}$1$qrst$5000$",
        "{SCRAM-SHA-256}4096,c2FsdA==,,",
        "{PLAIN}",
        "",
        "$argon2id$v=19$m=19456,t=2,p=1$bm8gc3VjaCB1c2VyIQ",
    ] {
        let error = users(&format!("alice:{hash}\n")).expect_err(hash);
        assert!(error.contains("line 1: ") && (hash.is_empty() || !error.contains(hash)), "{hash}: {error}");
    }
}

#[test]
fn users_of_other_programs_log_in() {
    let upstream = Upstream::start();
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "").users(&[]).build();
    let made = stdout_of(Command::new("htpasswd").args(["-nbB", "alice", PASSWORD]));
    let yescrypt = stdout_of(Command::new("mkpasswd").args(["-m", "yescrypt", PASSWORD]));
    write(&site.path("users"), &format!("{}\nbob:{}:19000:0:99999:7:::\n", made.trim(), yescrypt.trim()));
    let weir = site.start();
    for user in ["alice", "bob"] {
        let mut client = Client::greeted(weir.address("s"));
        assert!(client.try_log_in(user, "wrong").starts_with("535 5.7.8"));
        client.log_in(user, PASSWORD);
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}
