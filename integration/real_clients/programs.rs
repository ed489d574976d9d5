//! Tests of mail programs and mail libraries as clients, each called as its users usually call it.

use super::{Way, compare, each};
use crate::harness::{Outcome, PASSWORD, succeed};
use std::process::Command;

#[test]
fn messages_of_curl_arrive_unchanged() {
    compare("curl", 0, |sending| {
        let scheme = if sending.way == Way::Implicit { "smtps" } else { "smtp" };
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--ssl-reqd", "--cacert"]).arg(sending.ca);
        command.arg("--user").arg(format!("alice:{PASSWORD}"));
        command.args(["--mail-from", "alice@example.org", "--mail-rcpt", sending.recipient]);
        command.arg("--upload-file").arg(sending.file);
        command.arg(format!("{scheme}://localhost:{}/client.example", sending.port));
        command.args(["--resolve", &format!("localhost:{}:127.0.0.1", sending.port)]);
        succeed(&mut command, b"");
    });
}

#[test]
fn messages_of_swaks_arrive_unchanged() {
    compare("swaks", 0, |sending| {
        let tls = if sending.way == Way::Implicit { "--tls-on-connect" } else { "--tls" };
        let mut command = Command::new("swaks");
        command.args(["--server", &format!("127.0.0.1:{}", sending.port), tls, "--helo", "client.example"]);
        command.args(["--auth", "PLAIN", "--auth-user", "alice", "--auth-password", PASSWORD]);
        // swaks does the dot-stuffing itself, and always adds a line end to the file's last line.
        std::fs::write(sending.file, sending.text.strip_suffix(b"\r\n").unwrap()).unwrap();
        command.args(["--from", "alice@example.org", "--to", sending.recipient, "--suppress-data", "--data"]);
        command.arg(format!("@{}", sending.file.display()));
        succeed(&mut command, b"");
    });
}

#[test]
fn messages_of_smtplib_arrive_unchanged() {
    const PROGRAM: &str = "
import smtplib, ssl, sys
way, port, ca, password, recipient, path = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
if way == 'implicit':
    client = smtplib.SMTP_SSL('localhost', int(port), context=context)
else:
    client = smtplib.SMTP('localhost', int(port))
    client.starttls(context=context)
client.login('alice', password)
client.sendmail('alice@example.org', [recipient], open(path, 'rb').read(), mail_options=['BODY=8BITMIME'])
client.quit()
";
    compare("smtplib", 0, |sending| {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, sending.way.listener(), &sending.port.to_string()]).arg(sending.ca);
        command.args([PASSWORD, sending.recipient]).arg(sending.file);
        succeed(&mut command, b"");
    });
}

