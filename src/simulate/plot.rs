//! Plot as SVG, with one panel for each limit. The upper part of a panel shows arrival envelopes (figure 4 of the
//! Vienna paper). For each length of a time window, an envelope shows the maximum that a user sent in any window of
//! that length, or the maximum that the limit admits. The lower part shows when the limit refused mail, for the users
//! with the most refusals.

use super::axis::{self, Ticked};
use super::history_csv::Message;
use super::origin::Origin;
use super::tally::{self, Tally};
use crate::policy::Policy;
use crate::policy::limit::{Count, Limit, Mode, Quota};
use crate::policy::matching::Field;
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::combinators::{LogCoord, WithKeyPoints};
use plotters::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Messages of each user, and refusals of each limit.
pub struct Traffic {
    users: HashMap<Arc<str>, Vec<Sent>>,
    /// Refusals of each limit, in the order of the policy.
    refusals: Vec<Refusals>,
}

/// A message: its time in microseconds since 1970, and its number of recipients.
type Sent = (i64, u64);

/// Refusals of one limit.
#[derive(Clone, Default)]
struct Refusals {
    /// Number of refused recipients or messages so far, as in the limit's [`Tally`].
    total: u64,
    /// Times of the messages that the limit refused, wholly or in part, in microseconds since 1970, by user.
    times: HashMap<Arc<str>, Vec<i64>>,
}

/// Line of the plot: a user, the user's messages, and the number of the user's recipients or messages that the limit
/// refused.
struct Line<'a> {
    user: &'a Arc<str>,
    sent: &'a [Sent],
    refused: u64,
}

/// Points of the upper part: a window's length in seconds, and an amount.
type Points = Vec<(f64, f64)>;
type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type EnvelopeChart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<WithKeyPoints<LogCoord<f64>>, LogCoord<f64>>>;
type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// Maximum number of users that a panel shows.
const MAX_USERS: usize = 5;

/// Width of a panel and heights of its upper and lower part, in pixels.
const WIDTH: u32 = 900;
const UPPER_HEIGHT: u32 = 420;
const LOWER_HEIGHT: u32 = 180;

/// Width of the labels at the left of a panel, in pixels, and maximum length of a user's name there, in characters.
const LABELS_WIDTH: u32 = 150;
const MAX_NAME_LENGTH: usize = 22;

/// Maximum number of different times of refusals that the lower part shows for a user: this part is hardly wider in
/// pixels.
const MAX_TIMES: f64 = 700.0;

impl Traffic {
    /// Creates a traffic record without messages, for a policy with this number of limits.
    pub fn new(limits: usize) -> Self {
        Self { users: HashMap::new(), refusals: vec![Refusals::default(); limits] }
    }

    /// Adds a message of a user. Ignores a message without a user, because limits per user do not apply to it.
    /// `tallies` are the totals of the limits after this message.
    pub fn add(&mut self, message: &Message, tallies: &[Tally]) {
        let Some(user) = &message.user else { return };
        let sent = (message.at.micros(), message.recipients.len() as u64);
        match self.users.get_mut(user) {
            Some(all) => all.push(sent),
            None => drop(self.users.insert(user.clone(), vec![sent])),
        }
        for (refusals, tally) in self.refusals.iter_mut().zip(tallies) {
            if tally.refused > refusals.total {
                refusals.total = tally.refused;
                refusals.times.entry(user.clone()).or_default().push(sent.0);
            }
        }
    }

    /// Draws a panel for each limit that can be drawn (see [`drawable`]) and writes the SVG to a file. `tallies` are
    /// the totals of the limits after the last message.
    pub fn draw(&self, path: &Path, policy: &Policy, tallies: &[Tally]) -> Result<(), String> {
        let mut svg = String::new();
        self.draw_panels(&mut svg, policy, tallies).map_err(|error| error.to_string())?;
        std::fs::write(path, svg).map_err(|error| error.to_string())
    }

