//! Tables, bars and short numbers for a terminal. The text in tables is made harmless, and no line is wider than asked.

pub use crate::terminal::{columns_of, cut, harmless, wrapped};
use crate::time::format_amount;

/// Width of output that is not for a terminal, and the least width for which tables are made.
pub const USUAL_WIDTH: usize = 80;

/// Column of a table.
#[derive(Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    pub alignment: Alignment,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Alignment {
    Right,
    Left,
    /// Like `Left`; if the table is too wide, these columns are cut.
    Flexible,
}

/// Row of a table, and its colour.
pub struct Row {
    pub cells: Vec<String>,
    pub tone: Tone,
}

/// Meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Heading,
    Warning,
    Bad,
}

/// Colours, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    pub is_coloured: bool,
}

/// Columns between two columns of a table.
const GAP: usize = 2;

/// Least width of a flexible column.
const LEAST: usize = 6;

impl Paint {
    /// Returns colours if standard output is a terminal, and neither `--no-color` nor the variable NO_COLOR
    /// (<https://no-color.org>) refuses them.
    pub fn for_output(no_color: bool) -> Self {
        use std::io::IsTerminal as _;
        let is_refused = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { is_coloured: !is_refused && std::io::stdout().is_terminal() }
    }

    /// Adds the colour to a text.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Heading => "1",
            Tone::Warning => "33",
            Tone::Bad => "31",
        };
        if self.is_coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Lays out a table. Each line is at most `width` columns wide. If the table is too wide, first the flexible columns are
/// cut, then the last columns are left out.
pub fn table(columns: &[Column], rows: &[Row], width: usize, paint: Paint) -> String {
    let safe: Vec<Vec<String>> = rows.iter().map(|row| row.cells.iter().map(|cell| harmless(cell)).collect()).collect();
    let natural = |at: usize, column: &Column| {
        safe.iter().map(|cells| columns_of(&cells[at])).chain([columns_of(column.title)]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(|(at, column)| natural(at, column)).collect();
    let columns = fit(columns, &mut widths, width);
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(columns).zip(&widths).map(|((cell, column), width)| {
            let cell = cut(cell, *width);
            let space = " ".repeat(width - columns_of(&cell));
            if column.alignment == Alignment::Right { space + &cell } else { cell + &space }
        });
        let line = padded.collect::<Vec<_>>().join(&" ".repeat(GAP));
        line.trim_end().to_owned()
    };
    let title = line(&mut columns.iter().map(|column| column.title));
    let mut text = paint.paint(Tone::Heading, &title) + "\n";
    for (cells, row) in safe.iter().zip(rows) {
        text += &paint.paint(row.tone, &line(&mut cells.iter().map(String::as_str)));
        text.push('\n');
    }
    text
}

/// Cuts the widest flexible column until the table fits. If that is not enough, leaves out the last columns. Returns the
/// columns that are left.
fn fit<'c>(mut columns: &'c [Column], widths: &mut Vec<usize>, width: usize) -> &'c [Column] {
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    let is_flexible = |at: usize, columns: &[Column]| columns[at].alignment == Alignment::Flexible;
    let least = |columns: &[Column], widths: &[usize]| -> usize {
        let cut = |at: usize| if is_flexible(at, columns) { widths[at].min(LEAST) } else { widths[at] };
        total(&(0..columns.len()).map(cut).collect::<Vec<_>>())
    };
    while columns.len() > 1 && least(columns, widths) > width {
        columns = &columns[..columns.len() - 1];
        widths.truncate(columns.len());
    }
    while total(widths) > width {
        let flexible = (0..columns.len()).filter(|at| is_flexible(*at, columns) && widths[*at] > LEAST);
        let Some(widest) = flexible.max_by_key(|at| widths[*at]) else { break };
        widths[widest] -= 1;
    }
    columns
}

/// Draws how full a budget is: `[#####-----]`. A level above 0 has at least one mark, and only a full budget has all.
pub fn bar(fullness: f64, cells: usize) -> String {
    let fullness = if fullness.is_finite() { fullness.clamp(0.0, 1.0) } else { 1.0 };
    let marks = match fullness {
        0.0 => 0,
        1.0 => cells,
        part => ((part * cells as f64).round() as usize).clamp(1, cells.saturating_sub(1).max(1)),
    };
    format!("[{}{}]", "#".repeat(marks), "-".repeat(cells - marks))
}