#[test]
fn messages_of_msmtp_arrive_unchanged() {
    compare("msmtp", 0, |sending| {
        let settings = sending.file.with_file_name("msmtprc");
        let starttls = if sending.way == Way::StartTls { "on" } else { "off" };
        let text = format!(
            "account default\nhost localhost\nport {}\ndomain client.example\nfrom alice@example.org\ntls on\n\
             tls_starttls {starttls}\ntls_trust_file {}\nauth on\nuser alice\npassword {PASSWORD}\n",
            sending.port,
            sending.ca.display()
        );
        std::fs::write(&settings, text).unwrap();
        std::fs::set_permissions(&settings, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let mut command = Command::new("msmtp");
        command.arg(format!("--file={}", settings.display())).arg(sending.recipient);
        succeed(&mut command, sending.with_unix_lines());
    });
}

/// s-nail makes the header itself, so the delivered message is compared with the copy that s-nail saves in its folder.
#[test]
fn messages_of_s_nail_arrive_unchanged() {
    let bodies = vec![
        ("text", b"hello\r\n\r\nbye\r\n".to_vec()),
        ("dots", b".\r\n..\r\n.x\r\n\r\n.\r\nend.\r\n".to_vec()),
        ("eight-bit", "Grüße aus Wien: café, naïve, Ω\r\n".repeat(40).into_bytes()),
    ];
    let send = |sending: &super::Sending| {
        let record = sending.file.with_file_name("record");
        std::fs::write(sending.file, sending.with_unix_lines()).unwrap();
        let _ = std::fs::remove_file(&record);
        let scheme = if sending.way == Way::Implicit { "smtps" } else { "smtp" };
        let mut command = Command::new("s-nail");
        command.args(["-:/", "-S", "v15-compat=yes", "-S", "sendwait", "-S", "tls-verify=strict"]);
        command.arg("-S").arg(format!("tls-ca-file={}", sending.ca.display()));
        command.arg("-S").arg(format!("mta={scheme}://alice:{PASSWORD}@localhost:{}", sending.port));
        command.args(["-S", "smtp-auth=login", "-S", "from=alice@example.org", "-S", "hostname=client.example"]);
        command.args(["-S", "ttycharset=utf-8", "-S", "mime-encoding=8bit"]);
        if sending.way == Way::StartTls {
            command.args(["-S", "smtp-use-starttls"]);
        }
        command.arg("-S").arg(format!("record={}", record.display()));
        command.args(["-s", "test", "-a"]).arg(sending.file).arg(sending.recipient);
        succeed(
            command.env("MAILRC", "/dev/null").env("HOME", sending.file.parent().unwrap()),
            sending.with_unix_lines(),
        );
        let kept = std::fs::read(record).unwrap();
        let text = String::from_utf8(kept).unwrap();
        // In s-nail's folder (mbox format) a line "From …" precedes the message, and an empty line follows it. The
        // format also quotes message lines that begin with "From ".
        let message = text.split_once('\n').unwrap().1.strip_suffix('\n').unwrap();
        message.replace('\n', "\r\n").into_bytes()
    };
    each("s-nail", bodies, send, 0);
}

#[test]
fn messages_of_perl_net_smtp_arrive_unchanged() {
    const PROGRAM: &str = r#"
use strict; use warnings; use Net::SMTP; use Authen::SASL;
my ($way, $port, $ca, $password, $recipient, $path) = @ARGV;
my @tls = (SSL_ca_file => $ca);
my $client = Net::SMTP->new('localhost', Port => $port, Hello => 'client.example', SSL => $way eq 'implicit', @tls) or die $@;
$way eq 'implicit' or $client->starttls(@tls) or die $client->message;
$client->auth('alice', $password) or die $client->message;
open(my $file, '<:raw', $path) or die $!;
my $text = do { local $/; <$file> };
$client->mail('alice@example.org', Bits => '8') && $client->to($recipient) && $client->data && $client->datasend($text)
    && $client->dataend or die $client->message;
$client->quit;
"#;
    compare("net-smtp", 0, |sending| {
        let mut command = Command::new("perl");
        command.args(["-e", PROGRAM, sending.way.listener(), &sending.port.to_string()]).arg(sending.ca);
        command.args([PASSWORD, sending.recipient]).arg(sending.file);
        succeed(&mut command, b"");
    });
}

#[test]
fn messages_of_nodemailer_arrive_unchanged() {
    const PROGRAM: &str = "
const [way, port, ca, password, recipient, path] = process.argv.slice(1);
const fs = require('fs');
const transport = require('nodemailer').createTransport({
    host: 'localhost', port: Number(port), secure: way === 'implicit', requireTLS: true, name: 'client.example',
    auth: { user: 'alice', pass: password }, tls: { ca: fs.readFileSync(ca) },
});
const raw = fs.readFileSync(path);
transport.sendMail({ envelope: { from: 'alice@example.org', to: [recipient] }, raw })
    .then(() => transport.close(), (error) => { console.error(error); process.exit(1); });
";
    compare("nodemailer", 0, |sending| {
        let mut command = Command::new("node");
        command.env("NODE_PATH", "/usr/share/nodejs");
        command.args(["-e", PROGRAM, sending.way.listener(), &sending.port.to_string()]).arg(sending.ca);
        command.args([PASSWORD, sending.recipient]).arg(sending.file);
        succeed(&mut command, b"");
    });
}

/// git send-email makes the header itself. So the delivered header is compared with the header in its debug output.
#[test]
fn messages_of_git_send_email_arrive_unchanged() {
    let patch = "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\r\n\
        From: Alice <alice@example.org>\r\nDate: Sat, 21 Nov 2026 10:00:00 +0000\r\nSubject: [PATCH] weir: hold\r\n\r\n\
        Say why.\r\n---\r\n a.txt | 2 +-\r\n 1 file changed, 1 insertion(+), 1 deletion(-)\r\n\r\n\
        diff --git a/a.txt b/a.txt\r\n--- a/a.txt\r\n+++ b/a.txt\r\n@@ -1,3 +1,3 @@\r\n .\r\n-..\r\n+.\r\n \r\n-- \r\n2.39.5\r\n\r\n";
    let send = |sending: &super::Sending| {
        let folder = sending.file.with_file_name("repository");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(sending.file, sending.with_unix_lines()).unwrap();
        let encryption = if sending.way == Way::Implicit { "ssl" } else { "tls" };
        let mut command = Command::new("git");
        command.current_dir(&folder).env("HOME", &folder).env("GIT_CONFIG_NOSYSTEM", "1");
        command.args(["-c", "user.name=Alice", "-c", "user.email=alice@example.org", "send-email", "--quiet"]);
        command.args(["--smtp-server=localhost", "--smtp-domain=client.example", "--smtp-user=alice"]);
        command.args([&format!("--smtp-server-port={}", sending.port), &format!("--smtp-pass={PASSWORD}")]);
        command
            .arg(format!("--smtp-encryption={encryption}"))
            .arg(format!("--smtp-ssl-cert-path={}", sending.ca.display()));
        command.args(["--from=Alice <alice@example.org>", "--confirm=never", "--suppress-cc=all", "--no-validate"]);
        // Make the program print its SMTP dialogue.
        command.arg("--smtp-debug=1").arg(format!("--to={}", sending.recipient)).arg(sending.file);
        let Outcome { err, .. } = succeed(&mut command, b"");
        let (_, body) = patch.split_once("\r\n\r\n").unwrap();
        format!("{}\r\n{body}", header_according_to(&err, "Say why.")).into_bytes()
    };
    each("git", vec![("patch", patch.as_bytes().to_vec())], send, 0);
}

/// Returns the message header from the dialogue that Net::SMTP prints. Net::SMTP prints each line that it sends as
/// `Net::SMTP::_SSL=GLOB(0x…)>>> line`. The header is between DATA and `first`, the first line of the body.
fn header_according_to(debug: &str, first: &str) -> String {
    let said = debug.lines().filter_map(|line| line.split_once(")>>> ")).map(|(_, said)| said);
    let header = said.skip_while(|said| *said != "DATA").skip(1).take_while(|said| *said != first);
    header.map(|line| format!("{line}\r\n")).collect()
}
