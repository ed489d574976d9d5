//! Simulation: sends recorded mail of the past through a policy, and counts the refusals that each limit would have
//! caused.

mod attack;
mod axis;
mod flood;
mod history_csv;
mod origin;
mod plot;
mod replay;
mod report;
mod tally;
mod threads;
mod totals;

use crate::policy::Policy;
pub use attack::{
    AttackError, AttackKind, AttackOptions, AttackResults, AttackRun, Attacks, Scene, report_json, report_text,
};
pub use flood::Flood;
pub use history_csv::{BadRows, History, Message, MissingUser, ReadError};
use origin::Origin;
use plot::Traffic;
pub use replay::{AccountFacts, Accounts, Outcome, Replay, disable_incomplete};
use std::io::Write;
use std::path::Path;
pub use tally::Tally;
use threads::Part;
pub use totals::RefusedRecipients;
use totals::Totals;

/// Simulation of a policy with a history and possibly a flood.
pub struct Simulation {
    policy: Policy,
    /// Names of the limits for the report, in the order of the policy.
    titles: Vec<String>,
    part: Part,
    /// Messages and refusals of each user, if a plot is to be drawn.
    traffic: Option<Traffic>,
    flood: Option<Flood>,
}

/// Error that stops a simulation before the end of the history.
#[derive(Debug)]
pub enum ReplayError {
    /// The rest of the history cannot be read.
    History(ReadError),
    /// The file of decisions cannot be written.
    Output(std::io::Error),
}

impl Simulation {
    /// Creates a simulation. `accounts` returns the account of a user; `None` means that the accounts are not known.
    pub fn new(mut policy: Policy, accounts: Option<Accounts>, flood: Option<Flood>) -> Self {
        let titles = (0..policy.limits.len()).map(|place| policy.display_name(place)).collect();
        let missing = disable_incomplete(&mut policy);
        let replay = Replay::new(&policy, accounts, &missing);
        let part = Part { replay, totals: Totals::default() };
        Self { policy, titles, part, traffic: None, flood }
    }

    /// Makes [`Simulation::run`] collect the traffic for [`Simulation::draw`]. Returns an error if no limit of the
    /// policy can be drawn.
    pub fn collect_traffic(&mut self) -> Result<(), String> {
        plot::check(&self.policy)?;
        self.traffic = Some(Traffic::new(self.policy.limits.len()));
        Ok(())
    }

    /// Draws the traffic into a file, if it was collected.
    pub fn draw(&self, path: &Path) -> Result<(), String> {
        self.traffic.as_ref().map_or(Ok(()), |traffic| traffic.draw(path, &self.policy, &self.part.replay.tallies))
    }

    pub fn is_empty(&self) -> bool {
        self.part.totals.messages == 0
    }

    /// Returns a warning if no row of the history names a user; `None` if a row names one.
    pub fn missing_users(&self) -> Option<&'static str> {
        let is_user = |origin: &Origin| matches!(origin, Origin::User(_));
        (!self.is_empty() && !self.part.totals.origins.iter().any(is_user)).then_some(
            "the history names no user: all mail is replayed without a login, and limits per user do not apply; with \
             --sender-as-user each sender is taken as the user",
        )
    }

    /// Returns a warning if the flood cannot show what it is for: no mail of the history is of its account, or the history
    /// has no mail at its time.
    pub fn flood_doubt(&self) -> Option<String> {
        let flood = self.flood.as_ref().filter(|_| !self.is_empty())?;
        let doubts = [
            (!self.part.totals.origins.contains(&Origin::User(flood.user.clone())))
                .then(|| format!("no mail of the history is of the user {}", flood.user)),
            (!self.part.totals.spans(flood.from))
                .then(|| format!("the flood begins at {}, where the history has no mail", flood.from.rfc3339())),
        ];
        let doubts: Vec<String> = doubts.into_iter().flatten().collect();
        (!doubts.is_empty())
            .then(|| format!("{}: limits that learn from the account's mail know nothing of it", doubts.join("; ")))
    }

    /// Sends all messages of the history and the flood through the policy. Writes each decision to `decisions`, if
    /// given, as a line of JSON.
    pub fn run(&mut self, history: &mut History, mut decisions: Option<&mut impl Write>) -> Result<(), ReplayError> {
        let is_in_order = self.flood.is_some() || self.traffic.is_some() || decisions.is_some();
        let threads = if is_in_order { 1 } else { threads::number(&self.policy, history) };
        if threads > 1 {
            return self.run_divided(history, threads).map_err(ReplayError::History);
        }
        for number in 0.. {
            let Some((mut message, is_flood)) = self.next(history).map_err(ReplayError::History)? else { break };
            message.number = number;
            let outcome = self.part.replay.send(&message, is_flood);
            match self.flood.as_mut().filter(|_| is_flood) {
                Some(flood) => flood.note(message.at, &outcome),
                None => {
                    let is_attacked = self.flood.as_ref().is_some_and(|flood| flood.attacks(&message));
                    self.part.totals.add(&message, &outcome, is_attacked);
                }
            }
            if let Some(traffic) = &mut self.traffic {
                traffic.add(&message, &self.part.replay.tallies);
            }
            if let Some(out) = &mut decisions {
                report::print_json(out, &self.policy, &message, &outcome).map_err(ReplayError::Output)?;
            }
        }
        Ok(())
    }

    /// Does the same as [`Simulation::run`] in several threads, without a flood, a plot or decisions in their order.
    fn run_divided(&mut self, history: &mut History, threads: usize) -> Result<(), ReadError> {
        let parts = vec![self.part.clone(); threads];
        let (parts, result) = threads::run(&self.policy, history, parts);
        self.part = parts.into_iter().fold(self.part.clone(), Part::and);
        result
    }

    /// Returns the earlier of two messages: the next message of the history, or the next message of the flood. Also
    /// returns whether this message is from the flood.
    fn next(&mut self, history: &mut History) -> Result<Option<(Message, bool)>, ReadError> {
        let at = self.flood.as_ref().and_then(Flood::next_at);
        if let (Some(flood), Some(at)) = (&mut self.flood, at)
            && history.next_at().is_none_or(|next| at < next)
        {
            return Ok(Some((flood.next(at), true)));
        }
        Ok(history.next_message()?.map(|message| (message, false)))
    }
}
