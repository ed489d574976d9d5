//! Tests of a low limit of open files (`ulimit -n`): Weir logs the low limit, and answers every client that can
//! connect.

use crate::harness::{Client, Process, Site, Upstream, field, wait_for};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

/// Returns a site whose listener trusts clients on 127.0.0.1, with these keys of the upstream.
fn trusting_site(upstream: &Upstream, keys: &str, more: &str) -> Site {
    Site::builder()
        .listener("s", "tls = \"none\", auth = \"none\", trusted = [\"127.0.0.1\"]")
        .upstream(upstream.address(), keys)
        .more(more)
        .build()
}

/// Starts the Weir of a site, with a limit of open files.
fn start_with(site: &Site, limit: u64) -> Process {
    let serve = site.serve();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")]);
    command.arg(serve.get_program()).args(serve.get_args());
    Process::start(&mut command)
}

#[test]
fn a_low_limit_of_open_files_reduces_sessions_and_others_get_421() {
    // Weir reserves 64 files, 65 files for each of the two admin listeners, one file for the listener `s`, and one file
    // for each of 50 idle upstream connections. The rest is for sessions, with two files for each session.
    for (limit, sessions) in [(100, 1), (300, 27)] {
        let upstream = Upstream::start();
        let site = trusting_site(&upstream, "", "session = { max-connections-per-client = 4000 }\n");
        let weir = start_with(&site, limit);
        let line = weir.logged("too few open files are allowed");
        for (key, value) in
            [("open_files", limit), ("needed", 8245), ("max_connections", sessions), ("configured", 4000)]
        {
            assert_eq!(field(&line, key), Some(value.to_string()), "{line}");
        }
        assert!(line.contains("LimitNOFILE=") && line.contains("ulimit -n"), "{line}");
        assert_eq!(weir.metric("weir_max_connections"), sessions as f64);

        let connecting: Vec<_> = (0..150)
            .map(|_| {
                let address = weir.address("s");
                std::thread::spawn(move || {
                    let mut client = Client::connect_silently(address);
                    (client.reply(), client)
                })
            })
            .collect();
        let held: Vec<(String, Client)> = connecting.into_iter().map(|thread| thread.join().unwrap()).collect();
        let count = |words: &str| held.iter().filter(|(heard, _)| heard.starts_with(words)).count();
        assert_eq!((count("220"), count("421 4.3.2")), (sessions as usize, 150 - sessions as usize), "{limit}");
        assert_eq!(weir.get("/readyz").0, 200);
        assert_eq!(weir.times_logged("cannot accept"), 0);
    }
}

#[test]
fn a_sufficient_limit_of_open_files_reduces_nothing() {
    let upstream = Upstream::start();
    let site = trusting_site(&upstream, "", "session = { max-connections = 20 }\n");
    let weir = site.start();
    assert_eq!(weir.metric("weir_max_connections"), 20.0);
    assert_eq!(weir.times_logged("open files"), 0);
}

#[test]
fn a_limit_of_upstream_connections_leaves_more_files_to_clients_until_a_reload_removes_it() {
    // There are 1,000 files: 245 are reserved as above, 10 for 5 upstream connections and 5 that are ending, and 256
    // for clients that are being evicted. After the reload each session needs two files.
    let upstream = Upstream::start();
    let site = trusting_site(&upstream, "max-connections = 5", "");
    let weir = start_with(&site, 1_000);
    assert_eq!(weir.metric("weir_max_connections"), 489.0);
    let short = "too few open files are allowed for the connections to these upstreams";
    site.reload(&weir, "listener.s", "listener.s", "limits read again");
    assert_eq!(weir.times_logged(short), 0);
    site.reload(&weir, "max-connections = 5", "max-connections = 0", short);
    let line = weir.logged(short);
    for (key, value) in [("open_files", 1_000), ("needed", 1_223)] {
        assert_eq!(field(&line, key), Some(value.to_string()), "{line}");
    }
}

/// Sends `GET /readyz` on a connection that stays open, and returns the response.
fn readiness(admin: &mut TcpStream) -> String {
    admin.write_all(b"GET /readyz HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
    let (mut answer, mut space) = (String::new(), [0; 1024]);
    // The response is complete when it ends with the line end of its body, not with the empty line after its head.
    while !answer.contains("\r\n\r\n") || !answer.ends_with("\n") || answer.ends_with("\r\n\r\n") {
        let length = admin.read(&mut space).unwrap();
        assert!(length > 0, "closed after {answer:?}");
        answer.push_str(&String::from_utf8_lossy(&space[..length]));
    }
    answer
}

#[test]
fn without_file_descriptors_weir_is_not_ready_and_says_so() {
    let upstream = Upstream::start();
    let site = trusting_site(&upstream, "", "");
    let weir = site.start();
    let pid = Pid::from_raw(i32::try_from(weir.id()).unwrap());
    // Weir has inherited the hard limit of this process, and at its start has raised its own soft limit to it.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limited = |current| prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let mut admin = TcpStream::connect(weir.address("admin")).unwrap();
    admin.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    assert!(readiness(&mut admin).starts_with("HTTP/1.1 200"));

    limited(Some(5));
    let mut client = Client::connect_silently(weir.address("s"));
    let line = weir.logged("cannot accept a connection");
    assert_eq!(field(&line, "failures").as_deref(), Some("1"), "{line}");
    let answer = readiness(&mut admin);
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("not ready: cannot accept connections: "),
        "{answer}"
    );

    limited(maximum);
    client.expect("220");
    wait_for("readiness", || readiness(&mut admin).starts_with("HTTP/1.1 200").then_some(()));
}
