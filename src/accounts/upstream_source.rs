//! The upstream as a source of accounts: a password is right if the upstream accepts a login with it.

use super::cache::LoginCache;
use super::in_flight::InFlight;
use super::turns::Turns;
use crate::groups::Groups;
use crate::metrics::PasswordQueue;
use crate::smtp::sasl::{Credentials, Verified};
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Checks passwords by logins at an upstream. The number of concurrent logins is bounded, because each needs a
/// connection, and any client can cause one. Client networks take turns.
pub struct UpstreamSource {
    /// Right passwords, so that a client that logs in again needs no login at the upstream.
    cache: Arc<LoginCache>,
    in_flight: Arc<InFlight>,
    turns: Arc<Turns>,
}

/// Maximum logins at the upstreams at the same time, and maximum of one network: while an upstream is slow, guesses from
/// one network leave turns to the others.
const AT_ONCE: usize = 16;
const AT_ONCE_PER_NETWORK: usize = 8;

/// Maximum time for which a login waits for its turn. It is much shorter than the timeouts of clients.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

impl UpstreamSource {
    pub fn new(queue: PasswordQueue) -> Self {
        Self {
            cache: Arc::new(LoginCache::new()),
            in_flight: Arc::default(),
            turns: Turns::with_maximum_per_network(AT_ONCE, AT_ONCE_PER_NETWORK, queue),
        }
    }

    /// Checks a password. `log_in` logs in at the upstream; it is not run if the result is known. Clients of one
    /// `network` share their turns. `left` completes when the client no longer waits for its turn; a login that has
    /// already begun is still completed, and its result counts.
    pub async fn verify(
        &self,
        credentials: &Credentials,
        network: &str,
        mut left: Pin<&mut impl Future<Output = ()>>,
        log_in: impl Future<Output = Verified> + Send + 'static,
    ) -> Verified {
        if self.remembers(credentials) {
            return right(credentials);
        }
        let first = match self.in_flight.first(network, credentials, left.as_mut()).await {
            Ok(first) => first,
            Err(verified) => return verified,
        };
        let turn = tokio::select! {
            biased;
            turn = tokio::time::timeout(TURN_TIMEOUT, self.turns.acquire(network)) => turn,
            () = &mut left => return Verified::ClientLeft,
        };
        let Ok(Ok(turn)) = turn else {
            first.end(&Verified::Unavailable);
            return Verified::Unavailable;
        };
        let (cache, sent) = (self.cache.clone(), credentials.clone());
        let check = tokio::spawn(async move {
            let verified = log_in.await;
            if let Verified::Right { .. } = verified {
                cache.insert(&sent.user, SOURCE, &sent.password, Instant::now());
            }
            first.end(&verified);
            drop(turn);
            verified
        });
        // The client's leaving no longer counts: other connections of the same network perhaps wait for this answer, so a
        // wrong password has to be counted once.
        check.await.unwrap_or(Verified::Unavailable)
    }

    /// Returns whether an equal login is being checked.
    pub fn is_checking(&self, credentials: &Credentials, network: &str) -> bool {
        self.in_flight.contains(network, credentials)
    }

    /// Forgets that the password of this user was right, because the upstream now refuses it.
    pub fn forget(&self, user: &str) {
        self.cache.remove(user);
    }

    fn remembers(&self, credentials: &Credentials) -> bool {
        let password = [Cow::Borrowed(credentials.password.as_str())];
        self.cache.contains(&credentials.user, SOURCE, &password, Instant::now())
    }
}

/// Text in the cache in place of a hash of the users file.
const SOURCE: &str = "upstream";

fn right(credentials: &Credentials) -> Verified {
    Verified::Right { user: credentials.user.as_str().into(), groups: Groups::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    fn credentials(password: &str) -> Credentials {
        Credentials::new("alice", password).unwrap()
    }

    fn queue() -> PasswordQueue {
        crate::metrics::Metrics::new().unwrap().password_checks.queue("upstream")
    }

    fn wrong() -> Verified {
        Verified::Wrong { reason: None }
    }

    async fn verify(source: &UpstreamSource, password: &str, answer: Verified, logins: &Arc<AtomicUsize>) -> Verified {
        let logins = logins.clone();
        let log_in = async move {
            logins.fetch_add(1, Ordering::Relaxed);
            answer
        };
        source.verify(&credentials(password), "192.0.2.1", pin!(pending()), log_in).await
    }

    #[tokio::test]
    async fn a_right_password_is_remembered_until_the_upstream_refuses_it() {
        let (source, logins) = (UpstreamSource::new(queue()), Arc::default());
        let yes = right(&credentials("sesame"));
        for (password, answer, expected, number) in [
            ("sesame", Verified::Unavailable, Verified::Unavailable, 1),
            ("sesame", wrong(), wrong(), 2),
            ("sesame", yes.clone(), yes.clone(), 3),
            ("sesame", wrong(), yes.clone(), 3),
            ("Sesame", wrong(), wrong(), 4),
            ("sesame", wrong(), yes.clone(), 4),
        ] {
            assert_eq!(verify(&source, password, answer, &logins).await, expected);
            assert_eq!(logins.load(Ordering::Relaxed), number);
        }
        source.forget("bob");
        assert_eq!(verify(&source, "sesame", wrong(), &logins).await, yes);
        source.forget("alice");
        assert_eq!(verify(&source, "sesame", wrong(), &logins).await, wrong());
        assert_eq!(logins.load(Ordering::Relaxed), 5);
    }

    #[tokio::test]
    async fn a_login_that_has_begun_counts_even_if_its_client_leaves() {
        let source = UpstreamSource::new(queue());
        let log_in = async {
            tokio::task::yield_now().await;
            wrong()
        };
        let verified = source.verify(&credentials("guess"), "192.0.2.1", pin!(ready(())), log_in).await;
        assert_eq!(verified, wrong());
    }

    #[tokio::test]
    async fn equal_logins_share_one_login_which_outlives_its_client() {
        let (source, go) = (Arc::new(UpstreamSource::new(queue())), Arc::new(Notify::new()));
        let logins = Arc::new(AtomicUsize::new(0));
        let begin = || {
            let (source, go, logins) = (source.clone(), go.clone(), logins.clone());
            let log_in = async move {
                logins.fetch_add(1, Ordering::Relaxed);
                go.notified().await;
                right(&credentials("sesame"))
            };
            tokio::spawn(
                async move { source.verify(&credentials("sesame"), "192.0.2.1", pin!(pending()), log_in).await },
            )
        };
        let (first, second) = (begin(), begin());
        while logins.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        first.abort();
        assert!(first.await.is_err());
        go.notify_one();
        assert_eq!(second.await.unwrap(), right(&credentials("sesame")));
        assert_eq!(logins.load(Ordering::Relaxed), 1);
        // A client that leaves while it waits for its turn causes no login.
        let mut busy = Vec::new();
        for n in 0..AT_ONCE {
            busy.push(source.turns.acquire(["192.0.2.7", "192.0.2.8"][n / AT_ONCE_PER_NETWORK]).await.unwrap());
        }
        assert!(!source.turns.is_free());
        let log_in = async { unreachable!("there is no turn") };
        let left = source.verify(&credentials("other"), "192.0.2.1", pin!(ready(())), log_in).await;
        assert_eq!(left, Verified::ClientLeft);
    }
}
