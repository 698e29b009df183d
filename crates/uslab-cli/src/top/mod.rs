//! `uslab top`: where the memory of a running process is, sample after sample.
//!
//! ```text
//!   watch ── app ── history ── verdict
//!             └──── view                 drawn on a terminal, or as text for --once
//! ```

mod app;
mod history;
mod signals;
mod verdict;
mod view;
mod watch;

use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::args::Top;
use crate::failure::{FAILED, Failure, Outcome, print};
use crate::find::publishing;
use crate::{json, snapdir};
use app::{Action, App};
use signals::{Asked, Signals};
pub use verdict::Verdict;
use watch::Watch;

/// The screen looks for signals and for changes of the interval this often.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Upper bound on the keys between two redraws.
const MAX_EVENTS: usize = 32;
/// Columns of the text that `--once` prints.
const TEXT_COLUMNS: u16 = 100;

/// Watches a process.
pub fn top(options: &Top) -> Outcome {
    let pid = match options.pid {
        Some(pid) => pid,
        None => only_one()?,
    };
    let (mut watch, mut app) = Watch::start(pid, options.copy, options.interval, options.time_scale)?;
    if options.once || options.json {
        for _ in 1..options.updates {
            sleep(Duration::from_secs_f64(options.interval));
            watch.sample(&mut app);
        }
        return print(&if options.json { as_json(&app) } else { as_text(&app)? });
    }
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if is_dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::new(
            FAILED,
            "top needs a terminal that can place text; without one, use --once or --json",
        ));
    }
    on_terminal(&mut watch, &mut app)
}

/// The process that publishes, if it is the only one.
fn only_one() -> Result<i32, Failure> {
    let directories = snapdir::own();
    let mut pids: Vec<u32> =
        directories.iter().flat_map(|directory| publishing(directory)).map(|(found, _)| found.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    match pids[..] {
        [pid] => i32::try_from(pid).map_err(|_| Failure::new(FAILED, "no such process")),
        [] => Err(Failure::new(FAILED, "no process publishes; start one with `uslab run -- PROGRAM`")),
        _ => {
            let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            Err(Failure::new(FAILED, format_args!("several processes publish; choose one of {list}")))
        }
    }
}

/// Runs the screen until a key or a signal ends it, and restores the terminal in every case, a
/// panic included.
fn on_terminal(watch: &mut Watch, app: &mut App) -> Outcome {
    let fail = |error: io::Error| Failure::new(FAILED, format_args!("cannot use the terminal: {error}"));
    let signals = Signals::block().map_err(fail)?;
    let mut terminal = ratatui::try_init().map_err(fail)?;
    let outcome = screen(&mut terminal, watch, app, &signals);
    ratatui::restore();
    outcome.map(|()| 0).map_err(fail)
}

fn screen(
    terminal: &mut ratatui::DefaultTerminal,
    watch: &mut Watch,
    app: &mut App,
    signals: &Signals,
) -> io::Result<()> {
    let mut last = Instant::now();
    let mut is_stale = true;
    loop {
        match signals.next()? {
            Some(Asked::End) => return Ok(()),
            Some(Asked::Stop) => {
                ratatui::try_restore()?;
                signals.stop()?;
                *terminal = ratatui::try_init()?;
                is_stale = true;
            }
            None => {}
        }
        if !app.is_paused && last.elapsed().as_secs_f64() >= app.interval_s {
            watch.sample(app);
            (last, is_stale) = (Instant::now(), true);
        }
        if is_stale {
            terminal.draw(|frame| view::draw(frame, app))?;
            is_stale = false;
        }
        if !event::poll(MAX_WAIT)? {
            continue;
        }
        is_stale = true;
        // What a held key sent meanwhile costs one redraw.
        for _ in 0..MAX_EVENTS {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                match app.key(key) {
                    Action::Stay => {}
                    Action::Stop => signals::stop_job()?,
                    Action::Quit => return Ok(()),
                }
            }
            if !event::poll(Duration::ZERO)? {
                break;
            }
        }
    }
}

/// The screen as text, with all rows.
fn as_text(app: &App) -> Result<String, Failure> {
    let rows = u16::try_from(app.row_count()).unwrap_or(u16::MAX);
    // The foot names keys, which text has not.
    let lines = rows.saturating_add(view::OTHER_LINES);
    let mut text = screen_text(app, TEXT_COLUMNS, lines)
        .map_err(|error| Failure::new(FAILED, format_args!("cannot draw: {error}")))?;
    text.truncate(text.trim_end().rfind('\n').map_or(0, |at| at + 1));
    Ok(text)
}

/// What a terminal of this size would show, without colours.
fn screen_text(app: &App, columns: u16, lines: u16) -> Result<String, std::convert::Infallible> {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines))?;
    terminal.draw(|frame| view::draw(frame, app))?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for line in buffer.content().chunks(usize::from(columns).max(1)) {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.replace('\u{a0}', " ").trim_end());
        text.push('\n');
    }
    Ok(text)
}

/// The last sample as JSON: what `uslab info --json` prints, and what was derived from it.
fn as_json(app: &App) -> String {
    let rates = |id| {
        let rates = app.history.rates(id);
        serde_json::json!({
            "net_objects_per_s": rates.net,
            "slow_paths_per_s": rates.slow,
            "refills_per_s": rates.refills,
            "drains_per_s": rates.drains,
        })
    };
    let derived = json::Derived {
        parts: &app.parts,
        verdict: &app.verdict,
        event: app.event.as_deref(),
        fork_children: &app.forked,
        rates: &rates,
    };
    json::watched(&app.snapshot, &app.command, &derived)
}
