//! Lines that are damaged at random.

use super::Line;

/// Number of damaged lines of a test.
const ROUNDS: usize = 20_000;

/// Reads damaged copies of these lines. Some of them must still be of a blocked connection, and some not.
pub fn check_damaged_lines(lines: &[&str], mut read: impl FnMut(&str) -> Line) {
    // A fixed generator, so that a failure can be repeated.
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut blocked = 0;
    for round in 0..ROUNDS {
        let mut line = lines[round % lines.len()].as_bytes().to_vec();
        for _ in 0..=random(4) {
            let at = random(line.len());
            match random(4) {
                0 => line[at] = random(256) as u8,
                1 => line.truncate(at.max(1)),
                2 => line[at] = b" ,=[]:\"."[random(8)],
                _ => {
                    let copy: Vec<u8> = line[at..(at + random(40)).min(line.len())].to_vec();
                    line.splice(at..at, copy);
                }
            }
        }
        blocked += usize::from(matches!(read(&String::from_utf8_lossy(&line)), Line::Blocked(_)));
    }
    assert!((ROUNDS / 100..ROUNDS).contains(&blocked), "{blocked} of {ROUNDS}");
}
