//! The shape of a line: the part of it that two machines share.

/// Units that may follow a number.
const UNITS: [&str; 18] =
    ["B", "KiB", "MiB", "GiB", "kB", "K", "M", "G", "k", "%", "ns", "us", "µs", "ms", "s", "KB", "MB", "GB"];

/// The line with `N` in place of each number with its sign and unit, and of a lone dash, and with
/// single spaces. Of a sum the first part stays. A number is a run of digits, points, commas and,
/// behind `0x`, hexadecimal digits.
pub fn shape(line: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    for word in line.split_whitespace().take_while(|word| *word != "+") {
        let word = match word {
            "-" => "N".into(),
            // A machine without sequences.
            "locked" => "rseq".into(),
            // A rate, for which a process that stands still has a dash.
            _ => numbers(word.strip_prefix('+').unwrap_or(word)),
        };
        // `3.5 MiB` is one number.
        match out.last() {
            Some(last) if UNITS.contains(&&*word) && last.ends_with('N') => {}
            _ => out.push(word),
        }
    }
    out.join(" ")
}

fn numbers(word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let length = if let Some(digits) = rest.strip_prefix("0x") {
            2 + digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len())
        } else if first.is_ascii_digit() {
            rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',')).unwrap_or(rest.len())
        } else {
            0
        };
        if length == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        out.push('N');
        // A point or comma behind the number belongs to the sentence.
        let end = rest[..length].trim_end_matches(['.', ',']).len();
        rest = &rest[end..];
        let unit = rest.find(|c: char| !(c.is_alphabetic() || c == '%')).unwrap_or(rest.len());
        if UNITS.contains(&&rest[..unit]) {
            rest = &rest[unit..];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::shape;

    #[test]
    fn numbers_units_and_widths_do_not_count() {
        assert_eq!(shape("malloc-64   150k  74%  12.2 MiB -"), "malloc-N N N N N");
        assert_eq!(shape("at 0x7f1c, 3 times."), "at N, N times.");
        assert_eq!(shape("RSS 192 B = 3s"), "RSS N = N");
        assert_eq!(shape("pid 26831)"), "pid N)");
        assert_ne!(shape("12 live"), shape("12 dead"));
    }
}
