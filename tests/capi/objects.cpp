/* uslab.hpp: caches, memory resources, the allocator in every kind of container, shrinkers. */
#include <uslab.hpp>

#include "check.h"

#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory_resource>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

int alive = 0;

struct thing {
    int number;
    std::string text;
    explicit thing(int n) : number(n), text(100, 'x')
    {
        if (n < 0) throw std::runtime_error("no");
        ++alive;
    }
    ~thing() { --alive; }
};

struct alignas(128) wide {
    char byte[130];
};

void caches()
{
    uslab::cache<thing> things("things");
    {
        auto one = things.make_unique(7);
        CHECK(one->number == 7 && alive == 1);
        uslab::cache<thing>::unique_ptr none;
        none = std::move(one);
        CHECK(!one && none && alive == 1);
    }
    CHECK(alive == 0);
    bool thrown = false;
    try {
        auto never = things.make_unique(-1);
    } catch (const std::runtime_error &) {
        thrown = true;
    }
    CHECK(thrown && things.stats().active_objects == 0);

    std::vector<thing *> places(500);
    CHECK(things.allocate_bulk(places));
    CHECK(things.stats().active_objects == 500);
    things.deallocate_bulk(places);
    std::array<thing *, 3> three{};
    CHECK(things.allocate_bulk(three));
    things.deallocate_bulk(three.data(), three.size());

    uslab::cache<wide> wides("wide", uslab::cache_options{0, USLAB_COLD, 0, 0, 0, 0});
    auto one = wides.make_unique();
    CHECK(reinterpret_cast<std::uintptr_t>(one.get()) % 128 == 0);
    uslab::cache<wide> moved(std::move(wides));
    CHECK(moved.get() != nullptr && wides.get() == nullptr);
    one.reset();
    CHECK(moved.shrink() > 0);

    thrown = false;
    try {
        uslab::cache<int> wrong("wrong", uslab::cache_options{3, 0, 0, 0, 0, 0});
    } catch (const std::system_error &) {
        thrown = true;
    }
    /* An alignment below the type's, such as 3, is raised to the type's. */
    CHECK(!thrown);
    try {
        uslab::cache<int> wrong("wrong", uslab::cache_options{24, 0, 0, 0, 0, 0});
    } catch (const std::system_error &error) {
        thrown = error.code().value() == EINVAL;
    }
    CHECK(thrown);
}

/* A container that contains itself: its type is incomplete where the allocator is named. */
struct tree {
    std::vector<tree, uslab::allocator<tree>> children;
    std::list<tree, uslab::allocator<tree>> more;
};

template <typename Map> void churn(Map &map)
{
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 20000; ++i) map[i * 7919 % 20011] = i;
        for (int i = 0; i < 20000; ++i) CHECK(map.at(i * 7919 % 20011) == i);
        for (int i = 0; i < 20000; i += 2) map.erase(i * 7919 % 20011);
        CHECK(map.size() == 10000);
    }
    map.clear();
}

void locals()
{
    uslab::cache<thing> things("things");
    {
        uslab::local_cache<thing> mine(things);
        auto one = mine.make_unique(7);
        uslab::local_cache<thing>::unique_ptr none;
        none = std::move(one);
        CHECK(!one && none->number == 7 && alive == 1 && things.stats().active_objects == 1);
        bool thrown = false;
        try {
            auto never = mine.make_unique(-1);
        } catch (const std::runtime_error &) {
            thrown = true;
        }
        CHECK(thrown && things.stats().active_objects == 1);
        thing *bare = mine.allocate();
        things.deallocate(bare);
        none.reset();
        uslab::local_cache<thing> moved(std::move(mine));
        CHECK(moved.held() > 0 && mine.get() == nullptr);
    }
    CHECK(alive == 0 && things.stats().active_objects == 0);
}

void heaps()
{
    uslab::heap first("first"), second;
    std::vector<int, uslab::heap_allocator<int>> numbers{uslab::heap_allocator<int>(first)};
    for (int i = 0; i < 1000; ++i) numbers.push_back(i);
    CHECK(first.stats().objects == 1 && second.stats().objects == 0);
    std::map<int, wide, std::less<int>, uslab::heap_allocator<std::pair<const int, wide>>> map{
        std::less<int>(), uslab::heap_allocator<std::pair<const int, wide>>(second)};
    for (int i = 0; i < 100; ++i) CHECK(reinterpret_cast<std::uintptr_t>(&map[i]) % 128 == 0);
    CHECK(second.stats().objects == 100);
    CHECK(uslab::heap_allocator<int>(first) == numbers.get_allocator());
    CHECK(uslab::heap_allocator<int>(first) != map.get_allocator());
#if defined(__cpp_lib_allocate_at_least)
    auto some = numbers.get_allocator().allocate_at_least(25);
    CHECK(some.count == 28);
    numbers.get_allocator().deallocate(some.ptr, some.count);
    uslab::allocator<int> general;
    auto more = general.allocate_at_least(25);
    CHECK(more.count == 28);
    general.deallocate(more.ptr, more.count);
#endif
}

