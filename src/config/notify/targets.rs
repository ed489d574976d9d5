//! Targets of a notification: `webhook`, `mail`, `command`, and how they are used.

use crate::config::files::Files;
use crate::config::section::{Placed, Section};
use crate::config::values::{duration, flag, quoted, text, timeout};
use crate::notify::{Command, LOGIN, MailTarget, NotificationOptions, Template, USER, Webhook, is_mail_address};
use hyper::Uri;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeValue;

/// Targets of one notification, with the positions of files that are checked later.
pub struct Targets {
    pub options: NotificationOptions,
    pub secret_file: Option<Placed<PathBuf>>,
    pub program: Option<Placed<PathBuf>>,
}

/// Maximum time for which a delivery is tried.
const MAX_RETRY: Duration = Duration::from_secs(30 * 86_400);

/// Reads the keys of the targets.
pub fn read(s: &mut Section<'_>, files: &mut Files, hostname: &str) -> Targets {
    let url = s.optional("webhook", |value| webhook(&text(value)?));
    let secret_file = s.optional("secret-file", |value| match text(value)? {
        name if name.is_empty() => Err("it is empty".to_owned()),
        name => Ok(files.path(&name)),
    });
    warn_of_webhook(s, url.as_ref(), secret_file.as_ref());
    let mail = s.list("mail", Some("[]"), "[\"postmaster@example.org\", \"user\"]", recipient);
    let mail = mail.map(|mail| mail.value).unwrap_or_default();
    let from = s.value("from", &quoted(&format!("postmaster@{hostname}")), |value| address(&text(value)?));
    let user_address = s.optional("user-address", |value| rule(&text(value)?));
    if let Some(rule) = &user_address
        && !mail.contains(&MailTarget::User)
    {
        let help = Some("add \"user\" to mail, or remove user-address");
        s.warn_unless(&["mail"], &rule.span, "user-address has no effect without \"user\" in mail", help);
    }
    let command =
        s.list("command", Some("[]"), "[\"/usr/local/bin/notify\", \"argument\"]", |part| Ok(part.to_owned()));
    let timeout = s.value("command-timeout", "\"30s\"", timeout);
    let (command, program) = read_command(s, command, timeout);
    let template = template(s, "template", files);
    let user_template = self::template(s, "user-template", files);
    let at_end = s.value("at-end", "false", flag);
    let retry_for = s.value("retry-for", "\"1d\"", |value| match duration(value)? {
        time if time.is_zero() || time > MAX_RETRY => Err("it must be above 0s and at most 30d".to_owned()),
        time => Ok(time),
    });
    let webhook =
        url.map(|url| Webhook { url: url.value, secret_file: secret_file.as_ref().map(|file| file.value.clone()) });
    let options = NotificationOptions {
        webhook,
        mail,
        command,
        from,
        user_address: user_address.map(|rule| rule.value),
        template,
        user_template,
        at_end,
        retry_for,
    };
    Targets { options, secret_file, program }
}

/// Parses the URL of a webhook.
fn webhook(url: &str) -> Result<Uri, String> {
    // The path may contain a token, so no message has the URL.
    let bad = || "it is no URL: write \"https://example.org/hook\"".to_owned();
    let parsed: Uri = url.parse().map_err(|_| bad())?;
    let authority = parsed.authority().ok_or_else(bad)?;
    match parsed.scheme_str() {
        Some("https" | "http") => {}
        _ => return Err("the scheme must be https, or http on this machine".to_owned()),
    }
    if authority.as_str().contains('@') {
        return Err("a URL with a password is refused, because proxies log URLs: use secret-file".to_owned());
    }
    if authority.host().is_empty() { Err(bad()) } else { Ok(parsed) }
}

/// Warns if the notice goes through the network without TLS, and if a secret has no webhook.
fn warn_of_webhook(s: &Section<'_>, url: Option<&Placed<Uri>>, secret_file: Option<&Placed<PathBuf>>) {
    match (url, secret_file) {
        (None, Some(file)) => {
            s.warn_unless(&["webhook"], &file.span, "secret-file has no effect without \"webhook\"", None);
        }
        (Some(url), _) if url.value.scheme_str() == Some("http") && !is_loopback(&url.value) => {
            let message = "without TLS, others can read and change the notices in the network";
            s.warn(&url.span, message, Some("write https://"));
        }
        _ => {}
    }
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn recipient(text: &str) -> Result<MailTarget, String> {
    match text {
        USER => Ok(MailTarget::User),
        _ => address(text).map(MailTarget::Address).map_err(|why| format!("{why}, or \"{USER}\"")),
    }
}

fn address(text: &str) -> Result<String, String> {
    let remedy = || format!("\"{}\" is no mail address: write \"postmaster@example.org\"", text.escape_debug());
    is_mail_address(text).then(|| text.to_owned()).ok_or_else(remedy)
}

/// Reads the rule for the addresses of users.
fn rule(text: &str) -> Result<String, String> {
    let is_good = text.contains(LOGIN) && is_mail_address(&text.replace(LOGIN, "alice"));
    is_good.then(|| text.to_owned()).ok_or_else(|| format!("write \"{LOGIN}@example.org\": {LOGIN} is the login"))
}

fn read_command(
    s: &Section<'_>,
    command: Option<Placed<Vec<String>>>,
    timeout: Duration,
) -> (Option<Command>, Option<Placed<PathBuf>>) {
    let Some(Placed { value, span }) = command else { return (None, None) };
    let mut parts = value.into_iter();
    let Some(program) = parts.next().map(PathBuf::from) else { return (None, None) };
    if !program.is_absolute() {
        let help = "write [\"/usr/local/bin/notify\"]; no shell interprets it";
        s.error(&span, "the program of a command needs an absolute path", Some(help));
        return (None, None);
    }
    let placed = Placed { value: program.clone(), span };
    (Some(Command { program, arguments: parts.collect(), timeout }), Some(placed))
}

fn template(s: &mut Section<'_>, key: &'static str, files: &mut Files) -> Option<Arc<Template>> {
    let read = |value: &DeValue<'_>| {
        let (path, text) = files.read(&text(value)?)?;
        Template::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    };
    s.optional(key, read).map(|template| Arc::new(template.value))
}
