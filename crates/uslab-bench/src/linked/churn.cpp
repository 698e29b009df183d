/*
 * Nodes of the standard containers that come and go, by allocator: suites/linked.rs compiles
 * this when the benchmark runs.
 *
 *   PROGRAM OUT ROW NODES ROUNDS ROUND_US
 *   ROW: list-fifo | list-random | map-random | unordered-random |
 *        list-build | map-build | unordered-build
 *
 *   *-fifo     NODES live; a step appends a node and removes the first
 *   *-random   NODES live; a step erases one of them at random (maps: looks it up by its key) and
 *              puts in another, of a key of 64 random bits
 *   *-build    a step is a node of a container that is filled with NODES and destroyed; maps by
 *              random keys, bucket arrays growing
 *
 * Lanes: the default allocator (operator new on glibc's malloc), std::pmr's unsynchronized pool,
 * which is for one thread at a time and gives nothing back, uslab::allocator and std::pmr
 * containers on uslab::memory_resource. And the churn without allocation: the container's own work,
 * which is in every lane, by moving the same node (splice, extract and insert). All lanes see the
 * same keys in the same order.
 *
 * The program has one thread, and glibc's malloc leaves out its locks while that is so. A step of
 * the random rows is mostly misses and comparisons of the container; rows are not made smaller or
 * keys friendlier to show more of the allocator.
 *
 * Lanes take turns, round by round. A quarter of each round runs before the clock starts, since the
 * lanes before have emptied the processor's caches. OUT gets a line a lane: its name, and ns a step
 * of every round. Complaints are one line on standard error.
 */
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <unistd.h>

#include <uslab.hpp>

