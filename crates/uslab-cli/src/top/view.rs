//! Draws the state: the equation of the memory, the verdict, and a table or one cache.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState, Wrap};

use super::app::{App, Page, Row};
use super::history::Held;
use super::verdict::Cause;
use crate::accounts::Parts;
use crate::process;
use crate::text::{bytes, count, mode_name, settings};

const KEYS: &str = "\
up down PgUp PgDn   select a cache        enter   its page        esc   back
s   sort by the next column               r       reverse
/   filter by name: letters, then enter   space   pause
+ -   update less or more often             p       pressure and shrinkers
q     quit

The first lines divide the resident memory; the parts add up to it.
  live      objects in the program's hands, at the size of their cache
  slack     what the distance of objects and the ends of slabs add
  cached    objects in sheaves and barns
  partial   free objects in slabs that also hold objects in use
  empty     slabs with every object free
  other     pages of private heaps, and of the heap profile
  dirty     free pages that still have memory behind them
  absent    bytes of these that are not resident: untouched, or swapped out
  not ours  code, stacks, files, and memory of other allocators

net/s is the change of the live objects. The fast path counts nothing: slow/s
counts slow paths, each of which moves up to a sheaf of objects.";

/// Lines of the equation at any width from 80 on.
const EQUATION_LINES: u16 = 3;
const VERDICT_LINES: u16 = 2;
/// Lines that the table or a page has before the head gets any beside its title.
const MIN_BODY_LINES: u16 = 4;
/// Lines above the table and below it.
pub const OTHER_LINES: u16 = 1 + EQUATION_LINES + VERDICT_LINES + 1 + 1;

/// Draws all of it.
pub fn draw(frame: &mut Frame, app: &App) {
    // A low terminal shows less of the head rather than no cache.
    let spare = frame.area().height.saturating_sub(2 + MIN_BODY_LINES);
    let equation_lines = EQUATION_LINES.min(spare);
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(equation_lines),
        Constraint::Length(VERDICT_LINES.min(spare - equation_lines)),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [title, equation, verdict, body, foot] = areas.areas(frame.area());
    frame.render_widget(title_line(app), title);
    frame.render_widget(Paragraph::new(self::equation(&app.parts)).wrap(Wrap { trim: true }), equation);
    frame.render_widget(Paragraph::new(verdict_line(app)).wrap(Wrap { trim: true }), verdict);
    match app.page {
        Page::Caches => table(frame, body, app),
        Page::Cache(id) => cache_page(frame, body, app, id),
        Page::Reclaim => {
            let lines = settings::reclaim(&app.snapshot, process::boot_ns());
            frame.render_widget(Paragraph::new(lines.join("\n")), body);
        }
        Page::Keys => frame.render_widget(Paragraph::new(KEYS), body),
    }
    frame.render_widget(foot_line(app), foot);
}

fn title_line(app: &App) -> Line<'static> {
    let snapshot = &app.snapshot;
    let forked = match &app.forked[..] {
        [] => String::new(),
        children => format!(", forked: {}", process::first_of(children)),
    };
    let text = format!(
        "uslab top: {} (pid {}), {}, every {} s{}{forked}",
        app.command,
        snapshot.pid,
        mode_name(snapshot.mode),
        app.interval_s,
        if app.is_paused { ", paused" } else { "" }
    );
    Line::from(text).bold()
}

/// The resident memory and its parts; parts of no bytes are left out.
pub fn equation(parts: &Parts) -> Line<'static> {
    let mut spans = vec!["RSS ".into(), bytes(parts.rss).bold(), " =".into()];
    let mut sign = "";
    for (name, part) in parts.named().into_iter().filter(|(_, part)| *part > 0) {
        let about = if parts.is_estimated && ["metadata", "not_ours"].contains(&name) { "~" } else { "" };
        let text = format!("{sign}{} {about}{}", name.replace('_', " "), bytes(part));
        spans.extend(unbroken(&text));
        sign = "+ ";
    }
    if parts.absent != 0 {
        let sign = if parts.absent > 0 { '-' } else { '+' };
        spans.extend(unbroken(&format!("{sign} absent {}", bytes(parts.absent.unsigned_abs()))));
    }
    Line::from(spans)
}

