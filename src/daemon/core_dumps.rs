//! Core dumps: Weir switches them off, because its memory holds passwords of clients.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Sets the limit of the size of core dumps to 0, as `LimitCORE=0` of the systemd unit does. The programs that receive
/// core dumps from the kernel, such as systemd-coredump, observe this limit, too.
pub fn disable() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps cannot be switched off: a crash may write passwords to a core file");
    }
}
