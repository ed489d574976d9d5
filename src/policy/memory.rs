//! Memories: the recipients to which mail of an owner was delivered lately. A limit with `known-to` does not count these
//! recipients.
//!
//! All limits with the same `known-to` share one memory. A memory learns a recipient only when the upstream has accepted
//! a message to this recipient, so a refusal never makes a recipient known. A store keeps a memory like a budget that has
//! no level. A memory for many users is divided into shards, so that a decision needs only a small part of it.

use super::budgets::{Budget, KeyRef, SEPARATOR};
use super::matching::{Field, NormalizedFacts, Widths};
use crate::engine::State;
use crate::engine::distinct::{self, Value};
use crate::time::Timestamp;
use std::fmt::Write as _;
use std::time::Duration;

/// Value of `known-to`: the owners of memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownTo {
    /// Each value of this field has a memory.
    Each(Field),
    /// One memory serves the whole site.
    All,
}

/// Memory that limits name with `known-to`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    pub known_to: KnownTo,
    /// Rule of the filter of one shard.
    rule: distinct::Rule,
}

/// `[memory]`: time to remember and sizes of all memories.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryRules {
    /// Time for which a recipient is remembered after the last delivery. Recipients are forgotten at the latest after
    /// twice this time.
    pub remember: Duration,
    /// Maximum number of recipients of one user, client or sender.
    pub recipients: usize,
    /// Maximum number of recipients of one domain.
    pub domain_recipients: usize,
    /// Maximum number of recipients of the whole site.
    pub site_recipients: usize,
}

/// First part of a memory's key. It is not the name of a limit, because such names contain no space.
const NAME: &str = " memory";
/// Second part of a memory's key, in place of a limit's count.
const COUNT: &str = "recipients";

/// Word for the memory of the whole site in the configuration.
const ALL: &str = "all";

impl Default for MemoryRules {
    fn default() -> Self {
        Self {
            remember: Duration::from_secs(180 * 86_400),
            recipients: 20_000,
            domain_recipients: 200_000,
            site_recipients: 5_000_000,
        }
    }
}

impl MemoryRules {
    pub fn memory(&self, known_to: KnownTo) -> Memory {
        let most = match known_to {
            KnownTo::All => self.site_recipients,
            KnownTo::Each(field) if is_of_domain(field) => self.domain_recipients,
            KnownTo::Each(_) => self.recipients,
        };
        let rule = distinct::Rule::bounded(most.div_ceil(known_to.shards() as usize), self.remember);
        Memory { known_to, rule }
    }
}

impl KnownTo {
    pub const VALUES: [Self; 6] = [
        Self::Each(Field::User),
        Self::Each(Field::UserDomain),
        Self::Each(Field::Client(Widths::USUAL)),
        Self::Each(Field::Sender),
        Self::Each(Field::SenderDomain),
        Self::All,
    ];

    /// Returns the word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Each(field) => field.word(),
            Self::All => ALL,
        }
    }

    /// Parses a word of the configuration.
    pub fn parse(word: &str) -> Option<Self> {
        Self::VALUES.into_iter().find(|value| value.name() == word)
    }

    /// Returns the number of shards of a memory. It is constant, because another number would give every recipient
    /// another key.
    fn shards(self) -> u32 {
        match self {
            Self::All => 256,
            Self::Each(field) if is_of_domain(field) => 16,
            Self::Each(_) => 1,
        }
    }
}

impl Memory {
    /// Third part of a key, in place of the name of a limit's algorithm.
    pub const ALGORITHM: &str = "known";
    /// Name of the last part of a key, which contains the number of a shard.
    pub const SHARD: &str = "shard";

    pub fn remember(&self) -> Duration {
        self.rule.remember().unwrap_or_default()
    }

    /// Returns the rule of the filter of one shard.
    pub(super) fn rule(&self) -> distinct::Rule {
        self.rule
    }

    fn owner(&self) -> Option<Field> {
        if let KnownTo::Each(field) = self.known_to { Some(field) } else { None }
    }

    /// Returns the kind of the memory's keys. See [`Key::kind`].
    pub fn kind(&self) -> String {
        let owner = self.owner().map(Field::word);
        let shard = (self.known_to.shards() > 1).then_some(Self::SHARD);
        [NAME, COUNT, Self::ALGORITHM].into_iter().chain(owner).chain(shard).collect::<Vec<_>>().join("/")
    }

    /// Returns the number of the shard, from 0, that has room for a recipient.
    pub(super) fn shard(&self, value: Value) -> u32 {
        value.shard(self.known_to.shards())
    }

    /// Writes the key of the shard that has room for a recipient to `buffer`. Returns an error with the field of the
    /// owner if the facts do not have this field.
    pub(super) fn key<'b>(
        &self,
        facts: &NormalizedFacts<'_>,
        value: Value,
        buffer: &'b mut String,
    ) -> Result<KeyRef<'b>, Field> {
        buffer.clear();
        for part in [NAME, COUNT, Self::ALGORITHM] {
            if !buffer.is_empty() {
                buffer.push(SEPARATOR);
            }
            buffer.push_str(part);
        }
        if let Some(field) = self.owner() {
            let owner = field.value(facts, None).ok_or(field)?;
            buffer.extend([SEPARATOR.encode_utf8(&mut [0; 4]), field.word(), "=", &owner]);
        }
        if self.known_to.shards() > 1 {
            // Writing to a text never fails.
            let _ = write!(buffer, "{SEPARATOR}{}={:02x}", Self::SHARD, self.shard(value));
        }
        Ok(KeyRef::of_text(buffer))
    }

    /// Returns whether a store can delete a shard: its filter, whose newer generation began at `epoch`, knows no
    /// recipient any more.
    pub(super) fn has_forgotten(&self, epoch: Option<Timestamp>, now: Timestamp) -> bool {
        epoch.is_none_or(|epoch| self.rule.is_over(epoch, now))
    }

    /// Merges two states of one shard. `counted` began empty while `stored` could not be read.
    pub(super) fn merged(stored: Budget, counted: Budget) -> Budget {
        let at = stored.state.at.max(counted.state.at);
        Budget { state: State { at, level: 0.0 }, ..stored.united(counted) }
    }
}

fn is_of_domain(field: Field) -> bool {
    matches!(field, Field::UserDomain | Field::SenderDomain)
}
