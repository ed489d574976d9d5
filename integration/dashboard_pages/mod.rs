//! Tests of the dashboard in a real browser.

mod access;
mod acts;
mod hostile;
mod many;
mod pictures;

use crate::harness::{Chromium, Client, Outcome, PASSWORD, Process, SetOnDrop, Site, Upstream};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

const ADMIN: &str = "admin = { address = \"127.0.0.1:0\" }";

/// Limits that most tests use. The flooding sender fills both limits of users.
const LIMITS: &str = "
[[limit]]
name = \"user-recipients\"
count = \"recipients\"
per = [\"user\"]
rate = \"40 / 1d\"
algorithm = \"token-bucket\"
charge = \"accepted\"

[[limit]]
name = \"new-recipients\"
count = \"recipients\"
distinct = \"recipient\"
per = [\"user\"]
rate = \"30 / 1h\"
mode = \"shadow\"

[[limit]]
name = \"client-recipients\"
count = \"recipients\"
per = [\"client\"]
rate = \"100 / 1h\"
except = { authenticated = true }

[[limit]]
name = \"of-message\"
count = \"recipients\"
per = [\"user\"]
rate = \"50 / message\"
";

/// Views of the dashboard, by the fragments of their addresses.
const VIEWS: [&str; 13] = [
    "now",
    "senders",
    "sender/user%3Dnewsletter",
    "sender/user%3Dalice",
    "refusals",
    "limits",
    "limits/user-recipients",
    "limits/new-recipients",
    "exceptions",
    "egress",
    "audit",
    "what-if",
    "sessions",
];

/// Weir with a dashboard, and an upstream.
struct Desk {
    upstream: Upstream,
    site: Site,
    weir: Process,
}

impl Desk {
    fn start() -> Self {
        Self::start_with(&[("alice", PASSWORD, ""), ("bob", PASSWORD, ""), ("newsletter", PASSWORD, "")])
    }

    /// Starts Weir with these users, each with name, password and groups.
    fn start_with(users: &[(&str, &str, &str)]) -> Self {
        let upstream = Upstream::start();
        upstream.offer(&["SMTPUTF8", "8BITMIME"]);
        let site = Site::builder()
            .listener("s", "tls = \"none\", auth = \"optional\", trusted = [\"127.0.0.0/8\"]")
            .upstream(upstream.address(), "name = \"smarthost\"")
            .users(users)
            .more("session = { max-connections = 1000 }\ndecision-log = { file = \"decisions\" }\n")
            .more(LIMITS)
            .build();
        site.edit(ADMIN, "admin = { address = \"127.0.0.1:0\", tokens = \"tokens\" }");
        let weir = site.start();
        Self { upstream, site, weir }
    }

    fn add_token(&self, arguments: &[&str]) -> String {
        let Outcome { code, out, err } = self.site.run(&[&["token", "add"], arguments].concat(), "");
        assert_eq!(code, Some(0), "{err}");
        out.trim().to_owned()
    }

    /// Returns the address of a view, named as in [`VIEWS`].
    fn url(&self, view: &str) -> String {
        format!("http://{}/#/{view}", self.weir.address("admin"))
    }

    /// Starts a browser, and logs in with a new token that may act.
    fn log_in(&self) -> Chromium {
        let browser = Chromium::start();
        self.log_in_with(&browser, &self.add_token(&["desk", "--act"]));
        browser
    }

    fn log_in_with(&self, browser: &Chromium, token: &str) {
        browser.open(&self.url("now"));
        browser.fill("input[name=token]", token);
        browser.click("//button[.='Log in']");
        browser.wait("dashboard", "document.querySelector('main h1')?.textContent === 'Now'");
    }

    /// Shows a view, and waits until its content is there.
    fn show(&self, browser: &Chromium, view: &str) {
        browser.run("location.hash = '#/' + arguments[0]", &[view.into()]);
        let shown = format!(
            "location.hash === '#/{view}' && document.querySelector('main h1')?.dataset.key === 'title #/{view}' \
             && !document.querySelector('main[aria-busy]')"
        );
        browser.wait(view, &shown);
    }

    /// Sends a message to this many recipients from this address. Returns the first reply that is no 2xx, or the reply
    /// to the message.
    fn send(&self, user: Option<&str>, from: Ipv4Addr, recipients: usize) -> String {
        let mut client = Client::connect_from(from, self.weir.address("s"));
        client.say("EHLO client.example", "250");
        if let Some(user) = user {
            client.log_in(user, PASSWORD);
        }
        let reply = client.ask("MAIL FROM:<a@example.org>");
        if !reply.starts_with("250") {
            return reply;
        }
        for _ in 0..recipients {
            let reply = client.ask(&format!("RCPT TO:<r{}@example.net>", unique_number()));
            if !reply.starts_with("250") {
                return reply;
            }
        }
        client.say("DATA", "354");
        client.ask("Subject: x\r\n\r\nx\r\n.")
    }

    /// Runs `work` while the user `newsletter` sends as much as Weir lets it send.
    fn flooded<T>(&self, work: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    self.send(Some("newsletter"), Ipv4Addr::new(127, 9, 0, 1), 3);
                }
            });
            let _stop = SetOnDrop(&stop);
            work()
        })
    }
}

/// Returns a number that this process has not used yet.
fn unique_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the path of a file among the pictures that the tests write.
fn picture(name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target")).join("dashboard").join(name)
}

fn assert_no_errors(browser: &Chromium) {
    assert_eq!(browser.log(), Vec::<String>::new());
}
