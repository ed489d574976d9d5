//! The former request of a connection. Mostly the next one is about the same message, and differs in few lines. Lines that
//! both have at the same place are not parsed again, and both requests share their texts. This needs requests that arrive
//! as a whole, as those of a Postfix on the same host do.

use super::attributes::{AttributeName, Attributes};
use std::sync::Arc;

/// The former request. Before the first request, it has no lines.
#[derive(Default)]
pub struct FormerRequest {
    text: Vec<u8>,
    lines: ParsedLines,
    attributes: Arc<Attributes>,
}

/// Lines from the start of a request on.
#[derive(Default)]
pub struct ParsedLines {
    lines: Vec<Line>,
    /// The attributes of the lines, as bits.
    seen: u32,
    /// True if two lines have the same attribute. The attributes of the request then have the value of the second one.
    has_duplicate: bool,
}

#[derive(Clone, Copy)]
struct Line {
    /// Number of octets of the request up to the end of the line.
    end: u32,
    /// `None` for an attribute that Weir does not use.
    name: Option<AttributeName>,
}

/// Maximum octets of a request that is kept. A request of Postfix has about 1,000.
pub const MAX_KEPT_OCTETS: usize = 4096;

impl ParsedLines {
    pub fn clear(&mut self) {
        self.lines.clear();
        (self.seen, self.has_duplicate) = (0, false);
    }

    /// Adds a line. `octets` includes its line feed. All lines together have at most [`MAX_KEPT_OCTETS`].
    pub fn add(&mut self, octets: usize, name: Option<AttributeName>) {
        if let Some(name) = name {
            let bit = 1 << name as u32;
            self.has_duplicate |= self.seen & bit != 0;
            self.seen |= bit;
        }
        let before = self.lines.last().map_or(0, |line| line.end);
        self.lines.push(Line { end: before + octets as u32, name });
    }
}

impl FormerRequest {
    /// Takes the next lines of a request, as long as the former request has the same ones at the same place: adds them to
    /// `parsed`, and copies their attributes. Returns their octets. `rest`: the request from these lines on.
    pub fn share_lines(&self, rest: &[u8], parsed: &mut ParsedLines, attributes: &mut Attributes) -> usize {
        let Some((passed, next)) = self.lines.lines.split_at_checked(parsed.lines.len()) else { return 0 };
        let (mut begin, mut octets) = (passed.last().map_or(0, |line| line.end as usize), 0);
        for line in next {
            let end = line.end as usize;
            let text = &self.text[begin..end];
            if !rest[octets..].starts_with(text) {
                break;
            }
            if let Some(name) = line.name {
                attributes.copy(name, &self.attributes);
            }
            parsed.add(text.len(), line.name);
            (begin, octets) = (end, octets + text.len());
        }
        octets
    }

    /// Takes the place of the former request, if no attribute comes twice. `text`: the whole request, with the empty line.
    /// `lines`: all other lines.
    pub fn replace(&mut self, text: &[u8], lines: &mut ParsedLines, attributes: Arc<Attributes>) {
        if lines.has_duplicate {
            return;
        }
        std::mem::swap(&mut self.lines, lines);
        self.text.clear();
        self.text.extend_from_slice(text);
        self.attributes = attributes;
    }
}
