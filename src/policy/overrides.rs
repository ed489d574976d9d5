//! Other numbers for some: the rows of a table, by whom they are for.

use super::field::Field;
use super::matcher::Subject;
use super::networks::Networks;
use super::pattern::Table;
use super::quota::Quota;
use std::sync::Arc;

/// The numbers of those who have their own. Each goes on with the budget that the limit gives it.
#[derive(Debug)]
pub struct Overrides {
    /// The file's name, as the configuration has it.
    pub file: Box<str>,
    /// Limits that name the same file share them.
    pub rows: Arc<Rows>,
    /// What this limit makes of the numbers: for each row as many as it has rates.
    quotas: Box<[Quota]>,
    rates: usize,
}

/// The rows, by the field that their column names.
#[derive(Debug)]
pub enum Rows {
    Field(Field, Table<Row>),
    Group(Table<Row>),
    Client(Networks<Row>),
}

/// A row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which one it is, from 0.
    pub place: usize,
    /// In the file, from 1.
    pub line: usize,
}

impl Overrides {
    /// `quotas` are those of the rows, in order: for each row `rates` of them, which are more than none.
    pub fn new(file: &str, rows: Arc<Rows>, quotas: Vec<Quota>, rates: usize) -> Self {
        Self { file: file.into(), rows, quotas: quotas.into(), rates }
    }

    /// Whether both say the same of the same.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows) && (self.rates, &self.quotas) == (other.rates, &other.quotas)
    }

    /// What a row says of one of the limit's rates.
    pub fn quota(&self, row: Row, ordinal: usize) -> Option<&Quota> {
        self.quotas.get(row.place * self.rates + ordinal)
    }

    /// All quotas for one of the limit's rates.
    pub fn quotas(&self, ordinal: usize) -> impl Iterator<Item = Quota> {
        self.quotas.iter().skip(ordinal).step_by(self.rates).copied()
    }
}

impl Rows {
    /// The row that holds here: of the exact value, else of the longest prefix or the most literal pattern.
    pub fn find(&self, subject: Subject<'_, '_>) -> Option<Row> {
        let Subject { view, recipient, .. } = subject;
        let row = match self {
            Self::Field(field, table) => table.find(&field.value(view, recipient)?),
            Self::Group(table) => view.groups().find_map(|group| table.find(group)),
            Self::Client(networks) => networks.find(view.client()?),
        };
        row.copied()
    }

    pub fn is_by_recipient(&self) -> bool {
        matches!(self, Self::Field(field, _) if field.is_of_recipient())
    }

    pub fn is_by_group(&self) -> bool {
        matches!(self, Self::Group(_))
    }
}
