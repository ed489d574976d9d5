//! The policy language, sentence by sentence: dialogues with a running Weir in `policy/NAME.policy`, under the limits of
//! `policy/NAME.toml` and the files that lie beside it as `NAME-FILE`.
//!
//! A talk begins with what it shows, in the very words of `policy/sentences.txt`: `#! words`. Then it has a line for each thing that
//! happens; clients have a name of one word:
//!
//!     a 192.0.2.7 connects            and says EHLO; by XCLIENT, but for addresses of loopback, which connect themselves
//!     a 192.0.2.7 knocks              the same without EHLO, and without waiting for the greeting; both also "at LISTENER"
//!     a logs in alice sesame          which succeeds; all passwords are "sesame"
//!     a tries alice guess             a login whose reply comes below
//!     a secures                       STARTTLS, and everything said anew
//!     a mails x@example.org: 1@d 2@d  MAIL, and RCPT for each of these, which are accepted; 1..9@d are nine. The sender may be empty
//!     a sends x@example.org: 1@d 2@d  the same, and the message, which is taken
//!     a -> RCPT TO:<b@example.net>    says this line; lines in a row come in one piece
//!     a => Subject: hello             says a line of a message, to which nothing is said
//!     a gives 2000 octets             a message of that size, and the dot
//!     a <- 250 2.1.5 Ok               gets this reply
//!     a <~ 450 4.7.1 2 of             gets a reply that begins so; in both {1h} is about that time, as some may have passed already
//!     together a b <~ 250 450         and these between them, in whatever order
//!     a was late 1s                   at least, with its last reply
//!     a -- closed                     the connection is closed
//!     a leaves                        QUIT
//!     a says no more                  its side of the connection is closed
//!     a breaks off                    the connection is cut
//!     upstream says RCPT 550 5.1.1 X  from now on, to RCPT, MAIL, DATA, or END, the end of the message
//!     upstream vanishes RCPT          at this command
//!     upstream is well                again
//!     upstream has 2                  messages
//!     slow has 2                      the upstream to which limits route, where there are such limits
//!     metric weir_x{limit="y"} 3      when everything has been counted
//!     metric weir_x{limit="y"} falls to 0   at some time
//!     log contains A & B              a line with all of these
//!     log lacks A & B                 no line so far
//!     filter LIMIT 40                 octets has the filter of distinct values of its only budget
//!     change FILE: OLD => NEW         in one act; NEW may have \n
//!     reload                          which has happened when the next line is read
//!     reload by itself                it happens without anybody's telling, after a change
//!     weir revoke LIMIT "a b"         this command, for the Weir of the talk; it succeeds
//!     weir says A & B                 what it said then has all of these
//!     restart                         after kill -9
//!     wait until it fits              as long as the last refusal says

use crate::harness::{Client, Fault, PATIENCE, Process, Site, Stage, Upstream, run, wait_for, weir};
use crate::transcript::Transcript;
use base64::Engine as _;
use rustix::process::Signal;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use weir::time::parse_duration;

/// So many talks at once: most of them wait for a second or two most of the time.
const AT_ONCE: usize = 12;

