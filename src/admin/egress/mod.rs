//! Egress: the register of direct ways.

pub mod register;
