//! Plot of the trade-off, as SVG: a panel for each family, with the refused honest recipients of each number on one axis,
//! and the strangers whom each attack reaches on the other.

use super::Recommendation;
use super::family::FAMILIES;
use super::report::all_refused;
use super::stolen::KINDS;
use plotters::prelude::*;

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 260;

/// Draws the plot.
pub fn draw(recommendation: &Recommendation) -> Result<String, String> {
    let mut svg = String::new();
    draw_panels(recommendation, &mut svg).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn draw_panels(recommendation: &Recommendation, svg: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let count = u32::try_from(FAMILIES.len()).unwrap_or(1);
    let area = SVGBackend::with_string(svg, (WIDTH, PANEL_HEIGHT * count)).into_drawing_area();
    area.fill(&WHITE)?;
    for (index, panel) in area.split_evenly((FAMILIES.len(), 1)).iter().enumerate() {
        let family = &FAMILIES[index];
        let refused: Vec<f64> = recommendation.trials[index].iter().map(|one| all_refused(one) as f64).collect();
        let reached = &recommendation.stolen.by_number[index];
        let most =
            reached.iter().flatten().map(|one| one.strangers as f64).chain(refused.iter().copied()).fold(1.0, f64::max);
        let (first, last) = (family.numbers[0], family.numbers[family.numbers.len() - 1]);
        let mut chart = ChartBuilder::on(panel)
            .caption(family.name, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(34)
            .y_label_area_size(60)
            .build_cartesian_2d((f64::from(first)..f64::from(last)).log_scale(), (0.8..most * 1.5).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(family.rate("N"))
            .y_desc("recipients, + 1")
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        // One more than the number, because a logarithmic axis has no 0.
        let points =
            |values: Vec<f64>| family.numbers.iter().map(|n| f64::from(*n)).zip(values.into_iter().map(|v| v + 1.0));
        let style = BLACK.stroke_width(3);
        let line = chart.draw_series(LineSeries::new(points(refused), style))?.label("refused honest recipients");
        line.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        for (row, kind) in KINDS.iter().enumerate() {
            let style = Palette99::pick(row).stroke_width(2);
            let strangers = reached.iter().map(|one| one[row].strangers as f64).collect();
            let line = chart
                .draw_series(LineSeries::new(points(strangers), style))?
                .label(format!("strangers: {}", kind.name()));
            line.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        if let Some(number) = &recommendation.chosen.families[index] {
            let x = f64::from(family.numbers[number.index]);
            chart.draw_series([PathElement::new([(x, 0.8), (x, most * 1.5)], RED.stroke_width(1))])?;
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    }
    area.present()
}
