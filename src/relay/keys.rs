//! The keys of SCRAM at an upstream, derived once and not for each connection (RFC 5802 §5.1 allows the client to keep them).

use super::Fault;
use crate::smtp::scram::{Keys, Salting};
use std::sync::Arc;
use tokio::sync::Mutex;

/// The keys of the last login. The lock goes along into the work and is held until its end, also when nobody waits for it any more:
/// whatever an upstream asks for, it has one thread of this machine work for it at a time.
#[derive(Clone, Default)]
pub struct KeyRing(Arc<Mutex<Option<(Salting, Keys)>>>);

impl KeyRing {
    /// The keys for this password, salt and number of iterations.
    pub async fn derive(&self, salting: Salting) -> Result<Keys, Fault> {
        let mut last = self.0.clone().lock_owned().await;
        if let Some((known, keys)) = &*last
            && *known == salting
        {
            return Ok(keys.clone());
        }
        let derived = tokio::task::spawn_blocking(move || {
            let keys = salting.derive();
            *last = Some((salting, keys.clone()));
            keys
        });
        // It ends early only with the process.
        derived.await.map_err(|error| Fault::Io(error.into()))
    }
}
