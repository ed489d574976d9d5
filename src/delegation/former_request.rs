//! The former request of a connection. Mostly the next one is about the same message, and differs in few lines. Lines that
//! both have at the same place are not parsed again, and both requests share their texts.

use super::attributes::{AttributeName, Attributes};
use std::sync::Arc;

/// The former request. It has no lines if the next request can share none.
#[derive(Default)]
pub struct FormerRequest {
    text: Vec<u8>,
    lines: Lines,
    attributes: Arc<Attributes>,
}

/// Lines at the beginning of a request.
#[derive(Default)]
pub struct Lines {
    lines: Vec<Line>,
    /// Attributes that have come, as bits.
    seen: u32,
    /// True if an attribute has come twice. Then a line is perhaps not what its attribute has at the end.
    has_duplicate: bool,
}

#[derive(Clone, Copy)]
struct Line {
    /// Number of octets of the request up to the end of the line.
    end: usize,
    /// `None` for an attribute that Weir does not use.
    name: Option<AttributeName>,
}

/// Maximum octets of a request that is kept. A request of Postfix has about 1,000.
const MAX_KEPT: usize = 8192;

impl Lines {
    pub fn clear(&mut self) {
        self.lines.clear();
        (self.seen, self.has_duplicate) = (0, false);
    }

    /// Adds a line. `octets` includes its line feed.
    pub fn add(&mut self, octets: usize, name: Option<AttributeName>) {
        if let Some(name) = name {
            let bit = 1 << name as u32;
            self.has_duplicate |= self.seen & bit != 0;
            self.seen |= bit;
        }
        self.lines.push(Line { end: self.end() + octets, name });
    }

    fn end(&self) -> usize {
        self.lines.last().map_or(0, |line| line.end)
    }
}

impl FormerRequest {
    /// Takes the next lines of a request, as long as the former request has the same ones at the same place: adds them to
    /// `lines`, and takes over their attributes. Returns their octets. `rest`: the request from these lines on.
    pub fn share_lines(&self, rest: &[u8], lines: &mut Lines, attributes: &mut Attributes) -> usize {
        let at = lines.lines.len();
        let Some((former, next)) = self.lines.lines.split_at_checked(at) else { return 0 };
        let (mut begin, mut octets) = (former.last().map_or(0, |line| line.end), 0);
        for line in next {
            let text = &self.text[begin..line.end];
            if !rest[octets..].starts_with(text) {
                break;
            }
            if let Some(name) = line.name {
                attributes.copy(name, &self.attributes);
            }
            lines.add(text.len(), line.name);
            (begin, octets) = (line.end, octets + text.len());
        }
        octets
    }

    /// Takes the place of the former request. `text`: the whole request, with all its `lines` and the empty line.
    pub fn replace(&mut self, text: &[u8], lines: &mut Lines, attributes: Arc<Attributes>) {
        std::mem::swap(&mut self.lines, lines);
        // An overlong line is skipped, and is not among the lines.
        let is_complete = self.lines.end() + 1 == text.len();
        if !is_complete || self.lines.has_duplicate || text.len() > MAX_KEPT {
            self.lines.clear();
            return;
        }
        self.text.clear();
        self.text.extend_from_slice(text);
        self.attributes = attributes;
    }
}
