//! The state of the screen: the process, what is shown of it, and what keys change.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::{History, Rates};
use super::verdict::{Verdict, verdict};
use crate::accounts::{Division, Parts};
use crate::snapshot::{Cache, Snapshot};

/// A row of the table.
pub struct Row<'a> {
    pub cache: &'a Cache,
    pub division: Division,
    pub rates: Rates,
}

/// The column that the table is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Bytes,
    Live,
    Loss,
    Growth,
    Slow,
    Name,
}

impl Order {
    const ALL: [Order; 6] = [Order::Bytes, Order::Live, Order::Loss, Order::Growth, Order::Slow, Order::Name];

    /// The word at the foot of the screen.
    pub fn word(self) -> &'static str {
        match self {
            Order::Bytes => "bytes",
            Order::Live => "live",
            Order::Loss => "loss",
            Order::Growth => "growth",
            Order::Slow => "slow paths",
            Order::Name => "name",
        }
    }

    fn next(self) -> Order {
        let at = Order::ALL.iter().position(|&order| order == self).unwrap_or(0);
        Order::ALL[(at + 1) % Order::ALL.len()]
    }

    /// Sorts places in the list of caches, largest first, names from A on. Caches that are alike
    /// stay in their order.
    fn sort(self, places: &mut [usize], caches: &[Cache], history: &History) {
        let largest = |places: &mut [usize], figure: &dyn Fn(&Cache) -> u64| {
            places.sort_by_cached_key(|&place| Reverse(figure(&caches[place])));
        };
        match self {
            Order::Bytes => largest(places, &Cache::slab_bytes),
            Order::Live => largest(places, &|cache| Division::of(cache).live),
            Order::Loss => largest(places, &|cache| Division::of(cache).loss()),
            Order::Growth => {
                largest(places, &|cache| key(history.rates(cache.id).net * f64::from(cache.user_bytes)));
            }
            Order::Slow => largest(places, &|cache| key(history.rates(cache.id).slow)),
            Order::Name => places.sort_by(|&a, &b| caches[a].name.cmp(&caches[b].name)),
        }
    }
}

/// A number that is ordered as `figure` is.
fn key(figure: f64) -> u64 {
    // As `f64::total_cmp` orders them: the sign first, and the rest of negative ones turned round.
    let bits = figure.to_bits();
    bits ^ if figure.is_sign_negative() { u64::MAX } else { 1 << 63 }
}

/// What the screen shows below its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    Caches,
    /// One cache, by id.
    Cache(u32),
    /// Limits, passes, pressure sources and shrinkers.
    Reclaim,
    Keys,
}

/// What the loop does after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Stay,
    /// As Ctrl-Z does in a shell's job.
    Stop,
    Quit,
}

/// All of it.
pub struct App {
    pub command: String,
    pub snapshot: Snapshot,
    pub parts: Parts,
    pub history: History,
    pub verdict: Verdict,
    /// What happened to the process, if it is not there any more.
    pub event: Option<String>,
    /// Fork children of the process, which have figures of their own.
    pub forked: Vec<i32>,
    pub page: Page,
    pub order: Order,
    pub is_reversed: bool,
    pub is_paused: bool,
    pub filter: String,
    pub is_typing_filter: bool,
    pub selected: usize,
    pub interval_s: f64,
    /// The caches of the table, filtered and sorted: their places in the snapshot.
    shown: Vec<usize>,
}

impl App {
    /// The state before the first sample.
    pub fn new(command: String, snapshot: Snapshot, interval_s: f64) -> App {
        App {
            command,
            snapshot,
            parts: Parts::default(),
            history: History::default(),
            verdict: verdict(&History::default(), &|_| String::new()),
            event: None,
            forked: Vec::new(),
            page: Page::Caches,
            order: Order::Bytes,
            is_reversed: false,
            is_paused: false,
            filter: String::new(),
            is_typing_filter: false,
            selected: 0,
            interval_s,
            shown: Vec::new(),
        }
    }

    /// Takes a sample in, `at_s` seconds after the first.
    pub fn update(&mut self, snapshot: Snapshot, parts: Parts, at_s: f64) {
        self.history.push(super::history::Point::of(&snapshot, parts, at_s));
        (self.snapshot, self.parts) = (snapshot, parts);
        let caches = &self.snapshot.caches;
        let name = |id: u32| {
            caches
                .iter()
                .find(|cache| cache.id == id)
                .map_or_else(|| "?".to_owned(), |cache| cache.name.clone())
        };
        self.verdict = verdict(&self.history, &name);
        self.event = None;
        self.arrange();
    }

    /// Filters and sorts the table. Both take time where there are thousands of caches, so a
    /// redraw does not do it.
    pub fn arrange(&mut self) {
        let filter = self.filter.to_lowercase();
        let caches = &self.snapshot.caches;
        let is_shown = |cache: &Cache| {
            !cache.destroyed
                && cache.was_used()
                && (filter.is_empty() || cache.name.to_lowercase().contains(&filter))
        };
        self.shown = (0..caches.len()).filter(|&place| is_shown(&caches[place])).collect();
        self.order.sort(&mut self.shown, caches, &self.history);
        if self.is_reversed {
            self.shown.reverse();
        }
    }

    /// The number of rows of the table.
    pub fn row_count(&self) -> usize {
        self.shown.len()
    }

