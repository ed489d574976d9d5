//! Login at an upstream.
//!
//! [`secret`] is the configured login and where its secret is kept, [`authentication`] the exchange, with [`keys`]
//! derived once. [`refusal`] backs off from refused logins, and [`redaction`] keeps secrets out of the log.

mod authentication;
mod keys;
mod redaction;
mod refusal;
mod secret;

pub(super) use authentication::{Authentication, Step};
pub(super) use keys::KeyRing;
pub(super) use refusal::Refusals;
pub use secret::{Fixed, Kind, Mechanism, Options, SecretError, SecretSource};
pub(super) use secret::{Login, Secret, nonce};
