//! Attacker: a process with one thread and the lowest priority. It attacks from 127.0.0.2 and higher addresses.
//!
//! The process prints the count of its actions once a second, and ends when its standard input is closed.

use super::client::connect_from;
use base64::Engine as _;
use std::io::{Error, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

/// Kinds of attack; each has a name on the attacker's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Guesses passwords on [`GUESSERS`] connections.
    Guess,
    /// Guesses [`GUESSES_A_SECOND`] passwords from [`BOTNET_HOSTS`] hosts.
    Botnet,
    /// Holds as many idle connections as Weir allows to two hosts.
    Hold,
    /// Sends garbage instead of a TLS handshake, at a fixed rate.
    Garbage,
    /// Causes log lines in five ways.
    Lines,
    /// Sends [`DRIPS`] messages, each at [`DRIP`] octets a second.
    Drip,
    /// Uses a new sender in each MAIL.
    Senders,
    /// Uses a new sender in each MAIL, with one recipient.
    Distinct,
}

pub const WAYS: [(&str, Way); 8] = [
    ("guess", Way::Guess),
    ("botnet", Way::Botnet),
    ("hold", Way::Hold),
    ("garbage", Way::Garbage),
    ("lines", Way::Lines),
    ("drip", Way::Drip),
    ("senders", Way::Senders),
    ("distinct", Way::Distinct),
];

/// Number of connections that guess passwords, as in the reported finding.
const GUESSERS: u32 = 2_500;

/// Hosts of the botnet, the connections of each host, and the passwords that all of them guess per second. Weir answers a
/// wrong password after one second, so there are more connections than guesses in a second.
const BOTNET_HOSTS: u8 = 100;
const BOTNET_CONNECTIONS: u32 = 30;
const GUESSES_A_SECOND: u32 = 2_000;

/// Number of slow messages: twice as many as the upstream accepts at the same time.
const DRIPS: u32 = 100;

/// Octets per second of each slow message: just above 100, the lowest rate that Weir accepted at the time of the
/// finding.
const DRIP: usize = 110;

/// New connections per second from each host that holds connections or guesses passwords. A faster flood would measure
/// the kernel instead of Weir.
const CONNECTS_A_SECOND: u32 = 1_000;

/// Connections with garbage per second, while the pipe of Weir's standard error is full: a single log line can then
/// block.
const GARBAGE_A_SECOND: u32 = 200;

/// Concurrent connections of each kind that cause log lines.
const TASKS_OF_A_KIND: u32 = 8;

/// Failed handshakes and refused connections per second, as in the finding. There are two reasons for refusals; each
/// reason causes half of them.
const HANDSHAKES_A_SECOND: u32 = 4_645;
const REFUSALS_A_SECOND: u32 = 2_500;

/// Concurrent connections that name senders.
const NAMERS: u32 = 4;

/// Number of senders in one pipelined write. Each sender needs at least MAIL and RSET, and Weir ends a session after
/// 200 commands without a message.
const PIECE: u64 = 99;

/// Senders named per second: the highest rate in the finding.
const SENDERS_A_SECOND: u32 = 27_000;

/// Number of senders to name: with MAIL alone; and with a RCPT for each sender, which the upstream must answer.
pub const SENDERS: [u64; 2] = [1_000_000, 20_000];

/// Time after which an attack is considered fully under way, if no count shows this.
const SETTLED: Duration = Duration::from_secs(3);

/// Pause of an attacker after a refusal, if its actions have no [`Pace`].
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// Pause of a client before it retries a recipient that was refused because the upstream had no connection left.
const BETWEEN_RECIPIENTS: Duration = Duration::from_secs(1);

/// Weir's listeners that the attacks use.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// Default configuration: STARTTLS and a login are required.
    pub submission: SocketAddr,
    /// Implicit TLS.
    pub submissions: SocketAddr,
    /// No TLS, so that the attackers' TLS takes no CPU from Weir; a login is required, except from [`TRUSTED`].
    pub plain: SocketAddr,
}

/// Address that is permitted to send without a login at the plain listener, for example the host of a web form.
pub const TRUSTED: &str = "127.0.0.9";

/// Pace: a fixed number of actions a second.
#[derive(Clone)]
struct Pace(Arc<Mutex<Interval>>);

