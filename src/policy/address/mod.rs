//! Addresses of senders and recipients, and domains: the normal forms in which limits compare them.

pub mod domain;
mod normalize;

pub use normalize::{AddressNormalizer, NULL_SENDER};
pub(super) use normalize::{domain_of, lower_case, split};
