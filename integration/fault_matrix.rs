//! Fault matrix: tests every fault at every stage of SMTP many times, over new and over reused upstream connections.
//! The clients behave at random. A client must read 2xx for its message if and only if the upstream acknowledged the
//! message. No message may arrive twice. Weir must leak no memory and no open file.

use crate::harness::{Client, Fault, Process, Site, Stage, Upstream, wait_for};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Repetitions of each fault at each stage.
const REPETITIONS: usize = 200;
const CONCURRENT_CLIENTS: usize = 50;

const STAGES: [Stage; 7] =
    [Stage::Greeting, Stage::Ehlo, Stage::Mail, Stage::Rcpt, Stage::Data, Stage::Body, Stage::End];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Upstream(Fault),
    ClientVanishes,
}

const TROUBLES: [Trouble; 6] = [
    Trouble::ClientVanishes,
    Trouble::Upstream(Fault::Reset),
    Trouble::Upstream(Fault::Cut),
    Trouble::Upstream(Fault::Silence),
    Trouble::Upstream(Fault::SayAndClose("421 4.3.2 Shutting down")),
    Trouble::Upstream(Fault::Garbage),
];

/// Result of one client, which sends one message.
struct ClientResult {
    id: u64,
    /// The last reply that the client read; `None` if the client disconnected and did not wait for a reply.
    told: Option<String>,
    /// `charged` is the number of recipients that Weir must have charged to the limit. `asked` is the largest number of
    /// recipients that Weir can have charged. After Weir has lost the upstream and refused a recipient for this reason,
    /// it need not charge the client's next recipients.
    charged: usize,
    asked: usize,
}

#[test]
fn faults_at_every_stage_of_new_connections_lose_and_double_nothing() {
    every_fault_at_every_stage("max-idle-connections = 0");
}

#[test]
fn faults_at_every_stage_of_reused_connections_lose_and_double_nothing() {
    every_fault_at_every_stage("idle-timeout = \"1s\"");
}

fn every_fault_at_every_stage(pool: &str) {
    let upstream = Upstream::start();
    let site = Site::builder()
        .open_listener()
        .upstream(upstream.address(), &format!("name = \"u\", {pool}"))
        .more(
            "session = { upstream-timeout = \"1s\", max-connections-per-client = 3600 }\n\
             limit = [{ name = \"all\", count = \"recipients\", per = [], rate = \"10M / 3650d\", charge = \"accepted\" }]\n",
        )
        .build();
    let weir = site.start();
    let ids = AtomicU64::new(1);
    let good = |count: usize| batch(&weir, &ids, count, None);
    // Send some messages before the measurement, because some of Weir's memory grows only at first.
    let [mut least, mut most] = count_recipients(&good(4 * CONCURRENT_CLIENTS));
    settle(&weir);
    let before = Footprint::of(&weir);
    for stage in STAGES {
        for trouble in TROUBLES {
            upstream.forget();
            // Fill Weir's connection pool, so that the fault can also hit idle connections in it.
            let primed = good(CONCURRENT_CLIENTS);
            let outcomes = match trouble {
                Trouble::ClientVanishes => batch(&weir, &ids, REPETITIONS, Some(stage)),
                Trouble::Upstream(fault) => {
                    upstream.fail_once_in(2, stage, fault);
                    let outcomes = match (stage, fault) {
                        // If Weir has sent the final dot, it waits for a reply longer than a test can wait. So cut the
                        // silent connections.
                        (Stage::Body | Stage::End, Fault::Silence) => {
                            while_cutting(&upstream, || batch(&weir, &ids, REPETITIONS, None))
                        }
                        _ => batch(&weir, &ids, REPETITIONS, None),
                    };
                    upstream.fail(None);
                    upstream.cut_silent();
                    outcomes
                }
            };
            settle(&weir);
            let all: Vec<ClientResult> = primed.into_iter().chain(outcomes).collect();
            let [charged, asked] = count_recipients(&all);
            (least, most) = (least + charged, most + asked);
            let (delivered, refused) = check(&upstream, &all, (stage, trouble));
            eprintln!("{stage:?} {trouble:?}: {delivered} delivered, {refused} refused");
        }
    }
    wait_for("end of the connections", || {
        (weir.metric("weir_upstream_connections{upstream=\"u\"}") == 0.0).then_some(())
    });
    let after = Footprint::of(&weir);
    // Weir's open files can include the connection of this test to the metrics.
    assert!(after.files.len().abs_diff(before.files.len()) <= 1, "{:?}, then {:?}", before.files, after.files);
    assert!(after.octets < before.octets + 30_000_000, "{} octets of memory, then {}", before.octets, after.octets);
    // Weir charges each recipient once, whether it accepts or refuses the recipient.
    let charged = charged(&site);
    let bounds = least as f64 - 1.0..=most as f64 + 1.0;
    assert!(bounds.contains(&charged), "{charged} charged, {least} to {most} asked for");
    eprintln!("{charged} charged, {least} to {most} asked for");
}