impl Pace {
    fn new(a_second: u32) -> Self {
        let mut ticks = interval(Duration::from_secs(1) / a_second);
        // After missed ticks, do not catch up by a burst of ticks.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(Arc::new(Mutex::new(ticks)))
    }

    async fn turn(&self) {
        self.0.lock().await.tick().await;
    }
}

/// Attacks until standard input is closed.
pub fn main(way: Way, targets: Targets) {
    // End this process when the benchmark ends, even if the benchmark fails.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let done = Arc::new(AtomicU64::new(0));
        begin(way, targets, &done);
        match way {
            Way::Senders | Way::Distinct => {}
            Way::Drip => settle_drips(&done).await,
            Way::Guess | Way::Botnet | Way::Hold | Way::Garbage | Way::Lines => sleep(SETTLED).await,
        }
        loop {
            println!("{}", done.load(Ordering::Relaxed));
            sleep(Duration::from_secs(1)).await;
        }
    });
}

fn begin(way: Way, targets: Targets, done: &Arc<AtomicU64>) {
    match way {
        Way::Guess => guess(targets, done),
        Way::Botnet => botnet(targets, done),
        Way::Hold => hold(targets, done),
        Way::Garbage => {
            let pace = Pace::new(GARBAGE_A_SECOND);
            for _ in 0..TASKS_OF_A_KIND {
                repeat(done, Some(pace.clone()), move || garbage(targets.submissions));
            }
        }
        Way::Lines => lines(targets, done),
        Way::Drip => drip(targets, done),
        Way::Senders => name_senders(targets, SENDERS[0], "", done),
        Way::Distinct => name_senders(targets, SENDERS[1], "RCPT TO:<bob@example.net>\r\n", done),
    }
}

/// Repeats an action in its own task and counts the repetitions. Without a pace, the task pauses after each error.
fn repeat<F>(done: &Arc<AtomicU64>, pace: Option<Pace>, one: impl Fn() -> F + Send + 'static)
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let done = done.clone();
    tokio::spawn(async move {
        loop {
            if let Some(pace) = &pace {
                pace.turn().await;
            }
            let result = one().await;
            done.fetch_add(1, Ordering::Relaxed);
            if result.is_err() && pace.is_none() {
                sleep(AFTER_REFUSAL).await;
            }
        }
    });
}

fn host(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, last)
}

/// SMTP dialogue, line by line. Its methods return errors and do not panic.
struct Dialogue(BufReader<TcpStream>);

impl Dialogue {
    /// Connects, reads the greeting, says EHLO.
    async fn open(source: Ipv4Addr, address: SocketAddr) -> Result<Self, Error> {
        let mut dialogue = Self(BufReader::new(connect_from(source, address).await?));
        dialogue.expect("220").await?;
        dialogue.say("EHLO stranger.example", "250").await?;
        Ok(dialogue)
    }

    async fn say(&mut self, line: &str, code: &str) -> Result<(), Error> {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await?;
        self.expect(code).await
    }

    async fn expect(&mut self, code: &str) -> Result<(), Error> {
        let reply = self.reply().await?;
        if reply.starts_with(code) { Ok(()) } else { Err(Error::other(reply)) }
    }

    /// Reads the next reply, and returns its last line.
    async fn reply(&mut self) -> Result<String, Error> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok(line);
            }
        }
    }

    async fn log_in(&mut self, user: &str, password: &str) -> Result<(), Error> {
        let response = base64::engine::general_purpose::STANDARD.encode(format!("\0{user}\0{password}"));
        self.say(&format!("AUTH PLAIN {response}"), "235").await
    }
}

/// Guesses passwords on one connection until Weir closes it. Half of the guesses are for the honest client's account.
async fn guess_on_one(source: Ipv4Addr, plain: SocketAddr) -> Result<(), Error> {
    let mut dialogue = Dialogue::open(source, plain).await?;
    loop {
        // Weir would remember a repeated guess, and would not hash it again.
        let n = GUESSED.fetch_add(1, Ordering::Relaxed);
        let user = if n.is_multiple_of(2) { "alice" } else { "nobody" };
        if let Err(error) = dialogue.log_in(user, &format!("guess {n}")).await
            && error.kind() != std::io::ErrorKind::Other
        {
            return Err(error);
        }
    }
}

/// Number of passwords that were guessed.
static GUESSED: AtomicU64 = AtomicU64::new(0);

