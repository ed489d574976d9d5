//! A customer, the edge with real nftables, and a Postfix outside, each in a network namespace of its own.

use super::register::site;
use crate::harness::{Client, Namespace, Postfix, Process, Running, Site, run, succeed, wait_for};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CUSTOMER: &str = "10.9.0.2";
/// Another customer, on the same machine.
const NEIGHBOUR: &str = "10.9.0.3";
const POSTFIX: &str = "203.0.113.2:25";
const WEIR: &str = "10.9.0.1:587";

/// Longest time until a change of the register is in force at the edge.
const IN_FORCE: Duration = Duration::from_secs(2);

/// Listener of the edge's Weir.
const LISTENER: &str =
    "listener.s = { address = \"10.9.0.1:587\", tls = \"none\", auth = \"none\", trusted = [\"10.9.0.0/24\"] }\n";

/// Limits of the edge's Weir.
const LIMITS: &str = "limit = [{ name = \"five\", count = \"recipients\", per = [\"client\"], \
     algorithm = \"token-bucket\", rate = \"5 / 1d\", action = [{ at = 1, suspend = \"1d\" }] }]\n";

/// Limit that finds a customer who tries many servers.
const SCAN_LIMIT: &str = "limit = [{ name = \"scan\", count = \"blocked-connections\", per = [\"client\"], \
     distinct = \"destination\", rate = \"30 / 1h\", action = [{ at = 1, suspend = \"1d\" }] }]\n";

/// Group of the kernel's packet log, and the settings of ulogd2, which writes its packets to a file.
const LOG_GROUP: u16 = 25;
const ULOGD: &str = "[global]\nlogfile=\"/dev/null\"\nloglevel=5\n\
     stack=log:NFLOG,base:BASE,ifi:IFINDEX,ip2str:IP2STR,print:PRINTPKT,emu:LOGEMU\n\
     [log]\ngroup=25\n[emu]\nsync=1\n";

struct Network {
    customer: Namespace,
    edge: Namespace,
    outside: Namespace,
    postfix: Option<Postfix>,
    site: Site,
}

impl Network {
    /// Makes the network. Weir, at the edge, relays to the Postfix outside.
    fn with_edge() -> Self {
        Self::with_edge_and(LIMITS)
    }

    /// Makes the network, with these limits of Weir.
    fn with_edge_and(limits: &str) -> Self {
        let (customer, edge, outside) = (Namespace::new(), Namespace::new(), Namespace::new());
        edge.connect("10.9.0.1/24", &customer, "10.9.0.2/24");
        edge.connect("203.0.113.1/24", &outside, "203.0.113.2/24");
        customer.add_address(&format!("{NEIGHBOUR}/24"));
        customer.route_by("10.9.0.1");
        outside.route_by("203.0.113.1");
        edge.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        let settings = "virtual_mailbox_domains = example.net\nmynetworks = 0.0.0.0/0\nsmtpd_peername_lookup = no\n";
        let postfix = Some(outside.run(|| Postfix::start_at(POSTFIX.parse().unwrap(), settings)));
        let site = Site::builder()
            .upstream(POSTFIX, "")
            .more(&format!("{LISTENER}egress = {{ customers = [\"10.9.0.0/24\"], log-group = {LOG_GROUP} }}\n{limits}"))
            .build();
        Self { customer, edge, outside, postfix, site }
    }

    fn start_weir(&self) -> Process {
        self.edge.run(|| self.site.start())
    }

    /// Starts `weir egress apply --follow` at the edge, and waits until the table is loaded.
    fn follow(&self) -> Running {
        let mut apply = self.site.command(&["egress", "apply", "--follow"]);
        let running = self.edge.run(|| Running(apply.stdout(Stdio::null()).spawn().unwrap()));
        wait_for("table of the edge", || self.table("weir-egress"));
        running
    }

