//! Other numbers for some: the rows of a table, by whom they are for.

use super::field::Field;
use super::networks::Networks;
use super::pattern::Table;
use super::quota::Quota;
use super::view::View;

/// The numbers of those who have their own. Each goes on with the budget that the limit gives it.
#[derive(Debug)]
pub struct Overrides {
    /// The file's name, as the configuration has it.
    pub file: Box<str>,
    pub rows: Rows,
}

/// The rows, by the field that their column names.
#[derive(Debug)]
pub enum Rows {
    Field(Field, Table<Numbers>),
    Group(Table<Numbers>),
    Client(Networks<Numbers>),
}

/// A row: one quota for each rate of the limit.
#[derive(Debug)]
pub struct Numbers {
    pub quotas: Box<[Quota]>,
    /// In the file, from 1.
    pub line: u32,
}

impl Overrides {
    /// The row that holds here: of the exact value, else of the longest prefix or the most literal pattern.
    pub fn find(&self, view: &View<'_>, recipient: Option<&str>) -> Option<&Numbers> {
        match &self.rows {
            Rows::Field(field, table) => table.find(&field.value(view, recipient)?),
            Rows::Group(table) => view.groups().find_map(|group| table.find(group)),
            Rows::Client(networks) => networks.find(view.client()?),
        }
    }

    pub fn is_by_recipient(&self) -> bool {
        matches!(self.rows, Rows::Field(field, _) if field.is_of_recipient())
    }

    pub fn is_by_group(&self) -> bool {
        matches!(self.rows, Rows::Group(_))
    }

    /// All quotas for one of the limit's rates.
    pub fn quotas(&self, ordinal: usize) -> Box<dyn Iterator<Item = Quota> + '_> {
        let of = move |numbers: &Numbers| numbers.quotas.get(ordinal).copied();
        match &self.rows {
            Rows::Field(_, table) | Rows::Group(table) => Box::new(table.values().filter_map(of)),
            Rows::Client(networks) => Box::new(networks.values().filter_map(of)),
        }
    }
}
