//! Curves as an SVG that follows the reader's light or dark setting.

use std::fmt::Write;

/// The readings of one run.
pub struct Curve {
    pub name: String,
    /// Seconds since the start, and MiB.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    pub fn peak_mib(&self) -> f64 {
        self.points.iter().map(|point| point.1).fold(0.0, f64::max)
    }

    pub fn last_mib(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.1)
    }
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
/// The least distance between two names at the curves' ends.
const LINE: f64 = 16.0;
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600}\
    .g{stroke:#d0d7de;stroke-width:1}.c{fill:none;stroke-width:1.8}.u{stroke-width:3}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#3d444d}}";
const COLOURS: [&str; 5] = ["#d1242f", "#8c959f", "#1a7f37", "#0969da", "#9a6700"];

/// The picture of the curves; the first is drawn heavier.
pub fn svg(curves: &[Curve]) -> String {
    let end_s = curves.iter().filter_map(|c| c.points.last()).map(|p| p.0).fold(1.0, f64::max).ceil();
    let top_mib = (curves.iter().map(Curve::peak_mib).fold(1.0, f64::max) / 100.0).ceil() * 100.0;
    let x = |s: f64| LEFT + s / end_s * (WIDTH - LEFT - RIGHT);
    let y = |mib: f64| TOP + (1.0 - mib / top_mib) * (HEIGHT - TOP - BOTTOM);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>Resident memory of one program under {} allocators</title>\n<style>{STYLE}</style>\n\
         <text class=\"t\" x=\"{LEFT}\" y=\"18\">Resident memory (MiB) of a load that ends after some seconds, \
         and idles</text>\n",
        curves.len()
    );
    let mut mib = 0.0;
    while mib <= top_mib {
        let at = y(mib);
        let _ = writeln!(
            text,
            "<path class=\"g\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{mib:.0}</text>",
            x(end_s),
            LEFT - 8.0,
            at + 4.0
        );
        mib += 100.0;
    }
    let mut s = 0.0;
    while s <= end_s {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{s:.0} s</text>",
            x(s),
            HEIGHT - BOTTOM + 20.0
        );
        s += 2.0;
    }
    for (index, curve) in curves.iter().enumerate().rev() {
        let path: Vec<String> =
            curve.points.iter().map(|&(s, mib)| format!("{:.1} {:.1}", x(s), y(mib))).collect();
        let class = if index == 0 { "c u" } else { "c" };
        let _ = writeln!(
            text,
            "<path class=\"{class}\" stroke=\"{}\" d=\"M{}\"/>",
            COLOURS[index % COLOURS.len()],
            path.join("L")
        );
    }
    let mut ends: Vec<(usize, f64)> = curves.iter().map(|curve| y(curve.last_mib())).enumerate().collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    // Places names from the bottom up, so that none covers another.
    let mut lowest = HEIGHT;
    for (index, at) in ends.into_iter().rev() {
        lowest = at.min(lowest - LINE);
        let curve = &curves[index];
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\"><tspan fill=\"{}\">&#9632;</tspan> {}: {:.0}</text>",
            x(end_s) + 8.0,
            lowest + 4.0,
            COLOURS[index % COLOURS.len()],
            curve.name,
            curve.last_mib()
        );
    }
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_the_same_height_are_drawn_apart() {
        let curve = |name: &str| Curve { name: name.into(), points: vec![(0.0, 10.0), (2.0, 50.0)] };
        let text = svg(&[curve("one"), curve("two")]);
        let heights: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("tspan"))
            .filter_map(|line| line.split("y=\"").nth(1)?.split('"').next())
            .collect();
        assert_eq!(heights.len(), 2);
        assert_ne!(heights[0], heights[1]);
        assert!(text.contains("prefers-color-scheme:dark") && text.ends_with("</svg>\n"));
    }
}
