//! Egress: the register of direct ways, and the connections that the edge has blocked.

pub mod blocked;
pub mod register;
