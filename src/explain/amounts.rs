//! Amounts, written as in the configuration.

use crate::policy::limit::{Count, Thing};
use crate::time::format_amount;

/// Formats an amount with its noun: `1 message`, `2 new recipients`, `500M bytes`.
pub fn things(thing: Thing, number: f64) -> String {
    format!("{} {}", amount(thing.count, number), thing.noun(number))
}

/// Formats an amount as a number; bytes get the units of the configuration (K, M, G).
pub fn amount(count: Count, amount: f64) -> String {
    let units = [("G", 1024.0 * 1024.0 * 1024.0), ("M", 1024.0 * 1024.0), ("K", 1024.0)];
    match units.into_iter().find(|(_, size)| count == Count::Bytes && amount >= *size) {
        Some((unit, size)) => format!("{}{unit}", format_amount((amount / size * 10.0).round() / 10.0)),
        None => format_amount(amount),
    }
}
