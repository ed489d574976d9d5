//! Reading of budgets from Redis: states first, then the filters that this node does not have yet.

use super::cells::{Confirmed, ReadBudget, ReadFilter, Wanted};
use super::connection::Connection;
use super::value::{self, FilterExtent, VERSION_OCTETS};
use crate::engine::distinct::{Filter, Value as Seen};
use crate::store::journal;
use redis::{Cmd, Value, cmd};
use std::sync::Arc;

/// Number of attempts to read a filter that another node writes at the same time.
const ATTEMPTS: usize = 3;

/// Reads budgets. Returns an error with the reason if a state cannot be read.
pub async fn read(connection: &Connection, mut wanted: Vec<Wanted>) -> Result<Vec<ReadBudget>, String> {
    let mut read = Vec::with_capacity(wanted.len());
    for attempt in 1..=ATTEMPTS {
        let states = states(connection, wanted.iter().map(|one| &*one.names.state)).await?;
        let mut of_filters = Vec::new();
        for (one, state) in wanted.drain(..).zip(states) {
            let confirmed = Confirmed::decode(state.as_deref());
            match confirmed.filter {
                None => read.push(ReadBudget { key: one.key, confirmed, filter: ReadFilter::None }),
                Some(extent) => of_filters.push((one, confirmed, extent)),
            }
        }
        wanted = read_filters(connection, of_filters, attempt == ATTEMPTS, &mut read).await?;
        if wanted.is_empty() {
            break;
        }
    }
    Ok(read)
}

/// Reads the octets of the states with these names. Returns an error with the reason if one cannot be read.
pub async fn states<'n>(
    connection: &Connection,
    names: impl Iterator<Item = &'n [u8]>,
) -> Result<Vec<Option<Vec<u8>>>, String> {
    send(connection, names.map(get).collect()).await
}

/// Reads filters, and appends the budgets to `read`. Returns the budgets whose filter another node has written since the
/// state was read. If this is the last attempt, the filter of such a budget is lost.
async fn read_filters(
    connection: &Connection,
    budgets: Vec<(Wanted, Confirmed, FilterExtent)>,
    is_last: bool,
    read: &mut Vec<ReadBudget>,
) -> Result<Vec<Wanted>, String> {
    let mut commands = Vec::new();
    for (one, _, extent) in &budgets {
        let known = known(one, *extent);
        if known.is_none() {
            commands.push(get(&one.names.filter()));
        }
        let from = known.map_or(0, |known| known.log);
        commands.push(range(&one.names.log(), from, extent.log));
    }
    let mut replies = send(connection, commands).await?.into_iter();
    let (mut again, mut next) = (Vec::new(), || replies.next().flatten());
    for (one, confirmed, extent) in budgets {
        let known = known(&one, extent);
        let whole = if known.is_none() { next() } else { None };
        let log = next().unwrap_or_default();
        let values = (log.len() == (extent.log - known.map_or(0, |known| known.log)) as usize).then(|| values(&log));
        let filter = match (known, values) {
            (Some(known), Some(values)) => Some(ReadFilter::Learnt(known, values)),
            (None, Some(values)) => whole.and_then(|whole| decode(&whole, extent.base, values)).map(ReadFilter::Whole),
            (_, None) => None,
        };
        match filter {
            Some(filter) => read.push(ReadBudget { key: one.key, confirmed, filter }),
            None if is_last => {
                tracing::warn!(budget = %one.key, "the values that a shared budget has seen are lost in Redis");
                let confirmed = Confirmed { filter: None, ..confirmed };
                read.push(ReadBudget { key: one.key, confirmed, filter: ReadFilter::None });
            }
            None => again.push(Wanted { filter: None, ..one }),
        }
    }
    Ok(again)
}

/// Returns the extent of the filter that the copy has, if the rest can be read from the log.
fn known(wanted: &Wanted, extent: FilterExtent) -> Option<FilterExtent> {
    wanted.filter.filter(|known| known.base == extent.base && known.log <= extent.log)
}

fn decode(whole: &[u8], base: u64, values: Vec<Seen>) -> Option<Arc<Filter>> {
    let octets = whole.get(VERSION_OCTETS..).filter(|_| value::version(whole) == Some(base))?;
    let mut filter = journal::unseal_seen(octets)?;
    values.into_iter().for_each(|value| Arc::make_mut(&mut filter).relearn(value));
    Some(filter)
}

fn values(log: &[u8]) -> Vec<Seen> {
    log.as_chunks().0.iter().map(|value| Seen::from_bytes(*value)).collect()
}

fn get(name: &[u8]) -> Cmd {
    let mut command = cmd("GET");
    command.arg(name);
    command
}

/// Returns the command that reads the octets from `from` up to `to`, which is not included.
fn range(name: &[u8], from: u32, to: u32) -> Cmd {
    let mut command = cmd("GETRANGE");
    // Redis counts the last octet in, and 1 to 0 is the empty range.
    match to.checked_sub(1).filter(|last| *last >= from) {
        Some(last) => command.arg(name).arg(from).arg(last),
        None => command.arg(name).arg(1).arg(0),
    };
    command
}

async fn send(connection: &Connection, commands: Vec<Cmd>) -> Result<Vec<Option<Vec<u8>>>, String> {
    let replies = connection.send(commands).await.map_err(|error| error.to_string())?;
    let octets = |reply: Result<Value, redis::RedisError>| match reply.map_err(|error| error.to_string())? {
        Value::Nil => Ok(None),
        Value::BulkString(octets) => Ok(Some(octets)),
        other => Err(format!("unexpected reply: {other:?}")),
    };
    replies.into_iter().map(octets).collect()
}