/// A part of the equation, which stays on one line, and the space before it.
fn unbroken(text: &str) -> [Span<'static>; 2] {
    [" ".into(), text.replace(' ', "\u{a0}").into()]
}

fn verdict_line(app: &App) -> Line<'static> {
    if let Some(event) = &app.event {
        return Line::from(event.clone()).style(Style::new().fg(Color::Red).bold());
    }
    let color = match app.verdict.cause {
        Cause::NotKnown => Color::Reset,
        Cause::Leak => Color::Red,
        _ => Color::Yellow,
    };
    let word: Span = app.verdict.cause.word().to_owned().bold().fg(color);
    Line::from(vec!["verdict: ".into(), word, format!(": {}", app.verdict.reasons.join("; ")).into()])
}

fn foot_line(app: &App) -> Line<'static> {
    if app.is_typing_filter {
        return Line::from(format!("filter: {}_", app.filter));
    }
    let filter = if app.filter.is_empty() { String::new() } else { format!(" /{}", app.filter) };
    let order = if app.is_reversed { " reversed" } else { "" };
    let text = format!(
        "q quit  s sort: {}{order}  / filter{filter}  enter cache  p pressure  ? help",
        app.order.word()
    );
    Line::from(text).style(Style::new().add_modifier(Modifier::DIM))
}

const TITLES: [&str; 10] =
    ["cache", "size", "live", "use", "bytes", "slabs", "cached", "loss", "net/s", "slow/s"];
const WIDTHS: [u16; 10] = [14, 7, 5, 4, 9, 5, 6, 9, 6, 6];

fn table(frame: &mut Frame, area: Rect, app: &App) {
    let rows = app.row_count();
    if rows == 0 {
        let text = if app.filter.is_empty() { "no cache has had a slab" } else { "no cache has such a name" };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    // Formatting thousands of rows that no screen shows would cost more than reading them.
    let visible = usize::from(area.height).max(1);
    let selected = app.selected.min(rows - 1);
    let first = selected.saturating_sub(visible.saturating_sub(2));
    let shown = app.rows(first).take(visible).map(|row| TableRow::new(cells(&row)));
    let mut widths = WIDTHS.map(Constraint::Length);
    widths[0] = Constraint::Min(WIDTHS[0]);
    let title = |(at, title): (usize, &&'static str)| aligned((*title).to_owned(), at);
    let header = TableRow::new(TITLES.iter().enumerate().map(title)).style(Style::new().bold());
    let table = Table::new(shown, widths).header(header);
    let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(selected - first));
    frame.render_stateful_widget(table, area, &mut state);
}

fn cells(row: &Row<'_>) -> Vec<Cell<'static>> {
    let Row { cache, division, rates } = row;
    let texts = [
        cache.name.clone(),
        short(cache.user_bytes.into()),
        count(cache.active_objects()),
        percent(division.live, cache.slab_bytes()),
        bytes(cache.slab_bytes()),
        count(cache.slabs),
        count(cache.sheaf_free),
        bytes(division.loss()),
        rate(rates.net, true),
        rate(rates.slow, false),
    ];
    texts.into_iter().enumerate().map(|(at, text)| aligned(text, at)).collect()
}

/// Numbers stand at the right of their column, names at the left.
fn aligned(text: String, column: usize) -> Cell<'static> {
    if column == 0 {
        return Cell::from(text);
    }
    Cell::from(Line::from(text).right_aligned())
}

/// A size in at most seven characters.
fn short(size: u64) -> String {
    if size < 100_000 { size.to_string() } else { bytes(size) }
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{}%", u128::from(part) * 100 / u128::from(whole)),
    }
}

