//! Charts as SVG, without scripts: areas upon each other, lines, axes, and a legend.
//!
//! The drawing is stretched to the width of its place; the words of the axes are HTML beside it, so
//! they keep their size at every width. Each area has a title, which a pointer shows.

use maud::{Markup, PreEscaped, html};
use std::fmt::Write;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 240.0;
/// Lines across the chart.
const GRID: usize = 4;

/// One figure over time.
pub struct Layer {
    pub name: String,
    /// The class that gives it its colour.
    pub class: String,
    pub values: Vec<f64>,
}

/// A chart: layers upon each other, and lines over them.
pub struct Chart<'a> {
    pub title: &'a str,
    pub about: &'a str,
    pub layers: Vec<Layer>,
    pub lines: Vec<Layer>,
    /// Seconds of each value.
    pub times_s: &'a [f64],
    /// Puts a value in words.
    pub unit: fn(f64) -> String,
}

impl Chart<'_> {
    /// The chart as a figure of a page.
    pub fn draw(&self) -> Markup {
        let end_s = self.times_s.last().copied().unwrap_or(0.0).max(1e-3);
        let stacked = stack(&self.layers, self.times_s.len());
        let top = stacked.last().into_iter().chain(self.lines.iter().map(|line| &line.values));
        let top = nice(top.flatten().copied().fold(0.0, f64::max));
        let x = |index: usize| WIDTH * self.times_s[index] / end_s;
        let y = |value: f64| HEIGHT * (1.0 - value / top);
        html! {
            figure {
                figcaption { strong { (self.title) } " " span.about { (self.about) } }
                div.plot {
                    div.scale aria-hidden="true" {
                        @for step in (0..=GRID).rev() {
                            span { (if top > 0.0 { (self.unit)(top * step as f64 / GRID as f64) } else { String::new() }) }
                        }
                    }
                    svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(self.words()) {
                        @for step in 0..=GRID {
                            @let at = HEIGHT * step as f64 / GRID as f64;
                            line.grid x1="0" x2=(WIDTH) y1=(at) y2=(at) {}
                        }
                        @for (index, layer) in self.layers.iter().enumerate() {
                            path class=(format!("area {}", layer.class)) d=(area(&stacked, index, x, y)) {
                                title { (self.layer_words(layer)) }
                            }
                        }
                        @for layer in &self.lines {
                            path class=(format!("line {}", layer.class)) d=(outline(&layer.values, x, y)) {
                                title { (self.layer_words(layer)) }
                            }
                        }
                    }
                    div.time aria-hidden="true" {
                        @for step in 0..=2 { span { (duration(end_s * f64::from(step) / 2.0)) } }
                    }
                }
                ul.legend {
                    @for layer in self.lines.iter().chain(self.layers.iter().rev()) {
                        li { span class=(format!("key {}", layer.class)) {} (layer.name) " "
                            span.value { (layer.values.last().map_or_else(String::new, |&value| (self.unit)(value))) } }
                    }
                }
            }
        }
    }

    fn layer_words(&self, layer: &Layer) -> String {
        let most = layer.values.iter().copied().fold(0.0, f64::max);
        let last = layer.values.last().copied().unwrap_or(0.0);
        format!("{}: {} at the end, {} at most", layer.name, (self.unit)(last), (self.unit)(most))
    }

    /// What the chart shows, for readers who do not see it.
    fn words(&self) -> String {
        let layers = self.lines.iter().chain(&self.layers).map(|layer| self.layer_words(layer));
        format!("{}. {}", self.title, layers.collect::<Vec<_>>().join("; "))
    }
}

/// The upper edge of each layer.
fn stack(layers: &[Layer], points: usize) -> Vec<Vec<f64>> {
    let mut edge = vec![0.0; points];
    let raised = layers.iter().map(|layer| {
        edge.iter_mut().zip(&layer.values).for_each(|(edge, value)| *edge += value);
        edge.clone()
    });
    raised.collect()
}

fn outline(values: &[f64], x: impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for (index, &value) in values.iter().enumerate() {
        let _ = write!(path, "{}{:.1} {:.1}", if index == 0 { 'M' } else { 'L' }, x(index), y(value));
    }
    if values.len() == 1 {
        let _ = write!(path, "L{WIDTH:.1} {:.1}", y(values[0]));
    }
    path
}

/// The area between a layer's edge and the one below it.
fn area(stacked: &[Vec<f64>], index: usize, x: impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) -> String {
    let upper = &stacked[index];
    let mut path = outline(upper, &x, &y);
    let lower = |at: usize| index.checked_sub(1).map_or(0.0, |below| stacked[below][at]);
    if upper.len() == 1 {
        let _ = write!(path, "L{WIDTH:.1} {:.1}", y(lower(0)));
    }
    for at in (0..upper.len()).rev() {
        let _ = write!(path, "L{:.1} {:.1}", x(at), y(lower(at)));
    }
    path.push('Z');
    path
}

/// A round number at or above `value`: 1, 2, 4 or 8 times a power of 2 ten times over, which suits
/// bytes and is round enough for the rest.
fn nice(value: f64) -> f64 {
    let mut top = 1.0;
    while top < value {
        top *= 2.0;
    }
    // Three quarters of a power of two keep a chart from being half empty.
    if top * 0.75 >= value && top > 4.0 { top * 0.75 } else { top }
}

/// A time since the beginning.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Text that stands in the page as it is: style and script.
pub fn raw(text: &'static str) -> Markup {
    PreEscaped(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: Vec<f64>, times_s: &[f64]) -> String {
        let layer = |name: &str| Layer { name: name.into(), class: "c0".into(), values: values.clone() };
        let layers = vec![layer("a<b"), layer("c")];
        let unit = |value: f64| format!("{value:.0} B");
        Chart { title: "t", about: "", layers, lines: vec![layer("l")], times_s, unit }.draw().into_string()
    }

    #[test]
    fn layers_stand_upon_each_other() {
        let drawn = chart(vec![1.0, 4.0], &[0.0, 2.0]);
        assert!(drawn.contains("d=\"M0.0 180.0L1000.0 0.0L1000.0 120.0L0.0 210.0Z\""), "{drawn}");
        assert!(drawn.contains("a&lt;b: 4 B at the end") && !drawn.contains("a<b"));
    }

    #[test]
    fn one_sample_and_no_memory_can_be_drawn() {
        for values in [vec![0.0], vec![5.0]] {
            let drawn = chart(values, &[0.0]);
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        }
    }

    #[test]
    fn tops_are_round_and_near() {
        for value in [0.0, 1.0, 3.0, 5.0, 700.0, 1e9, 1.5e15] {
            let top = nice(value);
            assert!(top >= value && (top <= 2.0 * value || value <= 1.0), "{value} {top}");
        }
    }
}
