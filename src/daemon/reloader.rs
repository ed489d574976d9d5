//! Task that reloads the configuration: on command, and when a file has changed.

use super::limit_metrics::show_limits;
use super::limit_texts::limit_texts;
use super::open_files;
use super::systemd;
use crate::accounts::file_metadata::FileMetadata;
use crate::admin::{ApiError, CurrentLimitTexts, ReloadOutcome, Reloaded};
use crate::clock;
use crate::config::{self, Config, ConfigError, Diagnostics, KnownDatabases, Setting, Severity};
use crate::log::LoggedState;
use crate::policy::Policy;
use crate::relay::UnusableError;
use crate::server::Server;
use crate::store::{KEEP, Replaced};
use crate::time::format_duration;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// Interval at which the files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Reloads limits, upstreams, certificates and users from their files. If the new configuration is bad, the former
/// configuration stays in force.
pub struct Reloader {
    server: Arc<Server>,
    /// The configuration file.
    path: PathBuf,
    /// Settings at the start of the process. Some of them stay in force until the process ends.
    began_with: Vec<Setting>,
    /// Files of the last configuration read, with their state at that time.
    watched: Vec<(PathBuf, FileMetadata)>,
    /// Databases of locations of the configuration in force.
    databases: KnownDatabases,
    /// Number of open files that the upstreams in force and the sessions need.
    needed_files: u64,
    /// Explanations of the limits in force, for the administration.
    limit_texts: CurrentLimitTexts,
    /// Diagnostics of the configuration file while the file is bad. They are logged once, not at each attempt to read
    /// the file.
    error: LoggedState<Option<String>>,
    /// Former policies. A running command perhaps still uses one of them.
    former: Vec<Arc<Policy>>,
}

/// Handle that asks the reloader to reload.
#[derive(Clone)]
pub struct ReloadHandle(mpsc::Sender<oneshot::Sender<ReloadOutcome>>);

/// Reason why the configuration is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trigger {
    /// An administrator or a signal asked for a reload.
    Command,
    /// A file has changed.
    Changed,
    /// The last attempt failed. The administrator has perhaps repaired a file that is not watched, such as a file that
    /// did not exist.
    WasBad,
}

/// Diagnostics of a bad configuration.
struct Bad {
    /// As `weir check` prints them.
    drawn: String,
    /// Summary in one line.
    line: String,
}

impl ReloadHandle {
    /// Asks for a reload, and waits for the outcome.
    pub async fn reload(&self) -> ReloadOutcome {
        let (answer, answered) = oneshot::channel();
        let answered = async {
            self.0.send(answer).await.ok()?;
            answered.await.ok()
        };
        answered.await.unwrap_or_else(|| not_in_force(ApiError::unavailable("Weir is stopping")))
    }
}

impl Reloader {
    pub fn new(
        server: Arc<Server>,
        path: PathBuf,
        settings: Vec<Setting>,
        watched: Vec<(PathBuf, FileMetadata)>,
        databases: KnownDatabases,
        limit_texts: CurrentLimitTexts,
        needed_files: u64,
    ) -> Self {
        let (error, former) = (LoggedState::default(), Vec::new());
        Self { server, path, began_with: settings, watched, databases, needed_files, limit_texts, error, former }
    }