fn guess(targets: Targets, done: &Arc<AtomicU64>) {
    let pace = Pace::new(CONNECTS_A_SECOND);
    for _ in 0..GUESSERS {
        repeat(done, Some(pace.clone()), move || guess_on_one(host(2), targets.plain));
    }
}

/// Guesses passwords on one connection until Weir closes it; each password is another one. Half of the guesses are for
/// the honest client's account.
async fn guess_anew(source: Ipv4Addr, plain: SocketAddr, pace: Pace, done: Arc<AtomicU64>) -> Result<(), Error> {
    let mut dialogue = Dialogue::open(source, plain).await?;
    loop {
        pace.turn().await;
        let n = done.fetch_add(1, Ordering::Relaxed);
        let user = if n.is_multiple_of(2) { "alice" } else { "nobody" };
        match dialogue.log_in(user, &format!("guess-{n}")).await {
            Err(error) if error.kind() != std::io::ErrorKind::Other => return Err(error),
            _ => {}
        }
    }
}

fn botnet(targets: Targets, done: &Arc<AtomicU64>) {
    let guesses = Pace::new(GUESSES_A_SECOND);
    let connects = Pace::new(CONNECTS_A_SECOND);
    for last in 1..=BOTNET_HOSTS {
        for _ in 0..BOTNET_CONNECTIONS {
            let not_counted = Arc::default();
            let (guesses, done) = (guesses.clone(), done.clone());
            let source = Ipv4Addr::new(127, 0, 1, last);
            repeat(&not_counted, Some(connects.clone()), move || {
                guess_anew(source, targets.plain, guesses.clone(), done.clone())
            });
        }
    }
}

/// Holds a connection until Weir closes it.
async fn hold_one(source: Ipv4Addr, address: SocketAddr) -> Result<(), Error> {
    let mut stream = connect_from(source, address).await?;
    while stream.read(&mut [0; 512]).await? > 0 {}
    Ok(())
}

fn hold(targets: Targets, done: &Arc<AtomicU64>) {
    for last in [2, 3] {
        let pace = Pace::new(CONNECTS_A_SECOND);
        // 4,000 is the default maximum of connections in total.
        for _ in 0..4_000 {
            repeat(done, Some(pace.clone()), move || hold_one(host(last), targets.submission));
        }
    }
}

/// Sends garbage instead of a TLS handshake.
async fn garbage(submissions: SocketAddr) -> Result<(), Error> {
    let mut stream = connect_from(host(2), submissions).await?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    while stream.read(&mut [0; 512]).await? > 0 {}
    Ok(())
}

/// Closes the connection while Weir delays the greeting.
async fn leave_early(source: Ipv4Addr, plain: SocketAddr) -> Result<(), Error> {
    let stream = connect_from(source, plain).await?;
    // Close by a TCP reset. Otherwise the ports would stay in the state TIME_WAIT and run out.
    stream.set_zero_linger()?;
    sleep(Duration::from_millis(5)).await;
    Ok(())
}

/// Causes five kinds of log lines, each from its own address: garbage instead of TLS from .2, too many connections of
/// one client from .3, refusals by the limit "refused" from .4, delayed greetings from .5, wrong passwords from .6.
fn lines(targets: Targets, done: &Arc<AtomicU64>) {
    for _ in 0..super::CONNECTIONS_OF_A_CLIENT {
        let of_nobody = Arc::default();
        repeat(&of_nobody, None, move || async move {
            let held = hold_one(host(3), targets.submission).await;
            sleep(AFTER_REFUSAL).await;
            held
        });
    }
    let handshakes = Pace::new(HANDSHAKES_A_SECOND);
    let refusals = [(); 2].map(|()| Pace::new(REFUSALS_A_SECOND / 2));
    for _ in 0..TASKS_OF_A_KIND {
        let [of_many, of_limit] = refusals.clone();
        repeat(done, Some(handshakes.clone()), move || garbage(targets.submissions));
        repeat(done, Some(of_many), move || hold_one(host(3), targets.submission));
        repeat(done, Some(of_limit), move || hold_one(host(4), targets.plain));
        repeat(done, None, move || leave_early(host(5), targets.plain));
        repeat(done, None, move || guess_on_one(host(6), targets.plain));
    }
}

