/*
 * Containers of the standard library, walked: trees, hash tables, lists and strings of which every
 * node comes from malloc. suites/locality.rs compiles it when the benchmark runs; by hand:
 *
 *   c++ -O2 -std=c++17 -o containers containers.cpp
 *   LD_PRELOAD=ALLOCATOR ./containers list|map|unordered|strings [OBJECTS [HALVES]]
 *
 *   list       std::list of 16 bytes, in order
 *   map        std::map of random keys of 64 bits: the walk is in the order of keys, and no
 *              allocator knows it
 *   unordered  std::unordered_map of the same keys, its bucket array growing with it
 *   strings    std::vector of std::string of 24 to 151 bytes, in order: beside the texts grows the
 *              array of the vector
 *
 * Phases and output: measure.h. Of what goes, the nodes are freed in the order of the walk.
 */
#include "measure.h"

#include <list>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

struct payload {
    std::uint64_t first, second;
};

std::size_t objects = 1000000;

/* The places of containers whose walk meets the nodes themselves. */
template <typename Container> void node_places(const Container &container, std::uintptr_t *addresses)
{
    for (const auto &value : container) *addresses++ = reinterpret_cast<std::uintptr_t>(&value);
}

struct list {
    static inline std::list<payload> all;

    static void build()
    {
        for (std::size_t i = 0; i < objects; i++) all.push_back(payload{i, i});
    }
    static std::uint64_t walk()
    {
        std::uint64_t sum = 0;
        for (const payload &value : all) sum += value.first;
        return sum;
    }
    static void churn()
    {
        const auto before = random_state;
        for (auto at = all.begin(); at != all.end();) at = coin() ? all.erase(at) : std::next(at);
        /* The same throws tell where a node is missing. */
        random_state = before;
        auto at = all.begin();
        for (std::size_t i = 0; i < objects; i++) {
            if (coin())
                all.insert(at, payload{i, i});
            else
                ++at;
        }
    }
    static void clear() { all.clear(); }
    static void places(std::uintptr_t *addresses) { node_places(all, addresses); }
};

template <typename Map> struct keyed {
    static inline Map all;

    static void build()
    {
        while (all.size() < objects) all.emplace(next_random(), all.size());
    }
    static std::uint64_t walk()
    {
        std::uint64_t sum = 0;
        for (const auto &entry : all) sum += entry.second;
        return sum;
    }
    static void churn()
    {
        for (auto at = all.begin(); at != all.end();) at = coin() ? all.erase(at) : std::next(at);
        build();
    }
    /* The bucket array goes as well. */
    static void clear() { all = Map(); }
    static void places(std::uintptr_t *addresses) { node_places(all, addresses); }
};

struct strings {
    static inline std::vector<std::string> all;

    static std::string text() { return std::string(24 + (next_random() >> 40) % 128, 'x'); }
    static void build()
    {
        for (std::size_t i = 0; i < objects; i++) all.push_back(text());
    }
    static std::uint64_t walk()
    {
        std::uint64_t sum = 0;
        for (const std::string &one : all) sum += static_cast<unsigned char>(one[0]);
        return sum;
    }
    static void churn()
    {
        for (std::string &one : all)
            if (coin()) std::string().swap(one);
        for (std::string &one : all)
            if (one.empty()) one = text();
    }
    static void clear() { std::vector<std::string>().swap(all); }
    static void places(std::uintptr_t *addresses)
    {
        for (const std::string &one : all) *addresses++ = reinterpret_cast<std::uintptr_t>(one.data());
    }
};

template <typename Container> void run(std::size_t halves)
{
    const subject measured = {objects,          halves,           Container::build, Container::walk,
                              Container::churn, Container::clear, Container::places};
    measure(&measured);
}

} // namespace

int main(int argc, char **argv)
{
    const std::string name = argc > 1 ? argv[1] : "";
    if (argc > 2) objects = std::strtoul(argv[2], nullptr, 10);
    const std::size_t halves = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 4;
    if (name == "list")
        run<list>(halves);
    else if (name == "map")
        run<keyed<std::map<std::uint64_t, std::uint64_t>>>(halves);
    else if (name == "unordered")
        run<keyed<std::unordered_map<std::uint64_t, std::uint64_t>>>(halves);
    else if (name == "strings")
        run<strings>(halves);
    else
        fail("containers: list, map, unordered or strings");
    return 0;
}
