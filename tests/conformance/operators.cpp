/*
 * Every form of C++'s operator new and delete: plain, array, nothrow, sized, aligned ([new.delete],
 * C++17).
 *
 * The checks call them by name, because a compiler may elide new-expressions.
 */
#include "check.h"

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::align_val_t;
using std::nothrow;

bool is_aligned(const void *p, std::size_t align) {
    return (reinterpret_cast<std::uintptr_t>(p) & (align - 1)) == 0;
}

/* Runs `use` over sizes from 0 to 4 MiB, and over alignments. */
template <class Use> void over_sizes(Use use) {
    for (std::size_t n = 0; n < (4 << 20); n = n < 300 ? n + 1 : n + n / 3) use(n);
}

void check_block(void *p, std::size_t n, std::size_t align) {
    CHECK(p != nullptr && is_aligned(p, align), "%zu bytes at %zu: %p", n, align, p);
    fill(p, n, n);
    CHECK(intact(p, n, n));
}

void every_plain_form() {
    over_sizes([](std::size_t n) {
        void *p[] = {::operator new(n),          ::operator new(n),          ::operator new(n, nothrow),
                     ::operator new(n, nothrow), ::operator new[](n),        ::operator new[](n),
                     ::operator new[](n, nothrow), ::operator new[](n, nothrow)};
        for (void *block : p) check_block(block, n, 16);
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < i; j++) CHECK(p[i] != p[j], "two live blocks at one place");
        ::operator delete(p[0]);
        ::operator delete(p[1], n);
        ::operator delete(p[2], nothrow);
        ::operator delete(p[3], n);
        ::operator delete[](p[4]);
        ::operator delete[](p[5], n);
        ::operator delete[](p[6], nothrow);
        ::operator delete[](p[7], n);
    });
    ::operator delete(nullptr);
    ::operator delete[](nullptr);
    ::operator delete(nullptr, std::size_t{10});
    ::operator delete[](nullptr, std::size_t{10});
    ::operator delete(nullptr, nothrow);
    ::operator delete[](nullptr, nothrow);
}

void every_aligned_form() {
    for (std::size_t align = 1; align <= (2 << 20); align *= 4) {
        auto a = align_val_t(align);
        for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{24}, std::size_t{100}, std::size_t{5000}, align, align + 1}) {
            void *p[] = {::operator new(n, a),          ::operator new(n, a),          ::operator new(n, a, nothrow),
                         ::operator new[](n, a),        ::operator new[](n, a),        ::operator new[](n, a, nothrow)};
            for (void *block : p) check_block(block, n, align);
            ::operator delete(p[0], a);
            ::operator delete(p[1], n, a);
            ::operator delete(p[2], a, nothrow);
            ::operator delete[](p[3], a);
            ::operator delete[](p[4], n, a);
            ::operator delete[](p[5], a, nothrow);
        }
        ::operator delete(nullptr, a);
        ::operator delete[](nullptr, a);
        ::operator delete(nullptr, std::size_t{10}, a);
        ::operator delete[](nullptr, a, nothrow);
    }
}

/* The eight forms of new, with an absurd size. Returns -1 for bad_alloc, otherwise whether a block
 * was returned. */
int ask(int way, std::size_t n) {
    auto a = align_val_t(64);
    try {
        switch (way) {
        case 0: return ::operator new(n) != nullptr;
        case 1: return ::operator new[](n) != nullptr;
        case 2: return ::operator new(n, a) != nullptr;
        case 3: return ::operator new[](n, a) != nullptr;
        case 4: return ::operator new(n, nothrow) != nullptr;
        case 5: return ::operator new[](n, nothrow) != nullptr;
        case 6: return ::operator new(n, a, nothrow) != nullptr;
        default: return ::operator new[](n, a, nothrow) != nullptr;
        }
    } catch (const std::bad_alloc &error) {
        return error.what() != nullptr ? -1 : -2;
    }
}

const std::size_t absurd_sizes[] = {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX / 2 + 1, PTRDIFF_MAX, std::size_t{1} << 62};

void absurd_sizes_throw() {
    for (std::size_t n : absurd_sizes)
        for (int way = 0; way < 8; way++) {
            int got = ask(way, opaque(n)), wanted = way < 4 ? -1 : 0;
            CHECK(got == wanted, "way %d, %zu bytes: %d", way, n, got);
        }
    CHECK(churn(10000, 3));
}

int handler_calls;

void handle_three_times() {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

void handle_by_throwing() {
    handler_calls++;
    throw std::bad_alloc();
}

struct Other : std::bad_alloc {};

void handle_by_throwing_other() {
    throw Other();
}

/* [new.delete.single]: the handler is called repeatedly until it gives up; the nothrow forms turn
 * its exception into null. */
void handler_is_called() {
    for (std::size_t n : absurd_sizes)
        for (int way = 0; way < 8; way++) {
            handler_calls = 0;
            std::set_new_handler(handle_three_times);
            CHECK(ask(way, opaque(n)) == (way < 4 ? -1 : 0), "way %d", way);
            CHECK(handler_calls == 3, "way %d: called %d times", way, handler_calls);
            handler_calls = 0;
            std::set_new_handler(handle_by_throwing);
            CHECK(ask(way, opaque(n)) == (way < 4 ? -1 : 0), "way %d, a handler that throws", way);
            CHECK(handler_calls == 1, "way %d: called %d times", way, handler_calls);
        }
    std::set_new_handler(handle_by_throwing_other);
    bool caught = false;
    try {
        ::operator delete(::operator new(opaque(SIZE_MAX)));
    } catch (const Other &) {
        caught = true;
    }
    CHECK(caught, "what the handler throws comes through operator new");
    std::set_new_handler(nullptr);
}

struct alignas(256) Wide {
    char bytes[300];
};

/* Typical use, with exceptions thrown from constructors, and from several threads. */
void in_use() {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([t] {
            std::map<std::string, std::vector<std::unique_ptr<Wide>>> map;
            for (int i = 0; i < 3000; i++) {
                auto &list = map[std::string(i % 70, 'k') + std::to_string(i % 500)];
                list.push_back(std::make_unique<Wide>());
                CHECK(is_aligned(list.back().get(), 256));
                if (i % 100 == t) map.erase(map.begin());
                try {
                    std::string text(std::size_t(i), 'x');
                    if (i % 10 == 0) throw std::runtime_error(text);
                } catch (const std::runtime_error &error) {
                    CHECK(std::string(error.what()).size() == std::size_t(i));
                }
            }
        });
    for (auto &thread : threads) thread.join();
    bool thrown = false;
    try {
        std::vector<char> v;
        v.reserve(opaque(PTRDIFF_MAX));
    } catch (const std::exception &) {
        thrown = true;
    }
    CHECK(thrown);
}

/* A static object: constructed before main, and destroyed after it. */
struct Static {
    std::vector<std::string> texts{std::string(100, 'a'), std::string(1000, 'b')};
    ~Static() {
        texts.push_back(std::string(10000, 'c'));
        if (texts[0] == std::string(100, 'a') && texts[1][999] == 'b') note(COUNT_STATIC);
    }
} statically;

} // namespace

extern "C" const struct check operator_checks[] = {
    {"operators_plain", every_plain_form},
    {"operators_aligned", every_aligned_form},
    {"operators_absurd_sizes", absurd_sizes_throw},
    {"operators_new_handler", handler_is_called},
    {"operators_in_use", in_use},
    {nullptr, nullptr},
};
