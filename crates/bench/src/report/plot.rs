//! Drawings: bars that stand beside each other, and lines in a coordinate system, as SVG.
//!
//! Colours are such that they can be told apart on a light and on a dark page. Texts are drawn
//! black; the page's style gives them its own colour.

use std::fmt::Debug;
use std::ops::Range;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::words::short;

/// Ours, then the others.
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(0x2f, 0x7e, 0xd8),
    RGBColor(0xd9, 0x7a, 0x1d),
    RGBColor(0x2c, 0x9c, 0x5a),
    RGBColor(0xa5, 0x5f, 0xc2),
    RGBColor(0xc7, 0x4b, 0x50),
    RGBColor(0x8c, 0x7a, 0x3d),
    RGBColor(0x1e, 0x9a, 0xa8),
    RGBColor(0x7d, 0x7d, 0x7d),
];
const GREY: RGBColor = RGBColor(0x88, 0x88, 0x88);
const WIDTH: u32 = 800;
const FONT: &str = "sans-serif";
const FONT_SIZE: i32 = 15;

/// A bar with its noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// Where it may as well end.
    pub from_to: [f64; 2],
    /// What stands at its end.
    pub label: String,
    /// Index into [`COLOURS`].
    pub colour: usize,
}

/// Bars in groups, from top to bottom.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The axis.
    pub unit: String,
    /// Whether it is logarithmic.
    pub log: bool,
    /// Name and bars of each group.
    pub groups: Vec<(String, Vec<Bar>)>,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// From left to right.
    pub points: Vec<[f64; 2]>,
    /// For each point, or for none: where it may as well lie.
    pub from_to: Vec<[f64; 2]>,
    /// Whether each point is marked.
    pub dots: bool,
}

/// Lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// The horizontal axis.
    pub x: String,
    /// The vertical axis.
    pub y: String,
    /// Whether the horizontal axis is logarithmic.
    pub log_x: bool,
    /// Whether the vertical axis begins at 0.
    pub from_zero: bool,
    /// The lines.
    pub lines: Vec<Line>,
    /// Vertical marks: where, and their names.
    pub marks: Vec<(f64, String)>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws bars.
///
/// # Errors
/// The drawing library's.
pub fn bars(bars: &Bars) -> anyhow::Result<String> {
    const NAMES: i32 = 300;
    const VALUES: i32 = 110;
    const ROW: i32 = 20;
    const GAP: i32 = 10;
    const AXIS: i32 = 34;
    let count: usize = bars.groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = ROW * i32::try_from(count)? + GAP * i32::try_from(bars.groups.len())? + AXIS;
    let ends = || bars.groups.iter().flat_map(|(_, bars)| bars).flat_map(|b| b.from_to);
    let longest = ends().fold(0.0, f64::max);
    let origin =
        if bars.log { 10f64.powf(ends().fold(longest, f64::min).log10().floor()) } else { 0.0 };
    let across = i32::try_from(WIDTH)? - NAMES - VALUES;
    #[allow(clippy::cast_possible_truncation)] // pixels
    let x = |value: f64| {
        let share = if bars.log {
            (value / origin).log10() / (longest / origin).log10().max(1e-9)
        } else {
            value / longest.max(1e-9)
        };
        NAMES + (share.clamp(0.0, 1.0) * f64::from(across)) as i32
    };
    draw(height, |area| {
        let text = |words: &str, x, y, h_pos| {
            let style = (FONT, FONT_SIZE).into_font().color(&BLACK);
            area.draw(&Text::new(
                words.to_owned(),
                (x, y),
                style.pos(Pos::new(h_pos, VPos::Center)),
            ))
        };
        use plotters::style::text_anchor::{HPos, Pos, VPos};
        let line = |from, to| area.draw(&PathElement::new(vec![from, to], GREY));
        let mut y = GAP / 2;
        for (name, group) in &bars.groups {
            text(name, 0, y + ROW / 2, HPos::Left)?;
            for bar in group {
                let middle = y + ROW / 2;
                text(&bar.name, NAMES - 8, middle, HPos::Right)?;
                let corners = [(x(origin), y + 3), (x(bar.value), y + ROW - 3)];
                area.draw(&Rectangle::new(corners, COLOURS[bar.colour % COLOURS.len()].filled()))?;
                let [from, to] = bar.from_to.map(x);
                if from != to {
                    line((from, middle), (to, middle))?;
                    line((from, middle - 4), (from, middle + 4))?;
                    line((to, middle - 4), (to, middle + 4))?;
                }
                let end = x(bar.value).max(to) + 6;
                text(&bar.label, end, middle, HPos::Left)?;
                y += ROW;
            }
            y += GAP;
        }
        line((NAMES, 0), (NAMES, y))?;
        text(&short(origin), NAMES, y + 12, HPos::Center)?;
        let scale = if bars.log { ", logarithmic" } else { "" };
        let right = NAMES + across;
        text(&format!("{} {}{scale}", short(longest), bars.unit), right, y + 12, HPos::Right)?;
        Ok(())
    })
}