    fn draw_panels(&self, svg: &mut String, policy: &Policy, tallies: &[Tally]) -> Result<(), DrawError> {
        let limits = drawable(policy);
        let height = (UPPER_HEIGHT + LOWER_HEIGHT) * u32::try_from(limits.len()).unwrap_or(1);
        let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        for (index, panel) in limits.iter().copied().zip(&area.split_evenly((limits.len(), 1))) {
            let (limit, tally) = (&policy.limits[index], &tallies[index]);
            let lines = self.lines(limit.count, tally);
            let (upper, lower) = panel.split_vertically(UPPER_HEIGHT);
            draw_envelopes(&upper, &policy.display_name(index), limit, &lines)?;
            self.draw_refusals(&lower, index, limit, tally, &lines)?;
        }
        area.present()
    }

    /// Returns the users of a panel: first the users with the most refusals by this limit, then the users who sent
    /// most.
    fn lines(&self, count: Count, tally: &Tally) -> Vec<Line<'_>> {
        let refused = |user| tally.refused_by_origin.get(&Origin::User(user)).copied().unwrap_or(0);
        let all = self.users.iter();
        let mut lines: Vec<Line<'_>> =
            all.map(|(user, sent)| Line { user, sent, refused: refused(user.clone()) }).collect();
        let total = |sent: &[Sent]| sent.iter().map(|sent| amount(sent, count)).sum::<u64>();
        lines.sort_by_cached_key(|line| (Reverse(line.refused), Reverse(total(line.sent)), line.user.clone()));
        lines.truncate(MAX_USERS);
        lines
    }

    /// Draws the lower part of a panel: a row for each user with mail that the limit refused, and a mark at the time of
    /// each refusal.
    fn draw_refusals(
        &self,
        panel: &Panel<'_>,
        index: usize,
        limit: &Limit,
        tally: &Tally,
        lines: &[Line<'_>],
    ) -> Result<(), DrawError> {
        let rows: Vec<&Line<'_>> = lines.iter().filter(|line| line.refused > 0).collect();
        let (first, last) = self.times();
        let centres = (0..rows.len()).map(|row| row as f64 + 0.5).collect();
        let mut chart = ChartBuilder::on(panel)
            .caption(refusals_title(limit, tally), ("sans-serif", 15))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(LABELS_WIDTH)
            .build_cartesian_2d(
                Ticked::new(first..last, axis::dates(first, last)),
                Ticked::new(rows.len().max(1) as f64..0.0, centres),
            )?;
        chart
            .configure_mesh()
            .x_desc("time (UTC)")
            .x_label_formatter(&|at| axis::date_label(*at, last - first))
            .y_label_formatter(&|row| rows.get(*row as usize).map_or_else(String::new, |line| short_name(line.user)))
            .draw()?;
        for (row, line) in rows.iter().enumerate() {
            let (top, style) = (row as f64, Palette99::pick(row).stroke_width(2));
            let times = self.refusals[index].times.get(line.user).map_or(&[][..], |times| &times[..]);
            let marks = thinned(times, first, last).into_iter();
            chart.draw_series(marks.map(|at| PathElement::new([(at, top + 0.1), (at, top + 0.9)], style)))?;
        }
        Ok(())
    }

    /// Returns the times of the first and the last message, in seconds since 1970; at least a minute apart.
    fn times(&self) -> (f64, f64) {
        let first = self.users.values().filter_map(|sent| sent.first()).map(|(at, _)| *at).min().unwrap_or(0);
        let last = self.users.values().filter_map(|sent| sent.last()).map(|(at, _)| *at).max().unwrap_or(0);
        let first = first as f64 / 1e6;
        (first, (last as f64 / 1e6).max(first + 60.0))
    }
}

