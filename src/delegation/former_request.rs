//! The former request of a connection. Mostly the next one is about the same message, and differs in few lines. Lines that
//! both have at the same place are not parsed again, and both requests share their texts. This needs requests that arrive
//! as a whole, as those of a Postfix on the same host do.

use super::attributes::AttributeSet;

/// Lines of the former request. There are none before the first request, and after a request that cannot be shared.
#[derive(Default)]
pub struct FormerRequest {
    text: Vec<u8>,
    lines: ParsedLines,
}

/// Lines from the start of a request on.
#[derive(Default)]
pub struct ParsedLines(Vec<Line>);

#[derive(Clone, Copy)]
struct Line {
    /// Number of octets of the request up to the end of the line.
    end: u32,
    /// Empty for an attribute that Weir does not use.
    attribute: AttributeSet,
}

/// Maximum octets of a request that is kept. A request of Postfix has about 1,000.
pub const MAX_KEPT_OCTETS: usize = 4096;

impl ParsedLines {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a line. `octets` includes its line feed. All lines together have at most [`MAX_KEPT_OCTETS`].
    pub fn add(&mut self, octets: usize, attribute: AttributeSet) {
        self.0.push(Line { end: self.octets() + octets as u32, attribute });
    }

    fn octets(&self) -> u32 {
        self.0.last().map_or(0, |line| line.end)
    }
}

impl FormerRequest {
    /// Takes the next lines of a request, as long as the former request has the same ones at the same place: adds them to
    /// `parsed`, and their attributes to `seen`. Stops at an attribute that the request has already. Returns their octets.
    /// `rest`: the request from these lines on.
    pub fn share_lines(&self, rest: &[u8], parsed: &mut ParsedLines, seen: &mut AttributeSet) -> usize {
        let Some((passed, next)) = self.lines.0.split_at_checked(parsed.0.len()) else { return 0 };
        let begin = passed.last().map_or(0, |line| line.end);
        let same = begin + common_octets(rest, &self.text[begin as usize..]) as u32;
        let before = parsed.octets();
        for Line { end, attribute } in next.iter().copied() {
            if end > same || !seen.add(attribute) {
                break;
            }
            parsed.0.push(Line { end: end - begin + before, attribute });
        }
        (parsed.octets() - before) as usize
    }

    /// Keeps the lines of a request. `text`: the whole request, with the empty line. `lines`: all other lines.
    pub fn replace(&mut self, text: &[u8], lines: &mut ParsedLines) {
        std::mem::swap(&mut self.lines, lines);
        self.text.clear();
        self.text.extend_from_slice(text);
    }

    pub fn clear(&mut self) {
        self.lines.clear();
        self.text.clear();
    }
}

/// Returns the number of octets that two texts have in common at the start.
fn common_octets(one: &[u8], other: &[u8]) -> usize {
    let (parts, others) = (one.as_chunks::<8>().0, other.as_chunks::<8>().0);
    for (n, (part, other)) in parts.iter().zip(others).enumerate() {
        let difference = u64::from_le_bytes(*part) ^ u64::from_le_bytes(*other);
        if difference != 0 {
            return 8 * n + difference.trailing_zeros() as usize / 8;
        }
    }
    let same = 8 * parts.len().min(others.len());
    same + one[same..].iter().zip(&other[same..]).take_while(|(octet, other)| octet == other).count()
}
