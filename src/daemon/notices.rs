//! Delivery of notices: connects the notifier with the relay and the state file.

use crate::notify::{Extent, Failure, Mailer, Notifier, OutgoingMail, Reader};
use crate::relay::Relay;
use crate::server::Server;
use crate::smtp::envelope::Rcpt;
use std::sync::{Arc, Weak};
use tokio::task::JoinHandle;

/// Reads the stored notices, and starts the task that delivers notices.
pub async fn start(server: &Arc<Server>) -> JoinHandle<()> {
    let notifier = server.notifier.clone();
    let (read, weak) = (reader(server), Arc::downgrade(server));
    let mailer: Mailer = Arc::new(move |mail| {
        let server = weak.clone();
        Box::pin(async move {
            match server.upgrade() {
                Some(server) => send(&server.relay, mail).await,
                None => Err(Failure::of_target("Weir is stopping".to_owned())),
            }
        })
    });
    // Before the first client can connect, so that no episode of the last process begins a second time.
    let is_loaded = notifier.load(&read).await;
    tokio::spawn(Notifier::run(notifier, mailer, read, is_loaded))
}

fn reader(server: &Arc<Server>) -> Reader {
    let server: Weak<Server> = Arc::downgrade(server);
    Arc::new(move || {
        let server = server.clone();
        Box::pin(async move {
            let server = server.upgrade().ok_or_else(|| "Weir is stopping".to_owned())?;
            server.store.stored_notices().await
        })
    })
}

/// Sends a mail through the upstreams.
pub async fn send(relay: &Relay, mail: OutgoingMail) -> Result<(), Failure> {
    let OutgoingMail { to, message, id } = mail;
    let permanent = |why| Failure { why, extent: Extent::Delivery, is_permanent: true };
    let recipient = Rcpt::parse(&format!("TO:<{to}>")).map_err(|_| permanent(format!("{to} is no mail address")))?;
    let reply = relay.send_own(&recipient, &message, id).await;
    let reply = reply.map_err(|error| Failure::of_target(error.to_string()))?;
    match reply.code() {
        200..300 => Ok(()),
        500.. => Err(permanent(reply.to_string())),
        _ => Err(Failure { why: reply.to_string(), extent: Extent::Delivery, is_permanent: false }),
    }
}
