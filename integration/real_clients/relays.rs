//! Tests of other mail servers as clients: they queue mail, and relay to Weir as their smart host.

use super::{Way, compare};
use crate::harness::{PASSWORD, Postfix, succeed};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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

/// Debian's Exim cannot be installed beside Postfix: `integration/test` unpacks it and says where.
#[test]
fn messages_relayed_by_exim_arrive_unchanged() {
    let exim = std::env::var_os("WEIR_TEST_EXIM").map_or_else(|| PathBuf::from("exim4"), PathBuf::from);
    compare("exim", 1, |sending| {
        let folder = tempfile::tempdir().unwrap();
        let allow = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        // Exim drops root before it writes its log and reads the certificate.
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
