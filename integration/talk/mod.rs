//! Policy talks: scripts of SMTP clients that connect to a running Weir. The scripts check Weir's replies, log and
//! metrics, and the messages that upstreams get. The files `policy/*.policy` and `examples/*.policy` use this grammar.
//!
//! A talk begins with the sentences of `policy/sentences.txt` that it tests, in their exact words: `#! words`. Each
//! following line is one event. In these examples, the client's name is `a`; a name has one word:
//!
//!     a 192.0.2.7 connects            connects and says EHLO; XCLIENT gives its address, unless it is loopback
//!     a 192.0.2.7 knocks              connects, and neither reads the greeting nor says EHLO; this line and
//!                                     "connects" may end in "at LISTENER"
//!     a logs in alice sesame          logs in and expects 235; every password is "sesame"
//!     a tries alice guess             sends this login; a later line checks the reply
//!     a secures                       STARTTLS, then XCLIENT and EHLO again
//!     a mails x@example.org: 1@d 2@d  MAIL and RCPT, all accepted; 1..9@d are nine addresses; the sender may be empty
//!     a sends x@example.org: 1@d 2@d  MAIL, RCPT and a message, all accepted
//!     a -> RCPT TO:<b@example.net>    sends this line; consecutive lines are sent in one piece
//!     a => Subject: hello             sends a line of a message; no reply is due
//!     a gives 2000 octets             sends a body of this size and the final dot
//!     a <- 250 2.1.5 Ok               expects exactly this reply
//!     a <~ 450 4.7.1 2 of             expects a reply that begins so; in <- and <~, {1h} matches 59m30s to 1h
//!     together a b <~ 250 450         expects these replies from a and b, in either order
//!     a was late 1s                   a's last reply came at least 1s after a's last line was sent
//!     a -- closed                     Weir has closed the connection
//!     a leaves                        sends QUIT
//!     a says no more                  closes its sending side, and can still read replies
//!     a breaks off                    closes the connection without QUIT
//!     upstream says RCPT 550 5.1.1 X  the upstream's reply from now on to RCPT, MAIL, DATA, or END (of the message)
//!     upstream vanishes RCPT          the upstream cuts the connection at this command from now on
//!     upstream is well                the upstream accepts everything again
//!     upstream has 2                  the upstream has accepted 2 messages
//!     slow has 2                      the upstream "slow", which exists if a limit routes to it, has accepted 2
//!     metric weir_x{limit="y"} 3      waits until the metric is at least 3; fails if it is larger
//!     metric weir_x{limit="y"} falls to 0   waits until the metric is 0
//!     log contains A & B              waits until one log line contains both texts, A and B
//!     log lacks A & B                 no log line so far contains both texts
//!     filter LIMIT 40                 the limit's only budget has a filter of distinct values of 40 octets
//!     change FILE: OLD => NEW         replaces the text OLD in the file, at one moment; NEW may contain \n
//!     reload                          runs `weir reload`
//!     reload by itself                waits until Weir has noticed the last "change" and reloaded
//!     weir revoke LIMIT "a b"         runs this command of `weir`, which must succeed
//!     outcome bounced b@d of ID       a mail says that the message with this queue id at the upstream has bounced, was
//!                                     "delayed", or that the recipient has "complained"; "weir says" has the result
//!     blocked 10.0.0.5 to 203.0.113.1..50     the edge logs that it has blocked connections of this client to these 50
//!                                     addresses; "203.0.113.1, 200 times": 200 to one address; "weir says" has the result
//!     weir says A & B                 the output of the last command contains both texts
//!     restart                         kills Weir with SIGKILL, starts it again, and forgets all clients
//!     wait until it fits              waits for the time after "try again in" in the last refusal, 5s at most

mod client;
mod site;
mod transcript;

pub use site::{USERS, head, today};

use crate::harness::{Fault, Outcome, PATIENCE, Process, Site, Stage, Upstream, wait_for};
use crate::why::check_replies;
use base64::Engine as _;
use client::{TalkClient, body};
use rustix::process::Signal;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use transcript::Transcript;
use weir::time::parse_duration;

/// Environment variable with the name of a talk: only this talk is played.
const ONLY: &str = "TALK";

