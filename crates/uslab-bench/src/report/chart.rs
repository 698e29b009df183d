//! A chart as inline SVG.
//!
//! Drawn here and not by a charting library, because the page asks for what those do not give: colours from the
//! page's own stylesheet (light, dark and print), a line's name at its end in place of a legend, a tooltip at each
//! point by `<title>`, and no script. Texts are escaped by maud. Must never: hold a colour; those are in page.css.

use super::axis::Axis;
use maud::{Markup, html};
use std::fmt::Write;

/// The drawing's own units; the page scales it. Letters are 12 of them, so that they stay readable at 360 pixels.
const WIDTH: f64 = 420.0;
const LINES_HEIGHT: f64 = 300.0;
const LEFT: f64 = 54.0;
const RIGHT: f64 = 118.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;
/// Between names at the lines' ends, and of characters that fit there.
const LABEL_STEP: f64 = 13.5;
const LABEL_CHARS: usize = 17;
/// Of a bar with its gap, and where bars begin and end.
const BAR_STEP: f64 = 22.0;
const BAR_LEFT: f64 = 128.0;
const BAR_RIGHT: f64 = 350.0;

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    /// What stands at its end; the name is in the tooltips.
    pub label: String,
    /// Classes of the stylesheet.
    pub class: String,
    /// By x, upwards.
    pub points: Vec<[f64; 2]>,
    /// Whether points are marked and told one by one; courses of many points are not.
    pub marked: bool,
}