namespace {

constexpr unsigned limit_s = 300;

/* Marsaglia's xorshift: three shifts in registers. */
class random_numbers {
public:
    std::uint64_t next()
    {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }
    std::size_t below(std::size_t end) { return static_cast<std::size_t>(((next() >> 32) * end) >> 32); }

private:
    std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

struct payload {
    std::uint64_t first, second;
};

template <typename Container> Container make(std::pmr::memory_resource *resource)
{
    using allocator = typename Container::allocator_type;
    if constexpr (std::is_constructible_v<allocator, std::pmr::memory_resource *>)
        return Container(allocator(resource));
    else
        return Container();
}

/* What a lane does in a round. */
struct work {
    virtual ~work() = default;
    virtual void steps(std::size_t n) = 0;
};

template <typename List, bool Allocates> struct list_fifo final : work {
    list_fifo(std::size_t nodes, std::pmr::memory_resource *resource) : list(make<List>(resource))
    {
        for (std::size_t i = 0; i < nodes; i++) list.push_back(payload{i, i});
    }
    void steps(std::size_t n) override
    {
        for (std::size_t i = 0; i < n; i++) {
            if constexpr (Allocates) {
                list.push_back(payload{i, i});
                list.pop_front();
            } else {
                list.splice(list.end(), list, list.begin());
                list.back() = payload{i, i};
            }
        }
    }
    List list;
};

template <typename List, bool Allocates> struct list_random final : work {
    list_random(std::size_t nodes, std::pmr::memory_resource *resource) : list(make<List>(resource)), places(nodes)
    {
        for (std::size_t i = 0; i < nodes; i++) places[i] = list.insert(list.end(), payload{i, i});
    }
    void steps(std::size_t n) override
    {
        for (std::size_t i = 0; i < n; i++) {
            auto &place = places[random.below(places.size())];
            if constexpr (Allocates) {
                list.erase(place);
                place = list.insert(list.end(), payload{i, i});
            } else {
                list.splice(list.end(), list, place);
                *place = payload{i, i};
            }
        }
    }
    List list;
    std::vector<typename List::iterator> places;
    random_numbers random;
};

template <typename Map, bool Allocates> struct map_random final : work {
    map_random(std::size_t nodes, std::pmr::memory_resource *resource) : map(make<Map>(resource)), keys(nodes)
    {
        for (auto &key : keys) map.emplace(key = random.next(), 0);
    }
    void steps(std::size_t n) override
    {
        for (std::size_t i = 0; i < n; i++) {
            auto &key = keys[random.below(keys.size())];
            if constexpr (Allocates) {
                map.erase(key);
                map.emplace(key = random.next(), i);
            } else {
                auto node = map.extract(key);
                node.key() = key = random.next();
                node.mapped() = i;
                map.insert(std::move(node));
            }
        }
    }
    Map map;
    std::vector<std::uint64_t> keys;
    random_numbers random;
};

template <typename Container> struct build final : work {
    build(std::size_t nodes, std::pmr::memory_resource *resource) : nodes_each(nodes), resource_of_all(resource) {}
    void steps(std::size_t n) override
    {
        for (std::size_t done = 0; done < n; done += nodes_each) {
            auto container = make<Container>(resource_of_all);
            for (std::size_t i = 0; i < nodes_each; i++) {
                if constexpr (std::is_same_v<typename Container::value_type, payload>)
                    container.push_back(payload{i, i});
                else
                    container.emplace(random.next(), i);
            }
        }
    }
    std::size_t nodes_each;
    std::pmr::memory_resource *resource_of_all;
    random_numbers random;
};

using key = std::uint64_t;
using pair = std::pair<const key, std::uint64_t>;

/* The three containers on an allocator. */
template <template <typename> class Allocator> struct on {
    using list = std::list<payload, Allocator<payload>>;
    using map = std::map<key, std::uint64_t, std::less<key>, Allocator<pair>>;
    using unordered = std::unordered_map<key, std::uint64_t, std::hash<key>, std::equal_to<key>, Allocator<pair>>;
};

/* A row's work on the containers of `On`; null where the row is unknown, or has no such work. */
template <typename On, bool Allocates>
std::unique_ptr<work> work_of(const std::string &row, std::size_t nodes, std::pmr::memory_resource *resource)
{
    if (row == "list-fifo") return std::make_unique<list_fifo<typename On::list, Allocates>>(nodes, resource);
    if (row == "list-random") return std::make_unique<list_random<typename On::list, Allocates>>(nodes, resource);
    if (row == "map-random") return std::make_unique<map_random<typename On::map, Allocates>>(nodes, resource);
    if (row == "unordered-random") return std::make_unique<map_random<typename On::unordered, Allocates>>(nodes, resource);
    if constexpr (Allocates) {
        if (row == "list-build") return std::make_unique<build<typename On::list>>(nodes, resource);
        if (row == "map-build") return std::make_unique<build<typename On::map>>(nodes, resource);
        if (row == "unordered-build") return std::make_unique<build<typename On::unordered>>(nodes, resource);
    }
    return nullptr;
}

struct lane {
    const char *name;
    std::unique_ptr<work> work_done;
    std::size_t steps = 0;
    std::vector<double> ns = {};
};

double timed_ns(work &work_done, std::size_t steps)
{
    auto start = std::chrono::steady_clock::now();
    work_done.steps(steps);
    std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    /* A coarse clock may not have moved. */
    return std::max(took.count(), 1.0);
}

/* How many steps take `round_ns`, in multiples of `unit`; finding out is the warm-up as well. */
std::size_t steps_for(work &work_done, std::size_t unit, double round_ns)
{
    for (std::size_t steps = unit;; steps *= 2) {
        double took = timed_ns(work_done, steps);
        for (int i = 0; i < 2; i++) took = std::min(took, timed_ns(work_done, steps));
        if (took * 4 < round_ns) continue;
        auto units = static_cast<std::size_t>(static_cast<double>(steps / unit) * round_ns / took);
        return std::max<std::size_t>(units, 1) * unit;
    }
}

int run(int argc, char **argv)
{
    if (argc != 6) throw std::runtime_error("usage: OUT ROW NODES ROUNDS ROUND_US");
    const std::string row = argv[2];
    const std::size_t nodes = std::stoul(argv[3]), rounds = std::stoul(argv[4]);
    const double round_ns = std::stod(argv[5]) * 1e3;
    if (nodes == 0 || rounds == 0) throw std::runtime_error("a number is out of range");
    /* The waiting thread has no limit of its own. */
    alarm(limit_s);

    std::pmr::unsynchronized_pool_resource pool;
    uslab::memory_resource resource;
    std::vector<lane> lanes;
    auto add = [&](const char *name, std::unique_ptr<work> done) {
        if (done) lanes.push_back(lane{name, std::move(done)});
    };
    add("std::allocator", work_of<on<std::allocator>, true>(row, nodes, nullptr));
    add("uslab::allocator", work_of<on<uslab::allocator>, true>(row, nodes, nullptr));
    add("uslab::memory_resource", work_of<on<std::pmr::polymorphic_allocator>, true>(row, nodes, &resource));
    add("pmr pool, one thread", work_of<on<std::pmr::polymorphic_allocator>, true>(row, nodes, &pool));
    add("the container alone", work_of<on<std::allocator>, false>(row, nodes, nullptr));
    if (lanes.empty()) throw std::runtime_error("no such row: " + row);

    const bool whole = row.find("-build") != std::string::npos;
    const std::size_t unit = whole ? nodes : 1;
    for (auto &lane : lanes) lane.steps = steps_for(*lane.work_done, unit, round_ns);
    for (std::size_t round = 0; round < rounds; round++) {
        for (std::size_t turn = 0; turn < lanes.size(); turn++) {
            auto &lane = lanes[(round + turn) % lanes.size()];
            lane.work_done->steps(std::max(lane.steps / 4, unit));
            lane.ns.push_back(timed_ns(*lane.work_done, lane.steps) / static_cast<double>(lane.steps));
        }
    }

    std::FILE *out = std::fopen(argv[1], "w");
    if (out == nullptr) throw std::runtime_error("the results cannot be written");
    for (const auto &lane : lanes) {
        std::fputs(lane.name, out);
        char before = '\t';
        for (double ns : lane.ns) {
            std::fprintf(out, "%c%.6f", before, ns);
            before = ' ';
        }
        std::fputc('\n', out);
    }
    if (std::fclose(out) != 0) throw std::runtime_error("the results cannot be written");
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    try {
        return run(argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
