//! A page of the guide as its examples and the text between.

/// A line of output that stands for any lines.
pub const REST: &str = "...";

/// A command, and the output that the page shows.
pub struct Step {
    pub command: String,
    pub output: Vec<String>,
}

enum Part {
    Line(String),
    Step(Step),
}

/// A page.
pub struct Page(Vec<Part>);

impl Page {
    /// Reads a page.
    pub fn parse(text: &str) -> Page {
        let (mut parts, mut is_example) = (Vec::new(), false);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line.starts_with("```") {
                is_example = line == "```console";
            }
            match (line.strip_prefix("$ "), parts.last_mut()) {
                (Some(command), _) if is_example => {
                    let mut command = command.to_owned();
                    while command.ends_with('\\') {
                        command = format!("{command}\n{}", lines.next().expect("a line after a backslash"));
                    }
                    // The lines of a here-document, as an interactive shell shows them.
                    while let Some(line) = lines.clone().next().and_then(|line| line.strip_prefix("> ")) {
                        command = format!("{command}\n{line}");
                        lines.next();
                    }
                    parts.push(Part::Step(Step { command, output: Vec::new() }));
                }
                (_, Some(Part::Step(step))) if is_example => step.output.push(line.to_owned()),
                _ => parts.push(Part::Line(line.to_owned())),
            }
        }
        Page(parts)
    }

    /// The examples.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.0.iter().filter_map(|part| match part {
            Part::Step(step) => Some(step),
            Part::Line(_) => None,
        })
    }

    /// Their commands.
    pub fn commands(&self) -> impl Iterator<Item = &str> {
        self.steps().map(|step| &*step.command)
    }

    /// The page's text with other outputs. Of an output that is shown in part, as many lines are
    /// kept at its beginning and end.
    pub fn with(&self, outputs: &[Vec<String>]) -> String {
        let (mut text, mut outputs) = (String::new(), outputs.iter());
        for part in &self.0 {
            match part {
                Part::Line(line) => text += &format!("{line}\n"),
                Part::Step(step) => {
                    text += &format!("$ {}\n", shown(&step.command));
                    for line in cut(&step.output, outputs.next().expect("an output for each command")) {
                        text += &format!("{}\n", line.trim_end());
                    }
                }
            }
        }
        text
    }
}

/// A command as the page shows it: lines behind one without a backslash are a here-document.
fn shown(command: &str) -> String {
    let mut is_continued = true;
    let lines = command.lines().map(|line| {
        let shown = if is_continued { line.to_owned() } else { format!("> {line}") };
        is_continued = line.ends_with('\\');
        shown
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `found`, cut where `shown` is.
fn cut(shown: &[String], found: &[String]) -> Vec<String> {
    let Some(before) = shown.iter().position(|line| line.trim() == REST) else { return found.to_vec() };
    let after = shown.len() - before - 1;
    if found.len() <= before + after {
        return found.to_vec();
    }
    let end = &found[found.len() - after..];
    [&found[..before], &[REST.to_owned()][..], end].concat()
}

#[cfg(test)]
mod tests {
    use super::Page;

    #[test]
    fn a_page_is_written_with_other_outputs() {
        let text =
            "Text.\n```console\n$ a \\\n    b\nold\n...\nend\n$ c << E\n> d\n> E\n```\n```sh\n$ no\n```\n";
        let page = Page::parse(text);
        assert_eq!(page.commands().collect::<Vec<_>>(), ["a \\\n    b", "c << E\nd\nE"]);
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(page.with(&[lines("old\n...\nend"), lines("")]), text);
        let new = page.with(&[lines("1\n2\n3\n4"), lines("5")]);
        assert_eq!(new, text.replace("old\n...\nend", "1\n...\n4").replace("> E\n", "> E\n5\n"));
    }
}
