//! The curves: a panel for each cache, then the costs as bars. One SVG without script, font or anything to load; it follows the reader's
//! light or dark colours.
//!
//! Must never: scale two panels differently, or begin a bar elsewhere than at nothing.

use super::{Outcome, UNAVOIDABLE, Way, grouped};
use std::fmt::Write;

const WIDTH: f64 = 920.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
/// Room for a panel's curves, and between panels.
const PANEL: f64 = 150.0;
const GAP: f64 = 44.0;
const TOP: f64 = 92.0;
const BAR: f64 = 22.0;
/// From one bar to the next.
const BAR_STEP: f64 = 34.0;
/// Where bars begin: names stand to the left.
const BARS_LEFT: f64 = 300.0;
/// Room for the number behind the longest bar.
const BARS_RIGHT: f64 = 110.0;

const STYLE: &str = "\
    text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 17px; font-weight: 600 } .head { font-weight: 600 }\n\
    .soft { fill: #59636e } .end { text-anchor: end } .middle { text-anchor: middle } .paper { fill: #ffffff }\n\
    .grid { stroke: #d1d9e0; stroke-width: 1 } .shift { stroke: #818b98; stroke-width: 1; stroke-dasharray: 2 4 }\n\
    .line { fill: none; stroke-width: 2 } .line.best { stroke-dasharray: 10 5 } .line.equal { stroke-dasharray: 2 4 }\n\
    .line.ours { stroke: #0550ae } .line.best { stroke: #116329 } .line.equal { stroke: #bc4c00 } .floor { stroke: #1f2328; stroke-width: 2 }\n\
    .bar.ours { fill: #0550ae } .bar.best { fill: #116329 } .bar.equal { fill: #bc4c00 } .bar.blind { fill: #818b98 }\n\
    @media (prefers-color-scheme: dark) {\n\
      text { fill: #f0f6fc } .soft { fill: #9198a1 } .paper { fill: #0d1117 } .grid { stroke: #2f3742 } .shift { stroke: #656c76 }\n\
      .line.ours { stroke: #58a6ff } .line.best { stroke: #3fb950 } .line.equal { stroke: #f0883e } .floor { stroke: #f0f6fc }\n\
      .bar.ours { fill: #58a6ff } .bar.best { fill: #3fb950 } .bar.equal { fill: #f0883e } .bar.blind { fill: #656c76 }\n\
    }";

/// The whole picture.
pub fn drawn(outcome: &Outcome) -> String {
    let bars_top = TOP + 3.0 * (PANEL + GAP) + 30.0;
    let ways = outcome.ways();
    let height = bars_top + ways.len() as f64 * BAR_STEP + 46.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title\">\n\
         <title id=\"title\">Entries of three caches over time, and the cost of all misses</title>\n\
         <style>\n{STYLE}\n</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n"
    );
    text(&mut svg, LEFT, 30.0, "title", "Three caches in one memory: who holds how many entries");
    legend(&mut svg);
    for cache in 0..3 {
        panel(&mut svg, outcome, cache, TOP + cache as f64 * (PANEL + GAP));
    }
    bars(&mut svg, outcome, &ways, bars_top);
    svg.push_str("</svg>\n");
    svg
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, what: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{what}</text>");
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn legend(svg: &mut String) {
    let mut x = LEFT;
    for (class, what, width) in
        [("ours", "reclaim", 120.0), ("best", "best static split", 180.0), ("equal", "equal split", 150.0)]
    {
        line(svg, &format!("line {class}"), (x, 52.0), (x + 34.0, 52.0));
        text(svg, x + 42.0, 56.0, "soft", what);
        x += width;
    }
    line(svg, "shift", (x + 17.0, 44.0), (x + 17.0, 60.0));
    text(svg, x + 30.0, 56.0, "soft", "the traffic shifts");
}

/// The sizes of one cache over time.
fn panel(svg: &mut String, outcome: &Outcome, cache: usize, top: f64) {
    let (right, bottom) = (WIDTH - RIGHT, top + PANEL);
    let steps = outcome.phases * outcome.steps_a_phase;
    let across = |step: u64| LEFT + (right - LEFT) * step as f64 / steps as f64;
    let up = |entries: u64| bottom - PANEL * entries as f64 / outcome.memory as f64;
    text(svg, LEFT, top - 10.0, "head", &format!("An entry costs {}", outcome.costs[cache]));
    for quarter in 0..=4 {
        let entries = outcome.memory * quarter / 4;
        line(svg, "grid", (LEFT, up(entries)), (right, up(entries)));
        if quarter % 2 == 0 {
            text(svg, LEFT - 8.0, up(entries) + 4.0, "soft end", &grouped(entries));
        }
    }
    for phase in 1..outcome.phases {
        let x = across(phase * outcome.steps_a_phase);
        line(svg, "shift", (x, top), (x, bottom));
    }
    for (class, entries) in [("equal", outcome.memory / 3), ("best", outcome.best[cache])] {
        line(svg, &format!("line {class}"), (LEFT, up(entries)), (right, up(entries)));
    }
    let mut points = format!("{LEFT:.1},{bottom:.1}");
    for (number, sizes) in outcome.balanced.iter().enumerate() {
        let step = (number as u64 + 1) * outcome.sample_steps;
        let _ = write!(points, " {:.1},{:.1}", across(step), up(sizes[cache]));
    }
    let _ = writeln!(svg, "<polyline class=\"line ours\" points=\"{points}\"/>");
    if cache == 2 {
        for phase in 0..=outcome.phases {
            let step = phase * outcome.steps_a_phase;
            let class = if phase == outcome.phases { "soft end" } else { "soft middle" };
            let unit = if phase == outcome.phases { " requests" } else { "" };
            text(svg, across(step), bottom + 20.0, class, &format!("{}{unit}", grouped(step)));
        }
    }
}

/// The cost of all misses, way by way.
fn bars(svg: &mut String, outcome: &Outcome, ways: &[Way], top: f64) {
    text(svg, LEFT, top - 12.0, "head", "The cost of all misses");
    let most = ways.iter().map(|way| way.cost).max().unwrap_or(1).max(1);
    let long = |cost: u64| (WIDTH - BARS_LEFT - BARS_RIGHT) * cost as f64 / most as f64;
    for (at, way) in ways.iter().enumerate() {
        let y = top + at as f64 * BAR_STEP;
        text(svg, BARS_LEFT - 10.0, y + 16.0, "end", way.name);
        let _ = writeln!(
            svg,
            "<rect class=\"bar {}\" x=\"{BARS_LEFT:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR:.1}\"/>",
            way.class,
            long(way.cost)
        );
        text(svg, BARS_LEFT + long(way.cost) + 8.0, y + 16.0, "", &grouped(way.cost));
    }
    // A line across all bars, with its name below them.
    let (x, bottom) = (BARS_LEFT + long(outcome.unavoidable), top + ways.len() as f64 * BAR_STEP);
    line(svg, "floor", (x, top - 4.0), (x, bottom + 2.0));
    let what = format!("{UNAVOIDABLE}: {}", grouped(outcome.unavoidable));
    text(svg, x, bottom + 18.0, "soft middle", &what);
}