#[test]
fn every_talk_goes_as_written() {
    let mut talks = talks();
    // One of them alone, while it is being written.
    let only = std::env::var("TALK").ok();
    talks.retain(|path| only.as_ref().is_none_or(|only| name_of(path) == *only));
    let waiting = Mutex::new(talks);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(path) = waiting.lock().unwrap().pop() else { break };
                    let script = std::fs::read_to_string(&path).unwrap();
                    if let Err(why) = played(&name_of(&path), &script) {
                        failed.lock().unwrap().push(why);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} talks went otherwise:\n\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn a_talk_that_expects_something_else_fails() {
    let begin = "a 192.0.2.7 connects\na mails x@example.org: 1..2@example.net\n";
    for wrong in [
        "a -> RCPT TO:<3@example.net>\na <~ 250",
        "a -> RCPT TO:<3@example.net>\na <- 450",
        "a -> NOOP\na <- 250 2.0.0",
        "a -> NOOP",
        "a sends x@example.org: 3@example.net",
        "a -> QUIT\na -- closed",
        "metric weir_connections_total{listener=\"relay\"} 0",
        "log lacks listening & relay",
        "upstream has 1",
        "change weir.toml: nowhere => anywhere",
        "wait until it fits",
        "weir revoke tokens alice",
        "weir exceptions\nweir says granted",
        "b -> NOOP",
        "nonsense",
    ] {
        assert!(played("token-bucket", &format!("{begin}{wrong}\n")).is_err(), "{wrong}");
    }
    assert_eq!(played("token-bucket", begin), Ok(()));
}

#[test]
fn every_sentence_has_a_talk_and_every_talk_a_sentence() {
    let text = std::fs::read_to_string(folder().join("sentences.txt")).unwrap();
    let (now, _later) = text.split_once("\n# later").unwrap();
    let (_, now) = now.split_once("\n\n").unwrap();
    let sentences: Vec<&str> = now.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(sentences.len() > 80, "only {} sentences", sentences.len());
    let mut shown = BTreeSet::new();
    let mut problems = Vec::new();
    for path in talks() {
        let (name, script) = (name_of(&path), std::fs::read_to_string(&path).unwrap());
        let claims: Vec<&str> = script.lines().map_while(|line| line.strip_prefix("#! ")).collect();
        if claims.is_empty() {
            problems.push(format!("{name} does not say what it shows"));
        }
        for claim in claims {
            match sentences.iter().filter(|sentence| sentence.contains(claim)).collect::<Vec<_>>()[..] {
                [sentence] => drop(shown.insert(*sentence)),
                [] => problems.push(format!("{name} shows what is no sentence: {claim}")),
                _ => problems.push(format!("{name} shows what could be several sentences: {claim}")),
            }
        }
    }
    let unshown = sentences.iter().filter(|sentence| !shown.contains(*sentence));
    problems.extend(unshown.map(|sentence| format!("no talk shows: {sentence}")));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/policy")
}

fn talks() -> Vec<PathBuf> {
    files(&folder(), "policy")
}

/// The files of a folder that end so.
pub fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == ending));
    files.sort();
    files
}