/// Formats a number in at most 6 columns: `0.25`, `12.3`, `4711`, `1.23M`.
pub fn short(number: f64) -> String {
    match number {
        n if n < 0.005 => "0".to_owned(),
        n if n < 10.0 => trimmed(&format!("{n:.2}")),
        n if n < 1_000.0 => trimmed(&format!("{n:.1}")),
        n if n < 10_000.0 => format!("{n:.0}"),
        n => {
            let units = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
            let (name, size) = units.into_iter().find(|(_, size)| n >= *size).unwrap_or(("", 1.0));
            let part = n / size;
            let digits = if part < 10.0 { 2 } else { usize::from(part < 100.0) };
            format!("{part:.digits$}{name}")
        }
    }
}

/// Formats an amount with all its digits, and with at most one decimal.
pub fn amount(number: f64) -> String {
    format_amount((number * 10.0).round() / 10.0)
}

fn trimmed(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats seconds in the largest unit, rounded down: `12s`, `7h`, `3d`.
pub fn age(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(size, _)| whole >= *size);
    unit.map_or_else(|| format!("{whole}s"), |(size, name)| format!("{}{name}", whole / size))
}

/// Formats seconds in the two largest units: `12s`, `7h10m`, `3d4h`. Never rounds down.
pub fn span(seconds: f64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let whole = seconds.max(0.0).ceil() as u64;
    let Some(first) = UNITS.iter().position(|(size, _)| whole >= *size) else { return "0s".to_owned() };
    let smaller = UNITS.get(first + 1).map_or(1, |(size, _)| *size);
    let whole = whole.div_ceil(smaller) * smaller;
    // Rounding up can reach the next larger unit: 59m59.5s is 1h.
    let first = UNITS.iter().position(|(size, _)| whole >= *size).unwrap_or(first);
    let (size, name) = UNITS[first];
    let rest = match UNITS.get(first + 1) {
        Some((small, name)) if whole % size >= *small => format!("{}{name}", whole % size / small),
        _ => String::new(),
    };
    format!("{}{name}{rest}", whole / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COLUMNS: [Column; 3] = [
        Column { title: "sender", alignment: Alignment::Flexible },
        Column { title: "count", alignment: Alignment::Right },
        Column { title: "last refusal", alignment: Alignment::Flexible },
    ];
    const NO_PAINT: Paint = Paint { is_coloured: false };

    fn row(cells: [&str; 3]) -> Row {
        Row { cells: cells.map(str::to_owned).to_vec(), tone: Tone::Bad }
    }

    #[test]
    fn a_table_fits_its_width() {
        let long = "x".repeat(254);
        let rows = [row(["alice", "1", ""]), row([&long, "123456", "12s ago: user-recipients"])];
        assert_eq!(
            table(&COLUMNS, &rows, 50, NO_PAINT),
            "\
sender                 count  last refusal
alice                      1
xxxxxxxxxxxxxxxxxxx…  123456  12s ago: user-recip…
"
        );
    }

    #[test]
    fn a_bar_is_full_only_if_the_budget_is() {
        for (fullness, drawn) in [
            (0.0, "[----------]"),
            (0.001, "[#---------]"),
            (0.512, "[#####-----]"),
            (0.999, "[#########-]"),
            (1.0, "[##########]"),
            (7.0, "[##########]"),
            (f64::NAN, "[##########]"),
        ] {
            assert_eq!(bar(fullness, 10), drawn, "{fullness}");
        }
    }

    #[test]
    fn numbers_and_times_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (9.999, "10"),
            (12.34, "12.3"),
            (4711.0, "4711"),
            (12_345.0, "12.3k"),
            (1_234_567.0, "1.23M"),
        ] {
            assert_eq!(short(number), text);
        }
        for (seconds, text) in [
            (0.0, "0s"),
            (0.2, "1s"),
            (61.0, "1m1s"),
            (25_800.0, "7h10m"),
            (25_801.0, "7h11m"),
            (3_599.5, "1h"),
            (273_600.0, "3d4h"),
        ] {
            assert_eq!(span(seconds), text);
        }
        for (seconds, text) in [(0.9, "0s"), (59.0, "59s"), (119.0, "1m"), (90_000.0, "1d")] {
            assert_eq!(age(seconds), text);
        }
    }

    proptest! {
        #[test]
        fn no_name_breaks_a_table(name in any::<String>(), other in "\\PC{0,300}", width in 12usize..200) {
            let text = table(&COLUMNS, &[row([&name, "1", &other])], width, NO_PAINT);
            prop_assert_eq!(text.lines().count(), 2);
            for line in text.lines() {
                prop_assert!(columns_of(line) <= width && !line.chars().any(char::is_control), "{line:?}");
            }
            for line in wrapped(&harmless(&other), 4, width).lines() {
                prop_assert!(columns_of(line) <= width, "{line:?}");
            }
        }
    }
}