    /// Starts ulogd2 at the edge, which writes the blocked connections to a file.
    fn start_ulogd(&self, log: &Path) -> Running {
        let settings = self.site.path("ulogd.conf");
        std::fs::write(log, "").unwrap();
        std::fs::write(&settings, format!("{ULOGD}file=\"{}\"\n", log.display())).unwrap();
        let mut ulogd = Command::new("ulogd");
        ulogd.arg("-c").arg(settings);
        let running = self.edge.run(|| Running(ulogd.stdout(Stdio::null()).spawn().unwrap()));
        // The kernel lists the programs that read its packet log.
        wait_for("ulogd", || {
            let readers =
                self.edge.run(|| std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_log")).ok()?;
            readers.lines().any(|line| line.trim().starts_with("25 ")).then_some(())
        });
        running
    }

    /// Returns a table of the edge without its counters; `None` if it does not exist.
    fn table(&self, name: &str) -> Option<String> {
        let listed = self.edge.run(|| run(Command::new("nft").args(["-s", "list", "table", "inet", name]), ""));
        (listed.code == Some(0)).then_some(listed.out)
    }

    /// Connects from the customer directly to the Postfix outside, and reads its greeting. Returns `None` if the
    /// connection is reset.
    fn direct(&self) -> Option<Client> {
        let connected = self.customer.run(|| {
            let mut client = Client::try_connect_from(CUSTOMER.parse().unwrap(), POSTFIX.parse().unwrap())?;
            client.try_reply().map(|greeting| (client, greeting))
        });
        match connected {
            Ok((client, greeting)) => {
                assert!(greeting.starts_with("220"), "{greeting}");
                Some(client)
            }
            Err(error) if [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset].contains(&error.kind()) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until the direct way is open, or closed. Returns how long that took.
    fn wait_until(&self, is_open: bool) -> Duration {
        let began = Instant::now();
        wait_for(if is_open { "open way" } else { "closed way" }, || {
            (self.direct().is_some() == is_open).then_some(())
        });
        began.elapsed()
    }

    fn egress(&self, arguments: &[&str]) {
        succeed(&mut self.site.command(&[&["egress"], arguments].concat()), "");
    }
}

/// Postfix can be stopped only where its address is.
impl Drop for Network {
    fn drop(&mut self) {
        let postfix = self.postfix.take();
        self.outside.run(|| drop(postfix));
    }
}

#[test]
fn the_edge_opens_and_closes_the_way_of_a_customer() {
    let network = Network::with_edge();
    let weir = network.start_weir();
    assert!(network.direct().is_some(), "without rules, each way is open");
    let other = "table inet other {\n\tchain c {\n\t\ttcp dport 26 drop\n\t}\n}\n";
    network.edge.run(|| succeed(Command::new("nft").args(["-f", "-"]), other));
    let apply = network.follow();
    assert!(network.direct().is_none(), "an unregistered customer reaches no server outside");
    // The customer can send through Weir.
    let mut client = network.customer.run(|| Client::connect(WEIR.parse().unwrap()));
    client.say("EHLO customer.example", "250");
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<r@example.net>", "250");
    client.say("DATA", "354");
    client.send(b"Subject: x\r\n\r\nx\r\n.\r\n");
    client.expect("250");
    network.postfix.as_ref().unwrap().message_for("r@example.net");
    // A registration opens the way, and its end closes it.
    network.egress(&["allow", CUSTOMER, "--owner", "o", "--for", "4s", "--reason", "x"]);
    let registered = Instant::now();
    let opened = network.wait_until(true);
    let mut session = network.direct().unwrap();
    network.wait_until(false);
    let closed = registered.elapsed().saturating_sub(Duration::from_secs(4));
    assert!(session.try_ask("NOOP").is_err(), "an open connection ends with its way");
    assert!(opened < IN_FORCE && closed < IN_FORCE, "{opened:?} {closed:?}");
    // A suspension by a limit closes the way of a registered customer, and the release opens it again.
    network.egress(&["allow", CUSTOMER, "--owner", "o", "--until-removed", "--reason", "x"]);
    network.wait_until(true);
    client.say("MAIL FROM:<a@example.org>", "250");
    for n in 0..4 {
        client.say(&format!("RCPT TO:<r{n}@example.net>"), "250");
    }
    client.say("RCPT TO:<r5@example.net>", "5");
    let suspended = network.wait_until(false);
    succeed(&mut network.site.command(&["release", &format!("client={CUSTOMER}")]), "");
    let released = network.wait_until(true);
    assert!(suspended < IN_FORCE && released < IN_FORCE, "{suspended:?} {released:?}");
    println!("opened after {opened:?}, closed after {closed:?}, suspended {suspended:?}, released {released:?}");
    assert_eq!(network.table("other").as_deref(), Some(other));
    // Without Weir, the rules stay.
    let before = network.table("weir-egress").unwrap();
    weir.kill();
    drop(apply);
    assert_eq!(network.table("weir-egress").unwrap(), before);
    network.edge.run(|| succeed(&mut network.site.command(&["egress", "apply"]), ""));
    assert_eq!(network.table("weir-egress").unwrap(), before, "the state file gives the same rules");
}

/// A bot never talks to Weir. It tries one server after the other, and the edge blocks and logs each attempt. The
/// watcher reports them, and the limit suspends the bot. Another customer tries one server again and again, and is not
/// suspended.
#[test]
fn a_bot_that_scans_is_found() {
    let network = Network::with_edge_and(SCAN_LIMIT);
    let log = network.site.path("blocked.log");
    let _ulogd = network.start_ulogd(&log);
    let weir = network.start_weir();
    let _apply = network.follow();
    let mut watch = network.site.command(&["egress", "watch", "nftables", "--follow"]);
    let _watch = Running(watch.arg(&log).stdout(Stdio::null()).spawn().unwrap());
    let try_from = |source: &str, target: String| {
        let attempt =
            network.customer.run(|| Client::try_connect_from(source.parse().unwrap(), target.parse().unwrap()));
        assert_eq!(attempt.err().map(|error| error.kind()), Some(ErrorKind::ConnectionRefused), "{target}");
    };
    for _ in 0..100 {
        try_from(NEIGHBOUR, POSTFIX.to_owned());
    }
    let began = Instant::now();
    for n in 0..50 {
        try_from(CUSTOMER, format!("203.0.113.{}:25", n + 100));
    }
    let suspended = weir.logged("suspended");
    let found = began.elapsed();
    println!("found after {found:?}");
    assert!(suspended.contains(&format!("client={CUSTOMER}")), "{suspended}");
    assert!(found < Duration::from_secs(10), "{found:?}");
    wait_for("the reports", || {
        let counted = network.edge.run(|| weir.metric("weir_blocked_connections_total"));
        (counted >= 150.0).then_some(())
    });
    weir.logged_times("message=suspended", 1);
}

/// The sets can be filled again and again, and rules that use them need not be removed.
#[test]
fn ipset_takes_the_sets_again() {
    let (namespace, site) = (Namespace::new(), site());
    let _weir = site.start();
    let ipset =
        |arguments: &[&str], input: String| namespace.run(|| succeed(Command::new("ipset").args(arguments), input)).out;
    for network in ["10.9.0.0/24", "10.9.1.7", "2001:db8::/56"] {
        let entry = ["allow", network, "--owner", "o", "--until-removed", "--reason", "x"];
        succeed(&mut site.command(&[&["egress"], &entry[..]].concat()), "");
        ipset(&["restore"], succeed(&mut site.command(&["egress", "render", "ipset"]), "").out);
    }
    let sets = ipset(&["save"], String::new());
    for line in
        ["add weir-egress-out4 10.9.0.0/24", "add weir-egress-out4 10.9.1.7", "add weir-egress-out6 2001:db8::/56"]
    {
        assert!(sets.contains(&format!("{line}\n")), "{sets}");
    }
    assert!(!sets.contains("-new"), "{sets}");
}

/// The rules stay right while Weir is away, while the configuration is wrong, and after another program has removed the table.
#[test]
fn the_rules_stay_right_when_something_fails() {
    let network = Network::with_edge();
    let weir = network.start_weir();
    let entry = ["allow", CUSTOMER, "--owner", "o", "--reason", "x"];
    network.egress(&[&entry[..], &["--for", "5s"]].concat());
    weir.kill();
    // Without Weir, the follower begins with the state file, and ends the entry.
    let _apply = network.follow();
    network.wait_until(true);
    network.wait_until(false);
    let weir = network.start_weir();
    network.egress(&[&entry[..], &["--until-removed"]].concat());
    network.wait_until(true);
    // The entries of a configuration that becomes wrong are in force all the same.
    network.site.edit("customers = ", "nonsense = ");
    network.site.run(&["status"], "");
    weir.logged("configuration refused");
    succeed(
        &mut network.site.command(&[
            "suspend",
            &format!("client={CUSTOMER}"),
            "--for",
            "1h",
            "--reason",
            "x",
            "--force",
        ]),
        "",
    );
    network.wait_until(false);
    network.site.edit("nonsense = ", "customers = ");
    // Another program removes the table: it comes back.
    network.edge.run(|| succeed(Command::new("nft").args(["flush", "ruleset"]), ""));
    network.wait_until(false);
    // Another name: the former table is removed.
    network.site.edit("log-group = ", "table = \"weir-b\", log-group = ");
    wait_for("the other table", || network.table("weir-b"));
    assert_eq!(network.table("weir-egress"), None);
    // A relay among the customers reaches servers outside.
    network.site.edit("log-group = ", &format!("relays = [\"{CUSTOMER}\"], log-group = "));
    network.wait_until(true);
}

/// A Weir that cannot read its state file does not know the register: the rules stay.
#[test]
fn an_unreadable_register_opens_and_closes_nothing() {
    let network = Network::with_edge();
    let weir = network.start_weir();
    network.egress(&["allow", CUSTOMER, "--owner", "o", "--until-removed", "--reason", "x"]);
    let _apply = network.follow();
    network.wait_until(true);
    let table = network.table("weir-egress");
    weir.kill();
    // Without its write-ahead log, which has the pages of the file, too.
    for name in ["state.db-wal", "state.db-shm"] {
        std::fs::remove_file(network.site.path(name)).unwrap();
    }
    std::fs::write(network.site.path("state.db"), [7; 8192]).unwrap();
    let _weir = network.start_weir();
    let listed = network.site.run(&["egress", "list"], "");
    assert!(
        listed.code == Some(69) && listed.err.contains("the register in the state file is not known"),
        "{listed:?}"
    );
    // The follower has looked several times by then.
    std::thread::sleep(IN_FORCE);
    assert_eq!(network.table("weir-egress"), table);
}

/// `weir egress apply` is killed at random moments. The table is always whole, and is right after the next start.
#[test]
fn a_killed_apply_leaves_a_whole_table() {
    let network = Network::with_edge();
    let _weir = network.start_weir();
    network.egress(&["allow", "10.9.0.64/26", "--owner", "o", "--until-removed", "--reason", "x"]);
    let mut tables = std::collections::BTreeSet::new();
    for n in 0..20 {
        let apply = network.follow();
        let change: &[&str] = match n % 2 {
            0 => &["allow", CUSTOMER, "--owner", "o", "--until-removed", "--reason", "x"],
            _ => &["remove", CUSTOMER],
        };
        network.egress(change);
        let mut octet = [0];
        getrandom::fill(&mut octet).unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(octet[0]) * 4));
        drop(apply);
        tables.insert(network.table("weir-egress").expect("the table is there"));
    }
    // With and without the customer.
    assert!(tables.len() <= 2, "{tables:?}");
    assert!(tables.iter().all(|table| table.contains("goto blocked-outgoing") && table.contains("10.9.0.64/26")));
}
