//! What comes before a session: whether there is a place for a connection.

use super::connection::Connection;
use super::places::{Full, Place};
use super::{ListenerOptions, Server, Stop};
use crate::session::Security;
use prometheus::IntGauge;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Serves a connection to its end, from its first octet. It keeps its place as long.
pub async fn receive(
    server: Arc<Server>,
    listener: ListenerOptions,
    tcp: TcpStream,
    peer: IpAddr,
    mut place: Place,
    stop: Stop,
) {
    let client = peer.to_canonical();
    if let Err(full) = place.give_to(client) {
        return turn_client_away(&server, &listener, &tcp, client, full);
    }
    let _counted = Counted::new(server.metrics.sessions.with_label_values(&[&*listener.name]));
    Connection::new(server, listener, tcp, client, stop).converse().await;
}

/// Refuses a connection for which there is no place at all.
pub fn turn_away(server: &Server, listener: &ListenerOptions, tcp: &TcpStream, full: Full) {
    count_refused(server, listener, "max-connections");
    say(listener, tcp, "421 4.3.2", "Too many connections; try again");
    if let Some(refused) = full.refused {
        let limit = server.options.max_connections;
        tracing::warn!(listener = &*listener.name, limit, refused, "too many connections");
    }
}

/// Refuses a connection of a client whose network has as many as it may.
fn turn_client_away(server: &Server, listener: &ListenerOptions, tcp: &TcpStream, client: IpAddr, full: Full) {
    count_refused(server, listener, "max-connections-per-client");
    say(listener, tcp, "421 4.7.0", "Too many connections from your network; close some and try again");
    if let Some(refused) = full.refused {
        let limit = server.options.max_connections_per_client;
        tracing::warn!(listener = &*listener.name, %client, limit, refused, "too many connections of one client");
    }
}

fn count_refused(server: &Server, listener: &ListenerOptions, reason: &str) {
    server.metrics.connections_refused.with_label_values(&[&*listener.name, reason]).inc();
}

/// Says why there is no session, without waiting: whoever is turned away takes no place meanwhile. Where TLS comes first nothing
/// is said: plain text would be taken for broken TLS, and a handshake costs what the refusal is to spare.
fn say(listener: &ListenerOptions, tcp: &TcpStream, code: &str, text: &str) {
    if listener.session.tls == Security::Implicit {
        return;
    }
    let reply = format!("{code} {} {text}\r\n", listener.session.hostname);
    let _ = tcp.try_write(reply.as_bytes());
    // Closing with octets unread resets the connection, which may take the words away again.
    let _ = tcp.try_read(&mut [0; 1024]);
}

/// Counts one for as long as it lives.
struct Counted(IntGauge);

impl Counted {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
