//! `weir egress allow`, `deny` and `remove`, and the reading of the register.

use super::Term;
use crate::admin::egress::register::{
    EgressActAnswer, EgressAnswer, EgressCheck, EgressLine, QuarantineRequest, RegisterRequest, WayState, Ways,
    described,
};
use crate::cli::control_client::{self, AskError, TIMEOUT};
use crate::cli::exceptions::{act_checked, seconds};
use crate::cli::{CommandError, ConfigArgument, exit, print_text, read_config};
use crate::clock;
use crate::policy::egress::EgressEntry;
use crate::store::dump::read_egress;
use clap::Args;
use std::path::Path;
use std::time::Duration;

#[derive(Args)]
pub struct Allow {
    /// The address or network, such as 192.0.2.7 or 2001:db8::/56
    network: String,
    /// The person or office that is responsible for it
    #[arg(long)]
    owner: String,
    /// Let it connect to mail servers outside; the default, unless --in is given
    #[arg(long)]
    out: bool,
    /// Let mail servers outside connect to it
    #[arg(long = "in")]
    incoming: bool,
    #[command(flatten)]
    term: Term,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Args)]
pub struct Deny {
    /// The address or network, such as 192.0.2.7 or 2001:db8::/56
    network: String,
    /// The person or office that is responsible for it
    #[arg(long, default_value = "", hide_default_value = true)]
    owner: String,
    #[command(flatten)]
    term: Term,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Args)]
pub struct Remove {
    /// The address or network, as weir egress list prints it
    network: String,
    /// Remove its quarantine, not its registration
    #[arg(long)]
    quarantine: bool,
    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    config: ConfigArgument,
}

pub fn allow(Allow { network, owner, out, incoming, term, config }: Allow) -> Result<(), CommandError> {
    let ways = match (out, incoming) {
        (true, true) => Ways::OutAndIn,
        (false, true) => Ways::In,
        (_, false) => Ways::Out,
    };
    let Term { time, until_removed, reason, force } = term;
    let for_seconds = time.as_deref().map(seconds).transpose()?;
    let mut request = RegisterRequest { network, ways, owner, for_seconds, until_removed, reason, force };
    act_checked(|force| {
        request.force |= force;
        let answer = control_client::post(&config.config, "/v1/egress/registrations", &request);
        answer.map(|answer: EgressActAnswer| answer.message)
    })
}

pub fn deny(Deny { network, owner, term, config }: Deny) -> Result<(), CommandError> {
    let Term { time, until_removed, reason, force } = term;
    let for_seconds = time.as_deref().map(seconds).transpose()?;
    let mut request = QuarantineRequest { network, owner, for_seconds, until_removed, reason, force };
    act_checked(|force| {
        request.force |= force;
        let answer = control_client::post(&config.config, "/v1/egress/quarantines", &request);
        answer.map(|answer: EgressActAnswer| answer.message)
    })
}

pub fn remove(Remove { network, quarantine, reason, config }: &Remove) -> Result<(), CommandError> {
    let path = if *quarantine { "/v1/egress/quarantines" } else { "/v1/egress/registrations" };
    let query = [("network", Some(&**network)), ("reason", reason.as_deref())];
    let answer: EgressActAnswer = control_client::delete(&config.config, &control_client::with_query(path, &query))?;
    print_text(&answer.message)
}

/// Asks the running Weir for the register. With the `known` revision, the answer has no entries if nothing has changed.
/// Waits for at most `limit`.
pub fn fetch(config: &Path, known: Option<&str>, limit: Duration) -> Result<EgressAnswer, AskError> {
    control_client::get_within(config, &control_client::with_query("/v1/egress", &[("known", known)]), limit)
}

/// Returns the entries of an answer, and a quarantine for each suspension; `None` if nothing has changed.
pub fn entries(answer: &EgressAnswer) -> Result<Option<Vec<EgressEntry>>, CommandError> {
    let (Some(entries), Some(suspensions)) = (&answer.entries, &answer.suspensions) else { return Ok(None) };
    parsed(entries.iter().chain(suspensions)).map(Some)
}

fn parsed<'a>(lines: impl Iterator<Item = &'a EgressLine>) -> Result<Vec<EgressEntry>, CommandError> {
    let entries = lines.map(EgressEntry::try_from).collect::<Result<_, _>>();
    entries.map_err(|why| CommandError::new(exit::DATA, format!("the running Weir answers: {why}")))
}

/// Returns all entries, with a quarantine for each suspension: of the running Weir, or of the state file if no Weir
/// runs.
pub fn read(config: &Path) -> Result<Vec<EgressEntry>, CommandError> {
    match fetch(config, None, TIMEOUT) {
        Ok(answer) => Ok(entries(&answer)?.unwrap_or_default()),
        Err(AskError::Failed(error)) if error.code == exit::UNAVAILABLE => {
            let path = read_config(config)?.state.path;
            let read = read_egress(&path);
            read.map_err(|why| CommandError::new(exit::UNAVAILABLE, format!("{}, and {why}", error.words)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the register for people.
pub fn listed(entries: &[EgressLine], suspensions: &[EgressLine]) -> Result<String, CommandError> {
    if entries.is_empty() && suspensions.is_empty() {
        return Ok("the register is empty, and no client is suspended\n".to_owned());
    }
    let now = clock::now();
    let mut text = String::new();
    for (title, lines) in [("register", entries), ("suspended clients", suspensions)] {
        if !lines.is_empty() {
            text += &format!("{title}: {}\n", lines.len());
        }
        for entry in parsed(lines.iter())? {
            text += &format!("  {}\n", described(&entry, now));
        }
    }
    Ok(text)
}

/// Returns the ways of an address for people, and whether it may connect to mail servers outside. `is_open`:
/// unregistered addresses may receive mail.
pub fn checked(check: &EgressCheck, is_open: bool) -> Result<(String, bool), CommandError> {
    let now = clock::now();
    let line = |state: WayState, entry: &Option<EgressLine>, is_open: bool| {
        let entries = parsed(entry.iter())?;
        let entry = entries.first().map_or_else(String::new, |entry| format!(": {}", described(entry, now)));
        Ok::<_, CommandError>(match (state, is_open) {
            (WayState::Registered, _) => format!("open, registered{entry}"),
            (WayState::Quarantined, _) => format!("closed{entry}"),
            (WayState::Unregistered, true) => "open, not registered".to_owned(),
            (WayState::Unregistered, false) => "closed, not registered".to_owned(),
        })
    };
    let (out, incoming) = (line(check.out, &check.out_entry, false)?, line(check.r#in, &check.in_entry, is_open)?);
    let text = format!("{}\n  out  {out}\n  in   {incoming}\n", check.address);
    Ok((text, check.out == WayState::Registered))
}
