//! The chart: a CPU's part of linear scaling over the number of CPUs.

use super::{MACHINES, Outcome, part_of_linear};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600}\
    .g{stroke:#d0d7de;stroke-width:1}.c{fill:none;stroke-width:1.8}.u{stroke-width:3}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#3d444d}}";
const CURVES: [(&str, &str); 5] = [
    ("uslab", "#d1242f"),
    ("one group a node", "#8c959f"),
    ("one-lock", "#1a7f37"),
    ("arenas", "#0969da"),
    ("transfer", "#9a6700"),
];

/// The chart of one workload.
pub(super) fn chart(outcomes: &[Outcome], workload: &str) -> String {
    let steps = (MACHINES.len() - 1) as f64;
    let x = |at: usize| LEFT + at as f64 / steps * (WIDTH - LEFT - RIGHT);
    let y = |part: f64| TOP + (1.0 - part.clamp(0.0, 1.2) / 1.2) * (HEIGHT - TOP - BOTTOM);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>Predicted scaling of {workload}</title>\n<style>{STYLE}</style>\n\
         <text class=\"t\" x=\"{LEFT}\" y=\"18\">Predicted: a CPU's work as a part of its work on 2 CPUs, {workload}</text>\n"
    );
    for tenth in [0, 2, 4, 6, 8, 10] {
        let at = y(f64::from(tenth) / 10.0);
        let _ = writeln!(
            text,
            "<path class=\"g\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.1}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            f64::from(tenth) / 10.0
        );
    }
    for (at, (cpus, nodes)) in MACHINES.iter().enumerate() {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{cpus} CPUs, {nodes}</text>",
            x(at),
            HEIGHT - BOTTOM + 20.0
        );
    }
    for (index, (who, colour)) in CURVES.iter().enumerate().rev() {
        let points: Vec<String> = MACHINES
            .iter()
            .enumerate()
            .filter_map(|(at, &(cpus, nodes))| {
                let is = |o: &&Outcome| (o.workload.as_str(), o.who.as_str()) == (workload, who);
                let of = outcomes.iter().filter(is).find(|o| (o.cpus, o.nodes) == (cpus, nodes))?;
                Some(format!("{:.1} {:.1}", x(at), y(part_of_linear(outcomes, of))))
            })
            .collect();
        let class = if index == 0 { "c u" } else { "c" };
        let _ = writeln!(
            text,
            "<path class=\"{class}\" stroke=\"{colour}\" d=\"M{}\"/><text x=\"{:.1}\" y=\"{:.1}\">\
             <tspan fill=\"{colour}\">&#9632;</tspan> {who}</text>",
            points.join("L"),
            WIDTH - RIGHT + 12.0,
            TOP + 16.0 + 18.0 * index as f64
        );
    }
    text + "</svg>\n"
}
