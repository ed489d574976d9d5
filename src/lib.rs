//! Weir is an SMTP submission proxy: it stands in front of a smart host and bounds what anyone can send through it.
//!
//! # What happens to one mail
//!
//! A client connects. [`server`] accepts it if there is a place for it, reads a PROXY header where a load balancer sends one, does TLS,
//! and drives a [`session`]: octets of commands in, steps out. Lines, commands and addresses are read by [`smtp`], strictly. EHLO
//! announces what the upstream offers, as [`relay`] knows it.
//!
//! The client logs in: the session asks whether the password is right, and [`accounts`] knows.
//!
//! It says MAIL and RCPT, often several in one piece. The session gathers them and asks whether policy lets them pass, as it has asked
//! when the client connected and logged in. [`policy::Plan`] finds out which limits hold and whose budgets they are, [`store`]
//! loads these, [`policy::decide`] decides with the arithmetic of [`engine`], and the charges are durable before anybody hears of
//! them. A RCPT that a limit refuses is answered in `session/refusal.rs`, with the words of `policy/verdict.rs`.
//!
//! What passes goes on to an upstream: [`relay`] chooses one that is well, takes a connection that waits or opens one, says MAIL and
//! RCPT, and brings back the answers. Should that upstream go away, another is told the same, as long as none of the message is on its
//! way. What that changes for limits (a rejection, a charge for what was not sent) is settled before the client hears of it. It gets
//! replies in the order of its commands.
//!
//! It says DATA and sends the message, or sends it in pieces with BDAT. `server/body.rs` passes it on as it comes, with one `Received:`
//! line on top, and `smtp/data.rs` looks at every octet. The final dot goes out last; what the upstream then says is what the client
//! hears. There is no queue.
//!
//! # Around that
//!
//! [`config`] reads `weir.toml` into the Options of each room; [`cli`] wires the rooms together; [`admin`] serves [`metrics`] and
//! health over HTTP, and takes orders over a Unix socket; `cli/reloader.rs` reads limits again when they change; `store/book.rs`
//! keeps who is granted more for a while, and who is suspended; [`log`] writes a line for each message and each refusal. [`clock`]
//! alone reads the clock: everything that decides is handed its `now`, a [`time::Timestamp`], so that it can be replayed.
//!
//! Who may import whom is a table in `integration/layers.rs`, which is a test.

pub mod accounts;
pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod log;
pub mod metrics;
pub mod policy;
pub mod relay;
pub mod server;
pub mod session;
pub mod smtp;
pub mod store;
pub mod time;
