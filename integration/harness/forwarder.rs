//! TCP forwarder that a test can cut: it stands for the network between two programs.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// Forwards connections to an address. While it is cut, it forwards no octet and closes no connection, like a network
/// that loses all packets. Octets that arrive meanwhile are forwarded later.
pub struct Forwarder {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_cut: Mutex<bool>,
    changed: Condvar,
}

impl Forwarder {
    pub fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let of_all = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let state = of_all.clone();
                std::thread::spawn(move || {
                    state.wait();
                    let Ok(server) = TcpStream::connect(to) else { return };
                    let (other_client, other_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    let other_state = state.clone();
                    std::thread::spawn(move || copy(other_server, other_client, &other_state));
                    copy(client, server, &state);
                });
            }
        });
        Self { address, state }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn cut(&self, is_cut: bool) {
        *self.state.is_cut.lock().unwrap() = is_cut;
        self.state.changed.notify_all();
    }
}

impl State {
    /// Waits while the forwarder is cut.
    fn wait(&self) {
        let is_cut = self.is_cut.lock().unwrap();
        drop(self.changed.wait_while(is_cut, |is_cut| *is_cut).unwrap());
    }
}

/// Copies octets until one side closes the connection.
fn copy(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut space = [0; 16_384];
    while let Ok(read @ 1..) = from.read(&mut space) {
        state.wait();
        if to.write_all(&space[..read]).is_err() {
            break;
        }
    }
    state.wait();
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
