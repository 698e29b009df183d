//! What the screen shows, as text.

use super::*;
use crate::top::app::tests::sample;
use crate::top::screen_text;

#[test]
fn the_table_at_eighty_columns() {
    let text = screen_text(&sample(), 80, 24).expect("drawn");
    let expected = "\
uslab top: redis-server (pid 4711), rseq, every 1 s
RSS 20 MiB = live 9.5 MiB + cached 156.2 KiB + partial 181 KiB + empty 24 KiB
+ other 2.4 MiB + dirty 1 MiB + metadata 100 KiB + not ours 9.9 MiB
- absent 3.2 MiB
verdict: not known: no part stands out; growth shows after 60 s, seen 1 s

cache             size  live  use     bytes slabs cached      loss  net/s slow/s
malloc-64           64 73100  95%   4.6 MiB  1200    900 231.2 KiB   +200      -
malloc-1024       1024    62  32%   192 KiB    12    100   130 KiB      -      9














q quit  s sort: bytes  / filter  enter cache  p pressure  ? help";
    assert_eq!(text.trim_end(), expected, "\n{text}");
}

#[test]
fn one_cache_at_eighty_columns() {
    let mut app = sample();
    app.page = Page::Cache(0);
    let text = screen_text(&app, 80, 24).expect("drawn");
    let expected = "\
uslab top: redis-server (pid 4711), rseq, every 1 s
RSS 20 MiB = live 9.5 MiB + cached 156.2 KiB + partial 181 KiB + empty 24 KiB
+ other 2.4 MiB + dirty 1 MiB + metadata 100 KiB + not ours 9.9 MiB
- absent 3.2 MiB
verdict: not known: no part stands out; growth shows after 60 s, seen 1 s

malloc-64 (cache 0)
objects of 64 bytes every 64; 64 in a slab of 4 KiB; sheaves of 60
objects: 76800 = 73100 live + 900 in sheaves and barns + 2800 free in slabs
slabs:   1200, 40 partial, 2 empty, 5 of them kept; 1200 grown, 0 given back
bytes:   4.6 MiB = live 4.4 MiB + slack 0 B + cached 56.2 KiB + partial 167 KiB
+ empty 8 KiB
slow:    3600 allocations, 2400 frees, 2404 refills, 1200 flushes, 0 drains, 0
failures
rates:   +200 objects net, - slow paths, 4 refills, - drains in a second
live, last 2 updates: 4.4 MiB to 4.4 MiB
▇█
██
slabs, last 2 updates: 4.6 MiB to 4.6 MiB
██
██
██
██
q quit  s sort: bytes  / filter  enter cache  p pressure  ? help";
    assert_eq!(text.trim_end(), expected, "\n{text}");
}

#[test]
fn every_size_and_page_can_be_drawn() {
    let mut app = sample();
    app.parts.is_estimated = true;
    for page in [Page::Caches, Page::Cache(0), Page::Cache(99), Page::Reclaim, Page::Keys] {
        app.page = page;
        for (width, height) in [(1, 1), (20, 5), (80, 24), (80, 8), (300, 100)] {
            screen_text(&app, width, height).expect("drawn");
        }
    }
    app.event = Some("process 4711 has ended".into());
    assert!(screen_text(&app, 80, 24).expect("drawn").contains("process 4711 has ended"));
}

#[test]
fn a_low_terminal_shows_caches() {
    let mut app = sample();
    app.selected = 1;
    for (width, height) in [(20, 5), (40, 8), (80, 12)] {
        let text = screen_text(&app, width, height).expect("drawn");
        for part in ["uslab top", "cache", "malloc-1024", "q quit"] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert_eq!(text.contains("verdict"), height > 8, "{text}");
    }
}

#[test]
fn thousands_of_caches_are_a_screen() {
    let mut app = sample();
    let cache = app.snapshot.caches[0].clone();
    app.snapshot.caches = (0..5000).map(|id| crate::snapshot::Cache { id, ..cache.clone() }).collect();
    app.arrange();
    app.selected = 4999;
    assert_eq!(screen_text(&app, 80, 24).expect("drawn").lines().count(), 24);
}

#[test]
fn limits_sources_and_shrinkers_at_eighty_columns() {
    let mut app = sample();
    app.page = Page::Reclaim;
    let text = screen_text(&app, 80, 24).expect("drawn");
    for line in [
        "limits: soft 768 MiB, hard 1 GiB; 13.2 MiB held",
        "cgroup   watched         5       0 B  ",
        "sessions               100     2     7    40    33  ",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line}\n{text}");
    }
}