/// Plays all scripts with `play`; `at_once` scripts run at the same time. If scripts have failed, panics at the end
/// with all errors.
pub fn play_all(mut scripts: Vec<PathBuf>, at_once: usize, play: impl Fn(&Path) -> Result<(), String> + Sync) {
    let only = std::env::var(ONLY).ok();
    scripts.retain(|path| only.as_ref().is_none_or(|only| name_of(path) == *only));
    let (waiting, failed) = (Mutex::new(scripts), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(path) = waiting.lock().unwrap().pop() else { break };
                    if let Err(why) = play(&path) {
                        failed.lock().unwrap().push(why);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} talks failed:\n\n{}", failed.len(), failed.join("\n\n"));
}

/// Returns the files of a folder with this extension, sorted.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

/// Returns a file's name without its extension.
pub fn name_of(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// Plays a script and returns its transcript. The error names the script's line that failed, and the reason.
pub fn play(start: impl FnOnce() -> Talk, name: &str, script: &str) -> Result<String, String> {
    let at = Mutex::new(0);
    let play = || {
        let mut talk = start();
        for (n, line) in script.lines().enumerate() {
            *at.lock().unwrap() = n;
            if ["# ", "change ", "upstream "].iter().any(|words| line.starts_with(words)) {
                talk.transcript.remark(line);
            }
            talk.line(line)?;
            talk.note_upstreams();
        }
        talk.end()
    };
    // Functions of the test harness report failures by a panic: turn the panic into an error.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
    let n = at.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let outcome = outcome.unwrap_or_else(|panic| {
        Err(panic.downcast_ref::<String>().map_or("panic without a message", |text| text).to_owned())
    });
    let line = script.lines().nth(n).unwrap_or_default();
    outcome.map_err(|why| format!("{name}.policy:{}: {line}\n{why}", n + 1))
}

/// State of one talk while its script is played.
pub struct Talk {
    weir: Process,
    site: Site,
    upstream: Upstream,
    /// Upstream `slow`, if a limit of the talk routes mail to it.
    slow: Option<Upstream>,
    transcript: Transcript,
    clients: HashMap<String, TalkClient>,
    /// Last refusal (4xx or 5xx) that a client has read, and the time when the client read this refusal.
    refusal: Option<(Instant, String)>,
    /// Number of Weir's reloads before the last line `change`.
    reloads_before: Option<f64>,
    /// Standard output of the last command of `weir` that the talk ran.
    output: String,
}

impl Talk {
    /// Starts Weir at a site with these upstreams.
    pub fn at(site: Site, upstream: Upstream, slow: Option<Upstream>) -> Self {
        let weir = site.start();
        let (clients, transcript) = (HashMap::new(), Transcript::default());
        Self {
            weir,
            site,
            upstream,
            slow,
            transcript,
            clients,
            refusal: None,
            reloads_before: None,
            output: String::new(),
        }
    }

    /// Adds the new envelopes and messages at the upstreams to the transcript, but only if clients have read all
    /// replies. Before that, Weir has perhaps not yet sent everything to the upstreams.
    fn note_upstreams(&mut self) {
        if self.clients.values().all(|client| client.unread == 0 && client.unsent.is_empty()) {
            self.transcript.note("upstream", &self.upstream);
            if let Some(slow) = &self.slow {
                self.transcript.note("slow", slow);
            }
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let (subject, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !rest.starts_with("-> ") && !rest.starts_with("=> ") {
            self.clients.values_mut().for_each(TalkClient::send);
        }
        match subject {
            "upstream" => self.upstream(rest),
            "slow" => self.slow(rest),
            "metric" => self.metric(rest),
            "log" => self.log(rest),
            "filter" => self.filter(rest),
            "change" => self.change(rest),
            "reload" => self.reload(rest),
            "restart" => {
                // When Weir is killed, the records of the last seconds are lost.
                check_replies(&self.site, &self.transcript.take_replies());
                // The clients stay connected until Weir is dead: otherwise Weir could refund what they have not sent.
                self.weir.signal(Signal::KILL);
                self.weir.log_to_the_end();
                self.clients.clear();
                self.weir = self.site.start();
                Ok(())
            }
            "together" => self.together(rest),
            "weir" => self.command(rest),
            "blocked" => self.blocked(rest),
            "outcome" => self.outcome(rest),
            "wait" if rest == "until it fits" => self.wait(),
            name => self.client(name, rest),
        }
    }

    fn client(&mut self, name: &str, rest: &str) -> Result<(), String> {
        let words: Vec<&str> = rest.split(' ').collect();
        if let [address, verb @ ("connects" | "knocks"), at @ ..] = &words[..] {
            let address: IpAddr = address.parse().map_err(|_| format!("{address} is no address"))?;
            let usual = if address.is_loopback() { "direct" } else { "relay" };
            let listener = if let ["at", listener] = at { *listener } else { usual };
            let mut client = TalkClient::connect(name, address, (&self.weir, listener), &self.transcript)?;
            if *verb == "connects" {
                client.greet()?;
            }
            self.clients.insert(name.to_owned(), client);
            return Ok(());
        }
        let client = self.clients.get_mut(name).ok_or("unknown line")?;
        match rest.split_at_checked(3).unwrap_or((rest, "")) {
            ("-> ", said) => {
                client.say(said);
                return Ok(());
            }
            ("=> ", said) => {
                client.transcript.said(&client.name, said);
                client.unsent += &format!("{said}\r\n");
                return Ok(());
            }
            ("<- " | "<~ ", expected) => {
                let got = client.read_reply()?;
                let same = is_as_expected(&got, expected, rest.starts_with("<~"));
                if got.starts_with(['4', '5']) {
                    self.refusal = Some((Instant::now(), got.clone()));
                }
                return if same { Ok(()) } else { Err(format!("got: {got}")) };
            }
            _ => {}
        }
        match words[..] {
            ["--", "closed"] if client.unread == 0 => {
                if client.connection.is_closed() {
                    client.transcript.heard(&client.name, "(closed)");
                    Ok(())
                } else {
                    Err("it is not".to_owned())
                }
            }
            ["logs", "in", user, password] => client.log_in(user, password).and_then(|()| client.expect("235")),
            ["tries", user, password] => client.log_in(user, password),
            ["was", "late", time] => {
                let time = parse_duration(time).map_err(|error| error.to_string())?;
                let late = client.reply_at - client.sent_at;
                if late >= time { Ok(()) } else { Err(format!("only {late:?}")) }
            }
            ["secures"] => client.secure(&self.site.path("certificate.pem")),
            ["gives", octets, "octets"] => {
                let octets = octets.parse().map_err(|_| "no number")?;
                client.say(&format!("{}.", body(octets)));
                Ok(())
            }
            ["mails", ..] => client.mail(rest, false),
            ["sends", ..] => client.mail(rest, true),
            ["leaves"] => {
                client.ask("QUIT", "221")?;
                self.clients.remove(name).map_or(Ok(()), TalkClient::end)
            }
            ["says", "no", "more"] => {
                client.send();
                client.connection.close_its_side();
                Ok(())
            }
            ["breaks", "off"] => {
                self.clients.remove(name);
                Ok(())
            }
            _ => Err("unknown line".to_owned()),
        }
    }

    fn together(&mut self, rest: &str) -> Result<(), String> {
        let (names, expected) = rest.split_once(" <~ ").ok_or("together NAME NAME <~ CODE CODE")?;
        let mut got = Vec::new();
        for name in names.split(' ') {
            got.push(self.clients.get_mut(name).ok_or("unknown client")?.read_reply()?);
        }
        got.sort();
        let mut codes: Vec<&str> = expected.split(' ').collect();
        codes.sort_unstable();
        let same = got.len() == codes.len() && got.iter().zip(codes).all(|(got, code)| got.starts_with(code));
        if same { Ok(()) } else { Err(format!("got: {got:#?}")) }
    }

    fn upstream(&mut self, rest: &str) -> Result<(), String> {
        let stage = |name: &str| match name {
            "MAIL" => Ok(Stage::Mail),
            "RCPT" => Ok(Stage::Rcpt),
            "DATA" => Ok(Stage::Data),
            "END" => Ok(Stage::End),
            _ => Err(format!("{name} is no command")),
        };
        match rest.splitn(3, ' ').collect::<Vec<_>>()[..] {
            // `leak` is harmless: it loses a few octets per line of the script.
            ["says", at, reply] => self.upstream.fail(Some((stage(at)?, Fault::Say(reply.to_owned().leak())))),
            ["vanishes", at] => self.upstream.fail(Some((stage(at)?, Fault::Cut))),
            ["is", "well"] => self.upstream.fail(None),
            ["has", count] => return has(&self.upstream, count),
            _ => return Err("unknown line".to_owned()),
        }
        Ok(())
    }

    fn slow(&self, rest: &str) -> Result<(), String> {
        let slow = self.slow.as_ref().ok_or("no limit routes to it")?;
        has(slow, rest.strip_prefix("has ").ok_or("slow has NUMBER")?)
    }

    /// Waits until the metric reaches the value, because Weir counts an event just after its reply. Fails if the metric
    /// is larger, because counters never fall.
    fn metric(&self, rest: &str) -> Result<(), String> {
        let (name, value) = rest.rsplit_once(' ').ok_or("metric NAME VALUE")?;
        if let Some(name) = name.strip_suffix(" falls to") {
            wait_for(rest, || Some(self.weir.metric(name)).filter(|got| got.to_string() == value));
            return Ok(());
        }
        let value: f64 = value.parse().map_err(|_| "no number")?;
        let got = wait_for(name, || Some(self.weir.metric(name)).filter(|got| *got >= value));
        if got > value { Err(format!("got: {got}")) } else { Ok(()) }
    }

    fn log(&self, rest: &str) -> Result<(), String> {
        let (verb, words) = rest.split_once(' ').ok_or("log contains WORDS")?;
        let look = || {
            let mut lines = self.weir.log_lines().into_iter();
            lines.find(|line| words.split(" & ").all(|word| line.contains(word)))
        };
        match verb {
            "contains" => drop(wait_for(words, look)),
            "lacks" => return look().map_or(Ok(()), |line| Err(format!("got: {line}"))),
            _ => return Err("unknown line".to_owned()),
        }
        Ok(())
    }

    fn filter(&self, rest: &str) -> Result<(), String> {
        let (limit, octets) = rest.split_once(' ').ok_or("filter LIMIT OCTETS")?;
        let lines = self.site.dump();
        let [budget] = lines.iter().filter(|line| line["limit"] == limit).collect::<Vec<_>>()[..] else {
            return Err(format!("{limit} does not have exactly one budget in {lines:#?}"));
        };
        let seen = base64::engine::general_purpose::STANDARD.decode(budget["seen"].as_str().unwrap()).unwrap();
        // The filter begins with a checksum of 4 octets and a time of 8 octets; then its size follows.
        let size = u32::from_le_bytes(seen[12..16].try_into().unwrap());
        if size.to_string() == octets { Ok(()) } else { Err(format!("got: {size}")) }
    }

    /// Plays a line `weir …`: runs a command, whose arguments may be in quotes, or checks the last command's output.
    fn command(&mut self, rest: &str) -> Result<(), String> {
        if let Some(words) = rest.strip_prefix("says ") {
            let output = &self.output;
            return if words.split(" & ").all(|word| output.contains(word)) {
                Ok(())
            } else {
                Err(format!("got: {output}"))
            };
        }
        let quoted = rest.split('"').enumerate();
        let words =
            quoted.flat_map(|(n, part)| if n % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
        let words: Vec<&str> = words.collect();
        let Outcome { code, out, err } = self.site.run(&words, "");
        self.output = out;
        if code == Some(0) { Ok(()) } else { Err(err) }
    }

    /// Gives a mail about the outcome of a message to `weir outcomes report`.
    fn outcome(&mut self, rest: &str) -> Result<(), String> {
        let [kind, recipient, "of", id] = rest.split(' ').collect::<Vec<_>>()[..] else {
            return Err("outcome bounced RECIPIENT of ID".to_owned());
        };
        let (part, fields) = match kind {
            "bounced" => {
                ("delivery-status", format!("Final-Recipient: rfc822; {recipient}\nAction: failed\nStatus: 5.1.1"))
            }
            "delayed" => {
                ("delivery-status", format!("Final-Recipient: rfc822; {recipient}\nAction: delayed\nStatus: 4.4.1"))
            }
            "complained" => ("feedback-report", format!("Feedback-Type: abuse\nOriginal-Rcpt-To: <{recipient}>")),
            _ => return Err(format!("{kind} is no outcome")),
        };
        let mail = format!(
            "Content-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/{part}\n\n{fields}\n\n\
             --b\nContent-Type: text/rfc822-headers\n\nReceived: by mx.example with ESMTP id {id}; date\n\n--b--\n"
        );
        let Outcome { code, out, err } = self.site.run(&["outcomes", "report"], mail);
        self.output = out;
        if code == Some(0) { Ok(()) } else { Err(err) }
    }

    /// Gives lines of the kernel about blocked connections to `weir egress watch nftables`.
    fn blocked(&mut self, rest: &str) -> Result<(), String> {
        let usage = "blocked CLIENT to ADDRESS..LAST or blocked CLIENT to ADDRESS, NUMBER times";
        let (client, to) = rest.split_once(" to ").ok_or(usage)?;
        let destinations: Vec<String> = match (to.split_once(".."), to.split_once(", ")) {
            (Some((first, last)), _) => {
                let (network, first) = first.rsplit_once('.').ok_or(usage)?;
                let [first, last]: [u8; 2] = [first, last].map(|octet| octet.parse().unwrap());
                (first..=last).map(|octet| format!("{network}.{octet}")).collect()
            }
            (None, Some((one, times))) => {
                let times = times.strip_suffix(" times").and_then(|times| times.parse().ok()).ok_or(usage)?;
                vec![one.to_owned(); times]
            }
            (None, None) => return Err(usage.to_owned()),
        };
        let line =
            |to| format!("[1.0] weir-egress-out IN=eth0 OUT=eth1 SRC={client} DST={to} LEN=60 PROTO=TCP DPT=25\n");
        let lines: String = destinations.iter().map(line).collect();
        let Outcome { code, out, err } = self.site.run(&["egress", "watch", "nftables", "-"], lines);
        self.output = out;
        if code == Some(0) { Ok(()) } else { Err(err) }
    }

    /// Returns the number of reloads that Weir has tried, both accepted and refused reloads.
    fn reloads(&self) -> f64 {
        ["taken", "refused"]
            .iter()
            .map(|result| self.weir.metric(&format!("weir_reloads_total{{result=\"{result}\"}}")))
            .sum()
    }

    fn change(&mut self, rest: &str) -> Result<(), String> {
        let words = rest.split_once(": ").and_then(|(file, words)| Some((file, words.split_once(" => ")?)));
        let (file, (old, new)) = words.ok_or("change FILE: OLD => NEW")?;
        let before = std::fs::read_to_string(self.site.path(file)).map_err(|error| error.to_string())?;
        if !before.contains(old) {
            return Err(format!("there is no {old} in\n{before}"));
        }
        self.reloads_before = Some(self.reloads());
        std::fs::write(self.site.path("new"), before.replace(old, &new.replace("\\n", "\n"))).unwrap();
        std::fs::rename(self.site.path("new"), self.site.path(file)).unwrap();
        Ok(())
    }

    fn reload(&mut self, rest: &str) -> Result<(), String> {
        let before = self.reloads_before.take();
        match (rest, before) {
            ("", _) => {
                let Outcome { code, err, .. } = self.site.run(&["reload"], "");
                // The exit code is 78 if Weir has read the file and refused it: a talk may test this.
                if matches!(code, Some(0 | 78)) { Ok(()) } else { Err(err) }
            }
            ("by itself", Some(before)) => {
                wait_for("reload", || (self.reloads() > before).then_some(()));
                Ok(())
            }
            _ => Err("unknown line".to_owned()),
        }
    }

    fn wait(&self) -> Result<(), String> {
        let (heard, reply) = self.refusal.as_ref().ok_or("nothing has been refused")?;
        let words = reply.split_once("try again in ").and_then(|(_, rest)| rest.split([' ', ';', ',']).next());
        let wait = words.and_then(|words| parse_duration(words).ok()).ok_or_else(|| format!("how long? {reply}"))?;
        if wait > Duration::from_secs(5) {
            return Err(format!("that is too long for a test: {wait:?}"));
        }
        std::thread::sleep((*heard + wait).saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// Checks that `weir why` explains each refusal from its reference, also after a restart.
    fn check_references(&mut self) {
        let replies = self.transcript.take_replies();
        if check_replies(&self.site, &replies) == 0 {
            return;
        }
        self.clients.clear();
        self.weir.signal(Signal::TERM);
        self.weir.log_to_the_end();
        // A talk can end with a configuration that Weir refuses at a start: its last change can be a mistake.
        if self.site.run(&["check"], "").code == Some(0) {
            self.weir = self.site.start();
            check_replies(&self.site, &replies);
        }
    }

    /// Ends the talk and returns its transcript. Fails if the script has not checked all replies.
    fn end(mut self) -> Result<String, String> {
        for client in self.clients.values_mut() {
            client.send();
            if client.unread > 0 {
                let got = client.read_reply();
                return Err(format!("{} also got {got:?}", client.name));
            }
        }
        self.note_upstreams();
        self.check_references();
        Ok(self.transcript.text())
    }
}

/// Compares a reply, or its beginning, with the expected text. In the expected text, `{1h}` matches 1h and any time
/// that is shorter by at most [`PATIENCE`].
fn is_as_expected(got: &str, expected: &str, is_beginning: bool) -> bool {
    let Some((before, (time, after))) = expected.split_once('{').and_then(|(a, b)| Some((a, b.split_once('}')?)))
    else {
        return if is_beginning { got.starts_with(expected) } else { got == expected };
    };
    let Some(rest) = got.strip_prefix(before) else { return false };
    let (said, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len()));
    let (Ok(said), Ok(time)) = (parse_duration(said), parse_duration(time)) else { return false };
    said <= time && time - said <= PATIENCE && is_as_expected(rest, after, is_beginning)
}

/// Checks the number of messages that an upstream has accepted.
fn has(upstream: &Upstream, count: &str) -> Result<(), String> {
    let got = upstream.acknowledged().len();
    if got.to_string() == count { Ok(()) } else { Err(format!("got: {got}")) }
}
