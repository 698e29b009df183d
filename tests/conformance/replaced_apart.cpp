/*
 * A program that replaces the array and the aligned operators apart from the single ones.
 *
 * The standard's sized and nothrow forms of each kind call the basic form of the same kind
 * ([new.delete.single], [new.delete.array]). A mark before each block tells which basic form made
 * it; the delete of another kind must not get it.
 */
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

namespace {

enum : std::size_t { SINGLE = 1, ARRAY, ALIGNED, ALIGNED_ARRAY };

constexpr std::size_t ROOM = 64;

[[noreturn]] void fail(const char *why) {
    std::fprintf(stderr, "replaced_apart.cpp: does not hold: %s\n", why);
    std::_Exit(1);
}

void *make(std::size_t kind, std::size_t size, std::size_t align) {
    auto *start = static_cast<char *>(std::malloc(ROOM + size + align));
    if (!start) throw std::bad_alloc();
    auto address = reinterpret_cast<std::size_t>(start) + ROOM + align - 1;
    auto *block = reinterpret_cast<std::size_t *>(address - address % align);
    block[-1] = kind;
    block[-2] = reinterpret_cast<std::size_t>(start);
    return block;
}

void end(std::size_t kind, void *p) {
    if (!p) return;
    auto *block = static_cast<std::size_t *>(p);
    if (block[-1] != kind) fail("each delete gets the blocks of its own kind");
    std::free(reinterpret_cast<void *>(block[-2]));
}

template <std::size_t ALIGN> struct alignas(ALIGN) Item {
    char bytes[ALIGN];
    Item() { asm volatile("" ::: "memory"); }
    ~Item() { asm volatile("" ::: "memory"); }
};

template <std::size_t ALIGN> void use() {
    using T = Item<ALIGN>;
    for (int n = 1; n < 100; n += 7) {
        delete new T;
        delete[] new T[n];
        delete new (std::nothrow) T;
        delete[] new (std::nothrow) T[n];
        std::vector<T> some(n);
    }
}

} // namespace

void *operator new[](std::size_t size) { return make(ARRAY, size, 16); }
void operator delete[](void *p) noexcept { end(ARRAY, p); }
void *operator new(std::size_t size, std::align_val_t align) { return make(ALIGNED, size, static_cast<std::size_t>(align)); }
void operator delete(void *p, std::align_val_t) noexcept { end(ALIGNED, p); }
#ifdef ALL
void *operator new(std::size_t size) { return make(SINGLE, size, 16); }
void operator delete(void *p) noexcept { end(SINGLE, p); }
void *operator new[](std::size_t size, std::align_val_t align) { return make(ALIGNED_ARRAY, size, static_cast<std::size_t>(align)); }
void operator delete[](void *p, std::align_val_t) noexcept { end(ALIGNED_ARRAY, p); }
#endif

int main() {
    use<8>();
    use<64>();
    use<4096>();
    ::operator delete(::operator new(100, std::align_val_t{64}, std::nothrow), std::align_val_t{64}, std::nothrow);
    ::operator delete[](::operator new[](100, std::align_val_t{64}, std::nothrow), std::align_val_t{64}, std::nothrow);
    ::operator delete[](::operator new[](100, std::nothrow), std::nothrow);
    volatile std::size_t absurd = static_cast<std::size_t>(-1) / 4;
    if (::operator new[](absurd, std::nothrow)) fail("bad_alloc of the program's new becomes null");
    std::puts("operators_replaced ok");
}
