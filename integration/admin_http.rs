//! Tests of the admin listener (HTTP) while unauthenticated clients connect too.

use crate::harness::{Process, Site, wait_for};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Read timeout of the tests' clients: more than twice the longest time that Weir waits for a request.
const READ_TIMEOUT: Duration = Duration::from_secs(90);

fn start() -> (Site, Process) {
    let site = Site::builder().open_listener().upstream("127.0.0.1:9", "").build();
    let weir = site.start();
    (site, weir)
}

/// Connects to `address` from the local address `client`.
fn connect_from(client: &str, address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&format!("{client}:0").parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    socket.into()
}

/// Reads until Weir closes the connection or sends nothing for [`READ_TIMEOUT`]; returns true if Weir closed it.
fn is_closed(stream: &mut impl Read) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Reads the status line of the next response up to its status code, and returns the code.
fn status(stream: &mut impl Read) -> u16 {
    let mut line = [0; 12];
    stream.read_exact(&mut line).unwrap();
    String::from_utf8_lossy(&line[9..]).parse().unwrap()
}

/// Returns the number of sockets that this Weir has open.
fn sockets(weir: &Process) -> usize {
    weir.open_files().iter().filter(|name| name.starts_with("socket:")).count()
}

/// Maximum number of open sockets that belong to no client. Weir opens and closes them for signals and for probes of
/// the upstream.
const OTHERS: usize = 4;

#[test]
fn incomplete_requests_time_out_and_do_not_block_a_scraper() {
    let (_site, weir) = start();
    let (admin, before) = (weir.address("admin"), sockets(&weir));
    // The scraper is in another network than the attackers, and connects before them.
    let mut scraper = connect_from("127.0.0.1", admin);
    let mut strangers: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stranger = connect_from("127.0.0.2", admin);
            // The write fails if Weir has already closed the connection: Weir closes connections above its limit at
            // once.
            let _ = stranger.write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\n");
            stranger
        })
        .collect();
    wait_for("fewer connections", || (sockets(&weir) <= before + 64 + OTHERS).then_some(()));
    scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
    assert_eq!(status(&mut scraper), 200);
    // A new client in the network of the attackers is served too.
    let mut other = connect_from("127.0.0.2", admin);
    other.write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
    assert_eq!(status(&mut other), 200);
    drop((scraper, other));
    assert!(strangers.iter_mut().all(is_closed));
    wait_for("no connections", || (sockets(&weir) <= before + OTHERS).then_some(()));
}

#[test]
fn the_control_socket_has_a_limit_of_connections_too() {
    let (site, weir) = start();
    let before = sockets(&weir);
    let connect = || {
        let stream = UnixStream::connect(site.path("state.sock")).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        stream
    };
    let mut held: Vec<UnixStream> = (0..100).map(|_| connect()).collect();
    wait_for("fewer connections", || (sockets(&weir) <= before + 64 + OTHERS).then_some(()));
    let mut order = connect();
    order
        .write_all(
            b"POST /v1/reload HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        )
        .unwrap();
    assert_eq!(status(&mut order), 200);
    // This client sends only one octet of its request's body, so the request times out.
    let mut slow = connect();
    slow.write_all(b"POST /v1/test HTTP/1.1\r\nHost: weir\r\nContent-Length: 9\r\n\r\n{").unwrap();
    assert!(is_closed(&mut slow));
    assert!(held.iter_mut().all(is_closed));
}

#[test]
fn connections_of_clients_that_do_not_read_or_write_are_closed() {
    let (_site, weir) = start();
    let before = sockets(&weir);
    let mut idle = connect_from("127.0.0.1", weir.address("admin"));
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
    assert_eq!(status(&mut idle), 200);
    let deaf: Vec<TcpStream> = (0..2 * OTHERS)
        .map(|_| {
            let mut deaf = connect_from("127.0.0.2", weir.address("admin"));
            deaf.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
            // This client sends requests and reads no response. It stops when Weir no longer reads its requests.
            while deaf.write_all(&b"GET /metrics HTTP/1.1\r\nHost: weir\r\n\r\n".repeat(1000)).is_ok() {}
            deaf
        })
        .collect();
    assert!(sockets(&weir) >= before + 2 * OTHERS);
    assert!(is_closed(&mut idle));
    // These clients read nothing, so they do not see that Weir closes: count Weir's sockets instead.
    wait_for("the end of their connections", || (sockets(&weir) <= before + OTHERS).then_some(()));
    drop(deaf);
}

#[test]
fn a_request_that_is_too_large_is_refused() {
    let (site, weir) = start();
    for (length, expected) in [(4096, 200), (4097, 413)] {
        let mut client = connect_from("127.0.0.1", weir.address("admin"));
        write!(client, "GET /metrics HTTP/1.1\r\nHost: weir\r\nContent-Length: {length}\r\n\r\n").unwrap();
        client.write_all(&vec![b'x'; length]).unwrap();
        assert_eq!(status(&mut client), expected, "{length}");
    }
    let mut client = connect_from("127.0.0.1", weir.address("admin"));
    let _ = write!(client, "GET /metrics HTTP/1.1\r\nHost: weir\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(status(&mut client), 431);
    let mut order = UnixStream::connect(site.path("state.sock")).unwrap();
    let length = (2 << 20) + 1;
    write!(order, "POST /v1/test HTTP/1.1\r\nHost: weir\r\nContent-Length: {length}\r\n\r\n").unwrap();
    let _ = order.write_all(&vec![b' '; length]);
    assert_eq!(status(&mut order), 413);
}

#[test]
fn weir_stops_despite_an_incomplete_request() {
    let (_site, weir) = start();
    let mut half = connect_from("127.0.0.1", weir.address("admin"));
    half.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let mut kept = connect_from("127.0.0.1", weir.address("admin"));
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
    assert_eq!(status(&mut kept), 200);
    assert_eq!(weir.terminate(), Some(0));
    assert!(is_closed(&mut half) && is_closed(&mut kept));
}