#[derive(Clone, Debug)]
pub struct LineChart {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

impl LineChart {
    pub fn figure(&self) -> Markup {
        let (right, bottom) = (WIDTH - RIGHT, LINES_HEIGHT - BOTTOM);
        let names: Vec<&str> = self.lines.iter().map(|line| line.name.as_str()).collect();
        let summary = format!(
            "Line chart: {}; {} against {}, for {}. The table below has the figures.",
            self.title,
            self.y.name,
            self.x.name,
            names.join(", ")
        );
        html! {
            figure {
                figcaption { (self.title) small { (self.y.name) " against " (self.x.name) } }
                svg viewBox=(format!("0 0 {WIDTH} {LINES_HEIGHT}")) role="img" aria-label=(summary) {
                    g class="grid" {
                        @for (value, text) in &self.y.ticks {
                            line x1=(LEFT) x2=(right) y1=(at(self.y(*value))) y2=(at(self.y(*value))) {}
                            text x=(LEFT - 6.0) y=(at(self.y(*value) + 4.0)) text-anchor="end" { (text) }
                        }
                        @for (value, text) in &self.x.ticks {
                            line x1=(at(self.x(*value))) x2=(at(self.x(*value))) y1=(bottom) y2=(bottom + 4.0) {}
                            text x=(at(self.x(*value))) y=(bottom + 17.0) text-anchor="middle" { (text) }
                        }
                        text class="axis" x=(at((LEFT + right) / 2.0)) y=(LINES_HEIGHT - 6.0) text-anchor="middle" { (self.x.name) }
                    }
                    // The last line is drawn over the others: uslab's.
                    @for line in &self.lines { (self.line(line)) }
                    @for (line, y) in self.placed_labels() { (self.label(line, y)) }
                }
            }
        }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.at(value) * (WIDTH - RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        LINES_HEIGHT - BOTTOM - self.y.at(value) * (LINES_HEIGHT - BOTTOM - TOP)
    }

    fn line(&self, line: &Line) -> Markup {
        let mut path = String::new();
        for (i, &[x, y]) in line.points.iter().enumerate() {
            let command = if i == 0 { 'M' } else { 'L' };
            // Writing to a String cannot fail.
            let _ = write!(path, "{command}{} {}", at(self.x(x)), at(self.y(y)));
        }
        html! {
            g class=(line.class) {
                path d=(path) {
                    @if !line.marked { title { (line.name) } }
                }
                @if line.marked {
                    @for &[x, y] in &line.points {
                        circle cx=(at(self.x(x))) cy=(at(self.y(y))) r="2.5" {}
                        circle class="hit" cx=(at(self.x(x))) cy=(at(self.y(y))) r="9" {
                            title { (line.name) ", " (self.x.name) " " (self.x.text(x)) ": " (self.y.text(y)) }
                        }
                    }
                }
            }
        }
    }

    /// The lines' names with their heights: in the order of the lines' ends, and none over another.
    fn placed_labels(&self) -> Vec<(&Line, f64)> {
        let mut labels: Vec<(&Line, f64)> =
            self.lines.iter().filter_map(|line| Some((line, self.y(line.points.last()?[1])))).collect();
        labels.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut heights: Vec<f64> = labels.iter().map(|label| label.1).collect();
        spread(&mut heights, TOP + 4.0, LINES_HEIGHT - BOTTOM, LABEL_STEP);
        labels.into_iter().zip(heights).map(|((line, _), y)| (line, y)).collect()
    }

    fn label(&self, line: &Line, y: f64) -> Markup {
        let [end_x, end_y] = line.points.last().map_or([0.0; 2], |&[x, y]| [self.x(x), self.y(y)]);
        let x = WIDTH - RIGHT + 14.0;
        let leader = format!("M{} {}L{} {}", at(end_x + 3.0), at(end_y), at(x - 3.0), at(y));
        html! {
            g class=(line.class) {
                path class="leader" d=(leader) {}
                text x=(at(x)) y=(at(y + 4.0)) { (cut(&line.label)) title { (line.name) } }
            }
        }
    }
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    pub class: String,
    pub value: f64,
    /// The value with its unit.
    pub text: String,
}

/// The contestants of one row beside each other, from zero.
#[derive(Clone, Debug)]
pub struct BarChart {
    pub title: String,
    pub unit: String,
    pub bars: Vec<Bar>,
}

impl BarChart {
    pub fn figure(&self) -> Markup {
        let height = self.bars.len() as f64 * BAR_STEP + 8.0;
        let most = self.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let told: Vec<String> = self.bars.iter().map(|bar| format!("{} {}", bar.name, bar.text)).collect();
        let summary = format!("Bar chart: {}, {}: {}.", self.title, self.unit, told.join(", "));
        html! {
            figure {
                figcaption { (self.title) small { (self.unit) } }
                svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(summary) {
                    @for (i, bar) in self.bars.iter().enumerate() {
                        @let top = 4.0 + i as f64 * BAR_STEP;
                        @let share = if most > 0.0 { (bar.value / most).clamp(0.0, 1.0) } else { 0.0 };
                        g class=(bar.class) {
                            title { (bar.name) ": " (bar.text) }
                            text x=(BAR_LEFT - 8.0) y=(at(top + 14.0)) text-anchor="end" { (cut(&bar.name)) }
                            rect x=(BAR_LEFT) y=(at(top + 2.0)) height="16" width=(at((share * (BAR_RIGHT - BAR_LEFT)).max(1.0))) {}
                            text class="value" x=(at(BAR_LEFT + share * (BAR_RIGHT - BAR_LEFT) + 6.0)) y=(at(top + 14.0)) { (bar.text) }
                        }
                    }
                }
            }
        }
    }
}

/// A coordinate; a tenth is finer than any screen shows.
fn at(place: f64) -> String {
    format!("{place:.1}")
}

fn cut(text: &str) -> String {
    if text.chars().count() <= LABEL_CHARS {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(LABEL_CHARS - 1).collect();
    cut.push('…');
    cut
}

/// Moves sorted heights apart, within bounds as far as there is room: downwards first, then back up from the end.
fn spread(heights: &mut [f64], top: f64, bottom: f64, step: f64) {
    let mut least = top;
    for height in heights.iter_mut() {
        *height = height.max(least);
        least = *height + step;
    }
    let mut most = bottom;
    for height in heights.iter_mut().rev() {
        *height = height.min(most);
        most = *height - step;
    }
}

#[cfg(test)]
mod tests {
    use super::super::axis::{Amount, Kind};
    use super::*;

    #[test]
    fn names_at_the_ends_stand_apart_and_in_order() {
        let mut heights = [10.0, 11.0, 12.0, 99.0];
        spread(&mut heights, 0.0, 100.0, 10.0);
        assert_eq!(heights, [10.0, 20.0, 30.0, 99.0]);
        let mut heights = [95.0, 96.0, 97.0];
        spread(&mut heights, 0.0, 100.0, 10.0);
        assert_eq!(heights, [80.0, 90.0, 100.0]);
    }

    #[test]
    fn a_chart_escapes_its_texts_and_tells_each_point() {
        let points = vec![[1.0, 5.0], [64.0, 6.0]];
        let chart = LineChart {
            title: "<b>".into(),
            x: Axis::new("live", Kind::Count, [1.0, 64.0].into_iter()).unwrap(),
            y: Axis::new("cost", Kind::Amount(Amount::Ns), [5.0, 6.0].into_iter()).unwrap(),
            lines: vec![Line {
                name: "a & b".into(),
                label: "a & b".into(),
                class: "peer0".into(),
                points,
                marked: true,
            }],
        };
        let text = chart.figure().into_string();
        assert!(text.contains("&lt;b&gt;") && !text.contains("<b>"));
        assert!(text.contains("<title>a &amp; b, live 64: 6 ns</title>"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(cut("uslab malloc, bulk"), "uslab malloc, bu…");
        assert_eq!(cut("glibc"), "glibc");
    }
}
