//! Tests with load balancers in front of Weir.

use crate::harness::{Client, Running, Site, Upstream, free_port, wait_for};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

/// Starts HAProxy in front of a server, and waits until HAProxy listens on two ports. HAProxy announces an IPv4 client
/// of the first port by its IPv4 address, and an IPv4 client of the second port by an IPv4-mapped IPv6 address. Returns
/// `None` if another process bound a port before HAProxy could.
fn start(site: &Site, server: &str) -> Option<(Running, [u16; 2])> {
    let ports = [free_port(), free_port()];
    let text = format!(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n\
         listen weir\n bind 127.0.0.1:{}\n bind :::{} v4v6\n server weir {server} inter 20ms\n",
        ports[0], ports[1]
    );
    let file = site.path("haproxy.cfg");
    std::fs::write(&file, text).unwrap();
    let mut haproxy = Running(Command::new("haproxy").arg("-db").arg("-f").arg(file).spawn().unwrap());
    let listens = wait_for("HAProxy", || match haproxy.0.try_wait().unwrap() {
        Some(_) => Some(false),
        None => TcpStream::connect((Ipv4Addr::LOCALHOST, ports[1])).is_ok().then_some(true),
    });
    listens.then_some((haproxy, ports))
}

#[test]
fn haproxy_announces_its_clients_to_weir() {
    let upstream = Upstream::start();
    let site = Site::builder()
        .listener("plain", "tls = \"none\", auth = \"none\", proxy-protocol = [\"127.0.0.1\"]")
        .upstream(upstream.address(), "")
        .build();
    let weir = site.start();
    for options in [
        "send-proxy check",
        "send-proxy check check-send-proxy",
        "send-proxy-v2 check check-send-proxy",
        "send-proxy-v2 proxy-v2-options crc32c,unique-id check check-send-proxy",
    ] {
        let (_haproxy, ports) = wait_for("HAProxy", || start(&site, &format!("{} {options}", weir.address("plain"))));
        for (port, last) in [(ports[0], 3), (ports[1], 4)] {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let source = Ipv4Addr::new(127, 0, 0, last);
            let mut client = Client::connect_from(source, address);
            client.send_message();
            let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
            assert!(
                message.starts_with(&format!("Received: from client.example ([{source}])")),
                "{options}: {message}"
            );
        }
    }
    // Weir has logged no error about the connections of HAProxy's health checks.
    assert_eq!(weir.times_logged("PROXY"), 0, "{:#?}", weir.log_lines());
}
