//! Login at an upstream.
//!
//! The configured login and its secret are in `relay/login_secret.rs`. [`authentication`] is the exchange with the
//! upstream, and [`scram_keys`] caches its keys. [`refusal`] makes Weir pause after refused logins, and [`redaction`]
//! keeps secrets out of the log.

mod authentication;
mod redaction;
mod refusal;
mod scram_keys;

pub use super::login_secret::{Fixed, Kind, Mechanism, Options, SecretError, SecretSource};
pub(super) use super::login_secret::{Login, Secret, nonce};
pub(super) use authentication::{Authentication, Step};
pub(super) use refusal::Refusals;
pub(super) use scram_keys::KeyRing;
