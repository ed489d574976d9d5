//! Weir: an SMTP submission proxy that bounds what anyone can send. (tour follows)

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
