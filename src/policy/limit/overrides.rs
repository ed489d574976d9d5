//! Overrides: other rates for some owners, from the rows of a table.

use super::quota::Quota;
use crate::policy::matching::{Field, Networks, PatternTable, Subject};
use std::sync::Arc;

/// Overrides of a limit. An override changes the rate for an owner, and not the key of the owner's budget.
#[derive(Debug)]
pub struct Overrides {
    /// File name, as written in the configuration.
    pub file: Box<str>,
    /// Rows, shared by the limits that name the same file.
    pub rows: Arc<OverrideRows>,
    /// Quotas of this limit: for each row of the file, one quota for each rate of the limit.
    quotas: Box<[Quota]>,
    rates: usize,
}

/// Rows, which are found by the field that the first column of the file names.
#[derive(Debug)]
pub enum OverrideRows {
    Field(Field, PatternTable<OverrideRow>),
    Group(PatternTable<OverrideRow>),
    Client(Networks<OverrideRow>),
}

/// Row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverrideRow {
    /// Index of the row, from 0.
    pub index: usize,
    /// Line in the file, from 1.
    pub line: usize,
}

impl Overrides {
    /// Creates the overrides of a limit that has `rates` rates. `rates` must be above 0. `quotas` has `rates` entries
    /// for each row, in the order of the rows.
    pub fn new(file: &str, rows: Arc<OverrideRows>, quotas: Vec<Quota>, rates: usize) -> Self {
        Self { file: file.into(), rows, quotas: quotas.into(), rates }
    }

    /// Returns whether both overrides give the same rates to the same owners.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows) && (self.rates, &self.quotas) == (other.rates, &other.quotas)
    }

    /// Returns the quota that a row gives for the rate with the index `ordinal`.
    pub fn quota(&self, row: OverrideRow, ordinal: usize) -> Option<&Quota> {
        self.quotas.get(row.index * self.rates + ordinal)
    }

    /// Returns the quotas of all rows for the rate with the index `ordinal`.
    pub fn quotas(&self, ordinal: usize) -> impl Iterator<Item = Quota> {
        self.quotas.iter().skip(ordinal).step_by(self.rates).copied()
    }
}

impl OverrideRows {
    /// Returns the row that applies: the row with exactly this value, if there is one. Otherwise the matching row with
    /// the longest network prefix, or with the pattern that has the most characters other than `*`.
    pub fn find(&self, subject: Subject<'_, '_>) -> Option<OverrideRow> {
        let Subject { facts, recipient, .. } = subject;
        let row = match self {
            Self::Field(field, table) => table.find(&field.value(facts, recipient)?),
            Self::Group(table) => facts.groups().find_map(|group| table.find(group)),
            Self::Client(networks) => networks.find(facts.client()?),
        };
        row.copied()
    }

    /// Returns the row that applies to an owner of budgets; `None` if no row applies. `groups` are the groups of the
    /// owner's account, if they are known. Returns an error with the name of the column if the owner does not tell which
    /// row applies.
    pub fn find_for_owner<'o>(
        &self,
        mut owner: impl Iterator<Item = (&'o str, &'o str)>,
        groups: Option<&[Box<str>]>,
    ) -> Result<Option<OverrideRow>, &'static str> {
        let mut value = |word: &str| {
            let is_of_field = |field: &str| field.split('/').next() == Some(word);
            owner.find(|(field, _)| is_of_field(field)).map(|(_, value)| value)
        };
        let row = match self {
            Self::Field(field, table) => table.find(value(field.word()).ok_or(field.word())?),
            Self::Group(table) => groups.ok_or("group")?.iter().find_map(|group| table.find(group)),
            Self::Client(networks) => {
                // All addresses of the network count as one client, so one address stands for all of them.
                let address = value("client").and_then(|client| client.split('/').next()?.parse().ok());
                networks.find(address.ok_or("client")?)
            }
        };
        Ok(row.copied())
    }

    pub fn is_by_recipient(&self) -> bool {
        matches!(self, Self::Field(field, _) if field.is_of_recipient())
    }

    pub fn is_by_group(&self) -> bool {
        matches!(self, Self::Group(_))
    }
}
