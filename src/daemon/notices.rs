//! Delivery of notices: connects the notifier with the relay and the state file.

use crate::clock;
use crate::notify::{Extent, Failure, Mailer, Notifier, OutgoingMail, Reader};
use crate::relay::Relay;
use crate::server::Server;
use crate::smtp::envelope::Rcpt;
use crate::store::audit::{Act, AuditRecord};
use std::sync::{Arc, Weak};
use tokio::sync::broadcast::error::RecvError;
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

/// Ends the episodes of budgets that administrators empty, as long as the server lives.
pub async fn follow_resets(server: Weak<Server>) {
    let of_server = |server: Arc<Server>| (server.notifier.clone(), server.store.acts());
    let Some((notifier, mut acts)) = server.upgrade().map(of_server) else { return };
    loop {
        match acts.recv().await {
            Ok(AuditRecord { act: Act::Reset, limit: Some(limit), owner, .. }) => {
                notifier.end_episodes(&limit, &owner, clock::now());
            }
            Err(RecvError::Closed) => break,
            // An episode whose reset is missed ends with its period.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
        }
    }
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
