//! The task that reads the configuration again: when it is told to, and when a file has changed.

use super::systemd;
use crate::accounts::file::Changed;
use crate::admin::Outcome;
use crate::clock;
use crate::config::{self, Config, ConfigError, Diagnostics, Setting, Severity};
use crate::policy::Policy;
use crate::server::Server;
use crate::store::{KEEP, Replaced};
use crate::time::format_duration;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// How often files are looked at.
const PACE: Duration = Duration::from_secs(2);

/// Takes limits, certificates and users from their files again. What is bad leaves the former in place.
pub struct Reloader {
    server: Arc<Server>,
    /// The configuration.
    path: PathBuf,
    /// What this process began with: some of it serves until it ends.
    began_with: Vec<Setting>,
    /// The files of the configuration read last, as they were then.
    watched: Vec<(PathBuf, Changed)>,
    /// What was said of the configuration that lies there, while it is bad.
    complaint: Option<String>,
    /// Policies that commands under way may still be decided by.
    former: Vec<Arc<Policy>>,
}

/// A way to tell the reloader.
#[derive(Clone)]
pub struct Orders(mpsc::Sender<oneshot::Sender<Outcome>>);

/// Why the configuration is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occasion {
    /// Somebody wants it.
    Told,
    /// A file is another than it was.
    Changed,
    /// It was bad. What is wrong may be put right where nobody looks, as when a file that it names is made.
    WasBad,
}

/// Why the configuration that lies there is bad.
struct Bad {
    /// As `weir check` draws it.
    drawn: String,
    /// In a line.
    line: String,
}

impl Orders {
    /// Has the configuration read again.
    pub async fn reload(&self) -> Outcome {
        let (answer, answered) = oneshot::channel();
        let answered = async {
            self.0.send(answer).await.ok()?;
            answered.await.ok()
        };
        answered.await.unwrap_or_else(|| Outcome::Unavailable("Weir is stopping\n".to_owned()))
    }
}

impl Reloader {
    pub fn new(server: Arc<Server>, path: PathBuf, settings: Vec<Setting>, watched: Vec<(PathBuf, Changed)>) -> Self {
        Self { server, path, began_with: settings, watched, complaint: None, former: Vec::new() }
    }

