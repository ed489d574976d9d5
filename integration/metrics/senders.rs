//! Load of many senders on a Weir with the limits of `conf/weir.toml`. The tests and a benchmark use it.

use crate::harness::{PASSWORD, Site, Upstream};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::path::Path;

/// A limit that gives each sender its own budget.
const LIMIT_OF_SENDERS: &str = r#"
[[limit]]
name = "sender"
count = "messages"
per = ["sender"]
stage = "mail"
rate = "100 / 1d"
"#;

/// Returns a site with the limits of `conf/weir.toml`, and a limit on each sender.
pub fn site_with_shipped_limits(upstream: &Upstream) -> Site {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    let text = std::fs::read_to_string(conf.join("weir.toml")).unwrap();
    let shipped = &text[text.find("\n[list.bulk-hosts]").unwrap()..];
    let site = Site::builder()
        .open_listener()
        .listener("submission", "tls = \"starttls\", auth = \"required\"")
        .upstream(upstream.address(), "")
        .more(&format!("{shipped}{LIMIT_OF_SENDERS}"))
        .users(&[("alice", PASSWORD, "staff")])
        .build();
    for file in ["bulk-hosts.txt", "bulk-hosts.csv"] {
        std::fs::copy(conf.join(file), site.path(file)).unwrap();
    }
    site
}

/// Senders that a session names, in one pipelined write: MAIL and RSET for each. Weir ends a session after 200 commands
/// without a message.
const SENDERS_OF_A_SESSION: usize = 99;

/// Names senders with these numbers, in one session after the other.
pub fn name_senders(address: SocketAddr, senders: Range<usize>) {
    for first in senders.clone().step_by(SENDERS_OF_A_SESSION) {
        let last = senders.end.min(first + SENDERS_OF_A_SESSION);
        let commands: String = (first..last).map(|n| format!("MAIL FROM:<s{n}@example.org>\r\nRSET\r\n")).collect();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("EHLO client.example\r\n{commands}QUIT\r\n").as_bytes()).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        assert!(replies.contains("\r\n221 "), "{}", replies.lines().last().unwrap_or_default());
    }
}