/// Names of the open files except journals of charges, and octets of memory, of a process.
struct Footprint {
    files: Vec<String>,
    octets: u64,
}

impl Footprint {
    fn of(weir: &Process) -> Self {
        wait_for("end of the connections", || {
            (weir.metric("weir_upstream_connections{upstream=\"u\"}") == 0.0).then_some(())
        });
        let status = std::fs::read_to_string(format!("/proc/{}/status", weir.id())).unwrap();
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let kibibytes: u64 = anonymous.trim().trim_end_matches(" kB").parse().unwrap();
        let is_journal = |name: &String| name.contains("state.db-charges-");
        let (journals, files): (Vec<_>, Vec<_>) = weir.open_files().into_iter().partition(is_journal);
        // Whether a journal of charges is open, and perhaps its successor, depends on the time of the last checkpoint.
        assert!(journals.len() <= 2, "{journals:?}");
        Self { files, octets: kibibytes * 1024 }
    }
}

/// Sends `count` messages, each in its own session. At most [`CONCURRENT_CLIENTS`] sessions run at a time. With
/// `vanish`, each client disconnects at this stage.
fn batch(weir: &Process, ids: &AtomicU64, count: usize, vanish: Option<Stage>) -> Vec<ClientResult> {
    let left = AtomicUsize::new(count);
    let one_after_the_other = || {
        let more = || left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        let mut outcomes = Vec::new();
        while more() {
            outcomes.push(Sender::new(weir, ids.fetch_add(1, Ordering::Relaxed), vanish).send());
        }
        outcomes
    };
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..CONCURRENT_CLIENTS).map(|_| scope.spawn(one_after_the_other)).collect();
        senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
    })
}

/// A client that sends one message. The number of recipients, the size, pipelining, and the choice of DATA or BDAT are
/// random.
struct Sender {
    client: Client,
    id: u64,
    random: u64,
    vanish: Option<Stage>,
    charged: usize,
    asked: usize,
    is_refused: bool,
}

impl Sender {
    fn new(weir: &Process, id: u64, vanish: Option<Stage>) -> Self {
        let random = id.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        Self {
            client: Client::connect_silently(weir.address("s")),
            id,
            random,
            vanish,
            charged: 0,
            asked: 0,
            is_refused: false,
        }
    }

