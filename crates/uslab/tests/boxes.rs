//! Many boxes at once: order, partial ends, and panics, without a lost object.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uslab::{Boxes, Cache, CacheBox, CacheBuilder};

static ALIVE: AtomicUsize = AtomicUsize::new(0);

struct Counted(u32);

impl Counted {
    fn new(n: u32) -> Counted {
        ALIVE.fetch_add(1, Relaxed);
        Counted(n)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Relaxed);
        assert!(self.0 != u32::MAX || std::thread::panicking(), "a destructor that panics");
    }
}

fn live<T>(cache: &Cache<T>) -> u64 {
    cache.stats().map_or(0, |stats| stats.active_objects)
}

#[test]
fn many_values_come_and_go_by_one_call() {
    let cache = CacheBuilder::new("many").build::<Counted>().unwrap();
    let mut values = (0..10).map(Counted::new);
    let mut first: Boxes<Counted, 7> = cache.insert_many(&mut values);
    assert!(first.iter().map(|counted| counted.0).eq(0..7));
    first[3].0 = 33;
    let rest = cache.insert_many::<7>(values);
    assert_eq!((rest.len(), live(&cache), ALIVE.load(Relaxed)), (3, 10, 10));
    assert_eq!(first[3].0, 33);
    let mut first = first.into_iter();
    drop(first.next());
    assert_eq!((first.len(), live(&cache)), (6, 9));
    let kept: Vec<_> = first.chain(rest).collect();
    assert_eq!(kept.len(), 9);
    CacheBox::drop_many(kept);
    assert_eq!((live(&cache), ALIVE.load(Relaxed)), (0, 0));
    assert!(cache.insert_many::<0>([Counted::new(1)]).is_empty());
    assert!(cache.insert_many::<4>(std::iter::empty()).is_empty());

    // An iterator that panics, and a value that does when it is dropped.
    let panics = catch_unwind(AssertUnwindSafe(|| {
        let values = (0..64).map(|n| if n < 40 { Counted::new(n) } else { panic!("no more") });
        drop(cache.insert_many::<64>(values));
    }));
    assert!(panics.is_err() && live(&cache) == 0 && ALIVE.load(Relaxed) == 0);
    let boxes = cache.insert_many::<64>((0..64).map(|n| Counted::new(if n == 40 { u32::MAX } else { n })));
    assert_eq!(live(&cache), 64);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(boxes))).is_err());
    assert_eq!(live(&cache), 0, "no object is lost");
    assert!(cache.destroy().is_ok());
}

#[test]
fn boxes_of_several_caches_go_together() {
    let caches = [0, 1, 2].map(|_| CacheBuilder::new("together").build::<[u8; 40]>().unwrap());
    let boxes: Vec<_> = (0..300).map(|n| caches[n / 7 % 3].insert([n as u8; 40]).unwrap()).collect();
    assert_eq!(caches.each_ref().map(live).iter().sum::<u64>(), 300);
    CacheBox::drop_many(boxes);
    caches.into_iter().for_each(|cache| assert!(cache.destroy().is_ok()));
}

#[test]
fn a_cache_with_a_constructor_takes_no_values() {
    let cache = CacheBuilder::new("constructed").build_constructed::<u64>(|place| place.write(5));
    let cache = cache.unwrap();
    let mut values = 0..9_u64;
    assert!(cache.insert_many::<4>(&mut values).is_empty());
    assert_eq!(values.next(), Some(0));
}
