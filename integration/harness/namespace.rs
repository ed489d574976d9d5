//! Network namespace: a machine of its own, as far as the network is concerned. Needs root.

use super::succeed;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A network namespace. Dropping it removes it, and its interfaces.
pub struct Namespace {
    name: String,
    interfaces: AtomicUsize,
}

impl Namespace {
    /// Makes a namespace with a loopback interface.
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("weir-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        succeed(Command::new("ip").args(["netns", "add", &name]), "");
        let this = Self { name, interfaces: AtomicUsize::new(0) };
        this.ip(&["link", "set", "lo", "up"]);
        this
    }

    /// Connects this namespace with another one by a cable. Each end gets its address, with the length of the network.
    pub fn connect(&self, address: &str, other: &Self, other_address: &str) {
        let (interface, other_interface) = (self.next_interface(), other.next_interface());
        let ends = ["link", "add", &interface, "type", "veth", "peer", "name", &other_interface, "netns", &other.name];
        self.ip(&ends);
        for (namespace, interface, address) in [(self, interface, address), (other, other_interface, other_address)] {
            // An IPv6 address can be used at once if nobody is asked whether it is used twice.
            let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
            namespace.ip(&[&["address", "add", address, "dev", &interface], nodad].concat());
            namespace.ip(&["link", "set", &interface, "up"]);
        }
    }

    fn next_interface(&self) -> String {
        format!("weir{}", self.interfaces.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds an address to the first cable.
    pub fn add_address(&self, address: &str) {
        self.ip(&["address", "add", address, "dev", "weir0"]);
    }

    /// Sends all packets to other networks to this router.
    pub fn route_by(&self, router: &str) {
        self.ip(&["route", "add", "default", "via", router]);
    }

    fn ip(&self, arguments: &[&str]) {
        succeed(Command::new("ip").args(["-n", &self.name]).args(arguments), "");
    }

    /// Runs a function in the namespace. The processes that it starts, and the sockets that it opens, belong to it.
    pub fn run<R: Send>(&self, function: impl FnOnce() -> R + Send) -> R {
        let run = || {
            let file = std::fs::File::open(format!("/run/netns/{}", self.name)).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            function()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}
