//! Tests of other mail servers as clients: they queue mail, and send it to Weir, which is their smart host.

use super::{Way, compare};
use crate::harness::{Client, EximServer, Outcome, PASSWORD, Postfix, run, succeed, wait_for, weir};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[test]
fn messages_relayed_by_postfix_arrive_unchanged() {
    let mut relays: HashMap<Way, Postfix> = HashMap::new();
    compare("postfix", 1, |sending| {
        let wrapped = sending.way == Way::Implicit;
        let relay = relays
            .entry(sending.way)
            .or_insert_with(|| Postfix::relaying_to(sending.port, wrapped, sending.ca, "alice", PASSWORD));
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--mail-from", "alice@example.org"]);
        command.args(["--mail-rcpt", sending.recipient, "--upload-file"]).arg(sending.file);
        command.arg(format!("smtp://{}/client.example", relay.address()));
        succeed(&mut command, b"");
        relay.wait_until_passed_on(sending.recipient);
    });
}

#[test]
fn messages_relayed_by_exim_arrive_unchanged() {
    let exim = EximServer::program();
    compare("exim", 1, |sending| {
        let folder = tempfile::tempdir().unwrap();
        let allow = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        // Exim gives up its root privileges before it writes its log and reads the certificate: permit this to all
        // users.
        allow(folder.path(), 0o777);
        allow(sending.ca, 0o644);
        allow(sending.ca.parent().unwrap(), 0o755);
        let settings = folder.path().join("exim.conf");
        let protocol = if sending.way == Way::Implicit { "  protocol = smtps\n" } else { "" };
        let text = format!(
            "primary_hostname = client.example\n\
             exim_path = {3}\n\
             spool_directory = {0}/spool\n\
             log_file_path = {0}/%slog\n\
             acl_not_smtp = accept\n\
             message_size_limit = 60M\n\
             untrusted_set_sender = *\n\
             keep_environment =\n\
             begin routers\n\
             smarthost:\n  driver = manualroute\n  route_data = localhost\n  transport = smarthost\n  self = send\n\
             begin transports\n\
             smarthost:\n  driver = smtp\n  port = {1}\n{protocol}  hosts_require_tls = *\n  hosts_require_auth = *\n\
             \x20 tls_verify_certificates = {2}\n  tls_verify_hosts = *\n\
             begin authenticators\n\
             plain:\n  driver = plaintext\n  public_name = PLAIN\n  client_send = ^alice^{PASSWORD}\n",
            folder.path().display(),
            sending.port,
            sending.ca.display(),
            exim.display()
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Command::new(&exim);
        command.arg("-C").arg(&settings).args(["-odf", "-oi", "-f", "alice@example.org", sending.recipient]);
        succeed(&mut command, sending.with_unix_lines());
        let log = std::fs::read_to_string(folder.path().join("mainlog")).unwrap();
        assert!(log.contains(&format!("=> {}", sending.recipient)), "{log}");
        assert!(log.contains(" K C="), "not sent by BDAT: {log}");
    });
}

/// Runs `weir history` on log files; returns the rows without time and queue id, and the summary.
fn history(program: &str, arguments: &[&Path]) -> (Vec<String>, String) {
    let Outcome { code, out, err } = run(weir().args(["history", program]).args(arguments), "");
    assert_eq!(code, Some(0), "{err}");
    let rows = out.lines().skip(1).map(|row| {
        let mut columns: Vec<&str> = row.split(',').collect();
        columns.remove(6);
        columns[1..].join(",")
    });
    (rows.collect(), err)
}

#[test]
fn postfix_logs_give_the_history_of_what_was_sent() {
    let next = Postfix::start_with(
        "virtual_mailbox_domains = next.example\n\
         smtpd_recipient_restrictions = check_recipient_access inline:{bad@next.example=REJECT, slow@next.example=DEFER}, permit\n",
    );
    let postfix = Postfix::start_with(&format!(
        "virtual_mailbox_domains = example.net\n\
         virtual_alias_maps = inline:{{ {{ team@example.net = ann@example.net, ben@example.net }} }}\n\
         smtpd_authorized_xclient_hosts = 127.0.0.0/8\n\
         smtpd_sasl_auth_enable = yes\n\
         smtpd_recipient_restrictions = check_recipient_access inline:{{ no@example.net=REJECT }}, permit\n\
         transport_maps = inline:{{ {{ next.example = smtp:[127.0.0.1]:{} }} }}\n",
        next.address().port()
    ));
    for (user, address, sender, recipients) in [
        ("alice", "192.0.2.7", "alice@example.org", &["team@example.net", "bad@next.example", "no@example.net"][..]),
        ("bob", "192.0.2.8", "bob@example.org", &["slow@next.example", "relayed@next.example"]),
    ] {
        let mut client = Client::connect(postfix.address());
        client.say("EHLO client.example", "250");
        client.say(&format!("XCLIENT ADDR={address} LOGIN={user}"), "220");
        client.say("EHLO client.example", "250");
        client.say(&format!("MAIL FROM:<{sender}>"), "250");
        for recipient in recipients {
            let reply = if recipient.starts_with("no@") { "554" } else { "250" };
            client.say(&format!("RCPT TO:<{recipient}>"), reply);
        }
        client.say("DATA", "354");
        client.say("Subject: hello\r\n\r\nhello\r\n.", "250");
    }
    let mut client = Client::connect(postfix.address());
    client.say("EHLO client.example", "250");
    client.say("MAIL FROM:<carol@example.org>", "250");
    client.say("RCPT TO:<z@example.net>", "250");
    client.say("RSET", "250");
    let log = postfix.path("log");
    wait_for("bounce of a message", || {
        let log = std::fs::read_to_string(&log).ok()?;
        let count = |word: &str| log.matches(word).count();
        (count("status=deferred") >= 1 && count("status=bounced") >= 1 && count("status=sent") >= 3).then_some(())
    });
    let without_size = |row: &String| {
        let [size, outcome] = [1, 0].map(|n| row.rsplit(',').nth(n).unwrap());
        assert!((200..600).contains(&size.parse::<u64>().unwrap()), "{row}");
        row.replace(&format!(",{size},{outcome}"), &format!(",{outcome}"))
    };
    let expected = [
        "192.0.2.7,alice,alice@example.org,bad@next.example,bounced",
        "192.0.2.7,alice,alice@example.org,no@example.net,refused",
        "192.0.2.7,alice,alice@example.org,team@example.net,sent",
        "192.0.2.8,bob,bob@example.org,relayed@next.example,sent",
        "192.0.2.8,bob,bob@example.org,slow@next.example,deferred",
    ];
    // With the logs of both Postfixes, a message that the first Postfix relayed to the second is counted once. A
    // recipient that the second Postfix refuses is not counted as a refusal.
    let both: Vec<&str> = expected.into_iter().filter(|row| !row.ends_with("refused")).collect();
    for (arguments, expected, words) in [
        (&[Path::new("--refused"), &log][..], &expected[..], "1 refused"),
        (&[&next.path("log"), &log], &both, "1 message left out: counted already"),
    ] {
        let (rows, summary) = history("postfix", arguments);
        let mut found: Vec<String> = rows.iter().map(without_size).collect();
        found.sort();
        assert_eq!(found, expected, "{summary}");
        assert!(summary.contains(" 0 not understood") && summary.contains(words), "{summary}");
    }
}