pub fn name_of(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// Plays a script under the limits of this name. The error says which line went otherwise, and how.
fn played(name: &str, script: &str) -> Result<(), String> {
    played_in(|| Play::new(name), name, script).map(drop)
}

/// Plays a script; what was said.
pub fn played_in(new: impl FnOnce() -> Play, name: &str, script: &str) -> Result<String, String> {
    let at = Mutex::new(0);
    let play = || {
        let mut play = new();
        for (n, line) in script.lines().enumerate() {
            *at.lock().unwrap() = n;
            if ["# ", "change ", "upstream "].iter().any(|words| line.starts_with(words)) {
                play.transcript.remark(line);
            }
            play.line(line)?;
            play.note_upstreams();
        }
        play.end()
    };
    // The harness fails by panics.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
    let n = at.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let outcome = outcome
        .unwrap_or_else(|panic| Err(panic.downcast_ref::<String>().map_or("it panicked", |text| text).to_owned()));
    let line = script.lines().nth(n).unwrap_or_default();
    outcome.map_err(|why| format!("{name}.policy:{}: {line}\n{why}", n + 1))
}

/// Name, password and groups.
pub const USERS: [(&str, &str, &str); 5] = [
    ("alice", "sesame", "staff"),
    ("bob", "sesame", "staff,lecturers"),
    ("carol@example.org", "sesame", ""),
    ("erin@example.org", "sesame", ""),
    ("dave@students.example.org", "sesame", "students"),
];

/// A talk under way.
pub struct Play {
    weir: Process,
    site: Site,
    upstream: Upstream,
    /// Where limits route to, if they do.
    slow: Option<Upstream>,
    transcript: Transcript,
    clients: HashMap<String, Speaker>,
    /// The last refusal that was heard, and when.
    refusal: Option<(Instant, String)>,
    /// How often the configuration had been read when it was changed last.
    readings: Option<f64>,
    /// What the last command said.
    said: String,
}

/// A client of a talk.
struct Speaker {
    name: String,
    client: Client,
    transcript: Transcript,
    address: IpAddr,
    /// What it has said and not sent.
    unsent: String,
    /// Replies that nobody has looked at.
    unheard: usize,
    /// When it last said something, and when it last heard.
    said: Instant,
    heard: Instant,
}

impl Play {
    fn new(name: &str) -> Self {
        let limits = std::fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap();
        let upstream = Upstream::start();
        let slow = limits.contains("route = \"slow\"").then(Upstream::start);
        let head = head(&upstream, slow.as_ref());
        let site = Site::with_users(&format!("{head}{}", limits.replace("{today}", &today())), &USERS);
        for entry in std::fs::read_dir(folder()).unwrap() {
            let entry = entry.unwrap();
            if let Some(file) = entry.file_name().to_string_lossy().strip_prefix(&format!("{name}-"))
                && !file.ends_with(".toml")
                && !file.ends_with(".policy")
            {
                std::fs::copy(entry.path(), site.path(file)).unwrap();
            }
        }
        Self::at(site, upstream, slow)
    }

    /// Begins at a site, whose upstreams these are.
    pub fn at(site: Site, upstream: Upstream, slow: Option<Upstream>) -> Self {
        let weir = site.start();
        let (clients, transcript) = (HashMap::new(), Transcript::default());
        Self { weir, site, upstream, slow, transcript, clients, refusal: None, readings: None, said: String::new() }
    }

    /// Notes what the upstreams have got, when everybody has heard what there was to hear: only then it is certain.
    fn note_upstreams(&mut self) {
        if self.clients.values().all(|speaker| speaker.unheard == 0 && speaker.unsent.is_empty()) {
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
            self.clients.values_mut().for_each(Speaker::send);
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
                self.clients.clear();
                self.weir.signal(Signal::KILL);
                self.weir.log_to_the_end();
                self.weir = self.site.start();
                Ok(())
            }
            "together" => self.together(rest),
            "weir" => self.command(rest),
            "wait" if rest == "until it fits" => self.wait(),
            name => self.client(name, rest),
        }
    }

    fn client(&mut self, name: &str, rest: &str) -> Result<(), String> {
        let words: Vec<&str> = rest.split(' ').collect();
        if let [address, verb @ ("connects" | "knocks"), place @ ..] = &words[..] {
            let address: IpAddr = address.parse().map_err(|_| format!("{address} is no address"))?;
            let usual = if address.is_loopback() { "direct" } else { "relay" };
            let listener = if let ["at", listener] = place { *listener } else { usual };
            let mut speaker = Speaker::knock(name, address, (&self.weir, listener), &self.transcript)?;
            if *verb == "connects" {
                speaker.greet()?;
            }
            self.clients.insert(name.to_owned(), speaker);
            return Ok(());
        }
        let speaker = self.clients.get_mut(name).ok_or("this is no line of a talk")?;
        match rest.split_at_checked(3).unwrap_or((rest, "")) {
            ("-> ", said) => {
                speaker.say(said);
                return Ok(());
            }
            ("=> ", said) => {
                speaker.transcript.said(&speaker.name, said);
                speaker.unsent += &format!("{said}\r\n");
                return Ok(());
            }
            ("<- " | "<~ ", expected) => {
                let got = speaker.hear()?;
                let same = is_as_expected(&got, expected, rest.starts_with("<~"));
                if got.starts_with(['4', '5']) {
                    self.refusal = Some((Instant::now(), got.clone()));
                }
                return if same { Ok(()) } else { Err(format!("got: {got}")) };
            }
            _ => {}
        }
        match words[..] {
            ["--", "closed"] if speaker.unheard == 0 => {
                if speaker.client.is_closed() {
                    speaker.transcript.heard(&speaker.name, "(closed)");
                    Ok(())
                } else {
                    Err("it is not".to_owned())
                }
            }
            ["logs", "in", user, password] => speaker.log_in(user, password).and_then(|()| speaker.expect("235")),
            ["tries", user, password] => speaker.log_in(user, password),
            ["was", "late", time] => {
                let time = parse_duration(time).map_err(|error| error.to_string())?;
                let late = speaker.heard - speaker.said;
                if late >= time { Ok(()) } else { Err(format!("only {late:?}")) }
            }
            ["secures"] => speaker.secure(&self.site.path("certificate.pem")),
            ["gives", octets, "octets"] => {
                let octets = octets.parse().map_err(|_| "no number")?;
                speaker.say(&format!("{}.", body(octets)));
                Ok(())
            }
            ["mails", ..] => speaker.mail(rest, false),
            ["sends", ..] => speaker.mail(rest, true),
            ["leaves"] => {
                speaker.ask("QUIT", "221")?;
                self.clients.remove(name).map_or(Ok(()), Speaker::end)
            }
            ["says", "no", "more"] => {
                speaker.send();
                speaker.client.close_its_side();
                Ok(())
            }
            ["breaks", "off"] => {
                self.clients.remove(name);
                Ok(())
            }
            _ => Err("this is no line of a talk".to_owned()),
        }
    }

    fn together(&mut self, rest: &str) -> Result<(), String> {
        let (names, expected) = rest.split_once(" <~ ").ok_or("together NAME NAME <~ CODE CODE")?;
        let mut got = Vec::new();
        for name in names.split(' ') {
            got.push(self.clients.get_mut(name).ok_or("who?")?.hear()?);
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
            // One a talk: nobody misses them.
            ["says", at, reply] => self.upstream.fail(Some((stage(at)?, Fault::Say(reply.to_owned().leak())))),
            ["vanishes", at] => self.upstream.fail(Some((stage(at)?, Fault::Cut))),
            ["is", "well"] => self.upstream.fail(None),
            ["has", count] => return has(&self.upstream, count),
            _ => return Err("this is no line of a talk".to_owned()),
        }
        Ok(())
    }

    fn slow(&self, rest: &str) -> Result<(), String> {
        let slow = self.slow.as_ref().ok_or("no limit routes to it")?;
        has(slow, rest.strip_prefix("has ").ok_or("slow has NUMBER")?)
    }

    /// Counters only grow, and do so just after the client was told.
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
            _ => return Err("this is no line of a talk".to_owned()),
        }
        Ok(())
    }

    fn filter(&self, rest: &str) -> Result<(), String> {
        let (limit, octets) = rest.split_once(' ').ok_or("filter LIMIT OCTETS")?;
        let output = run(weir().args(["state", "dump", "-c"]).arg(self.site.path("weir.toml")), "");
        let lines: Vec<serde_json::Value> =
            str::from_utf8(&output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [budget] = lines.iter().filter(|line| line["limit"] == limit).collect::<Vec<_>>()[..] else {
            return Err(format!("of {limit} there is not one budget in {lines:#?}"));
        };
        let seen = base64::engine::general_purpose::STANDARD.decode(budget["seen"].as_str().unwrap()).unwrap();
        // After a checksum and the time.
        let size = u32::from_le_bytes(seen[12..16].try_into().unwrap());
        if size.to_string() == octets { Ok(()) } else { Err(format!("got: {size}")) }
    }

    /// A command, whose words may be within quotes.
    fn command(&mut self, rest: &str) -> Result<(), String> {
        if let Some(words) = rest.strip_prefix("says ") {
            let said = &self.said;
            return if words.split(" & ").all(|word| said.contains(word)) {
                Ok(())
            } else {
                Err(format!("got: {said}"))
            };
        }
        let quoted = rest.split('"').enumerate();
        let words =
            quoted.flat_map(|(n, part)| if n % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
        let output = run(weir().args(words).arg("-c").arg(self.site.path("weir.toml")), "");
        self.said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    fn readings(&self) -> f64 {
        ["taken", "refused"]
            .iter()
            .map(|how| self.weir.metric(&format!("weir_reloads_total{{result=\"{how}\"}}")))
            .sum()
    }

    fn change(&mut self, rest: &str) -> Result<(), String> {
        let words = rest.split_once(": ").and_then(|(file, words)| Some((file, words.split_once(" => ")?)));
        let (file, (old, new)) = words.ok_or("change FILE: OLD => NEW")?;
        let before = std::fs::read_to_string(self.site.path(file)).map_err(|error| error.to_string())?;
        if !before.contains(old) {
            return Err(format!("there is no {old} in\n{before}"));
        }
        self.readings = Some(self.readings());
        std::fs::write(self.site.path("new"), before.replace(old, &new.replace("\\n", "\n"))).unwrap();
        std::fs::rename(self.site.path("new"), self.site.path(file)).unwrap();
        Ok(())
    }

    fn reload(&mut self, rest: &str) -> Result<(), String> {
        let before = self.readings.take();
        match (rest, before) {
            ("", _) => {
                let output = run(weir().args(["reload", "-c"]).arg(self.site.path("weir.toml")), "");
                // A bad file is refused, which is a reading, too.
                match output.status.code() {
                    Some(0 | 78) => Ok(()),
                    _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
                }
            }
            ("by itself", Some(before)) => {
                wait_for("reading", || (self.readings() > before).then_some(()));
                Ok(())
            }
            _ => Err("this is no line of a talk".to_owned()),
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

    /// What was said, if nobody has anything left to hear.
    fn end(mut self) -> Result<String, String> {
        for speaker in self.clients.values_mut() {
            speaker.send();
            if speaker.unheard > 0 {
                let got = speaker.hear();
                return Err(format!("{} also got {got:?}", speaker.name));
            }
        }
        self.note_upstreams();
        Ok(self.transcript.text())
    }
}

impl Speaker {
    /// Connects as this client; the greeting, or a refusal, comes next.
    fn knock(
        name: &str,
        address: IpAddr,
        (weir, listener): (&Process, &str),
        transcript: &Transcript,
    ) -> Result<Self, String> {
        let listening = weir.address(listener);
        let (client, is_named) = match address {
            IpAddr::V4(own) if own.is_loopback() => (Client::try_connect_from(own, listening).unwrap(), true),
            _ => (Client::connect_silently(listening), false),
        };
        let mut speaker = Self {
            name: name.to_owned(),
            client,
            transcript: transcript.clone(),
            address,
            unsent: String::new(),
            unheard: 1,
            said: Instant::now(),
            heard: Instant::now(),
        };
        if !is_named {
            speaker.expect("220")?;
            speaker.say(&format!("XCLIENT ADDR={address}"));
            speaker.send();
        }
        Ok(speaker)
    }

    fn greet(&mut self) -> Result<(), String> {
        self.expect("220")?;
        self.ask(&format!("EHLO {}.example", self.name), "250")
    }

    fn say(&mut self, line: &str) {
        self.transcript.said(&self.name, line);
        self.unsent += &format!("{line}\r\n");
        self.unheard += 1;
    }

    fn send(&mut self) {
        let unsent = std::mem::take(&mut self.unsent);
        if !unsent.is_empty() {
            self.said = Instant::now();
            self.client.send(unsent.as_bytes());
        }
    }

    fn hear(&mut self) -> Result<String, String> {
        self.send();
        self.unheard = self.unheard.checked_sub(1).ok_or("nothing was asked")?;
        let reply = self.client.try_reply().map_err(|error| format!("no reply: {error}"))?;
        self.heard = Instant::now();
        self.transcript.heard(&self.name, &reply);
        Ok(reply)
    }

    fn expect(&mut self, reply: &str) -> Result<(), String> {
        let got = self.hear()?;
        if got.starts_with(reply) { Ok(()) } else { Err(format!("expected {reply}, got: {got}")) }
    }

    fn ask(&mut self, line: &str, reply: &str) -> Result<(), String> {
        self.say(line);
        self.expect(reply).map_err(|why| format!("{line}: {why}"))
    }

    fn log_in(&mut self, user: &str, password: &str) -> Result<(), String> {
        let response = base64::engine::general_purpose::STANDARD.encode(format!("\0{user}\0{password}"));
        self.say(&format!("AUTH PLAIN {response}"));
        self.send();
        Ok(())
    }

    /// TLS makes the proxy forget whom it speaks for, so it says that again.
    fn secure(&mut self, certificate: &Path) -> Result<(), String> {
        self.ask("STARTTLS", "220")?;
        self.client.secure(certificate);
        if !self.address.is_loopback() {
            self.ask(&format!("XCLIENT ADDR={}", self.address), "220")?;
        }
        self.ask(&format!("EHLO {}.example", self.name), "250")
    }

    /// `mails SENDER: RCPT RCPT`, and a message, if it is to be sent.
    fn mail(&mut self, words: &str, is_sent: bool) -> Result<(), String> {
        let (_, words) = words.split_once(' ').unwrap_or_default();
        let (sender, recipients) = words.split_once(':').ok_or("mails SENDER: RECIPIENT RECIPIENT")?;
        self.ask(&format!("MAIL FROM:<{sender}>"), "250")?;
        for recipient in recipients.split_whitespace().flat_map(addresses) {
            self.ask(&format!("RCPT TO:<{recipient}>"), "250")?;
        }
        if is_sent {
            self.ask("DATA", "354")?;
            self.ask("Subject: hello\r\n\r\nhello\r\n.", "250")?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), String> {
        match self.unheard {
            0 if self.client.is_closed() => Ok(()),
            _ => Err("there is more to hear".to_owned()),
        }
    }
}

/// Whether a reply is, or begins, as it is written.
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

fn has(upstream: &Upstream, count: &str) -> Result<(), String> {
    let got = upstream.acknowledged().len();
    if got.to_string() == count { Ok(()) } else { Err(format!("got: {got}")) }
}

/// `1..3@d` are 1@d, 2@d, 3@d.
fn addresses(word: &str) -> Vec<String> {
    let range = word.split_once("..").and_then(|(first, rest)| Some((first, rest.split_once('@')?)));
    let numbers = |(first, (last, domain)): (&str, (&str, &str))| {
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some((first..=last).map(|n| format!("{n}@{domain}")).collect())
    };
    range.and_then(numbers).unwrap_or_else(|| vec![word.to_owned()])
}

/// So many octets, in lines.
fn body(octets: usize) -> String {
    let line = |length: usize| format!("{}\r\n", "x".repeat(length - 2));
    let (lines, rest) = (octets / 50, octets % 50);
    // A rest of less than an end of line belongs to the last line.
    match rest {
        0 | 2.. => line(50).repeat(lines) + &if rest > 0 { line(rest) } else { String::new() },
        1 => line(50).repeat(lines - 1) + &line(51),
    }
}

fn hour() -> i8 {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).hour()
}

/// What stands before the limits of a talk, whose upstreams these are.
pub fn head(upstream: &Upstream, slow: Option<&Upstream>) -> String {
    let routed = slow.map_or_else(String::new, |slow| {
        format!(", {{ address = \"{}\", tls = \"none\", name = \"slow\", only-routed = true }}", slow.address())
    });
    let open = "auth = \"optional\", trusted = [\"0.0.0.0/0\", \"::/0\"]";
    format!(
        "timezone = \"{zone}\"\n\
         upstream = [{{ address = \"{address}\", tls = \"none\", name = \"smart-host\" }}{routed}]\n\
         listener.relay = {{ address = \"127.0.0.1:0\", tls = \"none\", {open}, xclient = [\"127.0.0.1/32\"] }}\n\
         listener.submission = {{ address = \"127.0.0.1:0\", tls = \"starttls\", {open}, xclient = [\"127.0.0.1/32\"] }}\n\
         listener.direct = {{ address = \"127.0.0.1:0\", tls = \"none\", {open} }}\n",
        zone = where_it_is_noon(),
        address = upstream.address(),
    )
}

/// A zone in which it is between 12:00 and 13:00, so that hours of limits can be written down.
fn where_it_is_noon() -> String {
    // By POSIX, west is positive.
    match hour() - 12 {
        0 => "Etc/GMT".to_owned(),
        west => format!("Etc/GMT{west:+}"),
    }
}

/// The day of the week there: that of UTC, where noon is of the same day everywhere.
fn today() -> String {
    let noon = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(i64::from(hour()) - 12);
    noon.to_zoned(jiff::tz::TimeZone::UTC).strftime("%a").to_string()
}
