//! Weir is an SMTP submission proxy: it stands in front of a smart host and bounds what anyone can send through it.
//!
//! # Glossary
//!
//! | Word | Meaning |
//! |---|---|
//! | account | User name and password hash in the users file ([`accounts`]). |
//! | act | Transaction of the store: one decision with all of its charges, durable together. |
//! | action | Consequence of a limit that is exceeded: warn, delay, defer, deny, drop, suspend, notify, route. |
//! | budget | State of one limit for one owner: a level, the time of the last charge, perhaps a filter. |
//! | burst | Amount that a limit lets through at once. |
//! | charge | Amount that an event adds to a budget. |
//! | client | Host that has connected to Weir; one client network is an IPv4 address or an IPv6 /64. |
//! | distinct | Property of a limit that counts different values only, with a Bloom filter. |
//! | envelope | MAIL and RCPT of a message. |
//! | event | Moment in a session that limits may count: connection, login, MAIL, RCPT, DATA, end of message, rejection. |
//! | exception | Grant or suspension: it changes the limits for one owner until its end. |
//! | exempt, except | Matcher of a limit that leaves events out. |
//! | gauge | Budget of a limit "N at once": the slots that live sessions hold. |
//! | grant | Exception that gives one owner another rate for a while. |
//! | group commit | One transaction of SQLite for the acts of many sessions. |
//! | journal | Table of the state file to which acts are appended; the writer thread folds it into the table of budgets. |
//! | key | Name of a budget: the limit, the meaning of its numbers, and the owner. |
//! | limit | Rule of `weir.toml`: what it counts, per what, how much of it, and its actions. |
//! | listener | Address on which Weir accepts clients. |
//! | matcher | Conditions under which a limit holds: `match` and `except`. |
//! | mode | `enforce`, `soft` (warns and notifies, never refuses) or `shadow` (counts; clients notice nothing). |
//! | owner | Values of the fields in `per`: the user, client or sender whose budget it is. |
//! | override | Row of a table that gives some owners other numbers. |
//! | plan | Budgets that the limits for one request need, and the checks that are made with these budgets. |
//! | pipeline | Commands that a client sent in one piece; policy decides them in one act. |
//! | quota | Amount that a limit allows: a rate with its burst, or a count per message or connection. |
//! | refund | Subtraction of an earlier charge from a budget, because the charged event had no effect: the mail was not sent. |
//! | rung, ladder | Rung: an action of a limit, and the level from which it applies. Ladder: all rungs of the limit. |
//! | session | Dialogue with one client. |
//! | slot | Permission to be one of a bounded number: of the sessions of a gauge, or of the connections to an upstream. |
//! | stage | Part of a session in which an event happens: connect, auth, mail, rcpt, data, end. |
//! | suspension | Exception that refuses all mail of one owner for a while. |
//! | upstream | Smart host to which Weir relays. |
//! | verdict | Decision of policy about one event. |
//!
//! # One message, from connection to reply
//!
//! 1. [`server`] accepts the connection if the client's network has room for it, reads a PROXY header where a load balancer
//!    sends one, does TLS, and drives a [`session`]: octets of commands in, steps out. [`smtp`] parses lines, commands and
//!    addresses, strictly. EHLO announces what the upstream offers, as [`relay`] knows it.
//! 2. The client logs in: the session asks for a check of the password, and [`accounts`] does it.
//! 3. The client says MAIL and RCPT, often several in one piece. The session gathers them (`session/pipeline.rs`) and asks
//!    policy about all of them, as it did at the connection and at the login. [`policy::Plan`] finds the limits that hold
//!    and their budgets, [`store`] loads these, [`policy::decide`] decides with the arithmetic of [`engine`], and the
//!    charges are durable before the client hears the reply. `session/refusal_reply.rs` words the reply of a refusal, with the
//!    texts of `policy/verdict/refusal.rs`.
//! 4. [`relay`] passes the envelope to an upstream: it selects a healthy one, takes an idle connection or opens one, says
//!    MAIL and RCPT, and returns the answers. If that upstream fails before the message is on its way, another one gets
//!    the same envelope. Refunds and charges that follow from the answers are made before the client hears them. Replies
//!    keep the order of the commands.
//! 5. The client sends the message with DATA or BDAT. `server/message_pipe.rs` passes it on as it comes, with one
//!    `Received:` line on top, and `smtp/data.rs` examines every octet. The final dot goes out last, and the client hears
//!    the upstream's answer to it. Weir has no queue.
//!
//! # Around it
//!
//! * [`cli`] has one file for each command: arguments in, text and exit code out. [`config`] parses `weir.toml` into the
//!   `Options` of each module, and [`explain`] says each limit in a sentence (`weir check --explain`).
//! * [`daemon`] is the running Weir (`weir serve`): it opens the modules, connects them, and stops them in order.
//!   `daemon/reloader.rs` reads limits and upstreams again when the file changes.
//! * [`admin`] serves [`metrics`] and health over HTTP, and takes commands of administrators over a Unix socket.
//!   `admin/exceptions/` checks and answers those about grants and suspensions, `store/exceptions.rs` begins and ends them.
//! * [`log`] writes a line for each message and each refusal; a state that lasts is logged when it changes
//!   (`log/logged_state.rs`). `bounded_map.rs` is the map of caches that evict their oldest entry.
//! * [`import`] translates the limits of Exim, rspamd and postfwd, [`simulate`] replays the mail of the past through the
//!   limits, [`history`] makes a list of that mail from the logs of Postfix, Exim and Weir, and [`rehearse`] says what
//!   would happen to one message (`weir test`).
//! * [`clock`] alone reads the clock: functions that decide take their `now`, a [`time::Timestamp`], as an argument, so
//!   that they can be replayed.
//!
//! `integration/layers.rs` is a test with a table: which module may import which.

pub mod accounts;
pub mod admin;
mod bounded_map;
pub mod cli;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod explain;
pub mod history;
pub mod import;
pub mod log;
pub mod metrics;
pub mod policy;
pub mod rehearse;
pub mod relay;
pub mod server;
pub mod session;
pub mod simulate;
pub mod smtp;
pub mod store;
pub mod time;
