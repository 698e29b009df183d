/* A plug-in of a program in C. Nothing else in the process uses the C++ library. */
#include <cstdio>
#include <new>
#include <thread>

/* The loader holds its lock while it runs this: a thread that needed the lock would never end. */
static const bool began = (std::thread([] { delete[] new char *[4]; }).join(), true);

extern "C" int run() {
    volatile std::size_t absurd = static_cast<std::size_t>(-1) / 4;
    int caught = 0, handled = 0;
    if (!began) return 1;
    static int *calls;
    calls = &handled;
    try {
        std::printf("%p\n", ::operator new(absurd));
    } catch (const std::bad_alloc &) {
        caught++;
    }
    std::set_new_handler([] {
        ++*calls;
        std::set_new_handler(nullptr);
    });
    if (::operator new(absurd, std::nothrow)) return 1;
    return caught == 1 && handled == 1 ? 0 : 1;
}
