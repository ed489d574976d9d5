//! Script that changes the budgets of one part of a group, if all of them have the expected versions. Redis runs it in one
//! step. The script computes nothing: the states come from the engine.

use super::cells::{FilterWrite, Part, Reply, SentCell};
use super::connection::Connection;
use redis::{Cmd, RedisResult, Script, ServerErrorKind, Value, cmd};
use std::sync::LazyLock;
use std::time::Duration;

/// The keys are the states, and then the filter and the log of each filter that changes. The arguments are the number of
/// states; for each state the expected version (empty: there is none), the new state (empty: it stays), and its lifetime
/// in milliseconds; for each filter the kind of change, octets, and the lifetime. The reply is 1, or the states that the
/// budgets have.
const SOURCE: &str = "\
local n, same, states = tonumber(ARGV[1]), true, {}
for i = 1, n do
  states[i] = redis.call('GET', KEYS[i])
  local version = states[i] and string.sub(states[i], 1, 8) or ''
  if #version < 8 or version == '\\0\\0\\0\\0\\0\\0\\0\\0' then version = '' end
  if version ~= ARGV[3 * i - 1] then same = false end
end
if not same then return states end
for i = 1, n do
  if ARGV[3 * i] ~= '' then redis.call('SET', KEYS[i], ARGV[3 * i], 'PX', ARGV[3 * i + 1]) end
end
local at = 3 * n + 2
for i = n + 1, #KEYS, 2 do
  local kind, lifetime = ARGV[at], ARGV[at + 2]
  if kind == 'whole' then
    redis.call('SET', KEYS[i], ARGV[at + 1], 'PX', lifetime)
    redis.call('DEL', KEYS[i + 1])
  elseif kind == 'remove' then
    redis.call('DEL', KEYS[i], KEYS[i + 1])
  else
    if kind == 'append' then redis.call('APPEND', KEYS[i + 1], ARGV[at + 1]) end
    redis.call('PEXPIRE', KEYS[i], lifetime)
    redis.call('PEXPIRE', KEYS[i + 1], lifetime)
  end
  at = at + 3
end
return 1
";

static SHA1: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// Changes the budgets of these parts, and returns the reply to each part. Returns an error with the reason if Redis has
/// not done all of it.
pub async fn send(connection: &Connection, parts: &[&Part]) -> Result<Vec<Result<Reply, String>>, String> {
    let commands = parts.iter().map(|part| command(part, true)).collect();
    let mut replies = connection.send(commands).await.map_err(|error| error.to_string())?;
    let unknown: Vec<usize> = (0..replies.len()).filter(|index| is_unknown(&replies[*index])).collect();
    if !unknown.is_empty() {
        let commands = unknown.iter().map(|index| command(parts[*index], false)).collect();
        let again = connection.send(commands).await.map_err(|error| error.to_string())?;
        unknown.into_iter().zip(again).for_each(|(index, reply)| replies[index] = reply);
    }
    Ok(replies.into_iter().map(reply).collect())
}

/// Returns the command for a part. `is_known`: the server has the script; if it has not, it replies with an error for
/// which [`is_unknown`] returns true.
fn command(part: &Part, is_known: bool) -> Cmd {
    let mut command = match is_known {
        true => cmd("EVALSHA"),
        false => cmd("EVAL"),
    };
    command.arg(if is_known { SHA1.as_str() } else { SOURCE });
    let filters: Vec<(&SentCell, &FilterWrite, Duration)> = part.0.iter().filter_map(filter).collect();
    command.arg(part.0.len() + 2 * filters.len());
    part.0.iter().for_each(|sent| _ = command.arg(&*sent.names.state));
    for (sent, ..) in &filters {
        command.arg(sent.names.filter()).arg(sent.names.log());
    }
    command.arg(part.0.len());
    for sent in &part.0 {
        match sent.expected {
            0 => command.arg(""),
            version => command.arg(&version.to_le_bytes()),
        };
        match &sent.write {
            Some(write) => command.arg(&write.state[..]).arg(millis(write.lifetime)),
            None => command.arg("").arg(""),
        };
    }
    for (_, write, lifetime) in filters {
        let (kind, octets) = match write {
            FilterWrite::Whole(octets) => ("whole", &octets[..]),
            FilterWrite::Append(octets) => ("append", &octets[..]),
            FilterWrite::Remove => ("remove", &[][..]),
            FilterWrite::Keep | FilterWrite::None => ("keep", &[][..]),
        };
        command.arg(kind).arg(octets).arg(millis(lifetime));
    }
    command
}

/// Returns whether a reply says that the server does not have the script.
fn is_unknown(reply: &RedisResult<Value>) -> bool {
    reply.as_ref().is_err_and(|error| error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript))
}

/// Reads the reply to a part. Returns an error with the reason if it is no reply of the script.
fn reply(reply: RedisResult<Value>) -> Result<Reply, String> {
    let state = |value| match value {
        Value::Nil => Ok(None),
        Value::BulkString(octets) => Ok(Some(octets)),
        other => Err(format!("unexpected reply: {other:?}")),
    };
    match reply.map_err(|error| error.to_string())? {
        Value::Int(1) => Ok(Reply::Done),
        Value::Array(states) => states.into_iter().map(state).collect::<Result<_, _>>().map(Reply::Conflict),
        other => Err(format!("unexpected reply: {other:?}")),
    }
}

/// Returns the change of a budget's filter, if there is any, with the lifetime.
fn filter(sent: &SentCell) -> Option<(&SentCell, &FilterWrite, Duration)> {
    let write = sent.write.as_ref()?;
    (!matches!(write.filter, FilterWrite::None)).then_some((sent, &write.filter, write.lifetime))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