/// Draws the upper part of a panel: the envelopes of the users and of the limit.
fn draw_envelopes(panel: &Panel<'_>, title: &str, limit: &Limit, lines: &[Line<'_>]) -> Result<(), DrawError> {
    let span = lines.iter().map(|line| span(line.sent)).max().unwrap_or_default().max(Duration::from_secs(60));
    let windows = windows(span);
    let admitted = |window| limit.quota.rule().map(|rule| rule.envelope(window));
    let envelope: Points = windows.iter().filter_map(|w| Some((w.as_secs_f64(), admitted(*w)?))).collect();
    let observed = |line: &Line<'_>| -> Points {
        windows.iter().map(|w| (w.as_secs_f64(), most_in(line.sent, limit.count, *w) as f64)).collect()
    };
    let curves: Vec<Points> = lines.iter().map(observed).collect();
    let top = curves.iter().flatten().chain(&envelope).map(|(_, y)| *y).fold(1.0, f64::max) * 1.5;
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("{title}: the most {} in any window", limit.count.name()), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(LABELS_WIDTH)
        .build_cartesian_2d(
            (1.0..span.as_secs_f64()).log_scale().with_key_points(axis::lengths(span.as_secs_f64())),
            (0.8..top).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("length of the window")
        .y_desc(limit.count.name())
        .x_label_formatter(&|x| axis::length_label(*x))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    draw_curves(&mut chart, limit.mode, lines, &curves)?;
    let style = BLACK.stroke_width(3);
    let limit_line = chart.draw_series(LineSeries::new(envelope.iter().copied(), style))?.label("E(T), the limit");
    limit_line.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    draw_excess(&mut chart, limit.mode, lines, &curves, &envelope)?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
}