    /// Spawns the task. When `stopping` becomes true, the task finishes a reload that is in progress, and ends.
    pub fn start(mut self, mut stopping: watch::Receiver<bool>) -> (ReloadHandle, tokio::task::JoinHandle<()>) {
        let (requests, mut requested) = mpsc::channel::<oneshot::Sender<ReloadOutcome>>(1);
        let server = self.server.clone();
        let task = async move {
            let mut ticks = interval(CHECK_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut stopped = std::pin::pin!(async { drop(stopping.wait_for(|stopping| *stopping).await) });
            loop {
                tokio::select! {
                    () = &mut stopped => break,
                    Some(answer) = requested.recv() => {
                        let outcome = self.read(Trigger::Command).await;
                        if outcome.is_in_force {
                            server.store.share_reload();
                        }
                        // If sending fails, the requester has stopped waiting, and the answer is not needed.
                        let _ = answer.send(outcome);
                    }
                    () = server.store.reload_of_another_node() => {
                        tracing::info!("another node was told to read its configuration again");
                        // The log has the outcome.
                        let _ = self.read(Trigger::Command).await;
                    }
                    _ = ticks.tick() => self.check_files().await,
                }
            }
        };
        (ReloadHandle(requests), tokio::spawn(task))
    }

    /// Reads the configuration if a file has changed, or if the last attempt failed.
    async fn check_files(&mut self) {
        let unused: Vec<_> = self.former.extract_if(.., |policy| Arc::strong_count(policy) == 1).collect();
        let watched = self.watched.clone();
        let looked = spawn_blocking(move || {
            // Drop on a blocking thread: a policy with long address lists has very many allocations.
            drop(unused);
            current_files(&watched)
        });
        let is_changed = looked.await.is_ok_and(|files| files != self.watched);
        let trigger = match is_changed {
            true => Trigger::Changed,
            false if self.error.get().is_some() => Trigger::WasBad,
            false => return,
        };
        // The log has the outcome.
        let _ = self.read(trigger).await;
    }

    async fn read(&mut self, trigger: Trigger) -> ReloadOutcome {
        if trigger != Trigger::WasBad {
            systemd::reloading();
        }
        let (path, watched, databases) = (self.path.clone(), self.watched.clone(), self.databases.clone());
        let reading = spawn_blocking(move || (current_files(&watched), read(&path, &databases))).await;
        let outcome = match reading {
            Ok((_, Ok((config, problems)))) => {
                ReloadOutcome { is_in_force: true, answer: self.take(config, &problems) }
            }
            Ok((files, Err(bad))) => {
                self.watched = files;
                not_in_force(self.refuse(bad, trigger))
            }
            // The panic itself is in the log.
            Err(_) => not_in_force(ApiError::unavailable("a fault of Weir's own: the log says more")),
        };
        if let Some(log) = self.server.decision_log.as_ref().filter(|_| trigger == Trigger::Command) {
            log.reopen();
        }
        if trigger != Trigger::WasBad {
            if let Some(certificates) = &self.server.certificates {
                certificates.clone().reload().await;
            }
            if let Some(accounts) = &self.server.accounts {
                accounts.reload(trigger == Trigger::Command).await;
            }
            systemd::ready();
        }
        outcome
    }

    /// Puts the new configuration in force, except for settings that need a restart. `problems`: diagnostics of the
    /// files that the configuration names.
    fn take(&mut self, config: Config, problems: &Diagnostics) -> Result<Reloaded, ApiError> {
        let texts = limit_texts(&config);
        let needed_files = open_files::needed(&config, self.server.options.max_connections);
        let Config { policy, notify, relay, settings, watched, databases, .. } = config;
        let limits = policy.limit_count();
        show_limits(&self.server.metrics, &policy);
        let Replaced { former, gone, inert } = self.server.store.set_policy(policy);
        self.limit_texts.set(texts);
        self.server.notifier.set_options(notify);
        self.former.push(former);
        (self.watched, self.databases) = (watched, databases);
        self.error.changes_to(None);
        self.server.metrics.service.config_taken(clock::now());
        self.server.metrics.service.reloads.with_label_values(&["taken"]).inc();
        tracing::info!(limits, "limits read again");
        let unusable = self.server.relay.set_upstreams(&relay).err();
        match &unusable {
            Some(error) => tracing::error!(%error, "upstreams refused: the former ones stay in force"),
            None => open_files::warn_if_too_few(needed_files, std::mem::replace(&mut self.needed_files, needed_files)),
        }
        let changed = config::needs_restart(&self.began_with, &settings).join(", ");
        if !changed.is_empty() {
            tracing::warn!("needs a restart: {changed}");
        }
        answer(limits, self.words(limits, &gone, &inert, &changed), unusable, problems)
    }

    fn words(&self, limits: usize, gone: &[String], inert: &[String], changed: &str) -> String {
        let noun = if limits == 1 { "limit" } else { "limits" };
        let mut words = format!("{}: read again: {limits} {noun}\n", self.path.display());
        let keep = format_duration(KEEP);
        for limit in gone {
            words += &format!("limit removed: {limit}: its budgets are kept for {keep}, in case it comes back\n");
        }
        inert.iter().for_each(|grant| words += &format!("{grant}\n"));
        if !changed.is_empty() {
            words += &format!("needs a restart: {changed}\n");
        }
        words
    }

    /// Refuses a bad configuration: the former configuration stays in force. Returns the error for an administrator.
    fn refuse(&mut self, bad: Bad, trigger: Trigger) -> ApiError {
        self.server.metrics.service.config_good.set(0);
        if self.error.changes_to(Some(bad.drawn.clone())) || trigger != Trigger::WasBad {
            self.server.metrics.service.reloads.with_label_values(&["refused"]).inc();
            tracing::error!(error = bad.line, "configuration refused: the former limits and upstreams stay in force");
        }
        let (drawn, file) = (bad.drawn, self.path.display());
        ApiError::refused(format!("{drawn}\n\n{file}: refused: the former limits and upstreams stay in force"))
    }
}

fn not_in_force(error: ApiError) -> ReloadOutcome {
    ReloadOutcome { is_in_force: false, answer: Err(error) }
}

/// Returns the answer to a reload that has put a configuration in force: `words`, and the errors in upstreams and other
/// files.
fn answer(
    limits: usize,
    words: String,
    unusable: Option<UnusableError>,
    problems: &Diagnostics,
) -> Result<Reloaded, ApiError> {
    if let Some(error) = unusable {
        let why = format!("{words}upstreams refused: the former ones stay in force: {error}");
        return Err(ApiError::refused(why));
    }
    let taken = |message| Ok(Reloaded { message, limits: limits as u64 });
    match problems.render(false) {
        drawn if drawn.is_empty() => taken(words),
        drawn if !problems.has_errors() => taken(format!("{drawn}\n\n{words}")),
        drawn => {
            let error = first_error(problems);
            tracing::warn!(error, "a restart with this configuration would fail");
            let why = format!("{drawn}\n\n{words}what is wrong with other files leaves the former in place");
            Err(ApiError::refused(why))
        }
    }
}

/// Returns the present state of the files.
fn current_files(files: &[(PathBuf, FileMetadata)]) -> Vec<(PathBuf, FileMetadata)> {
    files.iter().map(|(path, _)| (path.clone(), FileMetadata::of(path))).collect()
}

/// Reads a configuration, and checks the files that it names. Blocks.
fn read(path: &Path, databases: &KnownDatabases) -> Result<(Config, Diagnostics), Bad> {
    match config::read_again(path, databases) {
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