/// A rate in at most six characters; a dash for none.
fn rate(per_s: f64, is_signed: bool) -> String {
    let size = count(per_s.abs().round() as u64);
    match (size.as_str(), is_signed) {
        ("0", _) => "-".to_owned(),
        (_, true) => format!("{}{size}", if per_s < 0.0 { '-' } else { '+' }),
        _ => size,
    }
}

/// One cache: its facts, how its slabs are divided, and its history.
fn cache_page(frame: &mut Frame, area: Rect, app: &App, id: u32) {
    let Some(cache) = app.snapshot.live_caches().find(|cache| cache.id == id) else {
        frame.render_widget(Paragraph::new("the cache was destroyed"), area);
        return;
    };
    let [facts, live_title, live, slabs_title, slabs] = Layout::vertical([
        Constraint::Length(9),
        Constraint::Length(1),
        Constraint::Max(4),
        Constraint::Length(1),
        Constraint::Max(4),
    ])
    .areas(area);
    let lines = cache_lines(cache, app.history.rates(id));
    frame.render_widget(Paragraph::new(lines.join("\n")).wrap(Wrap { trim: true }), facts);
    let width = usize::from(area.width);
    for (title_area, chart_area, title, figure) in [
        (live_title, live, "live", (|held| held.live_bytes) as fn(&Held) -> u64),
        (slabs_title, slabs, "slabs", |held| held.slab_bytes),
    ] {
        let series = app.history.series(id, width, figure);
        let least = series.iter().copied().filter(|&value| value > 0).min().unwrap_or(0);
        let most = series.iter().copied().max().unwrap_or(0);
        let title = format!("{title}, last {} updates: {} to {}", series.len(), bytes(least), bytes(most));
        frame.render_widget(Line::from(title).bold(), title_area);
        frame.render_widget(Sparkline::default().data(series), chart_area);
    }
}

/// What is known of a cache, as lines.
pub fn cache_lines(cache: &crate::snapshot::Cache, rates: super::history::Rates) -> Vec<String> {
    let division = crate::accounts::Division::of(cache);
    vec![
        format!("{} (cache {})", cache.name, cache.id),
        format!(
            "objects of {} bytes every {}; {} in a slab of {}; sheaves of {}",
            cache.user_bytes,
            cache.object_bytes,
            cache.objects_per_slab,
            bytes(u64::from(cache.pages_per_slab) * crate::snapshot::SLAB_PAGE_BYTES),
            cache.sheaf_capacity
        ),
        format!(
            "objects: {} = {} live + {} in sheaves and barns + {} free in slabs{}",
            cache.total_objects(),
            cache.active_objects(),
            cache.sheaf_free,
            cache.slab_free,
            if cache.is_torn() { " (torn: counters moved while they were read)" } else { "" }
        ),
        format!(
            "slabs:   {}, {} partial, {} empty, {} of them kept; {} grown, {} given back",
            cache.slabs,
            cache.partial_slabs,
            cache.empty_slabs,
            cache.empty_target,
            cache.grows,
            cache.shrinks
        ),
        format!(
            "bytes:   {} = live {} + slack {} + cached {} + partial {} + empty {}",
            bytes(cache.slab_bytes()),
            bytes(division.live),
            bytes(division.slack),
            bytes(division.cached),
            bytes(division.partial),
            bytes(division.empty)
        ),
        format!(
            "slow:    {} allocations, {} frees, {} refills, {} flushes, {} drains, {} failures",
            count(cache.alloc_slow),
            count(cache.free_slow),
            count(cache.refills),
            count(cache.flushes),
            count(cache.drains),
            cache.failures
        ),
        format!(
            "rates:   {} objects net, {} slow paths, {} refills, {} drains in a second",
            rate(rates.net, true),
            rate(rates.slow, false),
            rate(rates.refills, false),
            rate(rates.drains, false)
        ),
    ]
}

#[cfg(test)]
mod tests;
