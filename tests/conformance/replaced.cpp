/*
 * A program that replaces only the two basic operators, as [replacement.functions] allows.
 *
 * Every other form must then call them through the standard library's defaults
 * ([new.delete.single], [new.delete.array]). A preloaded library that served the array, nothrow or
 * sized forms itself would return blocks that this program's delete does not know. A header in each
 * block tells them apart.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

namespace {

struct Header {
    std::size_t mark, size;
};

constexpr std::size_t LIVE = 0x6c697665626c6f63, DEAD = 0x64656164626c6f63;
long made, ended;

[[noreturn]] void fail(const char *why) {
    std::fprintf(stderr, "replaced.cpp: does not hold: %s\n", why);
    std::_Exit(1);
}

void expect(bool holds, const char *why) {
    if (!holds) fail(why);
}

} // namespace

void *operator new(std::size_t size) {
    auto *header = static_cast<Header *>(std::malloc(sizeof(Header) + size));
    if (!header) throw std::bad_alloc();
    *header = {LIVE, size};
    made++;
    return header + 1;
}

void operator delete(void *p) noexcept {
    if (!p) return;
    auto *header = static_cast<Header *>(p) - 1;
    if (header->mark != LIVE) fail("the program's delete got a block of the program's new");
    header->mark = DEAD;
    ended++;
    std::free(header);
}

int main() {
    long before = made;
    void *p[] = {::operator new(100), ::operator new[](100), ::operator new(100, std::nothrow),
                 ::operator new[](100, std::nothrow)};
    expect(made == before + 4, "all four forms of new came to the program's");
    before = ended;
    ::operator delete(p[0], std::size_t{100});
    ::operator delete[](p[1], std::size_t{100});
    ::operator delete(p[2], std::nothrow);
    ::operator delete[](p[3]);
    expect(ended == before + 4, "all forms of delete came to the program's");

    /* Code of the standard library, compiled elsewhere: a stable sort allocates its buffer by
     * nothrow new. */
    std::vector<std::string> words;
    for (int i = 0; i < 20000; i++) words.push_back("a word that is longer than sixteen bytes " + std::to_string(i * 7919 % 20000));
    std::stable_sort(words.begin(), words.end());
    expect(std::is_sorted(words.begin(), words.end()), "the words are sorted");
    volatile std::size_t absurd = static_cast<std::size_t>(-1) / 4;
    expect(::operator new(absurd, std::nothrow) == nullptr, "bad_alloc of the program's new becomes null");
    std::puts("operators_replaced ok");
}