/// Draws the curve of each user. The label has the user's name, and how much of the user's mail the limit refused.
fn draw_curves(
    chart: &mut EnvelopeChart<'_, '_>,
    mode: Mode,
    lines: &[Line<'_>],
    curves: &[Points],
) -> Result<(), DrawError> {
    for (row, (line, points)) in lines.iter().zip(curves).enumerate() {
        let style = Palette99::pick(row).stroke_width(2);
        let label = match line.refused {
            0 => line.user.to_string(),
            refused => format!("{}: {refused} {}", line.user, refused_word(mode)),
        };
        let series = chart.draw_series(LineSeries::new(points.iter().copied(), style))?.label(label);
        series.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    Ok(())
}

/// Marks the parts where the envelope of a refused user lies above the envelope of the limit. A user without refusals
/// by this limit has no marks, even above the limit's envelope. Possible causes are an override that admits more, an
/// exemption by the limit, or another limit that refused first.
fn draw_excess(
    chart: &mut EnvelopeChart<'_, '_>,
    mode: Mode,
    lines: &[Line<'_>],
    curves: &[Points],
    envelope: &Points,
) -> Result<(), DrawError> {
    let refused = lines.iter().zip(curves).enumerate().filter(|(_, (line, _))| line.refused > 0);
    let marks: Vec<_> = refused
        .flat_map(|(row, (_, points))| {
            let above = points.iter().zip(envelope).filter(|(sent, admitted)| sent.1 > admitted.1);
            above.map(move |(point, _)| Circle::new(*point, 4, Palette99::pick(row).filled()))
        })
        .collect();
    if !marks.is_empty() {
        let label = format!("above the limit, {}", refused_word(mode));
        chart.draw_series(marks)?.label(label).legend(|(x, y)| Circle::new((x + 9, y), 4, BLACK.filled()));
    }
    Ok(())
}

/// Returns the title of the lower part of a panel: how much the limit refused, and for how many users.
fn refusals_title(limit: &Limit, tally: &Tally) -> String {
    let unit = tally::unit(limit);
    let users = tally.refused_by_origin.len();
    let worst = if users > MAX_USERS { format!("; the worst {MAX_USERS}") } else { String::new() };
    match tally.refused {
        0 => format!("{}: nothing {}", limit.name, refused_word(limit.mode)),
        refused => {
            let word = refused_word(limit.mode);
            format!("{}: {refused} of {} {unit} {word}, users: {users}{worst}", limit.name, tally.events)
        }
    }
}

fn refused_word(mode: Mode) -> &'static str {
    if mode == Mode::Enforce { "refused" } else { "would be refused" }
}

/// Returns the beginning of a user's name, as long as there is room.
fn short_name(user: &str) -> String {
    match user.char_indices().nth(MAX_NAME_LENGTH) {
        Some((end, _)) => format!("{}…", &user[..end]),
        None => user.to_owned(),
    }
}

/// Returns the times in seconds. Several times that the plot cannot show apart become one time.
fn thinned(times: &[i64], first: f64, last: f64) -> Vec<f64> {
    let distance = (last - first) / MAX_TIMES;
    let slots: BTreeSet<i64> = times.iter().map(|at| ((*at as f64 / 1e6 - first) / distance).round() as i64).collect();
    slots.into_iter().map(|slot| first + slot as f64 * distance).collect()
}

/// Returns the indices of the limits that can be compared with a user's traffic: limits with a rate that count all
/// messages or all recipients of each user.
fn drawable(policy: &Policy) -> Vec<usize> {
    let is_drawable = |limit: &Limit| {
        let has_envelope = matches!(limit.quota, Quota::Rate { .. }) && limit.watch.is_none();
        let counts_all = matches!(limit.count, Count::Messages | Count::Recipients) && limit.distinct.is_none();
        limit.per == [Field::User] && counts_all && has_envelope
    };
    (0..policy.limits.len()).filter(|place| is_drawable(&policy.limits[*place])).collect()
}

/// Returns an error if no limit of the policy can be drawn.
pub fn check(policy: &Policy) -> Result<(), String> {
    match drawable(policy).is_empty() {
        true => {
            Err("no limit can be drawn: only those per user that count everything have an envelope beside a user's"
                .to_owned())
        }
        false => Ok(()),
    }
}

fn amount((_, recipients): &Sent, count: Count) -> u64 {
    if count == Count::Recipients { *recipients } else { 1 }
}

fn span(sent: &[Sent]) -> Duration {
    let ends = sent.first().zip(sent.last());
    ends.map_or(Duration::ZERO, |((first, _), (last, _))| Duration::from_micros(last.abs_diff(*first)))
}

/// Returns the lengths of windows to draw, from 1 second to `span`. Each length is the previous length multiplied by
/// the same factor.
fn windows(span: Duration) -> Vec<Duration> {
    const STEPS: i32 = 60;
    let factor = span.as_secs_f64().powf(1.0 / f64::from(STEPS));
    (0..=STEPS).map(|step| Duration::from_secs_f64(factor.powi(step))).collect()
}

/// Returns the maximum number of messages or recipients (as `count` says) in any window of this length. Messages at
/// both ends of the window are included.
fn most_in(sent: &[Sent], count: Count, window: Duration) -> u64 {
    let window = i64::try_from(window.as_micros()).unwrap_or(i64::MAX);
    let (mut most, mut sum, mut first) = (0, 0, 0);
    for last in sent {
        sum += amount(last, count);
        while last.0.saturating_sub(sent[first].0) > window {
            sum -= amount(&sent[first], count);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_window_is_found() {
        let sent: Vec<Sent> = [(0, 1), (10, 5), (11, 5), (20, 1), (21, 20)].map(|(t, n)| (t * 1_000_000, n)).into();
        for (seconds, recipients, messages) in
            [(0, 20, 1), (1, 21, 2), (9, 21, 2), (10, 26, 3), (11, 31, 4), (99, 32, 5)]
        {
            let window = Duration::from_secs(seconds);
            assert_eq!(most_in(&sent, Count::Recipients, window), recipients, "{seconds}");
            assert_eq!(most_in(&sent, Count::Messages, window), messages, "{seconds}");
        }
    }
}
