//! Tests of Weir as a service: signals, sockets of systemd, the log in JSON and for journald.

use crate::harness::{Client, PASSWORD, Process, Site, Upstream, wait_for};
use rustix::process::Signal;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::Barrier;

/// Returns a site with a listener `s` without TLS, and a listener `tls`.
fn site_with_two_listeners(upstream: &Upstream, more: &str) -> Site {
    Site::builder()
        .open_listener()
        .listener("tls", "tls = \"implicit\", auth = \"optional\"")
        .upstream(upstream.address(), "")
        .more(more)
        .build()
}

#[test]
fn sigterm_under_load_loses_nothing() {
    const SESSIONS: usize = 100;
    let upstream = Upstream::start();
    let site = site_with_two_listeners(&upstream, "");
    let weir = site.start();
    let address = weir.address("s");
    // Send SIGTERM when each session has sent the first half of its message.
    let (sent_half, signalled) = (Barrier::new(SESSIONS + 1), Barrier::new(SESSIONS + 1));
    let (told, code) = std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|n| {
                let mut client = Client::in_transaction(&weir);
                let (sent_half, signalled) = (&sent_half, &signalled);
                scope.spawn(move || {
                    client.say("DATA", "354");
                    client.send(format!("Subject: {n}\r\n\r\nfirst half\r\n").as_bytes());
                    sent_half.wait();
                    signalled.wait();
                    client.send(b"second half\r\n.\r\n");
                    let told = client.reply();
                    client.expect("421 4.3.2");
                    told.starts_with("250")
                })
            })
            .collect();
        sent_half.wait();
        weir.signal(Signal::TERM);
        wait_for("end of listening", || std::net::TcpStream::connect(address).is_err().then_some(()));
        signalled.wait();
        let told = sessions.into_iter().map(|session| session.join().unwrap()).filter(|told| *told).count();
        (told, weir.wait())
    });
    assert_eq!((told, code), (SESSIONS, Some(0)));
    let messages = upstream.acknowledged();
    assert_eq!(messages.len(), SESSIONS);
    for n in 0..SESSIONS {
        let mark = format!("\r\nSubject: {n}\r\n\r\nfirst half\r\nsecond half\r\n");
        let times = messages.iter().filter(|message| String::from_utf8_lossy(message).ends_with(&mark)).count();
        assert_eq!(times, 1, "message {n}");
    }
}

#[test]
fn a_hanging_transaction_is_cut_off_in_time_or_by_a_second_signal() {
    let upstream = Upstream::start();
    let timed = site_with_two_listeners(&upstream, "session = { drain-timeout = \"0.3s\" }\n");
    let weir = timed.start();
    let mut client = Client::in_transaction(&weir);
    weir.signal(Signal::TERM);
    weir.logged("transactions cut off");
    client.expect("421 4.3.2");
    assert_eq!(weir.wait(), Some(0));
    assert!(client.is_closed());

    let patient = site_with_two_listeners(&upstream, "");
    let weir = patient.start();
    let mut client = Client::in_transaction(&weir);
    weir.signal(Signal::INT);
    weir.logged("stopping: ");
    weir.signal(Signal::INT);
    weir.logged("stopped at once");
    assert_eq!(weir.wait(), Some(0));
    assert!(client.is_closed());
}

