//! The picture of slab orders: time against order 0, and memory of each live byte, as an SVG that
//! follows the reader's light or dark setting.
//!
//! ```text
//!   ┌ batch ──────┐ ┌ churn ──────┐ ┌ a tenth live ┐
//!   │ of order 0  │ │ of order 0  │ │ of live      │   a line for each object size
//!   └ 0 1 2 3 4 5 ┘ └ 0 1 2 3 4 5 ┘ └ 0 1 2 3 4 5 ─┘
//! ```

use super::{Measured, least};
use crate::results::Unit;
use crate::suites::order::{ORDERS, READINGS, Reading};
use std::fmt::Write;

/// The sizes that the picture shows, of all that the tables have, and their colours.
const LINES: [(usize, &str); 5] =
    [(64, "#0969da"), (256, "#1a7f37"), (1024, "#9a6700"), (4096, "#d1242f"), (16384, "#8250df")];
/// The readings that are drawn, and their headings.
const PANELS: [(&str, &str); 3] = [
    ("batch", "10000 made, then freed: time to order 0"),
    ("churn", "random quarters again: time to order 0"),
    ("tenth", "90 % freed: resident bytes of a live byte"),
];

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 320.0;
const PANEL: f64 = WIDTH / PANELS.len() as f64;
const LEFT: f64 = 36.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 66.0;
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600}\
    .g{stroke:#d0d7de}.c{fill:none;stroke-width:2}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#3d444d}}";

struct Line {
    size: usize,
    colour: &'static str,
    /// By order.
    values: Vec<f64>,
}

pub(super) fn svg(found: &Measured) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>Slab orders 0 to 5 against time and memory</title>\n<style>{STYLE}</style>\n"
    );
    for (index, (id, heading)) in PANELS.iter().enumerate() {
        if let Some(reading) = READINGS.iter().find(|reading| reading.id == *id) {
            // Writing to a String cannot fail.
            let _ = panel(&mut text, index as f64 * PANEL, heading, &lines(found, reading));
        }
    }
    let _ = legend(&mut text);
    text + "</svg>\n"
}

fn lines(found: &Measured, reading: &Reading) -> Vec<Line> {
    let line = |&(size, colour): &(usize, &'static str)| {
        let row = found.rows(reading).find(|row| row.size_bytes == size)?;
        let values: Option<Vec<f64>> = ORDERS.iter().map(|order| least(row, order.1)).collect();
        let mut values = values?;
        if reading.unit != Unit::Bytes {
            let first = values[0];
            values.iter_mut().for_each(|value| *value /= first);
        }
        Some(Line { size, colour, values })
    };
    LINES.iter().filter_map(line).collect()
}

fn panel(out: &mut String, left: f64, heading: &str, lines: &[Line]) -> std::fmt::Result {
    let most = lines.iter().flat_map(|line| &line.values).fold(1.0, |a: f64, &b| a.max(b));
    let step = if most > 5.0 { 2.0 } else { 0.25 };
    let top = (most / step).ceil() * step;
    let (first, last) = (left + LEFT, left + PANEL - RIGHT);
    let x = |order: usize| first + order as f64 / (ORDERS.len() - 1) as f64 * (last - first);
    let y = |value: f64| TOP + (1.0 - value / top) * (HEIGHT - TOP - BOTTOM);
    writeln!(out, "<text class=\"t\" x=\"{:.0}\" y=\"18\">{heading}</text>", left + 8.0)?;
    for tick in 0..=(top / step).round() as usize {
        let value = tick as f64 * step;
        writeln!(
            out,
            "<path class=\"g\" d=\"M{first:.1} {at:.1}H{last:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            first - 6.0,
            y(value) + 4.0,
            at = y(value)
        )?;
    }
    for order in 0..ORDERS.len() {
        let at = HEIGHT - BOTTOM + 18.0;
        writeln!(out, "<text x=\"{:.1}\" y=\"{at}\" text-anchor=\"middle\">{order}</text>", x(order))?;
    }
    for line in lines {
        let points = line.values.iter().enumerate().map(|(order, &value)| (x(order), y(value)));
        let path: Vec<String> = points.clone().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        writeln!(out, "<path class=\"c\" stroke=\"{}\" d=\"M{}\"/>", line.colour, path.join("L"))?;
        for ((x, y), (value, name)) in points.zip(line.values.iter().zip(ORDERS.map(|order| order.1))) {
            writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\">\
                 <title>{} B, {name}: {value:.2}</title></circle>",
                line.colour, line.size
            )?;
        }
    }
    Ok(())
}

fn legend(out: &mut String) -> std::fmt::Result {
    let at = HEIGHT - 14.0;
    writeln!(out, "<text x=\"{LEFT}\" y=\"{at}\">slab order, for objects of</text>")?;
    for (index, (size, colour)) in LINES.iter().enumerate() {
        let left = LEFT + 160.0 + index as f64 * 90.0;
        writeln!(
            out,
            "<text x=\"{left}\" y=\"{at}\"><tspan fill=\"{colour}\">&#9632;</tspan> {size} B</text>"
        )?;
    }
    Ok(())
}