void containers()
{
    using pair = std::pair<const int, int>;
    std::list<int, uslab::allocator<int>> list;
    for (int i = 0; i < 10000; ++i) list.push_back(i);
    auto copy = list;
    list.splice(list.begin(), copy);
    list.sort();
    CHECK(list.size() == 20000 && list.back() == 9999);
    decltype(list) taken(std::move(list));
    CHECK(taken.size() == 20000);

    std::map<int, int, std::less<int>, uslab::allocator<pair>> map;
    std::unordered_map<int, int, std::hash<int>, std::equal_to<int>, uslab::allocator<pair>> hashed;
    churn(map);
    churn(hashed);
    std::set<std::string, std::less<>, uslab::allocator<std::string>> set;
    for (int i = 0; i < 1000; ++i) set.insert(std::to_string(i));
    std::vector<wide, uslab::allocator<wide>> vector(1000);
    CHECK(reinterpret_cast<std::uintptr_t>(vector.data()) % 128 == 0);
    vector.resize(5);
    vector.shrink_to_fit();
    std::deque<int, uslab::allocator<int>> deque(100000, 1);
    std::basic_string<char, std::char_traits<char>, uslab::allocator<char>> text(1000, 'c');
    text += text;
    CHECK(text.size() == 2000);
    auto shared = std::allocate_shared<thing>(uslab::allocator<thing>(), 3);
    CHECK(shared->number == 3);
    tree root;
    root.children.resize(3);
    root.children[1].more.emplace_back();
    CHECK(uslab::allocator<int>() == uslab::allocator<long>());
    bool thrown = false;
    try {
        (void)uslab::allocator<wide>().allocate(static_cast<std::size_t>(-1) / 64);
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    CHECK(thrown);

    /* Several threads allocate the first node of a type at once. */
    struct odd {
        char bytes[333];
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t)
        threads.emplace_back([] {
            std::list<odd, uslab::allocator<odd>> mine(1000);
            CHECK(mine.size() == 1000);
        });
    for (auto &thread : threads) thread.join();
}

void resources()
{
    uslab::memory_resource one, other;
    CHECK(one == other);
    /* A derived resource would equal its base, and yet allocate in another way. */
    static_assert(std::is_final_v<uslab::memory_resource>);
    std::pmr::map<std::pmr::string, std::pmr::vector<int>> map(&one);
    for (int i = 0; i < 1000; ++i) map.try_emplace(std::pmr::string(100, static_cast<char>('a' + i % 26)), 100, i);
    CHECK(map.size() == 26);
    void *memory = one.allocate(1000, 4096);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 4096 == 0);
    other.deallocate(memory, 1000, 4096);

    uslab::heap_resource heap, second;
    CHECK(heap != second && heap != one);
    {
        std::pmr::list<int> list(1000, 7, &heap);
        list.clear();
    }
    (void)heap.allocate(100000); /* freed with the heap */
    (void)heap.allocate(10);
}

void shrinkers()
{
    std::list<int, uslab::allocator<int>> entries(5000);
    int priority = -1;
    {
        uslab::shrinker shrinker(
            "entries", [&] { return entries.size(); },
            [&](const uslab_shrink_control &control) {
                priority = control.priority;
                std::size_t freed = 0;
                for (; freed < control.nr_to_scan && !entries.empty(); ++freed) entries.pop_back();
                return freed;
            });
        uslab::shrinker moved(std::move(shrinker));
        moved.set_miss_cost_ns(5000);
        (void)uslab_reclaim(static_cast<std::size_t>(-1));
        CHECK(entries.empty() && priority >= 0);
        entries.resize(5000);
    }
    (void)uslab_reclaim(static_cast<std::size_t>(-1));
    CHECK(entries.size() == 5000);
    uslab::shrinker never("never", [] { return std::size_t{3}; }, [](std::size_t) { return uslab::shrink_stop; });
    (void)uslab_reclaim(static_cast<std::size_t>(-1));
    std::size_t left = 100;
    uslab::shrinker generic("generic", [&](auto...) { return left; },
                            [&](auto n) { return left -= n < left ? n : left, n; });
    (void)uslab_reclaim(static_cast<std::size_t>(-1));
    CHECK(left == 0);
}

} // namespace

int main()
{
    caches();
    locals();
    heaps();
    containers();
    resources();
    shrinkers();
    CHECK(alive == 0);
    return ended();
}