    fn by_chance(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn send(mut self) -> ClientResult {
        let told = self.dialogue().err();
        let told = told.filter(|told| !told.is_empty());
        if told.is_none() && self.by_chance(2) == 0 {
            self.client.reset_when_dropped();
        }
        ClientResult { id: self.id, told, charged: self.charged, asked: self.asked }
    }

    /// Returns an empty error if the client must disconnect at this stage. The client does not read the reply to its
    /// last command.
    fn here(&self, stage: Stage) -> Result<(), String> {
        if self.vanish == Some(stage) { Err(String::new()) } else { Ok(()) }
    }

    fn hear(&mut self, good: &str) -> Result<(), String> {
        let reply = self.client.reply();
        if reply.starts_with(good) { Ok(()) } else { Err(reply) }
    }

    /// Sends the message. Always returns an error: the last reply, even a positive reply, or "" if the client vanished.
    fn dialogue(&mut self) -> Result<(), String> {
        self.here(Stage::Greeting)?;
        self.hear("220")?;
        self.client.send(b"EHLO client.example\r\n");
        self.here(Stage::Ehlo)?;
        self.hear("250")?;
        let mail = format!("MAIL FROM:<sender-{}@example.org>\r\n", self.id);
        let recipients = 1 + 2 * self.by_chance(2) as usize;
        let rcpts: Vec<String> = (0..recipients).map(|n| format!("RCPT TO:<r{n}@example.net>\r\n")).collect();
        let mut last = String::new();
        self.asked = recipients;
        if self.by_chance(2) == 0 {
            self.client.send(format!("{mail}{}", rcpts.concat()).as_bytes());
            self.here(Stage::Mail)?;
            self.hear("250")?;
            self.here(Stage::Rcpt)?;
            for _ in &rcpts {
                last = self.heard_recipient();
            }
        } else {
            self.client.send(mail.as_bytes());
            self.here(Stage::Mail)?;
            self.hear("250")?;
            for rcpt in &rcpts {
                self.client.send(rcpt.as_bytes());
                self.here(Stage::Rcpt)?;
                last = self.heard_recipient();
            }
        }
        if !last.starts_with("250") {
            return Err(last);
        }
        let line = "0123456789abcdefghijklmnopqrstuvwxyz\r\n";
        let lines = line.repeat([1, 40, 4_000][self.by_chance(3) as usize]);
        let message = format!("Message-ID: <{}@example.org>\r\nSubject: x\r\n\r\n{lines}", self.id);
        let half = self.by_chance(message.len() as u64) as usize;
        let (one, other) = message.as_bytes().split_at(half);
        if self.by_chance(2) == 0 {
            self.client.send(b"DATA\r\n");
            self.here(Stage::Data)?;
            self.hear("354")?;
            self.try_send(one)?;
            self.here(Stage::Body)?;
            self.try_send(other)?;
            self.try_send(b".\r\n")?;
        } else {
            self.client.send(&[format!("BDAT {half}\r\n").as_bytes(), one].concat());
            self.here(Stage::Data)?;
            self.hear("250")?;
            self.here(Stage::Body)?;
            self.client.send(&[format!("BDAT {} LAST\r\n", other.len()).as_bytes(), other].concat());
        }
        self.here(Stage::End)?;
        Err(self.client.reply())
    }

    fn try_send(&mut self, octets: &[u8]) -> Result<(), String> {
        self.client.try_send(octets).map_err(|error| format!("cut off in mid-message: {error}"))
    }

    fn heard_recipient(&mut self) -> String {
        let reply = self.client.reply();
        self.charged += usize::from(!self.is_refused);
        self.is_refused |= !reply.starts_with("250");
        reply
    }
}

/// Compares the clients' replies with the messages that the upstream acknowledged. Returns the number of delivered
/// messages and the number of refused messages.
fn check(upstream: &Upstream, outcomes: &[ClientResult], when: (Stage, Trouble)) -> (usize, usize) {
    let mut arrived = HashMap::<u64, usize>::new();
    for message in upstream.acknowledged() {
        let text = String::from_utf8(message).unwrap();
        let id = text.split_once("Message-ID: <").unwrap().1.split_once('@').unwrap().0;
        *arrived.entry(id.parse().unwrap()).or_default() += 1;
    }
    let (mut delivered, mut refused) = (0, 0);
    for ClientResult { id, told, .. } in outcomes {
        let times = arrived.get(id).copied().unwrap_or(0);
        match told {
            Some(reply) if reply.starts_with("250 2.0.0") => {
                assert_eq!(times, 1, "{when:?}: {id} was acknowledged to the client");
                delivered += 1;
            }
            Some(reply) => {
                assert!(reply.starts_with("451 4."), "{when:?}: {id}: {reply}");
                assert_eq!(times, 0, "{when:?}: {id} arrived, and the client was told {reply}");
                refused += 1;
            }
            None => assert!(times <= 1, "{when:?}: {id} arrived {times} times"),
        }
    }
    (delivered, refused)
}

/// Waits until all sessions have ended.
fn settle(weir: &Process) {
    wait_for("end of the sessions", || (weir.metric("weir_sessions{listener=\"s\"}") == 0.0).then_some(()));
}

/// Runs `work`. Meanwhile, cuts every 100 ms the connections on which the upstream has stopped answering.
fn while_cutting<T>(upstream: &Upstream, work: impl FnOnce() -> T) -> T {
    let (done, end) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while end.recv_timeout(Duration::from_millis(100)).is_err_and(|error| error == RecvTimeoutError::Timeout) {
                upstream.cut_silent();
            }
        });
        let outcome = work();
        drop(done);
        outcome
    })
}

/// Returns the lowest and the highest number of recipients that Weir can have charged.
fn count_recipients(outcomes: &[ClientResult]) -> [usize; 2] {
    [outcomes.iter().map(|outcome| outcome.charged).sum(), outcomes.iter().map(|outcome| outcome.asked).sum()]
}

/// Returns the level of the site's only budget.
fn charged(site: &Site) -> f64 {
    site.dump().iter().find_map(|line| line["level"].as_f64()).unwrap()
}
