//! Plot of arrival envelopes (figure 4 of the Vienna paper) as SVG, with one panel for each limit. A panel shows, for
//! each length of a time window, the maximum that the busiest users sent in any window of that length, and the maximum
//! that the limit admits.

use super::history::Message;
use crate::policy::Policy;
use crate::policy::limit::{Count, Limit, Quota};
use crate::policy::matching::Field;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Messages of each user, in order of time.
#[derive(Default)]
pub struct Traffic(HashMap<Arc<str>, Vec<Sent>>);

/// A message: its time in microseconds since 1970, and its number of recipients.
type Sent = (i64, u64);

/// Maximum number of users that a panel shows.
const BUSIEST: usize = 5;

/// Width and height of a panel, in pixels.
const PANEL: (u32, u32) = (900, 420);

impl Traffic {
    pub fn add(&mut self, message: &Message) {
        let sent = (message.at.micros(), message.recipients.len() as u64);
        match self.0.get_mut(&message.user) {
            Some(all) => all.push(sent),
            None => drop(self.0.insert(message.user.clone(), vec![sent])),
        }
    }

    /// Draws a panel for each limit that can be drawn (see [`drawable`]) and writes the SVG to a file.
    pub fn draw(&self, path: &Path, policy: &Policy) -> Result<(), String> {
        let limits = drawable(policy);
        let mut svg = String::new();
        {
            let height = PANEL.1 * u32::try_from(limits.len()).unwrap_or(1);
            let area = SVGBackend::with_string(&mut svg, (PANEL.0, height)).into_drawing_area();
            area.fill(&WHITE).map_err(|error| error.to_string())?;
            let panels = area.split_evenly((limits.len(), 1));
            for (place, panel) in limits.into_iter().zip(&panels) {
                self.panel(&policy.display_name(place), &policy.limits[place], panel)
                    .map_err(|error| error.to_string())?;
            }
            area.present().map_err(|error| error.to_string())?;
        }
        std::fs::write(path, svg).map_err(|error| error.to_string())
    }

    fn panel<'a>(
        &self,
        title: &str,
        limit: &Limit,
        panel: &DrawingArea<SVGBackend<'a>, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
        let busiest = self.busiest(limit.count);
        let span = busiest.iter().map(|(_, sent)| span(sent)).max().unwrap_or_default().max(Duration::from_secs(60));
        let windows = windows(span);
        let most = |window| limit.quota.rule().map(|rule| rule.envelope(window));
        let envelope: Vec<(f64, f64)> = windows.iter().filter_map(|w| Some((w.as_secs_f64(), most(*w)?))).collect();
        let observed = |sent: &[Sent]| -> Vec<(f64, f64)> {
            windows.iter().map(|w| (w.as_secs_f64(), most_in(sent, limit.count, *w) as f64)).collect()
        };
        let lines: Vec<_> = busiest.iter().map(|(user, sent)| (*user, observed(sent))).collect();
        let all = lines.iter().flat_map(|(_, points)| points).chain(&envelope);
        let top = all.map(|(_, y)| *y).fold(1.0, f64::max) * 1.5;
        let mut chart = ChartBuilder::on(panel)
            .caption(format!("{title}: the most {} in any window", limit.count.name()), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d((1.0..span.as_secs_f64()).log_scale(), (0.8..top).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("window")
            .y_desc(limit.count.name())
            .x_label_formatter(&|x| about(*x))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        for (place, (user, points)) in lines.into_iter().enumerate() {
            let style = Palette99::pick(place).stroke_width(2);
            let series = chart.draw_series(LineSeries::new(points, style))?.label(user.to_string());
            series.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        let style = BLACK.stroke_width(3);
        let limit_line = chart.draw_series(LineSeries::new(envelope, style))?.label("E(T), the limit");
        limit_line.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()
    }

    fn busiest(&self, count: Count) -> Vec<(&Arc<str>, &[Sent])> {
        let mut users: Vec<_> = self.0.iter().map(|(user, sent)| (user, &sent[..])).collect();
        let total = |sent: &[Sent]| sent.iter().map(|sent| amount(sent, count)).sum::<u64>();
        users.sort_by_cached_key(|(user, sent)| (std::cmp::Reverse(total(sent)), (*user).clone()));
        users.truncate(BUSIEST);
        users
    }
}

/// Returns a duration as a label for the axis: a whole number and one unit.
fn about(seconds: f64) -> String {
    let units = [("d", 86_400.0), ("h", 3_600.0), ("m", 60.0)];
    let (unit, size) = units.into_iter().find(|(_, size)| seconds >= 2.0 * size).unwrap_or(("s", 1.0));
    format!("{:.0}{unit}", seconds / size)
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

/// Returns the lengths of windows to draw, from 1 second to `span`; each is longer than the one before by the same
/// factor.
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