/// Draws lines.
///
/// # Errors
/// The drawing library's.
pub fn lines(chart: &Lines) -> anyhow::Result<String> {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let span = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(f64::INFINITY..f64::NEG_INFINITY, |r, v| r.start.min(v)..r.end.max(v))
    };
    let marks = chart.marks.iter().map(|(x, _)| *x);
    let x = span(&mut points().map(|p| p[0]).chain(marks));
    let ends = chart.lines.iter().flat_map(|line| line.from_to.iter().flatten().copied());
    let mut y = span(&mut points().map(|p| p[1]).chain(ends));
    if chart.from_zero {
        y.start = y.start.min(0.0);
    }
    // A range of no length cannot be drawn, nor can one of nothing.
    let wide = |r: Range<f64>| match r {
        r if r.start > r.end => 0.0..1.0,
        r if r.start == r.end => r.start - 0.5..r.end + 0.5,
        r => r,
    };
    let (x, y) = (wide(x), wide(y));
    let y = y.start..y.end + 0.06 * (y.end - y.start);
    draw(380, |area| {
        if chart.log_x {
            // From where a logarithm exists.
            let x = x.start.max(1e-6)..x.end.max(2e-6);
            axes(area, chart, x.log_scale(), y)
        } else {
            axes(area, chart, x, y)
        }
    })
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn axes<X>(area: &Area, chart: &Lines, x: X, y: Range<f64>) -> Drawn
where
    X: plotters::coord::ranged1d::AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let mut plot = ChartBuilder::on(area)
        .margin(8)
        .margin_right(16)
        .x_label_area_size(42)
        .y_label_area_size(74)
        .build_cartesian_2d(x, y.clone())?;
    plot.configure_mesh()
        .axis_style(GREY)
        .bold_line_style(GREY.mix(0.35))
        .light_line_style(TRANSPARENT)
        .label_style((FONT, FONT_SIZE))
        .axis_desc_style((FONT, FONT_SIZE))
        .x_labels(if chart.log_x { 5 } else { 10 })
        .x_label_formatter(&|x| tick(*x))
        .y_label_formatter(&|y| tick(*y))
        .x_desc(chart.x.as_str())
        .y_desc(chart.y.as_str())
        .draw()?;
    for (number, line) in chart.lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points = || line.points.iter().map(|p| (p[0], p[1]));
        plot.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
            .label(line.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        if line.dots {
            plot.draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))?;
        }
        let noise = line.points.iter().zip(&line.from_to);
        plot.draw_series(noise.map(|(p, [from, to])| {
            PathElement::new([(p[0], *from), (p[0], *to)], colour.stroke_width(1))
        }))?;
    }
    for (number, (x, name)) in chart.marks.iter().enumerate() {
        plot.draw_series([PathElement::new([(*x, y.start), (*x, y.end)], GREY.stroke_width(1))])?;
        // Marks may stand close together: each name has a line of its own.
        let step = (y.end - y.start) * 0.055 * (number + 1) as f64;
        let style = (FONT, FONT_SIZE).into_font().color(&BLACK);
        plot.draw_series([Text::new(format!(" {name}"), (*x, y.end - step), style)])?;
    }
    if chart.lines.len() > 1 {
        plot.configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .label_font((FONT, FONT_SIZE))
            .margin(12)
            .draw()?;
    }
    Ok(())
}

/// A number on an axis, without digits that say nothing.
fn tick(value: f64) -> String {
    let rounded = (value * 1e4).round() / 1e4;
    if rounded == 0.0 { "0".to_owned() } else { format!("{rounded}") }
}

fn draw(height: i32, what: impl FnOnce(&Area) -> Drawn) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let size = (WIDTH, u32::try_from(height)?);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let failed = |e: DrawingAreaErrorKind<std::io::Error>| anyhow!("cannot draw a plot: {e}");
        what(&area).map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: Vec<[f64; 2]>) -> Line {
        Line { name: "a < b".into(), points, from_to: Vec::new(), dots: true }
    }

    fn chart(lines: Vec<Line>, log_x: bool) -> Lines {
        let marks = vec![(2.0, "host dies".into())];
        Lines { x: "ms".into(), y: "MB".into(), log_x, from_zero: true, lines, marks }
    }

    #[test]
    fn lines_are_drawn_with_their_names_and_marks() {
        for log_x in [false, true] {
            let two = [line(vec![[1.0, 5.0], [3.0, 6.0]]), line(vec![[0.1, 2.0]])];
            let svg = lines(&chart(two.to_vec(), log_x)).unwrap();
            for words in ["\na &lt; b\n", "host dies\n", "\nMB\n", "\nms\n"] {
                assert!(svg.contains(words), "no {words} in {svg}");
            }
            assert_eq!(svg.matches("<circle").count(), 3);
        }
    }

    #[test]
    fn nothing_and_a_single_point_can_be_drawn() {
        lines(&Lines { marks: Vec::new(), ..chart(Vec::new(), false) }).unwrap();
        lines(&Lines { marks: Vec::new(), ..chart(vec![line(vec![[0.0, 0.0]])], true) }).unwrap();
        bars(&Bars { unit: "%".into(), log: true, groups: Vec::new() }).unwrap();
    }

    #[test]
    fn a_bar_is_as_long_as_its_value() {
        let bar = |value: f64| Bar {
            name: "x".into(),
            value,
            from_to: [value; 2],
            label: short(value),
            colour: 0,
        };
        let widths = |log, values: [f64; 2]| -> Vec<u32> {
            let groups = vec![("g".into(), values.map(bar).to_vec())];
            let svg = bars(&Bars { unit: "%".into(), log, groups }).unwrap();
            let width = |part: &str| {
                let (_, rest) = part.split_once("width=\"").unwrap();
                rest.split_once('"').unwrap().0.parse().unwrap()
            };
            svg.split("<rect").skip(1).map(width).collect()
        };
        assert_eq!(widths(false, [50.0, 100.0]), [195, 390]);
        assert_eq!(widths(true, [10.0, 1000.0]), [0, 390], "one end of the axis, and the other");
        assert_eq!(widths(true, [10.0, 100.0])[1], 390);
    }

    #[test]
    fn ticks_are_short() {
        let ticks = [0.1 + 0.2, -1e-9, 1500.0].map(tick);
        assert_eq!(ticks, ["0.3", "0", "1500"]);
    }
}