/// Sends a message slowly; counts it when Weir has answered DATA.
async fn drip_one(targets: Targets, turn: Arc<Mutex<()>>, begun: Arc<AtomicU64>) -> Result<(), Error> {
    let mut dialogue = Dialogue::open(host(2), targets.plain).await?;
    {
        // The clients log in one after the other: logins are not part of this attack.
        let _turn = turn.lock().await;
        dialogue.log_in("mallory", super::harness::PASSWORD).await?;
    }
    loop {
        dialogue.say("MAIL FROM:<mallory@example.org>", "250").await?;
        if dialogue.say("RCPT TO:<bob@example.net>", "250").await.is_ok() {
            break;
        }
        dialogue.say("RSET", "250").await?;
        sleep(BETWEEN_RECIPIENTS).await;
    }
    dialogue.say("DATA", "354").await?;
    begun.fetch_add(1, Ordering::Relaxed);
    let line = format!("{}\r\n", "x".repeat(DRIP - 2));
    loop {
        dialogue.0.write_all(line.as_bytes()).await?;
        sleep(Duration::from_secs(1)).await;
    }
}

/// Waits until the number of messages under way reaches the upstream's maximum of connections. Gives up after five
/// times [`SETTLED`], the time of other attacks.
async fn settle_drips(begun: &AtomicU64) {
    for _ in 0..5 {
        sleep(SETTLED).await;
        if begun.load(Ordering::Relaxed) >= super::UPSTREAM_CONNECTIONS as u64 {
            return;
        }
    }
}

fn drip(targets: Targets, done: &Arc<AtomicU64>) {
    let turn = Arc::new(Mutex::new(()));
    let not_counted = Arc::default();
    for _ in 0..DRIPS {
        let (turn, done) = (turn.clone(), done.clone());
        repeat(&not_counted, None, move || drip_one(targets, turn.clone(), done.clone()));
    }
}

/// Names senders in pipelined writes. A write that fails is not repeated.
fn name_senders(targets: Targets, senders: u64, more: &'static str, done: &Arc<AtomicU64>) {
    let next = Arc::new(AtomicU64::new(0));
    let pace = Pace::new(SENDERS_A_SECOND / PIECE as u32);
    for _ in 0..NAMERS {
        let (next, done, pace) = (next.clone(), done.clone(), pace.clone());
        tokio::spawn(async move {
            loop {
                pace.turn().await;
                let first = next.fetch_add(PIECE, Ordering::Relaxed);
                if first >= senders {
                    return;
                }
                if name_piece(targets.plain, first, more, &done).await.is_err() {
                    sleep(AFTER_REFUSAL).await;
                }
            }
        });
    }
}

/// Sends one pipelined write on a new connection.
async fn name_piece(plain: SocketAddr, first: u64, more: &str, done: &AtomicU64) -> Result<(), Error> {
    let mut dialogue = Dialogue::open(TRUSTED.parse().map_err(Error::other)?, plain).await?;
    let one = |n: u64| format!("MAIL FROM:<sender-{n}@example.org>\r\n{more}RSET\r\n");
    let commands: String = (first..first + PIECE).map(one).collect();
    dialogue.0.write_all(commands.as_bytes()).await?;
    for _ in 0..PIECE {
        dialogue.reply().await?;
        if !more.is_empty() {
            dialogue.reply().await?;
        }
        dialogue.expect("250").await?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the command that starts the attacker. The attacker has the idle scheduling class, so that it takes no CPU
/// from Weir, like an attacker on another machine. With `nice -n 19`, it would still take a core from Weir for one
/// kernel tick (4 ms) at a time.
pub fn command(name: &str, targets: Targets) -> std::process::Command {
    let mut command = std::process::Command::new("chrt");
    command.args(["--idle", "0"]).arg(std::env::current_exe().unwrap()).args(["--attacker", name]);
    command.args([targets.submission, targets.submissions, targets.plain].map(|address| address.to_string()));
    command
}

/// Parses the attacker's command line, after `--attacker`.
pub fn parse(arguments: &[String]) -> (Way, Targets) {
    let [name, submission, submissions, plain] = arguments else { panic!("--attacker WAY and three addresses") };
    let (_, way) = WAYS.iter().find(|(known, _)| known == name).expect("a known way");
    let [submission, submissions, plain] = [submission, submissions, plain].map(|text| text.parse().unwrap());
    (*way, Targets { submission, submissions, plain })
}