#[test]
fn sighup_reloads_certificate_and_users_and_keeps_them_if_the_new_ones_are_bad() {
    let upstream = Upstream::start();
    let site = site_with_two_listeners(&upstream, "");
    let weir = site.start();
    let secure = |certificate: &str| {
        let mut client = Client::connect_silently(weir.address("tls"));
        client.secure(&site.path(certificate));
        client.expect("220");
        client.say("EHLO client.example", "250");
        client.log_in("alice", PASSWORD);
    };
    secure("certificate.pem");
    std::fs::copy(site.path("certificate.pem"), site.path("old.pem")).unwrap();

    std::fs::write(site.path("certificate.pem"), "nonsense").unwrap();
    std::fs::write(site.path("users"), "nonsense").unwrap();
    weir.signal(Signal::HUP);
    let line = weir.logged("certificates refused");
    assert!(line.contains("there is no certificate in it"), "{line}");
    let line = weir.logged("users file refused");
    assert!(line.contains("line 1: a line is name:hash"), "{line}");
    secure("old.pem");

    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(site.path("certificate.pem"), made.cert.pem()).unwrap();
    std::fs::write(site.path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    weir.signal(Signal::HUP);
    weir.logged("certificate read again");
    secure("certificate.pem");
}

#[test]
fn systemd_gets_readiness_and_status() {
    let upstream = Upstream::start();
    let site = site_with_two_listeners(&upstream, "");
    let socket = UnixDatagram::bind(site.path("notify")).unwrap();
    socket.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    let heard = |what: &str| loop {
        let mut space = [0; 512];
        let length = socket.recv(&mut space).unwrap();
        let text = String::from_utf8_lossy(&space[..length]).into_owned();
        if text.contains(what) {
            break text;
        }
    };
    let mut command = site.serve();
    command.env("NOTIFY_SOCKET", site.path("notify")).env("WATCHDOG_USEC", "200000");
    let weir = Process::start(&mut command);
    heard("READY=1");
    heard("WATCHDOG=1");
    heard("WATCHDOG=1");
    weir.signal(Signal::HUP);
    assert!(heard("RELOADING=1").contains("MONOTONIC_USEC="));
    heard("READY=1");
    weir.signal(Signal::TERM);
    heard("STOPPING=1");
    assert_eq!(weir.wait(), Some(0));
}

#[test]
fn a_socket_of_systemd_is_served_by_the_listener_of_its_name() {
    let upstream = Upstream::start();
    let site = site_with_two_listeners(&upstream, "");
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let serve = site.serve();
    // systemd's protocol: LISTEN_PID contains the process id of Weir, and the socket is file descriptor 3.
    let mut command = Command::new("bash");
    command.args(["-c", "exec 3<&0 </dev/null; export LISTEN_PID=$$; exec \"$0\" \"$@\""]);
    command.arg(serve.get_program()).args(serve.get_args());
    command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "s").stdin(Stdio::from(OwnedFd::from(socket)));
    let weir = Process::start(&mut command);
    assert_eq!(weir.address("s"), address);
    assert_ne!(weir.address("tls"), address);
    Client::connect(address).say("QUIT", "221");
}

#[test]
fn a_crash_of_the_service_leaves_no_passwords_in_a_core_file() {
    let unit = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/systemd/weir.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let (_, service) = unit.split_once("\n[Service]\n").unwrap();
    let (service, _) = service.split_once("\n[").unwrap();
    let limits: Vec<&str> = service.lines().filter(|line| line.starts_with("LimitCORE=")).collect();
    assert_eq!(limits, ["LimitCORE=0"]);
}

#[test]
fn the_log_is_json_where_configured() {
    let upstream = Upstream::start();
    let site = site_with_two_listeners(&upstream, "log = { format = \"json\" }\n");
    let weir = site.start();
    let line = weir.logged("\"listening\"");
    assert!(line.starts_with("{\"ts\":\"20") && line.ends_with("\"}"), "{line}");
    assert!(
        line.contains("\"level\":\"INFO\",\"message\":\"listening\",\"listener\":\"s\",\"address\":\"127.0.0.1:"),
        "{line}"
    );
}

#[test]
fn journald_gets_the_level_of_each_log_line() {
    let upstream = Upstream::start();
    let site = site_with_two_listeners(&upstream, "");
    let log = site.path("log");
    // Weir writes its log for journald if JOURNAL_STREAM contains the device and inode of standard error. Here standard
    // error is a plain file.
    let file = std::fs::File::create(&log).unwrap();
    let id = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
    let device = std::os::unix::fs::MetadataExt::dev(&file.metadata().unwrap());
    let mut child = site.serve().stderr(file).env("JOURNAL_STREAM", format!("{device}:{id}")).spawn().unwrap();
    let text = wait_for("log", || std::fs::read_to_string(&log).ok().filter(|text| text.contains("administration")));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text.lines().all(|line| line.starts_with("<6>ts=")), "{text}");
}
