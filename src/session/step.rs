//! Steps of a session: the kinds of questions that the session asks its driver. A question owns the session until the
//! driver answers it.

use super::exchange::Attempt;
use super::state::State;
use crate::groups::Groups;
use crate::policy::budgets::RefundableCharge;
use crate::policy::request::PolicyRequest;
use crate::policy::verdict::Verdict;
use crate::smtp::command::{self, Command};
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// A client's session between two steps.
pub struct Session(pub(super) Box<State>);

/// The next thing that the session needs from its driver.
pub enum Step {
    /// Call [`Session::step`] again with the input that has arrived.
    Next(Session),
    /// A message has ended: send the output, then call [`Session::step`]. The records of the message belong to the present
    /// user and upstream, which pipelined commands can change.
    MessageEnded(Session),
    /// Send the output, read more input, then call [`Session::step`].
    Read(Session),
    /// Send the output, then begin TLS.
    StartTls(StartTls),
    /// Check this login.
    Login(Login),
    /// Look up the groups of a user that a proxy named.
    LookUpGroups(GroupLookup),
    /// Ask policy about these events.
    Admit(Box<Admit>),
    /// Send the output, then wait: for the time, or until the client leaves.
    Delay(Delayed),
    /// A login failed: wait for `FAILED_LOGIN_PAUSE`, then continue the session.
    Pause(Session),
    /// Send these commands to the upstream.
    Relay(Relay),
    /// Send the output, then forward the message to the upstream.
    Body(Body),
    /// Forward a piece of the message to the upstream.
    Chunk(Chunk),
    /// Send the output, then close.
    Close(Session),
}

/// Request for a TLS handshake: the reply to STARTTLS is in the output, and the handshake follows.
pub struct StartTls(pub(super) Session);

/// Question to the accounts: is this login right?
pub struct Login {
    pub(super) session: Session,
    pub(super) attempt: Attempt,
    /// Charges that are refunded unless the login is wrong, or the client leaves before it is checked.
    pub(super) charges: Vec<RefundableCharge>,
}

/// Question to the accounts: the groups of a user that a proxy named.
pub struct GroupLookup {
    pub(super) session: Session,
    /// True if the proxy named the address of a client, so that the client is perhaps another client than before.
    pub(super) is_another: bool,
}

/// Question to policy: are these events permitted?
pub struct Admit {
    pub(super) session: Session,
    pub(super) asked: PolicyRequest,
    pub(super) purpose: Purpose,
}

/// Purpose of a question to policy.
pub(super) enum Purpose {
    Connect,
    /// The batch of commands.
    Batch,
    Command(Command),
    /// A login that is to be tried.
    Auth(Attempt),
    /// A login that was right.
    Login {
        user: Arc<str>,
        groups: Groups,
    },
}

/// Verdicts of policy whose replies are delayed. The client has no reply yet, and the session has not asked the
/// upstream yet.
pub struct Delayed {
    pub(super) admit: Box<Admit>,
    pub(super) verdicts: Vec<Verdict>,
    /// Time of the decision.
    pub(super) now: Timestamp,
    pub(super) time: Duration,
}

/// Question to the upstream about the commands of the batch.
pub struct Relay(pub(super) Session);

/// Request to forward a message: the reply to DATA is in the output, and the upstream is ready for the message.
pub struct Body(pub(super) Session);

/// Request to forward a piece of a message: the client sends the piece at once, and the upstream is ready for it (RFC
/// 3030 §2).
pub struct Chunk {
    pub(super) session: Session,
    pub(super) chunk: command::Chunk,
    pub(super) first: bool,
}
