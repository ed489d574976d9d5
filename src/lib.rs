//! Weir is an SMTP submission proxy: it stands in front of a smart host, and limits how much mail anyone can send
//! through the smart host.
//!
//! # Glossary
//!
//! | Word | Meaning |
//! |---|---|
//! | account | User name and password hash in the users file ([`accounts`]). |
//! | act | Transaction of the store: one decision and all of its charges, which become durable together. |
//! | action | Consequence of a limit that is exceeded: warn, delay, defer, deny, drop, suspend, notify, route, suspect. |
//! | blocked connection | Connection of a client past Weir that the edge of the network has blocked. |
//! | budget | State of one limit for one owner: a level, the time of the last charge, perhaps a Bloom filter. |
//! | burst | Amount that a limit lets through at once. |
//! | charge | Amount that an event adds to a budget. |
//! | client | Host that has connected to Weir; one client network is an IPv4 address or an IPv6 /64. |
//! | distinct | Property of a limit that counts different values only, with a Bloom filter. |
//! | episode | Time in which a budget is above the level of an action `notify`: one notice is made of it. |
//! | envelope | The MAIL and RCPT commands of a message: its sender and its recipients. |
//! | event | Moment in a session that limits can count: connection, login, MAIL, RCPT, DATA, end of message, rejection. |
//! | evidence | Numbers of what a limit has refused, or would have refused in shadow or soft mode, by sender. |
//! | exception | Grant or suspension: a temporary change of the limits for one owner. |
//! | exempt, except | Matcher that excludes events from a limit. |
//! | gauge | Budget of a limit "N at once": it counts the slots that open sessions hold. |
//! | grant | Exception that gives one owner another rate for a while. |
//! | group commit | One entry of the journal for the acts of many sessions. |
//! | journal | Files beside the state file to which acts are appended; the writer folds them into the table of budgets. |
//! | key | Name of a budget: the limit, its count and algorithm, and the owner. |
//! | limit | Rule of `weir.toml`: the events to count, the fields of the owner (`per`), the quota, and the actions. |
//! | listener | Address on which Weir accepts clients. |
//! | login history | Networks, countries and EHLO names from which each user has logged in lately. |
//! | location | Country and autonomous system of a client, which a database gives for its address. |
//! | login networks | Networks from which a user is expected to log in. |
//! | lock | Suspension that refuses only mail to strangers. |
//! | matcher | Conditions under which a limit applies: `match` and `except`. |
//! | memory | Recipients to which mail of an owner was delivered lately; a limit with `known-to` does not count them. |
//! | mode | `enforce`, `soft` (warns and notifies, never refuses) or `shadow` (counts; clients notice nothing). |
//! | notice | Document about an exceeded limit, which the targets of a notification get. |
//! | notification | Section `[notify.NAME]`: the targets of the notices that limits make with the action `notify`. |
//! | novelty | Whether the network, country and EHLO name of a login are new for the user. |
//! | origin | Network, country and EHLO name of a login. |
//! | owner | Values of the fields in `per`: the user, client or sender whose budget it is. |
//! | outcome | Result of a delivery that the smart host knows after it has accepted the message: bounce, complaint. |
//! | override | Row of a table that gives some owners another quota. |
//! | plan | Budgets that the limits for one request need, and the checks that are made with these budgets. |
//! | pipeline | Commands that a client sent without waiting for replies; policy decides on all of them in one act. |
//! | queue id | Name that an upstream gives a message in its reply; outcomes name the message by it ([`queue_id`]). |
//! | quota | Amount that a limit allows: a rate with its burst, or a count per message or connection. |
//! | refund | Subtraction of an earlier charge from a budget, because the charged event had no effect: the mail was not sent. |
//! | regularity | Mean of the gaps between events, divided by the sum of the mean and the standard deviation: high for programs. |
//! | report address | Address to which others mail reports of outcomes: a session takes this mail itself. |
//! | rung, ladder | Rung: an action of a limit, and the level from which it applies. Ladder: all rungs of the limit. |
//! | senders | Addresses as which users may send: own addresses, permits, login maps and aliases of `[senders]`. |
//! | session | Dialogue with one client. |
//! | sign | Limit with an action `suspect`: it adds points to the suspicion score of a user, up to a cap. |
//! | slot | Permit of a limited number: for the sessions of a gauge, or for the connections to an upstream. |
//! | stage | Part of a session in which an event happens: connect, auth, mail, rcpt, data, end. |
//! | stranger | Recipient that a memory does not know. |
//! | suspension | Exception that refuses the mail of one owner for a while, except to the recipients that `[suspensions]` allows. |
//! | suspicion score | Sum of the points of a user's signs, each of which decays by its half-life. From certain scores on the user is in the class `watched` or `locked`, which limits match on. |
//! | top sender | User, or client without a login, that sends or is refused most at present. |
//! | upstream | Smart host to which Weir relays. |
//! | verdict | Decision of policy about one event. |
//!
//! # One message, from connection to reply
//!
//! 1. [`server`] accepts the connection if the connection limits permit it, reads a PROXY header if a load balancer
//!    sends one, performs the TLS handshake, and drives a [`session`]. The session takes octets of commands and returns
//!    steps. [`smtp`] parses lines, commands and addresses, strictly. The reply to EHLO announces the extensions that
//!    the upstream offers, as far as [`relay`] knows them.
//! 2. The client logs in: the session asks for a check of the password, and [`accounts`] checks it. The [`store`]
//!    records the login in the login history, and tells policy which properties of the login are new for the user.
//! 3. The client says MAIL and RCPT, often several commands without waiting for replies. The session collects them
//!    (`session/pipeline.rs`) and asks policy about all of them at once. It has also asked policy at the connection and
//!    at the login. [`policy::Plan`] finds the limits that apply and their budgets, and [`store`] loads these budgets.
//!    [`policy::decide`] decides with the arithmetic of [`engine`]. The charges are durable before the client gets the
//!    reply. `session/refusal_reply.rs` writes the reply of a refusal, with the texts of `policy/verdict/refusal.rs`.
//! 4. [`relay`] passes the envelope to an upstream: it selects a healthy upstream, takes an idle connection or opens a
//!    new one, says MAIL and RCPT, and returns the answers. If that upstream fails before the message begins, another
//!    upstream gets the same envelope. Refunds and charges that follow from the answers are made before the client gets
//!    the answers. Replies keep the order of the commands.
//! 5. The client sends the message with DATA or BDAT. `server/message_pipe.rs` forwards the octets as they arrive, with
//!    one `Received:` line on top, and `smtp/data.rs` examines every octet. `smtp/from_header/` finds the addresses in the
//!    From header, and `session/sender_check.rs` compares them with the senders of the user. Weir sends the final dot
//!    last, and the client gets the upstream's answer to the final dot. The memories (`policy/memory.rs`) learn the
//!    recipients of an accepted message before that. Weir has no queue.
//!
//! # Around it
//!
//! * [`delegation`] answers a Postfix that asks Weir by its policy delegation protocol and sends the mail itself: the
//!   same events, limits and records as those of a session. `server/policy_service/` drives it.
//! * [`cli`] has one file for each command, which takes arguments and returns text and an exit code. [`config`] parses
//!   `weir.toml` into the `Options` of each module, and [`explain`] describes each limit in a sentence for
//!   `weir check --explain`.
//! * [`daemon`] is the running Weir (`weir serve`): it opens the modules, connects them, and stops them in order.
//!   `daemon/reloader.rs` reads limits and upstreams again when the file changes.
//! * [`admin`] serves [`metrics`] and health over HTTP, and takes commands of administrators over a Unix socket.
//!   `admin/dashboard/` serves pages for browsers that have logged in with a token, and `admin/gate.rs` decides who the
//!   caller of a request is. `admin/refusals/` explains stored refusals, and `admin/evidence.rs` counts those of a limit.
//!   `admin/exceptions/` checks and answers the commands about grants and suspensions, and `store/exceptions.rs` begins
//!   and ends these exceptions.
//! * [`notify`] makes one notice for each episode in which a limit is exceeded, and delivers it to webhooks, commands and
//!   mail addresses. `store/notices/` keeps the notices that wait, so that a restart loses none.
//! * [`log`] writes a line for each message and each refusal; a state that lasts is logged only when it changes
//!   (`log/logged_state.rs`). `bounded_map.rs` is the map of caches that evict their oldest entry, and `back_off.rs` has the
//!   pauses before a failed attempt is repeated. `timer.rs` is the timer of a connection, and `groups.rs` has the groups of
//!   a user.
//! * [`decisions`] makes a record of each decision, from which policy can be asked again, and gives it to those who want
//!   it: the decision log and readers of events. `server/decision_records.rs` offers the records.
//! * [`outcomes`] reads what became of accepted messages from a smart host's log and from reports in mails. A session
//!   takes the mail to the report address itself (`session/report_transaction.rs`, `server/report_mail.rs`). The store
//!   knows by the queue id whose message it was (`store/queue_ids/`), and `server/outcomes.rs` charges the limits.
//! * [`egress`] makes the rules of a site's edge from the register of direct ways (`policy/egress.rs`), and reads which
//!   connections the edge has blocked. `cli/egress/watch.rs` gives them to the
//!   running Weir, and `server/blocked_connections.rs` charges the limits. `followed_log.rs` follows a log file, also
//!   after its rotation.
//! * [`reference`] has the references of refusals, by which `store/refusals/` finds the record of a refusal.
//! * [`import`] translates the limits of Exim, rspamd and postfwd. [`simulate`] replays the mail of the past through
//!   the limits, and [`recommend`] computes limits from this mail. [`history`] makes a list of that mail from the logs of Postfix, Exim and Weir. [`rehearse`] says what
//!   would happen to one message (`weir test`). [`what_if`] replays the decision log through a limit that an
//!   administrator tries.
//! * `terminal.rs` makes text from clients harmless for terminals, and quotes it for shells.
//! * [`clock`] alone reads the clock: functions that decide take the present time `now`, a [`time::Timestamp`], as an
//!   argument, so that [`simulate`] can replay them.
//!
//! `integration/layers.rs` is a test with a table of the modules that each module is permitted to import.

pub mod accounts;
pub mod admin;
mod back_off;
mod bounded_map;
mod certificate_pin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod decisions;
pub mod delegation;
pub mod egress;
pub mod engine;
pub mod explain;
mod followed_log;
pub mod groups;
pub mod history;
pub mod import;
pub mod log;
pub mod metrics;
pub mod notify;
pub mod outcomes;
pub mod policy;
mod queue_id;
pub mod recommend;
pub mod reference;
pub mod rehearse;
pub mod relay;
pub mod server;
pub mod session;
pub mod simulate;
pub mod smtp;
pub mod socket_file;
pub mod store;
mod terminal;
pub mod time;
mod timer;
pub mod top;
pub mod what_if;
