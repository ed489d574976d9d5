//! Cache of the SCRAM keys for an upstream, so that Weir need not derive them for each connection. (RFC 5802 §5.1
//! allows a client to keep them.)

use crate::relay::error::RelayError;
use crate::smtp::scram::{Keys, Salting};
use std::sync::Arc;
use tokio::sync::Mutex;

/// The keys of the last login, with the input from which they were derived. The thread that derives keys holds the lock
/// until it has finished, even if the caller no longer waits. So an upstream that demands many iterations occupies at
/// most one thread at a time.
#[derive(Clone, Default)]
pub struct KeyRing(Arc<Mutex<Option<(Salting, Keys)>>>);

impl KeyRing {
    /// Returns the keys for this password, salt and iteration count. Takes the keys from the cache if all three are the
    /// same as at the last login.
    pub async fn derive(&self, salting: Salting) -> Result<Keys, RelayError> {
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
        // The blocking task fails only when the process ends.
        derived.await.map_err(|error| RelayError::Io(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smtp::sasl::Credentials;
    use crate::smtp::scram::ClientFirst;

    #[tokio::test]
    async fn the_last_keys_are_kept_with_what_they_were_derived_from() {
        let ring = KeyRing::default();
        let kept = async || ring.0.lock().await.as_ref().map(|(salting, _)| salting.clone());
        for (password, challenge) in [
            ("pencil", "r=nx,s=AAAA,i=4096"),
            ("pencil", "r=ny,s=AAAA,i=4096"),
            ("pencil", "r=nx,s=AAAB,i=4096"),
            ("pencil", "r=nx,s=AAAB,i=4097"),
            ("other", "r=nx,s=AAAB,i=4097"),
        ] {
            let first = ClientFirst::new(&Credentials::new("user", password).unwrap(), "n");
            let salting = first.challenged(challenge).unwrap().salting().clone();
            // The keys are kept if only the nonce differs.
            assert_eq!(kept().await.is_some_and(|kept| kept == salting), challenge.starts_with("r=ny"), "{challenge}");
            ring.derive(salting.clone()).await.unwrap();
            assert!(kept().await.is_some_and(|kept| kept == salting), "{challenge}");
        }
    }
}