    /// Begins to look, and to take orders, until `stopping` turns true. A reload under way is ended first.
    pub fn start(mut self, mut stopping: watch::Receiver<bool>) -> (Orders, tokio::task::JoinHandle<()>) {
        let (orders, mut ordered) = mpsc::channel::<oneshot::Sender<Outcome>>(1);
        let task = async move {
            let mut ticks = interval(PACE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut stopped = std::pin::pin!(async { drop(stopping.wait_for(|stopping| *stopping).await) });
            loop {
                tokio::select! {
                    () = &mut stopped => break,
                    Some(answer) = ordered.recv() => {
                        // Nobody waits for the answer, where a signal told.
                        let _ = answer.send(self.read(Occasion::Told).await);
                    }
                    _ = ticks.tick() => self.look().await,
                }
            }
        };
        (Orders(orders), tokio::spawn(task))
    }

    /// Reads the configuration if a file has changed.
    async fn look(&mut self) {
        let unused: Vec<_> = self.former.extract_if(.., |policy| Arc::strong_count(policy) == 1).collect();
        let watched = self.watched.clone();
        let looked = spawn_blocking(move || {
            // With the lists of addresses that they may name, policies are made of very many pieces.
            drop(unused);
            looked_at(&watched)
        });
        let is_changed = looked.await.is_ok_and(|files| files != self.watched);
        if is_changed {
            self.read(Occasion::Changed).await;
        } else if self.complaint.is_some() {
            self.read(Occasion::WasBad).await;
        }
    }

    async fn read(&mut self, occasion: Occasion) -> Outcome {
        if occasion != Occasion::WasBad {
            systemd::reloading();
        }
        let (path, watched) = (self.path.clone(), self.watched.clone());
        let reading = spawn_blocking(move || (looked_at(&watched), read(&path))).await;
        let outcome = match reading {
            Ok((_, Ok((config, problems)))) => self.take(config, &problems),
            Ok((files, Err(bad))) => {
                self.watched = files;
                self.refuse(bad, occasion)
            }
            // It is reported by whoever panics.
            Err(_) => Outcome::Unavailable("a fault of Weir's own: the log says more\n".to_owned()),
        };
        if occasion != Occasion::WasBad {
            if let Some(certificates) = &self.server.certificates {
                certificates.clone().reload().await;
            }
            if let Some(accounts) = &self.server.accounts {
                accounts.reload(occasion == Occasion::Told).await;
            }
            systemd::ready();
        }
        outcome
    }

    /// From now on this configuration is in force, as far as it can be. `problems` are those of all files that it names.
    fn take(&mut self, config: Config, problems: &Diagnostics) -> Outcome {
        let Config { policy, relay, settings, watched, .. } = config;
        let limits = policy.limits.len();
        let Replaced { former, gone, inert } = self.server.store.set_policy(policy);
        self.former.push(former);
        self.watched = watched;
        self.complaint = None;
        self.server.metrics.config_good.set(1);
        self.server.metrics.reloads.with_label_values(&["taken"]).inc();
        tracing::info!(limits, "limits read again");
        let unusable = self.server.relay.set_upstreams(&relay).err();
        if let Some(error) = &unusable {
            tracing::error!(%error, "upstreams not taken: the former ones stay");
        }
        let changed = config::needs_restart(&self.began_with, &settings).join(", ");
        if !changed.is_empty() {
            tracing::warn!("needs a restart: {changed}");
        }
        let words = self.words(limits, &gone, &inert, &changed);
        if let Some(error) = unusable {
            return Outcome::Refused(format!("{words}upstreams not taken: the former ones stay: {error}\n"));
        }
        match problems.render(false) {
            drawn if drawn.is_empty() => Outcome::Done(words),
            drawn if !problems.has_errors() => Outcome::Done(format!("{drawn}\n\n{words}")),
            drawn => {
                let error = first_error(problems);
                tracing::warn!(error, "with the files that it names, this configuration cannot be started");
                Outcome::Refused(format!(
                    "{drawn}\n\n{words}what is wrong with other files leaves the former in place\n"
                ))
            }
        }
    }

    fn words(&self, limits: usize, gone: &[String], inert: &[String], changed: &str) -> String {
        let noun = if limits == 1 { "limit" } else { "limits" };
        let mut words = format!("{}: read again: {limits} {noun}\n", self.path.display());
        let keep = format_duration(KEEP);
        for limit in gone {
            words += &format!("no such limit any more: {limit}: its budgets are kept for {keep}, if it comes back\n");
        }
        inert.iter().for_each(|grant| words += &format!("{grant}\n"));
        if !changed.is_empty() {
            words += &format!("needs a restart: {changed}\n");
        }
        words
    }

    /// All limits stay. What has been said already is not said again.
    fn refuse(&mut self, bad: Bad, occasion: Occasion) -> Outcome {
        self.server.metrics.config_good.set(0);
        if occasion != Occasion::WasBad || self.complaint.as_ref() != Some(&bad.drawn) {
            self.server.metrics.reloads.with_label_values(&["refused"]).inc();
            tracing::error!(error = bad.line, "limits and upstreams not taken: the former ones stay");
        }
        let words =
            format!("{}\n\n{}: not taken: the former limits and upstreams stay\n", bad.drawn, self.path.display());
        self.complaint = Some(bad.drawn);
        Outcome::Refused(words)
    }
}

/// The files as they are at the moment.
fn looked_at(files: &[(PathBuf, Changed)]) -> Vec<(PathBuf, Changed)> {
    files.iter().map(|(path, _)| (path.clone(), Changed::of(path))).collect()
}

/// Reads a configuration, and the files that it names to see what is wrong with them. That blocks.
fn read(path: &Path) -> Result<(Config, Diagnostics), Bad> {
    match config::read(path) {
        Ok(config) => {
            let problems = config.check_files(clock::now());
            Ok((config, problems))
        }
        Err(ConfigError::Io(path, error)) => {
            let line = format!("{}: {error}", path.display());
            Err(Bad { drawn: format!("error: {line}"), line })
        }
        Err(ConfigError::Diagnostics(problems)) => Err(Bad {
            drawn: problems.render(false),
            line: format!("{}: {}; weir check says more", problems.path.display(), first_error(&problems)),
        }),
    }
}

fn first_error(problems: &Diagnostics) -> &str {
    let first = problems.found.iter().find(|problem| problem.severity == Severity::Error);
    first.map_or("", |problem| &problem.message)
}
