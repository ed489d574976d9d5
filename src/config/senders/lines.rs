//! Lines of tables that other mail servers read, too: white space continues a line, and `#` begins a comment line
//! (postmap(1), aliases(5)).

/// A logical line, with the number of its first line in the file.
#[derive(Debug, PartialEq, Eq)]
pub struct LogicalLine {
    pub number: usize,
    pub text: String,
}

/// Splits a text into logical lines. A line that begins with white space continues the line before it; comment lines
/// and empty lines between them do not count.
pub fn logical_lines(text: &str) -> Vec<LogicalLine> {
    let mut lines: Vec<LogicalLine> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        match lines.last_mut().filter(|_| line.starts_with(char::is_whitespace)) {
            Some(former) => former.text.extend([" ", content]),
            None => lines.push(LogicalLine { number: at + 1, text: content.to_owned() }),
        }
    }
    lines
}