    /// The rows of the table from `first` on.
    pub fn rows(&self, first: usize) -> impl Iterator<Item = Row<'_>> {
        let caches = self.shown.iter().skip(first).map(|&place| &self.snapshot.caches[place]);
        caches.map(|cache| Row { cache, division: Division::of(cache), rates: self.history.rates(cache.id) })
    }

    /// Changes what is shown.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c' | '\\' | '4') => return Action::Quit,
                KeyCode::Char('z') => return Action::Stop,
                _ => {}
            }
        }
        if self.is_typing_filter {
            self.type_filter(key.code);
            return Action::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.arrange();
            }
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.arrange();
            }
            KeyCode::Char('/') => (self.is_typing_filter, self.page) = (true, Page::Caches),
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            // An interval beyond the bounds, which the command line allows, stays.
            KeyCode::Char('+') => self.interval_s = (self.interval_s * 2.0).min(self.interval_s.max(60.0)),
            KeyCode::Char('-') => self.interval_s = (self.interval_s / 2.0).max(self.interval_s.min(0.25)),
            KeyCode::Char('p') => self.page = Page::Reclaim,
            KeyCode::Char('h' | '?') => self.page = Page::Keys,
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.back(),
            KeyCode::Enter | KeyCode::Right => {
                let id = self.rows(self.selected).next().map(|row| row.cache.id);
                self.page = id.map_or(self.page, Page::Cache);
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-10),
            KeyCode::PageDown => self.select(10),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.select(isize::MAX),
            _ => {}
        }
        Action::Stay
    }

    /// One page up; on the first page, the filter goes.
    fn back(&mut self) {
        if self.page == Page::Caches {
            self.filter.clear();
            self.arrange();
        }
        self.page = Page::Caches;
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing_filter = false,
            KeyCode::Esc => {
                self.is_typing_filter = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.selected = 0;
        self.arrange();
    }

    fn select(&mut self, by: isize) {
        let last = self.row_count().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::residence::{Arena, Residence};
    use crate::snapshot::tests::Image;

    /// A process after two samples, with a cache that grows.
    pub fn sample() -> App {
        let mut snapshot = Image::sample().parse().expect("whole");
        snapshot.caches.remove(3);
        let arena = Some(Arena { data_bytes: 10 << 20, table_bytes: 100 << 10 });
        let mut app = App::new("redis-server".into(), snapshot.clone(), 1.0);
        for sample in 0..2 {
            let parts = Parts::of(&snapshot, Residence { rss_bytes: 20 << 20, arena, is_arena_gone: false });
            app.update(snapshot.clone(), parts, f64::from(sample));
            snapshot.caches[0].slab_free -= 200;
            snapshot.caches[0].refills += 4;
            snapshot.caches[1].alloc_slow += 9;
        }
        app
    }

    fn press(app: &mut App, keys: &str) -> Action {
        let codes = keys.chars().map(|c| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x7f' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        });
        codes.fold(Action::Stay, |_, code| app.key(code.into()))
    }

    fn names(app: &App) -> Vec<String> {
        app.rows(0).map(|row| row.cache.name.clone()).collect()
    }

    #[test]
    fn keys_sort_reverse_and_filter() {
        let mut app = sample();
        assert_eq!(names(&app), ["malloc-64", "malloc-1024"]);
        press(&mut app, "r");
        assert_eq!(names(&app), ["malloc-1024", "malloc-64"]);
        press(&mut app, "rsssss");
        assert_eq!((app.order, names(&app)[0].as_str()), (Order::Name, "malloc-1024"));
        press(&mut app, "s/10X\x7f");
        assert_eq!(names(&app), ["malloc-1024"]);
        assert!(app.is_typing_filter);
        press(&mut app, "\n\x1b");
        assert_eq!(names(&app).len(), 2);
    }

    #[test]
    fn a_cache_is_opened_and_left() {
        let mut app = sample();
        press(&mut app, "jjj\n");
        assert_eq!(app.page, Page::Cache(1));
        press(&mut app, "\x1b");
        assert_eq!(app.page, Page::Caches);
        press(&mut app, "?");
        assert_eq!(app.page, Page::Keys);
        press(&mut app, "p");
        assert_eq!(app.page, Page::Reclaim);
    }

    #[test]
    fn q_and_interrupt_quit_and_a_filter_takes_letters() {
        let mut app = sample();
        assert_eq!(press(&mut app, "q"), Action::Quit);
        assert_eq!(press(&mut app, "/q"), Action::Stay);
        assert_eq!(app.filter, "q");
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.key(interrupt), Action::Quit);
        let stop = KeyEvent::new(KeyCode::Char('z'), KeyModifiers::CONTROL);
        assert_eq!((app.key(stop), app.filter.as_str()), (Action::Stop, "q"));
    }

    #[test]
    fn no_rows_are_no_trouble() {
        let mut app = sample();
        press(&mut app, "/zzz\njk\n");
        assert_eq!((app.page, app.selected), (Page::Caches, 0));
    }

    #[test]
    fn the_interval_stays_in_bounds() {
        let mut app = sample();
        press(&mut app, &"+".repeat(20));
        assert_eq!(app.interval_s, 60.0);
        press(&mut app, &"-".repeat(20));
        assert_eq!(app.interval_s, 0.25);
    }
}
